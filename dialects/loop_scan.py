"""`loop.scan`: loops whose iterations run in order, and `loop.prefix`, what they make of it; see `dialects/loop.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, traits_def, var_operand_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, NoTerminator
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.combiners import element_type, slots_fit
from tilewright.dialects.loop_effects import NestEffect, PrefixEffect
from tilewright.dialects.loop_nest import InnerLoop
from tilewright.dialects.loop_slots import parse_slots, print_slots, verify_slots


@irdl_op_definition
class ScanOp(InnerLoop):
    """Loops inside a nest that run one iteration after the other, the last one fastest: `loop.scan (%k : 8) { ... }`.

    An iteration may load and overwrite what earlier ones stored. Stores that combine take turns, so they need not be
    atomic: iterations of the parallel loops around and inside never store to the same element.
    """

    name = "loop.scan"
    MAY_EXCEED_BLOCKS: ClassVar = True
    traits = traits_def(NoTerminator(), NestEffect())


@irdl_op_definition
class PrefixOp(IRDLOperation):
    """Combine a value with those of all earlier iterations of the scan: `%s = loop.prefix "sum" %v : f32`.

    A combiner with several slots takes and gives one value per slot: `%m, %i = loop.prefix "argmax" %v, %k : f32, i64`.
    """

    name = "loop.prefix"
    inputs = var_operand_def()
    outputs = var_result_def()
    combiner = prop_def(StringAttr)
    traits = traits_def(HasParent(ScanOp), PrefixEffect())

    @staticmethod
    def get(combiner: str, values: Sequence[SSAValue]) -> PrefixOp:
        """Combine `values`, which hold one slot each."""
        return PrefixOp.create(
            operands=values, result_types=[v.type for v in values], properties={"combiner": StringAttr(combiner)}
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        combiner, values, attributes = parse_slots(parser)
        kinds = [v.type for v in values]
        return cls.create(operands=values, result_types=kinds, properties={"combiner": combiner}, attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_slots(printer, self.combiner, self.inputs, self.attributes)

    def verify_(self) -> None:
        verify_slots(self.name, self.combiner, self.inputs)
        kinds = [v.type for v in self.inputs]
        if not slots_fit(self.combiner.data, [element_type(k) for k in kinds]):
            raise VerifyException(
                f"`loop.prefix` cannot combine {', '.join(map(str, kinds))} by `{self.combiner.data}`"
            )
        if [r.type for r in self.outputs] != kinds:
            raise VerifyException("`loop.prefix` has results that are not of the types of its operands")
