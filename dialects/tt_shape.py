"""Operations of the `tt` dialect that make tensors and move their elements; see `dialects/tt.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import I32, DenseArrayBase, IntegerAttr, TensorType, UnitAttr, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
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


def _verify_elements(op: IRDLOperation) -> None:
    """Raise `VerifyException` unless all operands and results have elements of one type."""
    element = element_of(op.operands[0].type)
    for value in (*op.operands, *op.results):
        if element_of(value.type) != element:
            raise VerifyException(f"`{op.name}` of elements {element} cannot have {value.type}")


@irdl_op_definition
class MakeRangeOp(IRDLOperation):
    """The numbers from a start to before an end:
    `%r = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32>`.
    """

    name = "tt.make_range"
    start = prop_def(IntegerAttr[I32])
    end = prop_def(IntegerAttr[I32])
    result = result_def(TensorType)
    traits = traits_def(Pure(), GivesBlocks())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "attr-dict `:` type($result)"

    @staticmethod
    def get(end: int, start: int = 0) -> MakeRangeOp:
        return MakeRangeOp.create(
            result_types=[TensorType(i32, [end - start])],
            properties={"end": IntegerAttr(end, i32), "start": IntegerAttr(start, i32)},
        )

    def verify_(self) -> None:
        length = self.end.value.data - self.start.value.data
        if length < 1:
            raise VerifyException(f"`tt.make_range` has {length} elements, expected at least one")
        verify_same(self, "a result", self.result.type, TensorType(i32, [length]))


@irdl_op_definition
class SplatOp(IRDLOperation):
    """A tensor of equal elements: `%t = tt.splat %x : f32 -> tensor<16xf32>`."""

    name = "tt.splat"
    src = operand_def()
    result = result_def(TensorType)
    traits = traits_def(Pure(), GivesBlocks())
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"

    @staticmethod
    def get(value: SSAValue, shape: Sequence[int]) -> SplatOp:
        return SplatOp.create(operands=[value], result_types=[TensorType(value.type, shape)])

    def verify_(self) -> None:
        if self.src.type != element_of(self.result.type):
            raise VerifyException(f"`tt.splat` of {self.src.type} cannot give {self.result.type}")


@irdl_op_definition
class UnsplatOp(IRDLOperation):
    """The only element of a tensor: `%x = tt.unsplat %t : tensor<1xf32>`."""

    name = "tt.unsplat"
    src = operand_def(TensorType)
    result = result_def()
    traits = traits_def(Pure())

    @staticmethod
    def get(value: SSAValue) -> UnsplatOp:
        return UnsplatOp.create(operands=[value], result_types=[element_of(value.type)])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        value = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        operand = parser.resolve_operand(value, kind)
        return cls.create(operands=[operand], result_types=[element_of(kind)], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.src)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.src.type)

    def verify_(self) -> None:
        if math.prod(shape_of(self.src.type)) != 1:
            raise VerifyException(f"`tt.unsplat` takes a tensor of one element, found {self.src.type}")
        verify_same(self, "a result", self.result.type, element_of(self.src.type))


@irdl_op_definition
class ExpandDimsOp(IRDLOperation):
    """A new dimension of size one: `%t = tt.expand_dims %x {axis = 1 : i32} : tensor<16xf32> -> tensor<16x1xf32>`."""

    name = "tt.expand_dims"
    src = operand_def(TensorType)
    axis = prop_def(IntegerAttr[I32])
    result = result_def(TensorType)
    traits = traits_def(Pure(), GivesBlocks())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"

    @staticmethod
    def get(value: SSAValue, axis: int) -> ExpandDimsOp:
        kind = block_type(value)
        shape = kind.get_shape()
        return ExpandDimsOp.create(
            operands=[value],
            result_types=[TensorType(kind.element_type, [*shape[:axis], 1, *shape[axis:]])],
            properties={"axis": IntegerAttr(axis, i32)},
        )

    def verify_(self) -> None:
        source, axis = block_type(self.src), self.axis.value.data
        shape = source.get_shape()
        if not 0 <= axis <= len(shape):
            raise VerifyException(f"`tt.expand_dims` of {source} has axis {axis}, expected 0 to {len(shape)}")
        expected = TensorType(source.element_type, [*shape[:axis], 1, *shape[axis:]])
        verify_same(self, "a result", self.result.type, expected)


@irdl_op_definition
class BroadcastOp(IRDLOperation):
    """Repeat along dimensions of size one: `%t = tt.broadcast %x : tensor<16x1xf32> -> tensor<16x64xf32>`."""

    name = "tt.broadcast"
    src = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure(), GivesBlocks())
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"

    @staticmethod
    def get(value: SSAValue, shape: Sequence[int]) -> BroadcastOp:
        return BroadcastOp.create(operands=[value], result_types=[TensorType(element_of(value.type), shape)])

    def verify_(self) -> None:
        _verify_elements(self)
        source, target = shape_of(self.src.type), shape_of(self.result.type)
        if len(source) != len(target) or any(s not in (1, t) for s, t in zip(source, target, strict=True)):
            raise VerifyException(f"`tt.broadcast` of {self.src.type} cannot give {self.result.type}")


@irdl_op_definition
class ReshapeOp(IRDLOperation):
    """Another shape: `%t = tt.reshape %x : tensor<16x64xf32> -> tensor<1024xf32>`.

    Elements stay in row-major order, but for `allow_reorder` behind the operand.
    """

    name = "tt.reshape"
    src = operand_def(TensorType)
    allow_reorder = opt_prop_def(UnitAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure(), GivesBlocks())
    assembly_format = "$src (`allow_reorder` $allow_reorder^)? attr-dict `:` type($src) `->` type($result)"

    @staticmethod
    def get(value: SSAValue, shape: Sequence[int], *, allow_reorder: bool = False) -> ReshapeOp:
        properties: dict[str, Attribute] = {"allow_reorder": UnitAttr()} if allow_reorder else {}
        kind = TensorType(element_of(value.type), shape)
        return ReshapeOp.create(operands=[value], result_types=[kind], properties=properties)

    def verify_(self) -> None:
        _verify_elements(self)
        source, target = self.src.type, self.result.type
        if math.prod(shape_of(source)) != math.prod(shape_of(target)):
            raise VerifyException(f"`tt.reshape` of {source} cannot give {target}: the numbers of elements differ")


@irdl_op_definition
class TransOp(IRDLOperation):
    """Permute: `%t = tt.trans %x {order = array<i32: 1, 0>} : tensor<16x64xf32> -> tensor<64x16xf32>`.

    Dimension `i` of the result is dimension `order[i]` of the operand.
    """

    name = "tt.trans"
    src = operand_def(TensorType)
    order = prop_def(DenseArrayBase.constr(i32))
    result = result_def(TensorType)
    traits = traits_def(Pure(), GivesBlocks())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"

    @staticmethod
    def get(value: SSAValue, order: Sequence[int]) -> TransOp:
        kind = block_type(value)
        shape = kind.get_shape()
        return TransOp.create(
            operands=[value],
            result_types=[TensorType(kind.element_type, [shape[i] for i in order])],
            properties={"order": DenseArrayBase.from_list(i32, order)},
        )

    def verify_(self) -> None:
        source = block_type(self.src)
        shape, order = source.get_shape(), self.order.get_values()
        if sorted(order) != list(range(len(shape))):
            raise VerifyException(f"`tt.trans` of {source} has order {list(order)}, expected a permutation")
        verify_same(self, "a result", self.result.type, TensorType(source.element_type, [shape[i] for i in order]))
