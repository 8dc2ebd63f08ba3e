"""Random numbers from a seed, as `frontends/random_operators.py` defines them.

The number of an element is its distance in memory from the first, in the order of dims that the operator names: where
the result lies in memory like that, lanes are side by side in a stream too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import IndexType, f32, f64, i32, i64
from xdsl.ir import Attribute, SSAValue

from tilewright.dialects.loop import RandomOp, layout_of
from tilewright.dialects.sym_expr import Expr, integer
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering
from tilewright.passes.lowering.dtypes import is_float, is_half, significand
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import gathered

MAX_NARROW_RANGE = 2**32
"""The largest range of integers that 32 random bits are enough for."""


class _Numbers:
    """Emits random numbers for the elements of a call's result."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.seed = call.tensor("seed")
        self.stream = call.integer("stream")
        order = call.integers("order") or ()
        self.strides = _dense_strides(layout_of(call.result).sizes, order)

    def draw(self, b: Body, index: Index, distribution: str, kind: Attribute, stream: int = 0) -> Value:
        """Return the number of an element in the given one of the streams that the call takes."""
        place: Expr = integer(0)
        for i, stride in zip(index, self.strides, strict=True):
            place = place + i * stride
        number = b.constant(self.stream + stream, IndexType())
        seed = b.load(self.seed, [])
        return b.emit(RandomOp.get(distribution, seed, number, b.index_value(place), kind))


def _dense_strides(sizes: Sequence[Expr], order: Sequence[int]) -> list[Expr]:
    strides = [integer(1)] * len(sizes)
    step: Expr = integer(1)
    for dim in reversed(order):
        strides[dim] = step
        step = step * sizes[dim]
    return strides


def _uniform(numbers: _Numbers, b: Body, index: Index) -> Value:
    value = numbers.draw(b, index, "uniform", b.compute)
    if not is_half(b.element):
        return value
    # As many bits as the dtype has, so that nothing is rounded up to one.
    scale = float(1 << significand(b.element))
    whole = b.math(math.FloorOp, b.mul(value, b.constant(scale)))
    return b.mul(whole, b.constant(1.0 / scale))


def _normal(numbers: _Numbers, b: Body, index: Index) -> Value:
    if b.compute != f64:
        return numbers.draw(b, index, "normal", f32)
    # Box and Muller, 1958.
    radius = b.sub(b.constant(1.0), numbers.draw(b, index, "uniform", f64))
    angle = numbers.draw(b, index, "uniform", f64, 1)
    length = b.math(math.SqrtOp, b.mul(b.math(math.LogOp, radius), b.constant(-2.0)))
    return b.mul(length, b.math(math.CosOp, b.mul(angle, b.constant(2.0 * pi))))


def _exponential(numbers: _Numbers, b: Body, index: Index) -> Value:
    rest = b.sub(b.constant(1.0), numbers.draw(b, index, "uniform", b.compute))
    smallest = 2.0**-53 if b.compute == f64 else 2.0**-24
    return b.maximum(b.neg(b.math(math.LogOp, rest)), b.constant(smallest))


_DISTRIBUTIONS = {"uniform": _uniform, "normal": _normal, "exponential": _exponential}


def _random(call: Call) -> Sequence[SSAValue]:
    rule = _DISTRIBUTIONS.get(call.text("distribution") or "")
    element = call.result.element_type
    if rule is None or not is_float(element):
        raise NotLoweredError(f"random numbers of distribution {call.text('distribution')}, type {element}")
    numbers = _Numbers(call)
    return gathered(call, lambda b, i: b.cast(rule(numbers, b, i), b.compute, element))


def _random_integers(call: Call) -> Sequence[SSAValue]:
    low, extent = call.size("low"), call.simplify(call.size("high") - call.size("low"))
    numbers, element = _Numbers(call), call.result.element_type
    is_narrow = extent.is_Integer and int(extent) <= MAX_NARROW_RANGE

    def value(b: Body, index: Index) -> Value:
        bits = numbers.draw(b, index, "bits", i32 if is_narrow else i64)
        if is_narrow:
            wide = b.cast_register(bits, i64, unsigned=True)
            product = b.mul(wide, b.constant(extent, i64))
            found = b.integer_op(arith.ShRUIOp, product, b.constant(32, i64))
        else:
            positive = b.integer_op(arith.ShRUIOp, bits, b.constant(1, i64))
            found = b.integer_op(arith.RemUIOp, positive, b.constant(extent, i64))
        return b.cast(b.add(found, b.constant(low, i64)), i64, element)

    return gathered(call, value)


LOWERINGS: dict[str, Lowering] = {
    "tilewright.random.default": _random,
    "tilewright.random_integers.default": _random_integers,
}
