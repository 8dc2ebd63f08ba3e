"""Types of the IR from torch's: dtypes, devices, and tensor types with their layout."""

from __future__ import annotations

from typing import Any

import torch
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    BFloat16Type,
    ComplexType,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    Signedness,
    TensorType,
)
from xdsl.ir import Attribute

from tilewright.dialects.sym import LayoutAttr
from tilewright.dialects.sym_expr import Expr
from tilewright.frontends.symbols import SymbolTable
from tilewright.frontends.unsupported import Unsupported

ELEMENT_TYPES: dict[torch.dtype, Attribute] = {
    torch.float64: Float64Type(),
    torch.float32: Float32Type(),
    torch.float16: Float16Type(),
    torch.bfloat16: BFloat16Type(),
    torch.float8_e4m3fn: Float8E4M3FNType(),
    torch.float8_e4m3fnuz: Float8E4M3FNUZType(),
    torch.float8_e5m2: Float8E5M2Type(),
    torch.float8_e5m2fnuz: Float8E5M2FNUZType(),
    torch.int64: IntegerType(64),
    torch.int32: IntegerType(32),
    torch.int16: IntegerType(16),
    torch.int8: IntegerType(8),
    torch.uint64: IntegerType(64, Signedness.UNSIGNED),
    torch.uint32: IntegerType(32, Signedness.UNSIGNED),
    torch.uint16: IntegerType(16, Signedness.UNSIGNED),
    torch.uint8: IntegerType(8, Signedness.UNSIGNED),
    torch.bool: IntegerType(1),
    torch.complex32: ComplexType(Float16Type()),
    torch.complex64: ComplexType(Float32Type()),
    torch.complex128: ComplexType(Float64Type()),
}
"""Element types by dtype. Complex tensors are for ATen calls only, and quantized dtypes are missing."""


def element_type(dtype: torch.dtype) -> Attribute:
    """Return the element type of tensors of `dtype`. Raises `Unsupported` for a dtype that the IR lacks."""
    element = ELEMENT_TYPES.get(dtype)
    if element is None:
        raise Unsupported(f"dtype {dtype} has no element type in the IR")
    return element


def device_name(device: torch.device) -> str:
    """Return a device as the IR writes it: `cpu`, `cuda:0`."""
    return str(device)


class TensorTypes:
    """Makes the types of the tensors of one graph, each type once."""

    def __init__(self, symbols: SymbolTable) -> None:
        self._symbols = symbols
        self._types: dict[Any, TensorType[Attribute]] = {}

    def get(self, tensor: torch.Tensor) -> TensorType[Attribute]:
        """Return the type of `tensor`, real or fake: sizes, strides, offset, dtype and device as they are.

        Raises `Unsupported` for tensors that are not strided arrays of numbers.
        """
        if tensor.layout is not torch.strided:
            raise Unsupported(f"tensor with layout {tensor.layout}, expected a strided one")
        if tensor.is_neg():
            raise Unsupported("tensor whose elements are to be negated when they are read")
        key = self._symbols.key
        sizes = tuple(map(key, tensor.shape))
        strides = tuple(map(key, tensor.stride()))
        offset = key(tensor.storage_offset())
        identity = (sizes, strides, offset, tensor.dtype, tensor.device)
        kind = self._types.get(identity)
        if kind is None:
            kind = self._types[identity] = self._make(tensor)
        return kind

    def _make(self, tensor: torch.Tensor) -> TensorType[Attribute]:
        if tensor.is_quantized:
            raise Unsupported("quantized tensor")
        element = element_type(tensor.dtype)
        sizes = self._exprs(tensor.shape)
        layout = LayoutAttr.get(
            sizes,
            self._exprs(tensor.stride()),
            self._symbols.expr(tensor.storage_offset()),
            device_name(tensor.device),
        )
        return TensorType(element, [int(size) if size.is_Integer else DYNAMIC_INDEX for size in sizes], layout)

    def _exprs(self, values: Any) -> tuple[Expr, ...]:
        return tuple(map(self._symbols.expr, values))
