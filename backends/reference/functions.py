"""Elementwise functions where PyTorch's own differ from what the IR means, or do not exist for a dtype.

Registers hold integers as signed, whatever their sign in the program, and i1 as bool. A function on unsigned integers
works on int64 values and truncates the result, but for 64-bit integers, where order is that of signed integers with the
top bit flipped.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tilewright.backends.reference.dtypes import as_unsigned
from tilewright.backends.reference.errors import ExecutionError

Function = Callable[..., Tensor]

_ORDER = (torch.lt, torch.le, torch.gt, torch.ge, torch.maximum, torch.minimum)
_TOP_BIT = -(1 << 63)


def constant(value: float | int, dtype: torch.dtype) -> Tensor:
    """Return a register that is the same everywhere; an integer too large for `dtype` wraps around."""
    if dtype.is_floating_point or dtype == torch.bool:
        return torch.tensor(value, dtype=dtype)
    wrapped = (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)
    return torch.tensor(wrapped, dtype=torch.int64).to(dtype)


def broadcast(*tensors: Tensor) -> list[Tensor]:
    """Return tensors of the same number of dims, which differ where one of them has size one, in one shape."""
    shape = [next((n for n in sizes if n != 1), 1) for sizes in zip(*(t.shape for t in tensors), strict=True)]
    return [t.expand(shape) for t in tensors]


def zero_extended(value: Tensor) -> Tensor:
    """Return unsigned integers of fewer than 64 bits as int64."""
    if value.dtype == torch.bool:
        return value.to(torch.int64)
    return value.to(torch.int64) & ((1 << 8 * value.itemsize) - 1)


def unsigned(function: Function) -> Function:
    """Return `function` on operands that are unsigned integers. Floats it leaves alone."""

    def on_unsigned(*operands: Tensor) -> Tensor:
        dtype = operands[0].dtype
        if dtype.is_floating_point:
            return function(*operands)
        if dtype == torch.int64:
            return _on_uint64(function, operands)
        result = function(*map(zero_extended, operands))
        return result if result.dtype == torch.bool else truncate(result, dtype)

    return on_unsigned


def _on_uint64(function: Function, operands: tuple[Tensor, ...]) -> Tensor:
    if function in _ORDER:
        result = function(*(o ^ _TOP_BIT for o in operands))
        return result if result.dtype == torch.bool else result ^ _TOP_BIT
    if any(bool((o < 0).any()) for o in operands):
        raise ExecutionError("the interpreter cannot divide unsigned integers above 2**63")
    return function(*operands)


def signed(function: Function) -> Function:
    """Return the order function `function` on signed integers: of i1, true is -1. Floats it leaves alone."""

    def on_signed(*operands: Tensor) -> Tensor:
        if operands[0].dtype != torch.bool:
            return function(*operands)
        result = function(*(-o.to(torch.int8) for o in operands))
        return result.to(torch.bool)

    return on_signed


def add(a: Tensor, b: Tensor) -> Tensor:
    """Add integers, wrapping around: of one bit, exclusive or."""
    return a ^ b if a.dtype == torch.bool else a + b


def sub(a: Tensor, b: Tensor) -> Tensor:
    """Subtract integers, wrapping around: of one bit, exclusive or."""
    return a ^ b if a.dtype == torch.bool else a - b


def _divided(a: Tensor, b: Tensor, mode: str) -> Tensor:
    """Return the quotient, rounded. Integer division by zero is undefined and gives zero here: a masked lane may do it.

    The quotient of the least integer by -1 wraps around; the processor's own division would trap.
    """
    if a.dtype.is_floating_point:
        return torch.div(a, b, rounding_mode=mode)
    quotient = torch.div(a, torch.where((b == 0) | (b == -1), 1, b), rounding_mode=mode)
    return torch.where(b == 0, 0, torch.where(b == -1, -a, quotient)).to(a.dtype)


def truncdiv(a: Tensor, b: Tensor) -> Tensor:
    """Return the quotient rounded towards zero."""
    return _divided(a, b, "trunc")


def floordiv(a: Tensor, b: Tensor) -> Tensor:
    """Return the quotient rounded towards negative infinity, of floats as Python's `//`."""
    return _divided(a, b, "floor")


def ceildiv(a: Tensor, b: Tensor) -> Tensor:
    """Return the quotient of integers rounded towards infinity."""
    quotient = truncdiv(a, b)
    inexact = (b != 0) & (quotient * b != a) & ((a < 0) == (b < 0))
    return quotient + inexact.to(a.dtype)


def fmod(a: Tensor, b: Tensor) -> Tensor:
    """Return the remainder with the sign of the dividend; of integers by zero, undefined, zero."""
    return torch.fmod(a, b) if a.dtype.is_floating_point else a - truncdiv(a, b) * b


