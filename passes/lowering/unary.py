"""Elementwise operators of one tensor: the functions of mathematics, rounding, tests."""

from __future__ import annotations

from math import pi

from xdsl.dialects import math
from xdsl.dialects.builtin import i1
from xdsl.ir import Operation

from tilewright.passes.lowering.body import Body, Value
from tilewright.passes.lowering.call import Lowering
from tilewright.passes.lowering.dtypes import is_float, is_unsigned, largest
from tilewright.passes.lowering.elementwise import Elementwise, Kind, UnaryRule

_FUNCTIONS: dict[str, type[Operation] | str] = {
    "acos": math.AcosOp,
    "acosh": "acosh",
    "asin": math.AsinOp,
    "asinh": "asinh",
    "atan": math.AtanOp,
    "atanh": math.AtanhOp,
    "cos": math.CosOp,
    "cosh": math.CoshOp,
    "erf": math.ErfOp,
    "erfc": "erfc",
    "exp": math.ExpOp,
    "exp2": math.Exp2Op,
    "expm1": math.ExpM1Op,
    "lgamma": "lgamma",
    "log": math.LogOp,
    "log10": math.Log10Op,
    "log1p": math.Log1pOp,
    "log2": math.Log2Op,
    "sin": math.SinOp,
    "sinh": math.SinhOp,
    "rsqrt": math.RsqrtOp,
    "sqrt": math.SqrtOp,
    "tan": math.TanOp,
    "tanh": math.TanhOp,
}
"""Functions that are one operation of the math dialect, or one intrinsic by name."""

_ROUNDINGS: dict[str, type[Operation]] = {
    "ceil": math.CeilOp,
    "floor": math.FloorOp,
    "round": math.RoundEvenOp,
    "trunc": math.TruncOp,
}


def _function(operation: type[Operation] | str) -> UnaryRule:
    if isinstance(operation, str):
        return lambda b, x: b.intrinsic(operation, x)
    return lambda b, x: b.math(operation, x)


def _rounding(operation: type[Operation]) -> UnaryRule:
    """Round floats; integers are what they are."""
    return lambda b, x: b.math(operation, x) if is_float(b.compute) else x


def _float_test(name: str) -> UnaryRule:
    """Test floats by an intrinsic; an integer is always finite and a number."""

    def rule(b: Body, x: Value) -> Value:
        if is_float(b.compute):
            return b.intrinsic(name, x)
        return b.constant(name == "isfinite", i1)

    return rule


def _infinite(sign: float) -> UnaryRule:
    """Test for the infinity of a sign."""

    def rule(b: Body, x: Value) -> Value:
        infinite = sign * float("inf")
        return b.compare("eq", x, infinite) if is_float(b.compute) else b.constant(False, i1)

    return rule


def absolute(b: Body, x: Value) -> Value:
    """Emit the absolute value of a number of any dtype."""
    if is_float(b.compute):
        return b.math(math.AbsFOp, x)
    return x if is_unsigned(b.compute) else b.integer_op(math.AbsIOp, x)


def _sign(b: Body, x: Value) -> Value:
    if is_unsigned(b.compute):
        return b.cast_register(b.compare("ne", x, 0), x.type, unsigned=True)
    return b.intrinsic("sign", x)


def _signbit(b: Body, x: Value) -> Value:
    if is_unsigned(b.compute):
        return b.constant(False, i1)
    return b.intrinsic("signbit", x) if is_float(b.compute) else b.compare("lt", x, 0)


def sigmoid(b: Body, x: Value) -> Value:
    """Emit `1 / (1 + exp(-x))`."""
    return b.reciprocal(b.add(b.constant(1), b.math(math.ExpOp, b.neg(x))))


def _logit(b: Body, x: Value) -> Value:
    if b.call.has("eps"):
        # On the CPU eager clamps between eps and 1 - eps as it would a tensor, in the operands' dtype.
        eps, rounded = b.call.number("eps"), not b.call.on_cuda
        high = b.constant(1 - eps, rounded=rounded)
        x = b.minimum(b.maximum(x, b.constant(eps, rounded=rounded)), high)
    return b.math(math.LogOp, b.round_on_cpu(b.div(x, b.round_on_cpu(b.sub(b.constant(1), x)))))


