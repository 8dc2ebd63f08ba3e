"""How the operations of `arith` fold: where no bit of a result can change, whatever the input.

`x + 0.0` is not `x` (for -0.0), `x * 0.0` is not 0 (for NaN and infinities) and `x - x` is not 0: none of these is
here. A NaN's payload is not kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, Float32Type, Float64Type, FloatAttr, IndexType, IntegerAttr
from xdsl.ir import Attribute, Operation, SSAValue

from tilewright.dialects.type_guards import is_float_constant, is_integer, is_integer_constant

Folded = SSAValue | Attribute | None
Fold = Callable[[Operation], Folded]
"""What the one result of an operation is equal to: an existing value, a constant, or nothing simpler."""


def constant_of(value: SSAValue) -> Attribute | None:
    """Return the scalar constant that `value` is, as an attribute, or None."""
    owner = value.owner
    if not isinstance(owner, arith.ConstantOp):
        return None
    constant = owner.properties["value"]
    return constant if is_float_constant(constant) or is_integer_constant(constant) else None


def float_of(value: SSAValue) -> float | None:
    """Return the number that `value` is, if it is a float constant."""
    constant = constant_of(value)
    return constant.value.data if constant is not None and is_float_constant(constant) else None


def int_of(value: SSAValue) -> int | None:
    """Return the number that `value` is, if it is an integer constant: 0 or 1 for i1, signed for other types."""
    constant = constant_of(value)
    if constant is None or not is_integer_constant(constant):
        return None
    number = constant.value.data
    return number & 1 if is_bool(constant.type) else number


def is_bool(kind: Attribute) -> bool:
    """Whether `kind` is i1."""
    return is_integer(kind) and kind.width.data == 1


def integer_constant(number: int, kind: Attribute) -> Attribute | None:
    """Return `number` wrapped to the width of `kind` as two's complement; None if `kind` is no integer scalar."""
    if is_bool(kind):
        return IntegerAttr.from_bool(bool(number & 1))
    if isinstance(kind, IndexType):
        return IntegerAttr(number, kind)
    if not is_integer(kind):
        return None
    half = 1 << (kind.width.data - 1)
    return IntegerAttr((number + half) % (2 * half) - half, kind)


def float_constant(number: float, kind: Attribute) -> Attribute | None:
    """Return `number` rounded to `kind`; None if `kind` is no float scalar."""
    return FloatAttr(number, kind) if isinstance(kind, AnyFloat) else None


def _integers(function: Callable[[int, int], int], unit: int | None = None, zero: int | None = None) -> Fold:
    """Fold a commutative integer operation with its neutral and its absorbing element, as signed numbers."""

    def fold(op: Operation) -> Folded:
        lhs, rhs = op.operands
        a, b = int_of(lhs), int_of(rhs)
        kind = op.results[0].type
        if a is not None and b is not None:
            return integer_constant(function(a, b), kind)
        constant, other = (a, rhs) if b is None else (b, lhs)
        if constant is None:
            return None
        if zero is not None and constant == _as_signed(zero, kind):
            return integer_constant(zero, kind)
        return other if unit is not None and constant == _as_signed(unit, kind) else None

    return fold


def _as_signed(number: int, kind: Attribute) -> int:
    return number & 1 if is_bool(kind) else number


def _subi(op: Operation) -> Folded:
    lhs, rhs = op.operands
    a, b = int_of(lhs), int_of(rhs)
    if b == 0:
        return lhs
    return None if a is None or b is None else integer_constant(a - b, op.results[0].type)


def _idempotent(fold: Fold) -> Fold:
    return lambda op: op.operands[0] if op.operands[0] is op.operands[1] else fold(op)


def _order(function: Callable[[int, int], int]) -> Fold:
    """Fold a signed minimum or maximum; of i1 it is left alone, where signed means that true is less than false."""
    fold = _integers(function)
    return _idempotent(lambda op: None if is_bool(op.results[0].type) else fold(op))


def _floats(function: Callable[[float, float], float], right_units: tuple[float, ...], commutes: bool) -> Fold:
    """Fold a float operation of two constants, or with a neutral element whose sign bit counts.

    Computing in doubles and rounding once to f32 gives the correctly rounded sum, difference, product and quotient
    (Figueroa, When is double rounding innocuous?, 1995). Other types are left alone.
    """

    def is_unit(number: float | None) -> bool:
        return number is not None and any(
            number == u and math.copysign(1, number) == math.copysign(1, u) for u in right_units
        )

    def fold(op: Operation) -> Folded:
        lhs, rhs = op.operands
        a, b = float_of(lhs), float_of(rhs)
        kind = op.results[0].type
        if a is not None and b is not None and isinstance(kind, (Float32Type, Float64Type)):
            return float_constant(function(a, b), kind)
        if is_unit(b):
            return lhs
        return rhs if commutes and is_unit(a) else None

    return fold


def _product(a: float, b: float) -> float:
    return a * b


def _quotient(a: float, b: float) -> float:
    if b != 0:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)


def _negf(op: Operation) -> Folded:
    inner = op.operands[0].owner
    if isinstance(inner, arith.NegfOp):
        return inner.operand
    number = float_of(op.operands[0])
    return None if number is None else float_constant(-number, op.results[0].type)


def _index_cast(op: Operation) -> Folded:
    number = int_of(op.operands[0])
    return None if number is None else integer_constant(number, op.results[0].type)


ARITH_FOLDS: dict[type[Operation], Fold] = {
    arith.AddfOp: _floats(lambda a, b: a + b, (-0.0,), commutes=True),
    arith.AddiOp: _integers(lambda a, b: a + b, unit=0),
    arith.AndIOp: _idempotent(_integers(lambda a, b: a & b, unit=-1, zero=0)),
    arith.DivfOp: _floats(_quotient, (1.0,), commutes=False),
    arith.IndexCastOp: _index_cast,
    arith.MaxSIOp: _order(max),
    arith.MinSIOp: _order(min),
    arith.MulfOp: _floats(_product, (1.0,), commutes=True),
    arith.MuliOp: _integers(lambda a, b: a * b, unit=1, zero=0),
    arith.NegfOp: _negf,
    arith.OrIOp: _idempotent(_integers(lambda a, b: a | b, unit=0, zero=-1)),
    arith.SubfOp: _floats(lambda a, b: a - b, (0.0,), commutes=False),
    arith.SubiOp: _subi,
    arith.XOrIOp: _integers(lambda a, b: a ^ b, unit=0),
}
"""How each operation of `arith` that folds does so."""