def remainder(a: Tensor, b: Tensor) -> Tensor:
    """Return the remainder with the sign of the divisor; of integers by zero, undefined, zero."""
    return torch.remainder(a, b) if a.dtype.is_floating_point else a - floordiv(a, b) * b


def _shifted(function: Function, a: Tensor, amount: Tensor, beyond: Tensor | int) -> Tensor:
    """Shift; an amount that is no bit number, undefined in the IR, gives `beyond`."""
    bits = 8 * a.itemsize
    fits = (amount >= 0) & (amount < bits)
    return torch.where(fits, function(a, torch.where(fits, amount, 0)), beyond).to(a.dtype)


def shift_left(a: Tensor, amount: Tensor) -> Tensor:
    return _shifted(torch.bitwise_left_shift, a, amount, 0)


def shift_right(a: Tensor, amount: Tensor) -> Tensor:
    """Shift right, filling with the sign."""
    return _shifted(torch.bitwise_right_shift, a, amount, torch.where(a < 0, -1, 0).to(a.dtype))


def shift_right_unsigned(a: Tensor, amount: Tensor) -> Tensor:
    """Shift right, filling with zeros."""
    filled = shift_right(a, amount)
    bits = 8 * a.itemsize
    # `amount` ones from the bottom of what is kept; for an amount of zero all bits are.
    kept = ~shift_left(torch.full_like(filled, -1), bits - amount.to(a.dtype))
    return torch.where(amount == 0, a, filled & kept)


def integer_power(a: Tensor, exponent: Tensor) -> Tensor:
    """Return the integer power; a negative exponent gives zero unless the base is 1 or -1."""
    return torch.pow(a, exponent)


def round_half_away(x: Tensor) -> Tensor:
    """Round to the nearest integer, halves away from zero."""
    size = x.abs()
    whole = size.trunc()
    return torch.copysign(whole + (size - whole >= 0.5).to(x.dtype), x)


def fused_multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return `a * b + c`; of floats below f64, rounded once but for a last bit in rare cases."""
    return (a.double() * b.double() + c.double()).to(a.dtype)


def _exp10(x: Tensor) -> Tensor:
    return torch.pow(10.0, x)


INTRINSICS: dict[str, Function] = {
    "acosh": torch.acosh,
    "asinh": torch.asinh,
    "erfc": torch.erfc,
    "exp10": _exp10,
    "floordiv": floordiv,
    "fmod": fmod,
    "hypot": torch.hypot,
    "isfinite": torch.isfinite,
    "isinf": torch.isinf,
    "isnan": torch.isnan,
    "lgamma": torch.lgamma,
    "nextafter": torch.nextafter,
    "powi": integer_power,
    "remainder": remainder,
    "sign": torch.sign,
    "signbit": torch.signbit,
    "truncdiv": truncdiv,
}
"""The functions of `loop.intrinsic` by name."""


def cast(value: Tensor, dtype: torch.dtype, is_unsigned: bool) -> Tensor:
    """Convert as `torch.Tensor.to`: to bool by a test for non-zero, from bool to 0 and 1.

    `is_unsigned` is about the integer side, or both.
    """
    if not is_unsigned:
        return value.to(dtype)
    source = value if value.dtype == torch.bool else value.view(as_unsigned(value.dtype))
    return source.to(as_unsigned(dtype)).view(dtype)


def convert(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype)


def convert_to_unsigned(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert floats to unsigned integers."""
    return value.to(as_unsigned(dtype)).view(dtype)


def convert_from_unsigned(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert unsigned integers to a wider type or to floats."""
    source = value if value.dtype == torch.bool else value.view(as_unsigned(value.dtype))
    return source.to(dtype)


def convert_from_signed(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert signed integers to a wider type or to floats: of i1, true is -1."""
    return -value.to(dtype) if value.dtype == torch.bool else value.to(dtype)


def truncate(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Keep the low bits of integers."""
    return (value & 1).to(torch.bool) if dtype == torch.bool else value.to(dtype)


def multiply_high(a: Tensor, b: Tensor) -> Tensor:
    """Return the upper half of the product of unsigned integers."""
    bits = 8 * a.itemsize
    if bits < 64:
        product = zero_extended(a) * zero_extended(b)
        return (product >> bits).to(a.dtype)
    # By halves of 32 bits; no sum of these three is above 64 bits.
    (a_high, a_low), (b_high, b_low) = ((_upper(x), x & _LOWER) for x in (a, b))
    low = a_low * b_low
    first = a_high * b_low + _upper(low)
    second = a_low * b_high + (first & _LOWER)
    return a_high * b_high + _upper(first) + _upper(second)


_LOWER = (1 << 32) - 1


def _upper(x: Tensor) -> Tensor:
    return (x >> 32) & _LOWER


def rounded_to_tf32(x: Tensor) -> Tensor:
    """Return floats with the 10 bits of mantissa that tensor cores read, the nearest, halves away from zero."""
    bits = x.contiguous().view(torch.int32)
    rounded = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x)
