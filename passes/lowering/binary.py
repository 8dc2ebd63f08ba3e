"""Elementwise operators of two and more operands: arithmetic, comparison, logic, bits, selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import Float16Type, i1
from xdsl.ir import Operation, SSAValue

from tilewright.passes.lowering.body import Body, Value
from tilewright.passes.lowering.call import Call, Lowering
from tilewright.passes.lowering.dtypes import is_float, is_half, is_unsigned, width
from tilewright.passes.lowering.elementwise import BinaryRule, Elementwise, Kind, UnaryRule
from tilewright.passes.lowering.errors import NotLoweredError

_PAIR = ("self", "other")


def _alpha(b: Body) -> Value:
    """Return the argument `alpha` as eager takes it."""
    return b.argument("alpha", rounded=not b.call.on_cuda)


def _add(b: Body, x: Value, y: Value) -> Value:
    return b.add_product(x, _alpha(b), y) if b.call.has("alpha") else b.add(x, y)


def _sub(b: Body, x: Value, y: Value) -> Value:
    if not b.call.has("alpha"):
        return b.sub(x, y)
    return b.add_product(x, b.neg(_alpha(b)), y) if b.call.on_cuda else b.sub(x, b.mul(_alpha(b), y))


def _rsub(b: Body, x: Value, y: Value) -> Value:
    return _sub(b, y, x)


def _math(operation: type[Operation]) -> BinaryRule:
    return lambda b, x, y: b.math(operation, x, y)


def _intrinsic(name: str) -> BinaryRule:
    return lambda b, x, y: b.intrinsic(name, x, y)


def _compare(predicate: str) -> BinaryRule:
    return lambda b, x, y: b.compare(predicate, x, y)


def _larger_number(b: Body, x: Value, y: Value) -> Value:
    return b.math(arith.MaxnumfOp, x, y) if is_float(b.compute) else b.maximum(x, y)


def _smaller_number(b: Body, x: Value, y: Value) -> Value:
    return b.math(arith.MinnumfOp, x, y) if is_float(b.compute) else b.minimum(x, y)


def _truncated_quotient(b: Body, x: Value, y: Value) -> Value:
    if not is_float(b.compute):
        return b.intrinsic("truncdiv", x, y)
    quotient = b.div(x, y)
    if isinstance(b.call.operand("other"), SSAValue):
        quotient = b.round(quotient)
    return b.math(math.TruncOp, quotient)


def _divide_with_mode(call: Call) -> Sequence[SSAValue]:
    mode = call.text("rounding_mode")
    if mode is None:
        return _DIVIDE(call)
    rule = {"trunc": _truncated_quotient, "floor": _intrinsic("floordiv")}.get(mode)
    if rule is None:
        raise NotLoweredError(f"rounding mode {mode}")
    return Elementwise(rule, _PAIR, exact=("other",), exclude_bool=True)(call)


def _shift_left(b: Body, x: Value, amount: Value) -> Value:
    return b.select(_shifts_all(b, x, amount), b.constant(0), b.integer_op(arith.ShLIOp, x, amount))


def _shift_right(b: Body, x: Value, amount: Value) -> Value:
    if is_unsigned(b.compute):
        return b.select(_shifts_all(b, x, amount), b.constant(0), b.integer_op(arith.ShRUIOp, x, amount))
    most = b.constant(width(x.type) - 1)
    return b.integer_op(arith.ShRSIOp, x, b.select(_shifts_all(b, x, amount), most, amount))


def _shifts_all(b: Body, x: Value, amount: Value) -> Value:
    """Test whether a shift amount is negative or moves every bit out, as which torch takes a negative one."""
    return b.either(b.compare("lt", amount, 0), b.compare("ge", amount, width(x.type)))


def _power(b: Body, x: Value, y: Value) -> Value:
    return b.math(math.PowFOp, x, y) if is_float(b.compute) else b.intrinsic("powi", x, y)


def _power_by_number(b: Body, x: Value) -> Value:
    """Emit a power with a constant exponent, by multiplications where eager does so."""
    exponent = b.call.number("exponent")
    if isinstance(exponent, (int, float)) and exponent in _POWERS:
        return _POWERS[exponent](b, x)
    if not is_float(b.compute):
        return b.intrinsic("powi", x, b.argument("exponent"))
    if exponent == -1:
        return b.reciprocal(x)
    if exponent == -2:
        return b.reciprocal(_power_rounded(b, b.mul(x, x)))
    # Eager's kernels have roots, but on the CPU for f16; those of -infinity and -0 are no powers.
    if exponent in (0.5, -0.5) and (b.call.on_cuda or not isinstance(b.element, Float16Type)):
        if exponent == -0.5 and b.call.on_cuda:
            return b.math(math.RsqrtOp, x)
        root = b.math(math.SqrtOp, x)
        return root if exponent == 0.5 else b.reciprocal(root)
    return b.math(math.PowFOp, x, b.argument("exponent", rounded=True))


def _power_rounded(b: Body, x: Value) -> Value:
    # Eager multiplies in the dtype itself, but on the CPU for f16.
    return b.round(x) if b.call.on_cuda or not isinstance(b.element, Float16Type) else x


_POWERS: dict[float, UnaryRule] = {
    0: lambda b, x: b.constant(1),
    1: lambda b, x: x,
    2: lambda b, x: b.mul(x, x),
    3: lambda b, x: b.mul(_power_rounded(b, b.mul(x, x)), x),
}


def _next_after(b: Body, x: Value, y: Value) -> Value:
    if is_half(b.element):
        raise NotLoweredError("the next value of a type that is computed with in another")
    return b.intrinsic("nextafter", x, y)


def _xlogy(b: Body, x: Value, y: Value) -> Value:
    """Emit `x * log(y)`, which is 0 where x is 0, unless y is NaN."""
    product = b.mul(x, b.round_on_cpu(b.math(math.LogOp, y)))
    return b.select(b.intrinsic("isnan", y), y, b.select(b.compare("eq", x, 0), b.constant(0), product))


def _log_of_sum(exp: type[Operation], log1p: UnaryRule) -> BinaryRule:
    """Emit the logarithm of the sum of two powers, given their logarithms."""

    def rule(b: Body, x: Value, y: Value) -> Value:
        difference = b.math(math.AbsFOp, b.sub(x, y))
        total = b.add(b.maximum(x, y), log1p(b, b.math(exp, b.neg(difference))))
        equal_infinities = b.both(b.intrinsic("isinf", x), b.compare("eq", x, y))
        return b.select(equal_infinities, x, total)

    return rule


def _log_1p(b: Body, x: Value) -> Value:
    return b.math(math.Log1pOp, x)


def _log2_1p(b: Body, x: Value) -> Value:
    return b.mul(b.math(math.Log1pOp, x), b.constant(1.4426950408889634))


def _heaviside(b: Body, x: Value, y: Value) -> Value:
    step = b.cast(b.compare("gt", x, 0), i1, b.compute)
    return b.select(b.compare("eq", x, 0), y, step)


def _clamp_min(b: Body, x: Value, low: Value) -> Value:
    return b.clamp(x, low, None)


def _clamp_max(b: Body, x: Value, high: Value) -> Value:
    return b.clamp(x, None, high)


def _add_scaled(b: Body, x: Value, combine: Callable[[Value, Value], Value], y: Value, z: Value) -> Value:
    """Emit the sum of x and a product or quotient times the argument `value`: on the CPU that comes first."""
    value = b.argument("value")
    return b.add_product(x, value, combine(y, z)) if b.call.on_cuda else b.add(x, combine(b.mul(value, y), z))


def _addcmul(b: Body, x: Value, y: Value, z: Value) -> Value:
    return b.add_product(x, y, z) if b.call.number("value") == 1 else _add_scaled(b, x, b.mul, y, z)


def _fma(b: Body, x: Value, y: Value, z: Value) -> Value:
    """Emit what Dynamo writes for `addcmul_` and `addcdiv_`, as ATen computes it."""
    return b.add_product(z, x, y)


def _addcdiv(b: Body, x: Value, y: Value, z: Value) -> Value:
    return b.add(x, b.div(y, z)) if b.call.number("value") == 1 else _add_scaled(b, x, b.div, y, z)


def _lerp(b: Body, start: Value, end: Value, weight: Value) -> Value:
    """Emit the interpolation, from the end that is nearer."""
    difference = b.sub(end, start)

    def from_start() -> Value:
        return b.add_product(start, weight, difference)

    def from_end() -> Value:
        rest = b.sub(b.constant(1), weight)
        return b.add_product(end, b.neg(difference), rest) if b.call.on_cuda else b.sub(end, b.mul(difference, rest))

    number = b.call.operand("weight")
    if isinstance(number, (int, float)):
        return from_start() if abs(number) < 0.5 else from_end()
    return b.select(b.compare("lt", b.math(math.AbsFOp, weight), 0.5), from_start(), from_end())


def _masked_fill(b: Body, x: Value, mask: Value, value: Value) -> Value:
    return b.select(mask, value, x)


def _entries(names: str, overloads: str, lowering: Lowering) -> dict[str, Lowering]:
    """Return the entries of operators, each with each of some overloads."""
    return {f"aten.{name}.{overload}": lowering for name in names.split() for overload in overloads.split()}


def _bits(name: str, lowering: Lowering) -> dict[str, Lowering]:
    """Return the entries of an operator on bits, which has two names."""
    entries = _entries(f"bitwise_{name}", "Tensor Scalar Scalar_Tensor", lowering)
    return entries | _entries(f"__{name}__", "Tensor Scalar", lowering)


def _comparisons() -> dict[str, Lowering]:
    table: dict[str, Lowering] = {}
    for predicate, long in (
        ("eq", ""),
        ("ne", "not_equal"),
        ("lt", "less"),
        ("le", "less_equal"),
        ("gt", "greater"),
        ("ge", "greater_equal"),
    ):
        lowering = Elementwise(_compare(predicate), _PAIR, Kind.BOOL)
        table |= _entries(f"{predicate} {long}", "Tensor Scalar", lowering) | {f"prims.{predicate}.default": lowering}
    return table


_DIVIDE = Elementwise(Body.div, _PAIR, Kind.FLOAT, exact=("other",))
_MULTIPLY = Elementwise(Body.mul, _PAIR, exact=("other",))
_REMAINDER = Elementwise(_intrinsic("remainder"), _PAIR, exclude_bool=True)
_SHIFT_LEFT = Elementwise(_shift_left, _PAIR, exclude_bool=True)
_SHIFT_RIGHT = Elementwise(_shift_right, _PAIR, exclude_bool=True)
_POWER = Elementwise(_power, ("self", "exponent"), exclude_bool=True)

LOWERINGS: dict[str, Lowering] = {
    **_comparisons(),
    **_entries("add", "Tensor Scalar", Elementwise(_add, _PAIR, exact_on_cuda=_PAIR)),
    **_entries("sub subtract", "Tensor Scalar", Elementwise(_sub, _PAIR, exact_on_cuda=_PAIR, exclude_bool=True)),
    **_entries("rsub", "Tensor Scalar", Elementwise(_rsub, _PAIR, exact_on_cuda=_PAIR, exclude_bool=True)),
    **_entries("mul multiply", "Tensor Scalar", _MULTIPLY),
    **_entries("div divide true_divide", "Tensor Scalar", _DIVIDE),
    **_entries("div divide", "Tensor_mode Scalar_mode", _divide_with_mode),
    **_entries(
        "floor_divide",
        "default Scalar",
        Elementwise(_intrinsic("floordiv"), _PAIR, exact=("other",), exclude_bool=True),
    ),
    **_entries("fmod", "Tensor Scalar", Elementwise(_intrinsic("fmod"), _PAIR, exclude_bool=True)),
    **_entries("remainder", "Tensor Scalar Scalar_Tensor", _REMAINDER),
    **_entries("pow", "Tensor_Tensor Scalar", _POWER),
    "aten.pow.Tensor_Scalar": Elementwise(_power_by_number, promoted=("self", "exponent"), exclude_bool=True),
    **_entries("maximum", "default", Elementwise(Body.maximum, _PAIR)),
    **_entries("minimum", "default", Elementwise(Body.minimum, _PAIR)),
    "aten.max.other": Elementwise(Body.maximum, _PAIR),
    "aten.min.other": Elementwise(Body.minimum, _PAIR),
    **_entries("fmax", "default", Elementwise(_larger_number, _PAIR)),
    **_entries("fmin", "default", Elementwise(_smaller_number, _PAIR)),
    **_entries("clamp", "default Tensor", Elementwise(Body.clamp, ("self", "min", "max"), exclude_bool=True)),
    **_entries("clamp_min", "default Tensor", Elementwise(_clamp_min, ("self", "min"), exclude_bool=True)),
    **_entries("clamp_max", "default Tensor", Elementwise(_clamp_max, ("self", "max"), exclude_bool=True)),
    "aten.atan2.default": Elementwise(_math(math.Atan2Op), _PAIR, Kind.FLOAT),
    **_entries("copysign", "Tensor Scalar", Elementwise(_math(math.CopySignOp), _PAIR, Kind.FLOAT)),
    "aten.hypot.default": Elementwise(_intrinsic("hypot"), _PAIR),
    "aten.nextafter.default": Elementwise(_next_after, _PAIR),
    **_entries("xlogy", "Tensor Scalar_Self Scalar_Other", Elementwise(_xlogy, _PAIR, Kind.FLOAT)),
    "aten.logaddexp.default": Elementwise(_log_of_sum(math.ExpOp, _log_1p), _PAIR),
    "aten.logaddexp2.default": Elementwise(_log_of_sum(math.Exp2Op, _log2_1p), _PAIR),
    "aten.heaviside.default": Elementwise(_heaviside, ("self", "values")),
    **_entries("logical_and", "default", Elementwise(Body.both, _PAIR, Kind.TRUTH)),
    **_entries("logical_or", "default", Elementwise(Body.either, _PAIR, Kind.TRUTH)),
    **_entries("logical_xor", "default", Elementwise(Body.differ, _PAIR, Kind.TRUTH)),
    **_bits("and", Elementwise(Body.both, _PAIR)),
    **_bits("or", Elementwise(Body.either, _PAIR)),
    **_bits("xor", Elementwise(Body.differ, _PAIR)),
    **_entries("bitwise_left_shift", "Tensor Tensor_Scalar Scalar_Tensor", _SHIFT_LEFT),
    **_entries("bitwise_right_shift", "Tensor Tensor_Scalar Scalar_Tensor", _SHIFT_RIGHT),
    **_entries("__lshift__", "Tensor Scalar", _SHIFT_LEFT),
    **_entries("__rshift__", "Tensor Scalar", _SHIFT_RIGHT),
    **_entries("addcmul", "default", Elementwise(_addcmul, ("self", "tensor1", "tensor2"))),
    **_entries("addcdiv", "default", Elementwise(_addcdiv, ("self", "tensor1", "tensor2"))),
    "prims.fma.default": Elementwise(_fma, ("a", "b", "c")),
    **_entries("lerp", "Tensor Scalar", Elementwise(_lerp, ("self", "end", "weight"), exact=("weight",))),
    **_entries(
        "where",
        "self Scalar ScalarSelf ScalarOther",
        Elementwise(Body.select, ("condition", "self", "other"), conditions=("condition",)),
    ),
    **_entries(
        "masked_fill",
        "Tensor Scalar",
        Elementwise(_masked_fill, ("self", "mask", "value"), promoted=("self",), conditions=("mask",)),
    ),
}
