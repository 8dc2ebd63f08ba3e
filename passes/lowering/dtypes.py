"""torch's dtypes, as element types: their kinds, how they promote, and in which type arithmetic on them is done.

An element type stands for a dtype throughout the lowering, since a register no longer tells `ui8` from `i8`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    Signedness,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.ir import Attribute

from tilewright.dialects.sym_expr import Expr
from tilewright.passes.lowering.errors import NotLoweredError

ui8 = IntegerType(8, Signedness.UNSIGNED)

Number = bool | int | float | Expr
"""A number among the arguments of a call; an expression where it is symbolic."""


class Category(IntEnum):
    """What decides promotion first: any float beats any integer, whatever their sizes."""

    BOOL = 0
    INTEGER = 1
    FLOAT = 2


_CATEGORIES: dict[Attribute, Category] = {
    i1: Category.BOOL,
    **dict.fromkeys((ui8, i8, i16, i32, i64), Category.INTEGER),
    **dict.fromkeys((f16, bf16, f32, f64), Category.FLOAT),
}


_FORMATS: dict[Attribute, tuple[int, int]] = {f64: (53, 1024), f32: (24, 128), bf16: (8, 128), f16: (11, 16)}
"""The bits of the significand, and the exponent of the least power of two that is too large."""


def category(element: Attribute) -> Category:
    """Return the category of a dtype. Raises `NotLoweredError` for one that the loops cannot compute with."""
    found = _CATEGORIES.get(element)
    if found is None:
        raise NotLoweredError(f"elements of type {element}")
    return found


def width(element: Attribute) -> int:
    """Return the number of bits of an integer dtype, 0 for others."""
    kind: Any = element
    return kind.width.data if type(kind) is IntegerType else 0


def is_float(element: Attribute) -> bool:
    """Whether a dtype is a floating point one."""
    return isinstance(element, (Float32Type, BFloat16Type, Float16Type, Float64Type))


def is_bool(element: Attribute) -> bool:
    """Whether a dtype is bool."""
    return width(element) == 1


def is_unsigned(element: Attribute) -> bool:
    """Whether an integer of this dtype extends with zeros: uint8, and bool, whose true is 1."""
    return element == ui8 or width(element) == 1


def is_half(element: Attribute) -> bool:
    """Whether a dtype is one of the 16-bit floats, which are computed with in f32."""
    return isinstance(element, (BFloat16Type, Float16Type))


def compute_type(element: Attribute) -> Attribute:
    """Return the dtype in which arithmetic on `element` is done (torch: opmath type)."""
    category(element)
    return f32 if is_half(element) else element


def holds_exactly(half: Attribute, element: Attribute) -> bool:
    """Whether each value of `element` is one of the 16-bit float `half`."""
    return element == half or 0 < width(element) <= 8


def round_to_half(number: float, half: Attribute) -> float:
    """Return a number as one of the 16-bit floats, rounded by way of f32, as torch does."""
    assert isinstance(half, (BFloat16Type, Float16Type))
    return half.round(f32.round(number))


def number_type(number: Number) -> Attribute:
    """Return the dtype that a Python number takes part in promotion with."""
    if isinstance(number, bool):
        return i1
    return f32 if isinstance(number, float) else i64


def significand(element: Attribute) -> int:
    """Return the bits of the significand of a floating point dtype."""
    return _FORMATS[element][0]


def largest(element: Attribute) -> float:
    """Return the largest finite value of a floating point dtype."""
    mantissa, exponent = _FORMATS[element]
    return (2.0**mantissa - 1) * 2.0 ** (exponent - mantissa)


def _widest(a: Attribute | None, b: Attribute | None) -> Attribute | None:
    """Return the smallest dtype that both convert to (torch: promote_types)."""
    if a is None or b is None or a == b:
        return a if b is None else b
    if category(a) != category(b):
        return a if category(a) > category(b) else b
    if category(a) is Category.FLOAT:
        return f64 if f64 in (a, b) else f32
    if ui8 in (a, b):
        other = b if a == ui8 else a
        return i16 if other == i8 else other
    return a if width(a) > width(b) else b


def _prefer(strong: Attribute | None, weak: Attribute | None) -> Attribute | None:
    """Return `strong`, unless `weak` is of a higher category."""
    if strong is None or weak is None:
        return strong or weak
    if category(strong) >= category(weak) and category(strong) is not Category.BOOL:
        return strong
    return weak if category(weak) > category(strong) else _widest(strong, weak)


def promote(tensors: Iterable[tuple[Attribute, int]], numbers: Iterable[Number] = ()) -> Attribute:
    """Return the dtype in which an elementwise operator meets its operands (torch: result_type).

    `tensors` are dtypes with ranks. Tensors with dimensions decide; those without, and below them Python numbers,
    matter only where their category is higher.
    """
    with_dims: Attribute | None = None
    without_dims: Attribute | None = None
    wrapped: Attribute | None = None
    for element, rank in tensors:
        category(element)
        if rank:
            with_dims = _widest(with_dims, element)
        else:
            without_dims = _widest(without_dims, element)
    for number in numbers:
        wrapped = _widest(wrapped, number_type(number))
    found = _prefer(with_dims, _prefer(without_dims, wrapped))
    assert found is not None
    return found
