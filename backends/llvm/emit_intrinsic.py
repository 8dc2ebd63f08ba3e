"""LLVM IR of `loop.intrinsic`: elementwise functions for which arith and math have no operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Attribute

from tilewright.backends.llvm.builder import FunctionText, compare
from tilewright.backends.llvm.types import (
    EmitError,
    bit_width,
    float_text,
    is_float,
    lanes_of,
    llvm_type,
    vector_text,
)
from tilewright.dialects.loop_scalar import like

Values = Sequence[str]

_LIBRARY = ("acosh", "asinh", "erfc", "hypot", "lgamma", "nextafter")


def emit_intrinsic(fn: FunctionText, function: str, kind: Attribute, values: Values, unsigned: bool) -> str:
    """Emit one function of `INTRINSICS` on operands of type `kind`. Raises `EmitError` if there is no code for it."""
    if function in _LIBRARY:
        return fn.math(function, kind, *values)
    if is_float(kind):
        float_function = _FLOAT.get(function)
        if float_function is not None:
            return float_function(fn, kind, values)
    else:
        int_function = _INT.get(function)
        if int_function is not None:
            return int_function(fn, kind, values, unsigned)
    raise EmitError(f'there is no code for `loop.intrinsic "{function}"` of {kind}')


def _test(kind: Attribute) -> str:
    return llvm_type(like(kind, IntegerType(1)))


def _number(fn: FunctionText, kind: Attribute, value: float) -> str:
    return fn.splat(kind, float_text(value, kind) if is_float(kind) else str(int(value)))


def _select(fn: FunctionText, kind: Attribute, condition: str, if_true: str, if_false: str) -> str:
    text = llvm_type(kind)
    return fn.op(f"select {_test(kind)} {condition}, {text} {if_true}, {text} {if_false}")


def _compare(fn: FunctionText, kind: Attribute, predicate: str, lhs: str, rhs: str) -> str:
    return fn.op(f"{compare(predicate, kind)} {llvm_type(kind)} {lhs}, {rhs}")


def _isnan(fn: FunctionText, kind: Attribute, values: Values) -> str:
    return fn.op(f"fcmp uno {llvm_type(kind)} {values[0]}, {values[0]}")


def _isinf(fn: FunctionText, kind: Attribute, values: Values) -> str:
    return _compare(fn, kind, "eq", fn.intrinsic("fabs", kind, values[0]), _number(fn, kind, float("inf")))


def _isfinite(fn: FunctionText, kind: Attribute, values: Values) -> str:
    return _compare(fn, kind, "lt", fn.intrinsic("fabs", kind, values[0]), _number(fn, kind, float("inf")))


def _signbit(fn: FunctionText, kind: Attribute, values: Values) -> str:
    bits = like(kind, IntegerType(bit_width(kind)))
    raw = fn.op(f"bitcast {llvm_type(kind)} {values[0]} to {llvm_type(bits)}")
    return fn.op(f"icmp slt {llvm_type(bits)} {raw}, {fn.splat(bits, '0')}")


def _sign(fn: FunctionText, kind: Attribute, values: Values) -> str:
    zero = _number(fn, kind, 0)
    negative = _select(fn, kind, _compare(fn, kind, "lt", values[0], zero), _number(fn, kind, -1), zero)
    return _select(fn, kind, _compare(fn, kind, "gt", values[0], zero), _number(fn, kind, 1), negative)


def _fmod(fn: FunctionText, kind: Attribute, values: Values) -> str:
    return fn.math("fmod", kind, *values)


def _remainder(fn: FunctionText, kind: Attribute, values: Values) -> str:
    """C's fmod, moved by the divisor where the signs differ, as torch.remainder does."""
    a, b = values
    text, zero = llvm_type(kind), _number(fn, kind, 0)
    rest = fn.math("fmod", kind, a, b)
    moved = fn.op(f"fadd {text} {rest}, {b}")
    return _select(fn, kind, _wrong_side(fn, kind, rest, b, zero), moved, rest)


