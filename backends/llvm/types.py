"""The LLVM types of values in registers and of elements in memory, and the text of constants."""

from __future__ import annotations

import struct

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    IndexType,
    IntegerAttr,
)
from xdsl.ir import Attribute

from tilewright.dialects.type_guards import is_integer, is_memref, is_vector

_FLOATS: dict[type[Attribute], str] = {
    Float64Type: "double",
    Float32Type: "float",
    Float16Type: "half",
    BFloat16Type: "i16",
}
"""A bf16 is its bits: what LLVM does with its own type may become calls of a runtime that is not there."""
_BYTES = (Float8E4M3FNType, Float8E4M3FNUZType, Float8E5M2FNUZType, Float8E5M2Type)
"""The floats of 8 bits are moved, as their bits, and nothing else."""
_SHORT: dict[type[Attribute], str] = {
    Float64Type: "f64",
    Float32Type: "f32",
    Float16Type: "f16",
    BFloat16Type: "i16",
}


class EmitError(Exception):
    """An operation or a type that the backend has no code for reached it."""


def element_of(kind: Attribute) -> Attribute:
    """Return the element type of a vector, any other type itself."""
    return kind.element_type if is_vector(kind) else kind


def lanes_of(kind: Attribute) -> int:
    """Return the number of lanes of a vector; one for a scalar."""
    return kind.get_shape()[0] if is_vector(kind) else 1


def is_float(kind: Attribute) -> bool:
    """Whether a scalar or vector is of floats."""
    return type(element_of(kind)) in _FLOATS


def is_bf16(kind: Attribute) -> bool:
    """Whether a scalar or vector is of bf16, which can be moved and converted but not computed with."""
    return isinstance(element_of(kind), BFloat16Type)


def bit_width(kind: Attribute) -> int:
    """Return the bits of one element in a register; an index has 64."""
    element = element_of(kind)
    if is_integer(element):
        return element.width.data
    if isinstance(element, (IndexType, Float64Type)):
        return 64
    if isinstance(element, _BYTES):
        return 8
    return 32 if isinstance(element, Float32Type) else 16


def vector_text(element: str, lanes: int) -> str:
    """Return the text of a vector type, or of the element for one lane."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def llvm_type(kind: Attribute) -> str:
    """Return the LLVM type of a value in a register."""
    if is_memref(kind):
        return "ptr"
    element = element_of(kind)
    if isinstance(element, IndexType):
        text = "i64"
    elif is_integer(element):
        text = f"i{element.width.data}"
    elif isinstance(element, _BYTES):
        text = "i8"
    else:
        text = _FLOATS.get(type(element), "")
    if not text:
        raise EmitError(f"there is no LLVM type for {kind}")
    return vector_text(text, lanes_of(kind))


def memory_element(kind: Attribute) -> tuple[str, int]:
    """Return the LLVM type of an element in memory and its size in bytes; a bool takes a byte."""
    element = element_of(kind)
    if is_integer(element) and element.width.data == 1:
        return "i8", 1
    return llvm_type(element), bit_width(element) // 8


def suffix(kind: Attribute) -> str:
    """Return how LLVM names a type in an overloaded intrinsic: `v16f32`, `i64`."""
    element = element_of(kind)
    text = _SHORT.get(type(element)) or f"i{bit_width(element)}"
    lanes = lanes_of(kind)
    return text if lanes == 1 else f"v{lanes}{text}"


def float_text(value: float, kind: Attribute) -> str:
    """Return an LLVM constant: `value` rounded to the element type of `kind`.

    Raises `EmitError` for a float of 8 bits that is not zero.
    """
    element = element_of(kind)
    if isinstance(element, _BYTES):
        if value.hex() != "0x0.0p+0":
            raise EmitError(f"there is no LLVM constant {value} of type {element}")
        return "0"
    if isinstance(element, Float64Type):
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if isinstance(element, Float16Type):
        return f"0xH{struct.unpack('<H', _pack_half(value))[0]:04X}"
    single = _single_bits(value)
    if isinstance(element, BFloat16Type):
        return str(_bfloat_bits(single))
    (widened,) = struct.unpack("<f", struct.pack("<I", single))
    return f"0x{struct.unpack('<Q', struct.pack('<d', widened))[0]:016X}"


def _single_bits(value: float) -> int:
    try:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000


def _pack_half(value: float) -> bytes:
    try:
        return struct.pack("<e", value)
    except OverflowError:
        return struct.pack("<e", float("inf") if value > 0 else float("-inf"))


def _bfloat_bits(single: int) -> int:
    """Round the bits of an f32 to nearest even; a NaN stays one."""
    if single & 0x7FFFFFFF > 0x7F800000:
        return (single >> 16) | 0x40
    return (single + 0x7FFF + ((single >> 16) & 1)) >> 16


def constant_text(value: Attribute) -> str:
    """Return the text of a scalar constant."""
    match value:
        case FloatAttr():
            return float_text(value.value.data, value.type)
        case IntegerAttr() if is_integer(value.type) and value.type.width.data == 1:
            return "true" if value.value.data else "false"
        case IntegerAttr():
            return str(value.value.data)
        case _:
            raise EmitError(f"there is no LLVM constant for {value}")
