"""Operations of the `tt` dialect that put tensors together, take them apart and pick elements; see `dialects/tt.py`."""

from __future__ import annotations

from typing import Self

from xdsl.dialects.builtin import I32, IntegerAttr, TensorType, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.arith_tensor import element_of
from tilewright.dialects.tt_types import GivesBlocks, block_type, shape_of, verify_same


@irdl_op_definition
class CatOp(IRDLOperation):
    """One tensor behind another: `%t = tt.cat %a, %b : tensor<16xi32> -> tensor<32xi32>`; elements may be reordered."""

    name = "tt.cat"
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure(), GivesBlocks())

    @staticmethod
    def get(lhs: SSAValue, rhs: SSAValue) -> CatOp:
        kind = block_type(lhs)
        shape = kind.get_shape()
        return CatOp.create(
            operands=[lhs, rhs], result_types=[TensorType(kind.element_type, [2 * shape[0], *shape[1:]])]
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operands, kind, attributes = _parse_pair(parser)
        return cls.create(operands=operands, result_types=[kind], attributes=attributes)

    def print(self, printer: Printer) -> None:
        _print_pair(printer, self)

    def verify_(self) -> None:
        kind = block_type(self.lhs)
        shape = kind.get_shape()
        verify_same(self, "a second operand", self.rhs.type, kind)
        verify_same(self, "a result", self.result.type, TensorType(kind.element_type, [2 * shape[0], *shape[1:]]))


@irdl_op_definition
class JoinOp(IRDLOperation):
    """Two tensors in a new last dimension: `%t = tt.join %a, %b : tensor<16xf32> -> tensor<16x2xf32>`."""

    name = "tt.join"
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure(), GivesBlocks())

    @staticmethod
    def get(lhs: SSAValue, rhs: SSAValue) -> JoinOp:
        kind = block_type(lhs)
        return JoinOp.create(operands=[lhs, rhs], result_types=[TensorType(kind.element_type, [*kind.get_shape(), 2])])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operands, kind, attributes = _parse_pair(parser)
        return cls.create(operands=operands, result_types=[kind], attributes=attributes)

    def print(self, printer: Printer) -> None:
        _print_pair(printer, self)

    def verify_(self) -> None:
        kind = block_type(self.lhs)
        verify_same(self, "a second operand", self.rhs.type, kind)
        verify_same(self, "a result", self.result.type, TensorType(kind.element_type, [*kind.get_shape(), 2]))


def _parse_pair(parser: Parser) -> tuple[list[SSAValue], Attribute, dict[str, Attribute]]:
    """Parse two operands of one type, and the type of the result: `%a, %b : tensor<16xi32> -> tensor<32xi32>`."""
    lhs = parser.parse_unresolved_operand()
    parser.parse_punctuation(",")
    rhs = parser.parse_unresolved_operand()
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    kind = parser.parse_type()
    parser.parse_punctuation("->")
    operands = parser.resolve_operands([lhs, rhs], [kind, kind], parser.pos)
    return list(operands), parser.parse_type(), attributes


def _print_pair(printer: Printer, op: CatOp | JoinOp) -> None:
    printer.print_string(" ")
    printer.print_list(op.operands, printer.print_operand)
    printer.print_op_attributes(op.attributes)
    printer.print_string(" : ")
    printer.print_attribute(op.lhs.type)
    printer.print_string(" -> ")
    printer.print_attribute(op.result.type)


@irdl_op_definition
class SplitOp(IRDLOperation):
    """The two halves along the last dimension: `%a, %b = tt.split %t : tensor<16x2xf32> -> tensor<16xf32>`."""

    name = "tt.split"
    src = operand_def(TensorType)
    lhs = result_def(TensorType)
    rhs = result_def(TensorType)
    traits = traits_def(Pure(), GivesBlocks())

    @staticmethod
    def get(value: SSAValue) -> SplitOp:
        kind = block_type(value)
        half = TensorType(kind.element_type, kind.get_shape()[:-1])
        return SplitOp.create(operands=[value], result_types=[half, half])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        value = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        operand = parser.resolve_operand(value, parser.parse_type())
        parser.parse_punctuation("->")
        half = parser.parse_type()
        return cls.create(operands=[operand], result_types=[half, half], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.src)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.src.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.lhs.type)

    def verify_(self) -> None:
        kind = block_type(self.src)
        shape = kind.get_shape()
        if shape[-1:] != (2,):
            raise VerifyException(f"`tt.split` takes a tensor whose last dimension is 2, found {kind}")
        for result in self.results:
            verify_same(self, "a result", result.type, TensorType(kind.element_type, shape[:-1]))


@irdl_op_definition
class GatherOp(IRDLOperation):
    """Elements by their positions along an axis:
    `%t = tt.gather %x[%i] {axis = 1 : i32} : (tensor<16x64xf32>, tensor<16x8xi32>) -> tensor<16x8xf32>`.
    """

    name = "tt.gather"
    src = operand_def(TensorType)
    indices = operand_def(TensorType)
    axis = prop_def(IntegerAttr[I32])
    result = result_def(TensorType)
    traits = traits_def(Pure(), GivesBlocks())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$src `[` $indices `]` attr-dict `:` `(` type($src) `,` type($indices) `)` `->` type($result)"

    @staticmethod
    def get(value: SSAValue, indices: SSAValue, axis: int) -> GatherOp:
        return GatherOp.create(
            operands=[value, indices],
            result_types=[TensorType(element_of(value.type), shape_of(indices.type))],
            properties={"axis": IntegerAttr(axis, i32)},
        )

    def verify_(self) -> None:
        source, indices, axis = block_type(self.src), block_type(self.indices), self.axis.value.data
        shape, wanted = source.get_shape(), indices.get_shape()
        if not 0 <= axis < len(shape):
            raise VerifyException(f"`tt.gather` of {source} has axis {axis}, expected 0 to {len(shape) - 1}")
        if [*shape[:axis], *shape[axis + 1 :]] != [*wanted[:axis], *wanted[axis + 1 :]]:
            raise VerifyException(f"`tt.gather` of {source} has indices {indices}, which differ beside axis {axis}")
        verify_same(self, "a result", self.result.type, TensorType(source.element_type, wanted))


@irdl_op_definition
class HistogramOp(IRDLOperation):
    """How often each number is there: `%h = tt.histogram %x : tensor<16xi32> -> tensor<16xi32>`."""

    name = "tt.histogram"
    src = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure(), GivesBlocks())
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"

    @staticmethod
    def get(value: SSAValue, bins: int) -> HistogramOp:
        return HistogramOp.create(operands=[value], result_types=[TensorType(i32, [bins])])

    def verify_(self) -> None:
        for kind in (self.src.type, self.result.type):
            if element_of(kind) != i32 or len(shape_of(kind)) != 1:
                raise VerifyException(f"`tt.histogram` is of one-dimensional tensors of i32, found {kind}")
