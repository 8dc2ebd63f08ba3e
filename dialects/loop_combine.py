"""`loop.combine`: the lanes of a vectorized reduction's result become one scalar; see `dialects/loop.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import StringAttr, VectorType
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, traits_def, var_operand_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.combiners import element_type
from tilewright.dialects.loop_slots import parse_slots, print_slots, verify_slots


@irdl_op_definition
class CombineOp(IRDLOperation):
    """Combine the lanes of vectors, one vector per slot: `%m = loop.combine "max" %v : vector<16xf32> to f32`.

    `%x, %i = loop.combine "argmax" %v, %w : vector<16xf32>, vector<16xi64> to f32, i64`. Lanes are combined pairwise,
    the upper half with the lower, so the result does not depend on the target.
    """

    name = "loop.combine"
    inputs = var_operand_def(VectorType)
    outputs = var_result_def()
    combiner = prop_def(StringAttr)
    traits = traits_def(Pure())

    @staticmethod
    def get(combiner: str, vectors: Sequence[SSAValue]) -> CombineOp:
        """Combine the lanes of `vectors`, which hold one slot each."""
        return CombineOp.create(
            operands=vectors,
            result_types=[element_type(v.type) for v in vectors],
            properties={"combiner": StringAttr(combiner)},
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        combiner, vectors, attributes = parse_slots(parser)
        parser.parse_keyword("to")
        kinds = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        return cls.create(
            operands=vectors, result_types=kinds, properties={"combiner": combiner}, attributes=attributes
        )

    def print(self, printer: Printer) -> None:
        print_slots(printer, self.combiner, self.inputs, self.attributes)
        printer.print_string(" to ")
        printer.print_list(self.outputs, lambda v: printer.print_attribute(v.type))

    def verify_(self) -> None:
        verify_slots(self.name, self.combiner, self.inputs)
        kinds = [v.type for v in self.inputs]
        if len({k.get_shape() for k in kinds if isinstance(k, VectorType)}) != 1:
            raise VerifyException("`loop.combine` has operands with different numbers of lanes")
        if [r.type for r in self.outputs] != [element_type(k) for k in kinds]:
            raise VerifyException("`loop.combine` has results that are not the elements of its operands")