def _wrong_side(fn: FunctionText, kind: Attribute, rest: str, divisor: str, zero: str) -> str:
    """Whether a remainder is not zero and has not the sign of the divisor."""
    test = _test(kind)
    nonzero = _compare(fn, kind, "ne", rest, zero)
    differ = fn.op(f"xor {test} {_compare(fn, kind, 'lt', rest, zero)}, {_compare(fn, kind, 'lt', divisor, zero)}")
    return fn.op(f"and {test} {nonzero}, {differ}")


def _floordiv(fn: FunctionText, kind: Attribute, values: Values) -> str:
    """Floor division that agrees with the remainder, as Python and torch define it.

    The quotient of the exact difference `a - remainder` is rounded to the integer it must be near; division by zero is
    IEEE's, and so is a quotient that is too large, for which SLEEF has no remainder.
    """
    a, b = values
    text, zero, one = llvm_type(kind), _number(fn, kind, 0), _number(fn, kind, 1)
    rest = fn.math("fmod", kind, a, b)
    plain = fn.op(f"fdiv {text} {a}, {b}")
    too_large = fn.op(
        f"and {_test(kind)} {_isinf(fn, kind, [plain])}, {_isfinite(fn, kind, [a])}",
    )
    exact = _select(fn, kind, too_large, a, fn.op(f"fsub {text} {a}, {rest}"))
    quotient = fn.op(f"fdiv {text} {exact}, {b}")
    lower = fn.op(f"fsub {text} {quotient}, {one}")
    quotient = _select(fn, kind, _wrong_side(fn, kind, rest, b, zero), lower, quotient)
    floor = fn.intrinsic("floor", kind, quotient)
    gap = fn.op(f"fsub {text} {quotient}, {floor}")
    higher = fn.op(f"fadd {text} {floor}, {one}")
    near = _select(fn, kind, _compare(fn, kind, "gt", gap, _number(fn, kind, 0.5)), higher, floor)
    signed_zero = fn.intrinsic("copysign", kind, zero, plain)
    near = _select(fn, kind, _compare(fn, kind, "eq", quotient, zero), signed_zero, near)
    return _select(fn, kind, _compare(fn, kind, "eq", b, zero), plain, near)


def _truncdiv(fn: FunctionText, kind: Attribute, values: Values) -> str:
    return fn.intrinsic("trunc", kind, fn.op(f"fdiv {llvm_type(kind)} {values[0]}, {values[1]}"))


def _exp10(fn: FunctionText, kind: Attribute, values: Values) -> str:
    return fn.math("pow", kind, _number(fn, kind, 10), values[0])


_FLOAT: dict[str, Callable[[FunctionText, Attribute, Values], str]] = {
    "exp10": _exp10,
    "floordiv": _floordiv,
    "fmod": _fmod,
    "isfinite": _isfinite,
    "isinf": _isinf,
    "isnan": _isnan,
    "remainder": _remainder,
    "sign": _sign,
    "signbit": _signbit,
    "truncdiv": _truncdiv,
}


def _divide(fn: FunctionText, kind: Attribute, values: Values, unsigned: bool) -> tuple[str, str]:
    """Return quotient and remainder, rounded towards zero.

    What would trap, a zero divisor or the lowest integer by -1, gives some value instead.
    """
    a, b = values
    text, test = llvm_type(kind), _test(kind)
    zero, one = _number(fn, kind, 0), _number(fn, kind, 1)
    unsafe = _compare(fn, kind, "eq", b, zero)
    if unsigned:
        divisor = _select(fn, kind, unsafe, one, b)
        return fn.op(f"udiv {text} {a}, {divisor}"), fn.op(f"urem {text} {a}, {divisor}")
    minus = _compare(fn, kind, "eq", b, _number(fn, kind, -1))
    divisor = _select(fn, kind, fn.op(f"or {test} {unsafe}, {minus}"), one, b)
    quotient = _select(fn, kind, minus, fn.op(f"sub {text} {zero}, {a}"), fn.op(f"sdiv {text} {a}, {divisor}"))
    return quotient, fn.op(f"srem {text} {a}, {divisor}")


def _int_truncdiv(fn: FunctionText, kind: Attribute, values: Values, unsigned: bool) -> str:
    return _divide(fn, kind, values, unsigned)[0]


