"""The torch dtypes that element types stand for, in memory and in registers."""

from __future__ import annotations

import torch
from xdsl.dialects.builtin import (
    BFloat16Type,
    ComplexType,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    Signedness,
)
from xdsl.ir import Attribute, SSAValue

from tilewright.backends.reference.errors import ExecutionError
from tilewright.dialects.combiners import element_type
from tilewright.dialects.type_guards import is_memref, is_tensor

_MEMORY: dict[Attribute, torch.dtype] = {
    Float64Type(): torch.float64,
    Float32Type(): torch.float32,
    Float16Type(): torch.float16,
    BFloat16Type(): torch.bfloat16,
    Float8E4M3FNType(): torch.float8_e4m3fn,
    Float8E4M3FNUZType(): torch.float8_e4m3fnuz,
    Float8E5M2Type(): torch.float8_e5m2,
    Float8E5M2FNUZType(): torch.float8_e5m2fnuz,
    IntegerType(64): torch.int64,
    IntegerType(32): torch.int32,
    IntegerType(16): torch.int16,
    IntegerType(8): torch.int8,
    IntegerType(1): torch.bool,
    IntegerType(64, Signedness.UNSIGNED): torch.uint64,
    IntegerType(32, Signedness.UNSIGNED): torch.uint32,
    IntegerType(16, Signedness.UNSIGNED): torch.uint16,
    IntegerType(8, Signedness.UNSIGNED): torch.uint8,
    IndexType(): torch.int64,
    ComplexType(Float32Type()): torch.complex64,
    ComplexType(Float64Type()): torch.complex128,
}

_SIGNED = {
    torch.uint64: torch.int64,
    torch.uint32: torch.int32,
    torch.uint16: torch.int16,
    torch.uint8: torch.int8,
}
_UNSIGNED = {signed: unsigned for unsigned, signed in _SIGNED.items()}


def memory_dtype(element: Attribute) -> torch.dtype:
    """Return the dtype of a tensor with elements of type `element`."""
    dtype = _MEMORY.get(element)
    if dtype is None:
        raise ExecutionError(f"tensors of {element} have no dtype in PyTorch")
    return dtype


def memory_dtype_of(value: SSAValue) -> torch.dtype:
    """Return the dtype of a tensor or memref value."""
    kind = value.type
    assert is_tensor(kind) or is_memref(kind)
    return memory_dtype(kind.element_type)


def register_dtype(kind: Attribute) -> torch.dtype:
    """Return the dtype of a value of type `kind`, a scalar, vector or tensor.

    Integers are signed, an index has 64 bits.
    """
    return as_signed(memory_dtype(kind.element_type if is_tensor(kind) else element_type(kind)))


def as_signed(dtype: torch.dtype) -> torch.dtype:
    """Return the signed integer type of the same width; any other dtype itself."""
    return _SIGNED.get(dtype, dtype)


def as_unsigned(dtype: torch.dtype) -> torch.dtype:
    """Return the unsigned integer type of the same width; any other dtype itself."""
    return _UNSIGNED.get(dtype, dtype)
