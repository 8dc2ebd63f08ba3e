"""Reductions and scans of the `tt` dialect; see `dialects/tt.py`."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import I32, BoolAttr, IntegerAttr, TensorType, i1, i32
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import HasParent, IsTerminator, Pure, RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.arith_tensor import element_of
from tilewright.dialects.tt_types import GivesBlocks, block_type, verify_same


def _without(kind: TensorType[Attribute], axis: int) -> Attribute:
    """Return the type of a reduction of `kind` along `axis`, of no dimensions a scalar."""
    shape = kind.get_shape()
    rest = [*shape[:axis], *shape[axis + 1 :]]
    return TensorType(kind.element_type, rest) if rest else kind.element_type


class _CombineOp(IRDLOperation):
    """Base of the operations that combine elements along an axis by a region that takes two of them."""

    srcs = var_operand_def(TensorType)
    axis = prop_def(IntegerAttr[I32])
    outputs = var_result_def()
    body = region_def("single_block")

    @property
    def block(self) -> Block:
        return self.body.block

    def verify_(self) -> None:
        if not self.srcs:
            raise VerifyException(f"`{self.name}` has no operand, expected at least one")
        kinds = [block_type(value) for value in self.srcs]
        shape, axis = kinds[0].get_shape(), self.axis.value.data
        for kind in kinds[1:]:
            if kind.get_shape() != shape:
                raise VerifyException(f"`{self.name}` has operands of different shapes, {kinds[0]} and {kind}")
        if not 0 <= axis < len(shape):
            raise VerifyException(f"`{self.name}` of {kinds[0]} has axis {axis}, expected 0 to {len(shape) - 1}")
        elements = [kind.element_type for kind in kinds]
        if list(self.block.arg_types) != [*elements, *elements]:
            expected = ", ".join(str(e) for e in [*elements, *elements])
            raise VerifyException(f"`{self.name}` has a region that does not take ({expected})")
        last = self.block.last_op
        if not isinstance(last, (ReduceReturnOp, ScanReturnOp)):
            raise VerifyException(f"`{self.name}` has a region that does not end in `{self.name}.return`")
        if [v.type for v in last.operands] != elements:
            expected = ", ".join(str(e) for e in elements)
            raise VerifyException(f"`{self.name}` has a region that does not return ({expected})")
        if len(self.outputs) != len(kinds):
            raise VerifyException(f"`{self.name}` has {len(self.outputs)} results, expected {len(kinds)}")


def _region(values: Sequence[SSAValue]) -> Region:
    elements = [element_of(v.type) for v in values]
    return Region(Block(arg_types=[*elements, *elements]))


@irdl_op_definition
class ReduceOp(_CombineOp):
    """Combine all elements along an axis, in any order:

    `%s = "tt.reduce"(%x) <{axis = 0 : i32}> ({ ^bb0(%a : f32, %b : f32): .. }) : (tensor<16xf32>) -> f32`.

    The region takes two tuples of elements, one of each operand, and returns one with `tt.reduce.return`. A reduction
    of one dimension gives scalars.
    """

    name = "tt.reduce"
    traits = traits_def(RecursiveMemoryEffect(), GivesBlocks())

    @staticmethod
    def get(values: Sequence[SSAValue], axis: int) -> ReduceOp:
        """Make a reduction whose region has arguments and is empty."""
        return ReduceOp.create(
            operands=values,
            result_types=[_without(block_type(v), axis) for v in values],
            properties={"axis": IntegerAttr(axis, i32)},
            regions=[_region(values)],
        )

    def verify_(self) -> None:
        super().verify_()
        for value, result in zip(self.srcs, self.outputs, strict=True):
            verify_same(self, "a result", result.type, _without(block_type(value), self.axis.value.data))


@irdl_op_definition
class ScanOp(_CombineOp):
    """Combine each element with all before it along an axis, or with `reverse` behind it:

    `%s = "tt.scan"(%x) <{axis = 1 : i32, reverse = false}> ({ .. }) : (tensor<16x64xf32>) -> tensor<16x64xf32>`.
    """

    name = "tt.scan"
    reverse = opt_prop_def(IntegerAttr.constr(i1))
    traits = traits_def(RecursiveMemoryEffect(), GivesBlocks())

    @staticmethod
    def get(values: Sequence[SSAValue], axis: int, *, reverse: bool = False) -> ScanOp:
        """Make a scan whose region has arguments and is empty."""
        return ScanOp.create(
            operands=values,
            result_types=[v.type for v in values],
            properties={"axis": IntegerAttr(axis, i32), "reverse": BoolAttr.from_bool(reverse)},
            regions=[_region(values)],
        )

    def verify_(self) -> None:
        super().verify_()
        for value, result in zip(self.srcs, self.outputs, strict=True):
            verify_same(self, "a result", result.type, value.type)


class _ReturnOp(IRDLOperation):
    arguments = var_operand_def()
    assembly_format = "attr-dict ($arguments^ `:` type($arguments))?"


@irdl_op_definition
class ReduceReturnOp(_ReturnOp):
    """What two tuples of elements are combined to: `tt.reduce.return %c : f32`."""

    name = "tt.reduce.return"
    traits = traits_def(IsTerminator(), HasParent(ReduceOp), Pure())

    @staticmethod
    def get(values: Sequence[SSAValue]) -> ReduceReturnOp:
        return ReduceReturnOp.create(operands=values)


@irdl_op_definition
class ScanReturnOp(_ReturnOp):
    """What two tuples of elements are combined to: `tt.scan.return %c : f32`."""

    name = "tt.scan.return"
    traits = traits_def(IsTerminator(), HasParent(ScanOp), Pure())

    @staticmethod
    def get(values: Sequence[SSAValue]) -> ScanReturnOp:
        return ScanReturnOp.create(operands=values)