def _int_fmod(fn: FunctionText, kind: Attribute, values: Values, unsigned: bool) -> str:
    return _divide(fn, kind, values, unsigned)[1]


def _int_floordiv(fn: FunctionText, kind: Attribute, values: Values, unsigned: bool) -> str:
    quotient, rest = _divide(fn, kind, values, unsigned)
    if unsigned:
        return quotient
    lower = fn.op(f"sub {llvm_type(kind)} {quotient}, {_number(fn, kind, 1)}")
    return _select(fn, kind, _wrong_side(fn, kind, rest, values[1], _number(fn, kind, 0)), lower, quotient)


def _int_remainder(fn: FunctionText, kind: Attribute, values: Values, unsigned: bool) -> str:
    _, rest = _divide(fn, kind, values, unsigned)
    if unsigned:
        return rest
    moved = fn.op(f"add {llvm_type(kind)} {rest}, {values[1]}")
    return _select(fn, kind, _wrong_side(fn, kind, rest, values[1], _number(fn, kind, 0)), moved, rest)


def _int_sign(fn: FunctionText, kind: Attribute, values: Values, unsigned: bool) -> str:
    if not unsigned:
        return _sign(fn, kind, values)
    return _select(
        fn, kind, _compare(fn, kind, "ne", values[0], _number(fn, kind, 0)), _number(fn, kind, 1), _number(fn, kind, 0)
    )


def _powi(fn: FunctionText, kind: Attribute, values: Values, unsigned: bool) -> str:
    """Call a function that squares and multiplies, once per lane."""
    bits, lanes = bit_width(kind), lanes_of(kind)
    name = f"powi.{'u' if unsigned else 'i'}{bits}"
    fn.module.declare(_POWI.format(name=name, kind=f"i{bits}", negative="false" if unsigned else "true"))
    scalar = f"i{bits}"
    if lanes == 1:
        return fn.op(f"call {scalar} @{name}({scalar} {values[0]}, {scalar} {values[1]})")
    vector, result = vector_text(scalar, lanes), "poison"
    for lane in range(lanes):
        base, exponent = (fn.op(f"extractelement {vector} {v}, i64 {lane}") for v in values)
        power = fn.op(f"call {scalar} @{name}({scalar} {base}, {scalar} {exponent})")
        result = fn.op(f"insertelement {vector} {result}, {scalar} {power}, i64 {lane}")
    return result


_POWI = """define internal {kind} @{name}({kind} %base, {kind} %exponent) {{
entry:
  %below = icmp slt {kind} %exponent, 0
  %negative = and i1 %below, {negative}
  br i1 %negative, label %inverse, label %head
inverse:
  %is_one = icmp eq {kind} %base, 1
  %is_minus_one = icmp eq {kind} %base, -1
  %low = and {kind} %exponent, 1
  %odd_exponent = icmp ne {kind} %low, 0
  %unit = select i1 %odd_exponent, {kind} -1, {kind} 1
  %of_minus_one = select i1 %is_minus_one, {kind} %unit, {kind} 0
  %reciprocal = select i1 %is_one, {kind} 1, {kind} %of_minus_one
  ret {kind} %reciprocal
head:
  %b = phi {kind} [ %base, %entry ], [ %square, %body ]
  %e = phi {kind} [ %exponent, %entry ], [ %half, %body ]
  %r = phi {kind} [ 1, %entry ], [ %next, %body ]
  %done = icmp eq {kind} %e, 0
  br i1 %done, label %exit, label %body
body:
  %bit = and {kind} %e, 1
  %odd = icmp ne {kind} %bit, 0
  %product = mul {kind} %r, %b
  %next = select i1 %odd, {kind} %product, {kind} %r
  %square = mul {kind} %b, %b
  %half = lshr {kind} %e, 1
  br label %head
exit:
  ret {kind} %r
}}"""

_INT: dict[str, Callable[[FunctionText, Attribute, Values, bool], str]] = {
    "floordiv": _int_floordiv,
    "fmod": _int_fmod,
    "powi": _powi,
    "remainder": _int_remainder,
    "sign": _int_sign,
    "truncdiv": _int_truncdiv,
}
