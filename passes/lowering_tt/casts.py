"""Conversions between scalar types, element by element, as PyTorch's CUDA kernels have them."""

from __future__ import annotations

from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    FixedBitwidthType,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    f32,
    i1,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects import arith_tensor, tt
from tilewright.dialects.type_guards import is_integer
from tilewright.passes.lowering_tt.builder import TensorBuilder, element_of

_HALF = (BFloat16Type, Float16Type)


def width_of(kind: Attribute) -> int:
    """Return how many bits an integer or float has."""
    assert isinstance(kind, FixedBitwidthType)
    return kind.bitwidth


def is_half(kind: Attribute) -> bool:
    """Whether a type is one of the floats of 16 bits, with which nothing is computed."""
    return isinstance(kind, _HALF)


def convert(b: TensorBuilder, value: SSAValue, target: Attribute, *, unsigned: bool = False) -> SSAValue:
    """Convert as `loop.cast` does, between floats and integers; with `unsigned` the integer side has no sign."""
    source = element_of(value)
    if source == target:
        return value
    if isinstance(source, AnyFloat):
        return _from_float(b, value, source, target, unsigned)
    if isinstance(target, AnyFloat):
        return _to_float(b, value, source, target, unsigned)
    return convert_integer(b, value, target, unsigned=unsigned)


def convert_integer(b: TensorBuilder, value: SSAValue, target: Attribute, *, unsigned: bool = False) -> SSAValue:
    """Convert integers: to i1 by a test for non-zero, from i1 to 0 and 1, else by truncation or extension."""
    source = element_of(value)
    if source == target:
        return value
    if target == i1:
        zero, value = b.fit_all([b.number(0, source), value])
        return b.emit(arith_tensor.CmpiOp(value, zero, "ne"))
    if width_of(target) < width_of(source):
        return b.apply(arith_tensor.TruncIOp, value, result=target)
    if width_of(target) == width_of(source):
        return value
    extend = arith_tensor.ExtUIOp if unsigned or source == i1 else arith_tensor.ExtSIOp
    return b.apply(extend, value, result=target)


def _to_float(b: TensorBuilder, value: SSAValue, source: Attribute, target: Attribute, unsigned: bool) -> SSAValue:
    through = target if isinstance(target, (Float32Type, Float64Type)) else f32
    kind = arith_tensor.UIToFPOp if unsigned or source == i1 else arith_tensor.SIToFPOp
    return convert(b, b.apply(kind, value, result=through), target)


def _from_float(b: TensorBuilder, value: SSAValue, source: AnyFloat, target: Attribute, unsigned: bool) -> SSAValue:
    if isinstance(target, AnyFloat):
        return _resize_float(b, value, source, target)
    if not isinstance(source, (Float32Type, Float64Type)):
        value, source = convert(b, value, f32), f32
    if target == i1:
        zero, value = b.fit_all([b.number(0, source), value])
        return b.emit(arith_tensor.CmpfOp(value, zero, "une"))
    assert is_integer(target)
    return _to_integer(b, value, target, unsigned)


def _to_integer(b: TensorBuilder, value: SSAValue, target: IntegerType, unsigned: bool) -> SSAValue:
    """Convert as the processor does: what is out of range becomes the nearest integer, NaN zero.

    C++ code converts to narrow integers by way of a wider one, of which it keeps the low bits.
    """
    width = target.width.data
    if unsigned and width > 8:
        return b.apply(arith_tensor.FPToUIOp, value, result=target)
    wide = IntegerType(64) if unsigned else IntegerType(max(width, 32))
    return convert_integer(b, b.apply(arith_tensor.FPToSIOp, value, result=wide), target)


def _resize_float(b: TensorBuilder, value: SSAValue, source: AnyFloat, target: AnyFloat) -> SSAValue:
    """Round to nearest even, or widen; what is not next to f32 goes by way of it."""
    known = (Float32Type, Float64Type, *_HALF)
    if not isinstance(source, known) or not isinstance(target, known):
        return _resize_8_bits(b, value, source, target)
    if f32 not in (source, target):
        return convert(b, convert(b, value, f32), target)
    wider = source.bitwidth < target.bitwidth
    return b.apply(arith_tensor.ExtFOp if wider else arith_tensor.TruncFOp, value, result=target)


def _resize_8_bits(b: TensorBuilder, value: SSAValue, source: AnyFloat, target: AnyFloat) -> SSAValue:
    """Convert floats of 8 bits."""
    if source.bitwidth > 8 and target.bitwidth > 8:
        raise PassFailedException(f"no conversion from {source} to {target} on this target")
    if f32 not in (source, target):
        return convert(b, convert(b, value, f32), target)
    return b.emit(tt.FpToFpOp.get(value, target, rounding="rtne" if target.bitwidth == 8 else None))
