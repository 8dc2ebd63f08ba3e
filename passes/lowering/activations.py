"""Activation functions and the gradients of elementwise functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt

from xdsl.dialects import math
from xdsl.dialects.builtin import Float16Type, f32
from xdsl.ir import SSAValue

from tilewright.dialects.loop import layout_of
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.elementwise import Elementwise, Rule
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import nest
from tilewright.passes.lowering.unary import sigmoid

_CUBIC = 0.044715
"""The coefficient of the cubic term in the approximation of gelu by tanh."""


def _silu(b: Body, x: Value) -> Value:
    return b.div(x, b.add(b.constant(1), b.math(math.ExpOp, b.neg(x))))


def _gelu(b: Body, x: Value) -> Value:
    """Emit `x * P(X <= x)` for a normal variable X, exactly or by tanh."""
    match b.call.text("approximate"):
        case "none":
            tail = b.math(math.ErfOp, b.mul(x, b.constant(sqrt(0.5))))
        case "tanh":
            cube = b.mul(b.mul(x, x), x)
            inner = b.mul(b.constant(sqrt(2 / pi)), b.add(x, b.mul(b.constant(_CUBIC), cube)))
            tail = b.math(math.TanhOp, inner)
        case mode:
            raise NotLoweredError(f"gelu by {mode}")
    return b.mul(b.mul(x, b.constant(0.5)), b.add(b.constant(1), tail))


def _softplus(b: Body, x: Value) -> Value:
    beta = b.argument("beta")
    scaled = b.mul(x, beta)
    soft = b.div(b.math(math.Log1pOp, b.math(math.ExpOp, scaled)), beta)
    return b.select(b.compare("gt", scaled, b.argument("threshold")), x, soft)


def _elu(b: Body, x: Value) -> Value:
    scale = b.argument("scale")
    negative = b.mul(b.argument("alpha"), scale)
    below = b.mul(b.math(math.ExpM1Op, b.mul(x, b.argument("input_scale"))), negative)
    return b.select(b.compare("lt", x, 0), below, b.mul(x, scale))


def _celu(b: Body, x: Value) -> Value:
    alpha = b.call.number("alpha")
    if not isinstance(alpha, (int, float)):
        raise NotLoweredError("a symbolic alpha")
    below = b.mul(b.math(math.ExpM1Op, b.mul(x, b.constant(1 / alpha))), b.constant(alpha))
    return b.select(b.compare("lt", x, 0), below, x)


def _leaky_relu(b: Body, x: Value) -> Value:
    return b.select(b.compare("gt", x, 0), x, b.mul(x, b.argument("negative_slope")))


def _relu(b: Body, x: Value) -> Value:
    return b.clamp(x, b.constant(0), None)


def _relu6(b: Body, x: Value) -> Value:
    return b.clamp(x, b.constant(0), b.constant(6))


def _hardtanh(b: Body, x: Value) -> Value:
    return b.clamp(x, b.argument("min_val", rounded=True), b.argument("max_val", rounded=True))


def _hardsigmoid(b: Body, x: Value) -> Value:
    return b.div(_relu6(b, b.add(x, b.constant(3))), b.constant(6))


def _hardswish(b: Body, x: Value) -> Value:
    return b.div(b.mul(x, _relu6(b, b.add(x, b.constant(3)))), b.constant(6))


def _log_1p_exp(b: Body, x: Value) -> Value:
    return b.math(math.Log1pOp, b.math(math.ExpOp, x))


def _mish(b: Body, x: Value) -> Value:
    return b.mul(x, b.math(math.TanhOp, _log_1p_exp(b, x)))


def _softshrink(b: Body, x: Value) -> Value:
    bound = b.argument("lambd")
    above, below = b.compare("gt", x, bound), b.compare("lt", x, b.neg(bound))
    inside = b.mul(x, b.constant(0))  # zero, but NaN where x is
    return b.select(above, b.sub(x, bound), b.select(below, b.add(x, bound), inside))


def _hardshrink(b: Body, x: Value) -> Value:
    bound = b.argument("lambd", rounded=True)
    inside = b.both(b.compare("ge", x, b.neg(bound)), b.compare("le", x, bound))
    return b.select(inside, b.constant(0), x)


def _threshold(b: Body, x: Value) -> Value:
    return b.select(_is_at_most_threshold(b, x), b.argument("value"), x)


def _is_at_most_threshold(b: Body, x: Value) -> Value:
    return b.compare("le", x, b.argument("threshold", rounded=b.call.on_cuda))


def _prelu(b: Body, x: Value, weight: Value) -> Value:
    return b.select(b.compare("gt", x, 0), x, b.mul(weight, x))


def _on_16_bits(b: Body, x: Value) -> Value:
    """Round where eager works in the dtype itself: for f16, and on CUDA for bf16, too."""
    return b.round(x) if b.call.on_cuda or isinstance(b.element, Float16Type) else x


def _sigmoid_backward(b: Body, grad: Value, y: Value) -> Value:
    rest = _on_16_bits(b, b.sub(b.constant(1), y))
    return b.mul(_on_16_bits(b, b.mul(grad, rest)), y)


def _tanh_backward(b: Body, grad: Value, y: Value) -> Value:
    if not b.call.on_cuda:
        return b.mul(grad, b.sub(b.constant(1), b.mul(y, y)))
    return b.mul(grad, b.round(b.sub(b.constant(1), b.round(b.mul(y, y)))))


def _silu_backward(b: Body, grad: Value, x: Value) -> Value:
    s = sigmoid(b, x)
    slope = b.add(b.constant(1), b.mul(x, b.sub(b.constant(1), s)))
    return b.mul(b.mul(grad, s), slope)


def _gelu_backward(b: Body, grad: Value, x: Value) -> Value:
    match b.call.text("approximate"):
        case "none":
            phi = b.add(b.constant(1), b.math(math.ErfOp, b.mul(x, b.constant(sqrt(0.5)))))
            bell = b.math(math.ExpOp, b.mul(b.mul(x, x), b.constant(-0.5)))
            density = b.mul(bell, b.constant(1 / sqrt(2 * pi)))
            return b.mul(grad, b.add(b.mul(b.constant(0.5), phi), b.mul(x, density)))
        case "tanh":
            return _gelu_tanh_backward(b, grad, x)
        case mode:
            raise NotLoweredError(f"gelu by {mode}")


def _gelu_tanh_backward(b: Body, grad: Value, x: Value) -> Value:
    one, half, beta = b.constant(1), b.constant(0.5), b.constant(sqrt(2 / pi))
    square = b.mul(x, x)
    inner = b.mul(beta, b.add(x, b.mul(b.constant(_CUBIC), b.mul(square, x))))
    tail = b.math(math.TanhOp, inner)
    left = b.mul(half, b.add(one, tail))
    slope = b.mul(beta, b.add(one, b.mul(b.constant(3 * _CUBIC), square)))
    right = b.mul(b.mul(b.mul(half, x), b.sub(one, b.mul(tail, tail))), slope)
    return b.mul(grad, b.add(left, right))


def _threshold_backward(b: Body, grad: Value, x: Value) -> Value:
    return b.select(_is_at_most_threshold(b, x), b.constant(0), grad)


def _hardtanh_backward(b: Body, grad: Value, x: Value) -> Value:
    low, high = b.argument("min_val"), b.argument("max_val")
    if b.call.on_cuda:  # where x is NaN, the gradient
        return b.select(b.either(b.compare("le", x, low), b.compare("ge", x, high)), b.constant(0), grad)
    return b.select(b.both(b.compare("gt", x, low), b.compare("lt", x, high)), grad, b.constant(0))


def _leaky_relu_backward(b: Body, grad: Value, x: Value) -> Value:
    return b.select(b.compare("gt", x, 0), grad, b.mul(grad, b.argument("negative_slope")))


def _elu_backward(b: Body, grad: Value, x: Value) -> Value:
    """Emit the gradient, given the operand or the result of the forward function."""
    scale = b.argument("scale")
    negative = b.mul(b.argument("alpha"), scale)
    inner = b.argument("input_scale")
    if b.call.flag("is_result"):
        below = b.mul(b.mul(grad, inner), b.add(x, negative))
    else:
        below = b.mul(b.mul(b.mul(grad, inner), negative), b.math(math.ExpOp, b.mul(x, inner)))
    return b.select(b.compare("gt", x, 0), b.mul(grad, scale), below)


def _softplus_backward(b: Body, grad: Value, x: Value) -> Value:
    scaled = b.mul(x, b.argument("beta"))
    power = b.math(math.ExpOp, scaled)
    soft = b.div(b.mul(grad, power), b.add(power, b.constant(1)))
    return b.select(b.compare("gt", scaled, b.argument("threshold")), grad, soft)


def _hardsigmoid_backward(b: Body, grad: Value, x: Value) -> Value:
    inside = b.both(b.compare("gt", x, -3), b.compare("lt", x, 3))
    # Eager has the factor in f32 even for f64.
    return b.select(inside, b.mul(grad, b.constant(f32.round(1 / 6))), b.constant(0))


def _hardswish_backward(b: Body, grad: Value, x: Value) -> Value:
    inside = b.mul(grad, b.add(b.div(x, b.constant(3)), b.constant(0.5)))
    return b.select(b.compare("le", x, -3), b.constant(0), b.select(b.compare("ge", x, 3), grad, inside))


def _mish_backward(b: Body, grad: Value, x: Value) -> Value:
    tail = b.math(math.TanhOp, _log_1p_exp(b, x))
    slope = b.mul(b.mul(x, sigmoid(b, x)), b.sub(b.constant(1), b.mul(tail, tail)))
    return b.mul(grad, b.add(tail, slope))


def _shrink_backward(b: Body, grad: Value, x: Value) -> Value:
    """Emit zero inside of the bounds; where x is NaN, too, but on CUDA."""
    bound = b.argument("lambd", rounded=True)
    if b.call.on_cuda:
        inside = b.both(b.compare("ge", x, b.neg(bound)), b.compare("le", x, bound))
        return b.select(inside, b.constant(0), grad)
    outside = b.either(b.compare("gt", x, bound), b.compare("lt", x, b.neg(bound)))
    return b.select(outside, grad, b.constant(0))


def _log_sigmoid_forward(call: Call) -> Sequence[SSAValue]:
    """Compute `log(sigmoid(x))`, and for the gradient `exp(-|x|)`, which eager keeps on the CPU only."""
    source, outs = call.tensor("self"), call.results
    if layout_of(outs[0]).sizes != layout_of(outs[1]).sizes:
        raise NotLoweredError("an empty buffer")

    def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
        x = b.load_element(source, index)
        buffer = b.math(math.ExpOp, b.neg(b.math(math.AbsFOp, x)))
        b.store(b.sub(b.minimum(x, b.constant(0)), b.math(math.Log1pOp, buffer)), destinations[0], index)
        b.store(buffer, destinations[1], index)

    return nest(call, element_of(source), sizes_of(source), outs, fill)


def _log_sigmoid_backward(b: Body, grad: Value, x: Value, buffer: Value) -> Value:
    negative = b.compare("lt", x, 0)
    most = b.select(negative, b.constant(1), b.constant(0))
    sign = b.select(negative, b.constant(1), b.constant(-1))
    return b.mul(b.sub(most, b.mul(sign, b.div(buffer, b.add(b.constant(1), buffer)))), grad)


def _of_one(rules: dict[str, Rule]) -> dict[str, Lowering]:
    return {f"aten.{name}.default": Elementwise(rule) for name, rule in rules.items()}


def _gradients(names: tuple[str, str], rules: dict[str, Rule]) -> dict[str, Lowering]:
    """Return the entries of gradients whose operands have the given names."""
    return {f"aten.{name}_backward.default": Elementwise(rule, names) for name, rule in rules.items()}


LOWERINGS: dict[str, Lowering] = {
    **_of_one(
        {
            "celu": _celu,
            "elu": _elu,
            "gelu": _gelu,
            "hardshrink": _hardshrink,
            "hardsigmoid": _hardsigmoid,
            "hardswish": _hardswish,
            "hardtanh": _hardtanh,
            "leaky_relu": _leaky_relu,
            "mish": _mish,
            "relu": _relu,
            "relu6": _relu6,
            "silu": _silu,
            "softplus": _softplus,
            "softshrink": _softshrink,
            "threshold": _threshold,
        }
    ),
    "aten.log_sigmoid_forward.default": _log_sigmoid_forward,
    "aten.log_sigmoid_backward.default": Elementwise(_log_sigmoid_backward, ("grad_output", "self", "buffer")),
    "aten._prelu_kernel.default": Elementwise(_prelu, ("self", "weight")),
    **_gradients(
        ("grad_output", "self"),
        {
            "gelu": _gelu_backward,
            "hardsigmoid": _hardsigmoid_backward,
            "hardswish": _hardswish_backward,
            "hardtanh": _hardtanh_backward,
            "leaky_relu": _leaky_relu_backward,
            "mish": _mish_backward,
            "silu": _silu_backward,
            "softplus": _softplus_backward,
            "softshrink": _shrink_backward,
            "threshold": _threshold_backward,
        },
    ),
    **_gradients(("grad_out", "self"), {"hardshrink": _shrink_backward}),
    **_gradients(("grad_output", "output"), {"sigmoid": _sigmoid_backward, "tanh": _tanh_backward}),
    **_gradients(("grad_output", "self_or_result"), {"elu": _elu_backward}),
}
