"""`loop.reduce` and the `loop.yield` that ends its body; see `dialects/loop.py`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Self

from xdsl.dialects.builtin import ArrayAttr, StringAttr, UnitAttr, i32
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.combiners import COMBINERS, slots_fit
from tilewright.dialects.loop_base import (
    Bounds,
    Loop,
    integers,
    loop_block,
    loop_properties,
    parse_loops,
    parse_region,
    print_loops,
)
from tilewright.dialects.loop_effects import NestEffect


@lru_cache(maxsize=1024)
def _strings(values: tuple[str, ...]) -> Attribute:
    return ArrayAttr([StringAttr(value) for value in values])


@irdl_op_definition
class ReduceOp(Loop):
    """Reductions over the points of some loops.

    The body yields one value per slot of the combiners (`dialects/combiners.py`), which are combined over all
    iterations, starting from `init` or else from the combiners' identities. With `ordered` the combination follows the
    order of the loops. A lane that a mask turns off takes no part.

    `%s, %m = loop.reduce "sum", "max" (%k : 1024) init(%a, %b) { ... loop.yield %u, %v : f32, f32 } : f32, f32`
    """

    name = "loop.reduce"
    bound_operands = var_operand_def()  # declared anew to come before `init`
    init = var_operand_def()
    combiners = prop_def(ArrayAttr[StringAttr])
    ordered = opt_prop_def(UnitAttr)
    results_ = var_result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(NestEffect())

    @staticmethod
    def get(
        combiners: Sequence[str],
        bounds: Bounds,
        slots: Sequence[Attribute],
        *,
        init: Sequence[SSAValue] = (),
        masked: bool = False,
        ordered: bool = False,
        block: Block | None = None,
    ) -> ReduceOp:
        """Make a reduction with results of types `slots`, and with `block` for its body, or else an empty one."""
        operands, properties = loop_properties(bounds, masked)
        properties["combiners"] = _strings(tuple(combiners))
        properties["operandSegmentSizes"] = integers(i32, (len(operands), len(init)))
        if ordered:
            properties["ordered"] = UnitAttr()
        region = Region(loop_block(bounds, masked) if block is None else block)
        return ReduceOp.create(operands=[*operands, *init], result_types=slots, properties=properties, regions=[region])

    @property
    def names(self) -> list[str]:
        """The names of the combiners."""
        return [c.data for c in self.combiners]

    @property
    def yielded(self) -> YieldOp:
        last = self.block.last_op
        assert isinstance(last, YieldOp)
        return last

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        ordered = parser.parse_optional_keyword("ordered") is not None
        names = [parser.parse_str_literal()]
        while parser.parse_optional_punctuation(",") is not None:
            names.append(parser.parse_str_literal())
        bounds, arguments, masked = parse_loops(parser)
        init: list[UnresolvedOperand] = []
        if parser.parse_optional_keyword("init") is not None:
            init = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        region = parse_region(parser, arguments)
        parser.parse_punctuation(":")
        position = parser.pos
        slots = [parser.parse_type()]
        while parser.parse_optional_punctuation(",") is not None:
            slots.append(parser.parse_type())
        operands, properties = loop_properties(bounds, masked)
        properties["combiners"] = _strings(tuple(names))
        if ordered:
            properties["ordered"] = UnitAttr()
        values: Sequence[SSAValue] = parser.resolve_operands(init, slots, position) if init else []
        return cls(
            operands=[operands, values],
            result_types=[slots],
            properties=properties,
            attributes=attributes.data if attributes is not None else {},
            regions=[region],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ordered " if self.ordered is not None else " ")
        printer.print_list(self.names, printer.print_string_literal)
        printer.print_string(" ")
        print_loops(printer, self)
        if self.init:
            printer.print_string(" init(")
            printer.print_list(self.init, printer.print_operand)
            printer.print_string(")")
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)
        printer.print_string(" : ")
        printer.print_list(self.results_, lambda r: printer.print_attribute(r.type))

    def verify_(self) -> None:
        self.verify_loops()
        if len(self.block.args) != self.loop_arguments():
            raise VerifyException(
                f"`loop.reduce` has {len(self.block.args)} block arguments, expected {self.loop_arguments()}"
            )
        unknown = [c for c in self.names if c not in COMBINERS]
        if unknown:
            raise VerifyException(f"`loop.reduce` has an unknown combiner `{unknown[0]}`")
        slots = sum(COMBINERS[c].arity for c in self.names)
        kinds = [r.type for r in self.results_]
        if len(kinds) != slots:
            raise VerifyException(f"`loop.reduce` has {len(kinds)} results, its combiners have {slots} slots")
        start = 0
        for name in self.names:
            slot_types = kinds[start : start + COMBINERS[name].arity]
            if not slots_fit(name, slot_types):
                raise VerifyException(f"`loop.reduce` cannot combine {', '.join(map(str, slot_types))} by `{name}`")
            start += len(slot_types)
        if self.init and [v.type for v in self.init] != kinds:
            raise VerifyException("`loop.reduce` has `init` operands that do not match its results")
        last = self.block.last_op
        if not isinstance(last, YieldOp) or [v.type for v in last.values] != kinds:
            raise VerifyException(f"`loop.reduce` must yield values of types {', '.join(map(str, kinds))}")


@irdl_op_definition
class YieldOp(IRDLOperation):
    """End the body of a reduction with the values of one iteration: `loop.yield %u, %v : f32, f32`."""

    name = "loop.yield"
    values = var_operand_def()
    traits = traits_def(IsTerminator(), Pure(), HasParent(ReduceOp))
    assembly_format = "$values attr-dict `:` type($values)"

    @staticmethod
    def get(*values: SSAValue) -> YieldOp:
        return YieldOp.create(operands=values)