def _nan_to_num(b: Body, x: Value) -> Value:
    if not is_float(b.compute):
        return x
    limit = largest(b.element)
    for test, name, default in (
        (b.intrinsic("isnan", x), "nan", 0.0),
        (b.compare("eq", x, float("inf")), "posinf", limit),
        (b.compare("eq", x, float("-inf")), "neginf", -limit),
    ):
        given = b.call.optional_number(name)
        x = b.select(test, b.constant(default if given is None else given, rounded=True), x)
    return x


def _times(factor: float) -> UnaryRule:
    return lambda b, x: b.mul(x, b.constant(factor))


def _unchanged(b: Body, x: Value) -> Value:
    return x


def _square(b: Body, x: Value) -> Value:
    return b.mul(x, x)


def _frac(b: Body, x: Value) -> Value:
    return b.sub(x, b.math(math.TruncOp, x))


def _sinc(b: Body, x: Value) -> Value:
    """Emit `sin(pi * x) / (pi * x)`, which is 1 at 0."""
    product = b.mul(x, b.constant(pi))
    return b.select(b.compare("eq", x, 0), b.constant(1), b.div(b.math(math.SinOp, product), product))


def _on_both(name: str, lowering: Lowering) -> dict[str, Lowering]:
    """Return the entries of an operator that prims also has."""
    return {f"aten.{name}.default": lowering, f"prims.{name}.default": lowering}


def _make_table() -> dict[str, Lowering]:
    table: dict[str, Lowering] = {}
    for name, operation in _FUNCTIONS.items():
        table |= _on_both(name, Elementwise(_function(operation), kind=Kind.FLOAT))
    for name, operation in _ROUNDINGS.items():
        table |= _on_both(name, Elementwise(_rounding(operation), exclude_bool=True))
    for name, rule, kind in (
        ("abs", absolute, Kind.SAME),
        ("isfinite", _float_test("isfinite"), Kind.BOOL),
        ("reciprocal", Body.reciprocal, Kind.FLOAT),
        ("sign", _sign, Kind.SAME),
        ("signbit", _signbit, Kind.BOOL),
    ):
        table |= _on_both(name, Elementwise(rule, kind=kind))
    table |= _on_both("neg", Elementwise(Body.neg, exclude_bool=True))
    table |= _on_both("bitwise_not", Elementwise(Body.invert))
    return table


LOWERINGS: dict[str, Lowering] = {
    **_make_table(),
    "aten.deg2rad.default": Elementwise(_times(pi / 180), kind=Kind.FLOAT),
    "aten.frac.default": Elementwise(_frac, kind=Kind.FLOAT),
    "aten.isinf.default": Elementwise(_float_test("isinf"), kind=Kind.BOOL),
    "aten.isnan.default": Elementwise(_float_test("isnan"), kind=Kind.BOOL),
    "aten.isneginf.default": Elementwise(_infinite(-1), kind=Kind.BOOL),
    "aten.isposinf.default": Elementwise(_infinite(1), kind=Kind.BOOL),
    "aten.logical_not.default": Elementwise(Body.invert, kind=Kind.TRUTH),
    "aten.logit.default": Elementwise(_logit, kind=Kind.FLOAT),
    "aten.nan_to_num.default": Elementwise(_nan_to_num),
    "aten.positive.default": Elementwise(_unchanged, exclude_bool=True),
    "aten.rad2deg.default": Elementwise(_times(180 / pi), kind=Kind.FLOAT),
    "aten.sgn.default": Elementwise(_sign),
    "aten.sigmoid.default": Elementwise(sigmoid, kind=Kind.FLOAT),
    "aten.sinc.default": Elementwise(_sinc, kind=Kind.FLOAT),
    "aten.square.default": Elementwise(_square, exclude_bool=True),
}
