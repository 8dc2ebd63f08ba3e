"""The loops of the `loop` dialect that have no results: `loop.nest`, `loop.for`; see `dialects/loop.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Self

from xdsl.dialects.builtin import (
    DenseArrayBase,
    TensorType,
    i32,
    i64,
)
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    opt_prop_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.loop_access import StoreOp, element_in_register, verify_layout
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


@irdl_op_definition
class NestOp(Loop):
    """A tree of loops that computes whole tensors.

    On tensors, each block argument of `outs` is a destination that the body stores to, and becomes the result of the
    same position: every element is stored exactly once, unless the stores combine. What a mask keeps from being stored
    is undefined, and nobody may use it. A destination `%o = %x : T` begins as a copy of the tensor `%x`, and the
    elements that the body does not store stay what they are there. On buffers there are no results. All iterations are
    independent; an iteration may load from its own destinations only what it stored before.

    Without loops, `loop.nest ()`, the body runs once.
    """

    name = "loop.nest"
    bound_operands = var_operand_def()  # declared anew to come before `initial`
    initial = var_operand_def(TensorType)
    starts = opt_prop_def(DenseArrayBase.constr(i64))
    outputs = var_result_def(TensorType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(NoTerminator(), NestEffect())

    @staticmethod
    def get(
        bounds: Bounds,
        outs: Sequence[Attribute] = (),
        *,
        masked: bool = False,
        initial: Mapping[int, SSAValue] = MappingProxyType({}),
    ) -> NestOp:
        """Make a nest with an empty body whose results have the types `outs`.

        `initial` has, by their positions, what destinations begin as.
        """
        operands, properties = nest_properties(bounds, masked, initial)
        region = Region(loop_block(bounds, masked, outs))
        return NestOp.create(operands=operands, result_types=outs, properties=properties, regions=[region])

    @property
    def destinations(self) -> Sequence[SSAValue]:
        """The block arguments that stand for the results while they are being computed."""
        return self.block.args[self.loop_arguments() :]

    @property
    def begins(self) -> dict[int, SSAValue]:
        """What destinations begin as, by their positions."""
        positions = () if self.starts is None else self.starts.get_values()
        return {int(i): value for i, value in zip(positions, self.initial, strict=True)}

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        bounds, arguments, masked = parse_loops(parser)
        outs: list[tuple[Parser.Argument, SSAValue | None]] = []
        if parser.parse_optional_keyword("outs") is not None:
            outs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_out(parser))
        attributes = parser.parse_optional_attr_dict_with_keyword()
        region = parse_region(parser, [*arguments, *(o for o, _ in outs)])
        initial = {i: start for i, (_, start) in enumerate(outs) if start is not None}
        operands, properties = nest_properties(bounds, masked, initial)
        return cls.create(
            operands=operands,
            result_types=[o.type for o, _ in outs],
            properties=properties,
            attributes=attributes.data if attributes is not None else {},
            regions=[region],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_loops(printer, self)
        if self.outputs:
            begins = self.begins
            outs = [(destination, begins.get(i)) for i, destination in enumerate(self.destinations)]
            printer.print_string(" outs(")
            printer.print_list(outs, lambda out: _print_out(printer, *out))
            printer.print_string(")")
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)

    def verify_(self) -> None:
        self.verify_loops()
        found = [a.type for a in self.destinations]
        if found != [r.type for r in self.outputs]:
            kinds = ", ".join(map(str, found)) or "none"
            raise VerifyException(f"`loop.nest` has {len(self.outputs)} results and destinations of types {kinds}")
        for destination in self.destinations:
            verify_layout(destination.type)
            if not any(isinstance(use.operation, StoreOp) for use in destination.uses):
                raise VerifyException("`loop.nest` never stores to one of its destinations")
        self._verify_starts()

    def _verify_starts(self) -> None:
        positions = [] if self.starts is None else [int(i) for i in self.starts.get_values()]
        if len(positions) != len(self.initial) or any(not 0 <= i < len(self.outputs) for i in positions):
            raise VerifyException(
                f"`loop.nest` has {len(self.initial)} tensors for its destinations {positions} to begin as, "
                f"and {len(self.outputs)} destinations"
            )
        for i, start in self.begins.items():
            kind = self.outputs[i].type
            sizes = verify_layout(start.type).sizes
            if sizes != verify_layout(kind).sizes or element_in_register(start.type) != element_in_register(kind):
                raise VerifyException(f"`loop.nest` has a destination of type {kind} that begins as {start.type}")


def nest_properties(
    bounds: Bounds, masked: bool, initial: Mapping[int, SSAValue]
) -> tuple[list[SSAValue], dict[str, Attribute]]:
    """Return the operands and properties of a nest, whose destinations begin as `initial` says by position."""
    operands, properties = loop_properties(bounds, masked)
    properties["operandSegmentSizes"] = integers(i32, (len(operands), len(initial)))
    if initial:
        properties["starts"] = integers(i64, tuple(initial))
    return [*operands, *initial.values()], properties


def _parse_out(parser: Parser) -> tuple[Parser.Argument, SSAValue | None]:
    """Parse `%o : T` or `%o = %x : T`, where `%x` has type T or, with another layout, `%o = %x : U as T`."""
    argument = parser.parse_argument(expect_type=False)
    start = parser.parse_unresolved_operand() if parser.parse_optional_punctuation("=") is not None else None
    parser.parse_punctuation(":")
    kind = parser.parse_type()
    if start is None:
        return argument.resolve(kind), None
    begins_as = parser.resolve_operand(start, kind)
    return argument.resolve(parser.parse_type() if parser.parse_optional_keyword("as") else kind), begins_as


def _print_out(printer: Printer, destination: SSAValue, start: SSAValue | None) -> None:
    printer.print_operand(destination)
    if start is not None:
        printer.print_string(" = ")
        printer.print_operand(start)
        if start.type != destination.type:
            printer.print_string(" : ")
            printer.print_attribute(start.type)
            printer.print_string(" as ")
            printer.print_attribute(destination.type)
            return
    printer.print_string(" : ")
    printer.print_attribute(destination.type)


class InnerLoop(Loop):
    """What the loops inside a nest that have no results share."""

    @classmethod
    def get(cls, bounds: Bounds, *, masked: bool = False) -> Self:
        """Make a loop with an empty body."""
        operands, properties = loop_properties(bounds, masked)
        return cls.create(operands=operands, properties=properties, regions=[Region(loop_block(bounds, masked))])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        bounds, arguments, masked = parse_loops(parser)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        region = parse_region(parser, arguments)
        operands, properties = loop_properties(bounds, masked)
        return cls.create(
            operands=operands,
            properties=properties,
            attributes=attributes.data if attributes is not None else {},
            regions=[region],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_loops(printer, self)
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)

    def verify_(self) -> None:
        self.verify_loops()
        if len(self.block.args) != self.loop_arguments():
            raise VerifyException(
                f"`{self.name}` has {len(self.block.args)} block arguments, expected {self.loop_arguments()}"
            )


@irdl_op_definition
class ForOp(InnerLoop):
    """Parallel loops inside a nest: `loop.for (%k : 1024) { ... }`. All iterations are independent."""

    name = "loop.for"
    traits = traits_def(NoTerminator(), NestEffect())
