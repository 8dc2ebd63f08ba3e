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

from tilewright.dialects.combiners import COMBINERS, element_type


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
        combiner = StringAttr(parser.parse_str_literal())
        vectors = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        position = parser.pos
        kinds = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        parser.parse_keyword("to")
        results = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        operands = parser.resolve_operands(vectors, kinds, position)
        return cls.create(
            operands=operands, result_types=results, properties={"combiner": combiner}, attributes=attributes
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_string_literal(self.combiner.data)
        printer.print_string(" ")
        printer.print_list(self.inputs, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_list(self.inputs, lambda v: printer.print_attribute(v.type))
        printer.print_string(" to ")
        printer.print_list(self.outputs, lambda v: printer.print_attribute(v.type))

    def verify_(self) -> None:
        combiner = COMBINERS.get(self.combiner.data)
        if combiner is None:
            raise VerifyException(f"`loop.combine` has an unknown combiner `{self.combiner.data}`")
        if len(self.inputs) != combiner.arity:
            raise VerifyException(
                f"`loop.combine` has {len(self.inputs)} operands, `{self.combiner.data}` has {combiner.arity} slots"
            )
        kinds = [v.type for v in self.inputs]
        if len({k.get_shape() for k in kinds if isinstance(k, VectorType)}) != 1:
            raise VerifyException("`loop.combine` has operands with different numbers of lanes")
        if [r.type for r in self.outputs] != [element_type(k) for k in kinds]:
            raise VerifyException("`loop.combine` has results that are not the elements of its operands")
