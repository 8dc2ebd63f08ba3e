"""Reductions over some or all dimensions: sums, extremes, their places, tests, variances, norms.

A reduction over several dimensions is one `loop.reduce`; what order its sum has is for later passes to say. Sums of
16-bit floats are in f32 and round once, as eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce as fold
from operator import mul

from xdsl.dialects import math
from xdsl.dialects.builtin import i1, i64
from xdsl.ir import Attribute, SSAValue

from tilewright.dialects.sym_expr import Expr, Max, integer
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.dtypes import Number, is_float, is_unsigned
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import ZERO, nest
from tilewright.passes.lowering.unary import absolute
from tilewright.passes.lowering.windows import flat


@dataclass(frozen=True)
class Reduction:
    """Which dimensions of which tensor are reduced, and whether the result keeps them with size one."""

    source: SSAValue
    dims: tuple[int, ...]
    keepdim: bool

    @property
    def sizes(self) -> tuple[Expr, ...]:
        """The sizes of the reduced dimensions."""
        sizes = sizes_of(self.source)
        return tuple(sizes[d] for d in self.dims)

    @property
    def kept(self) -> tuple[int, ...]:
        """The other dimensions."""
        return tuple(d for d in range(len(sizes_of(self.source))) if d not in self.dims)

    @property
    def count(self) -> Expr:
        """The number of elements that become one."""
        return fold(mul, self.sizes, integer(1))

    def source_index(self, outer: Index, inner: Index) -> Index:
        """Return the index of the source at the indices of the kept and the reduced dimensions."""
        index = dict(zip((*self.kept, *self.dims), (*outer, *inner), strict=True))
        return [index[d] for d in range(len(index))]

    def result_index(self, outer: Index) -> Index:
        """Return the index of the result at the indices of the kept dimensions."""
        return self.source_index(outer, [ZERO] * len(self.dims)) if self.keepdim else outer


def reduction(call: Call) -> Reduction:
    """Return what the arguments `self`, `dim` and `keepdim` say; without `dim` all dimensions are reduced."""
    source = call.tensor("self")
    rank = len(sizes_of(source))
    dims = call.dims("dim", rank) if call.has("dim") else range(rank)
    if call.op.operator.endswith(".dims") and call.has("dim") and not call.integers("dim"):
        dims = ()  # `any` and `all`, unlike the others, take an empty list as it is
    return Reduction(source, tuple(dims), call.has("keepdim") and call.flag("keepdim"))


def reduced(
    call: Call, r: Reduction, element: Attribute, values: Callable[[Body, Index], Sequence[Value]]
) -> Sequence[SSAValue]:
    """Add a nest over the kept dimensions; `values` emits a value of the compute type for each result."""
    sizes = sizes_of(r.source)

    def fill(body: Body, outer: Index, destinations: Sequence[Value]) -> None:
        index = r.result_index(outer)
        for value, destination in zip(values(body, outer), destinations, strict=True):
            body.store(value, destination, index)

    return nest(call, element, [sizes[d] for d in r.kept], call.results, fill)


@dataclass(frozen=True)
class Combination:
    """The lowering of a reduction by one combiner: of `map` of the elements, then `finish` of the outcome."""

    combiner: str
    map: Callable[[Body, Value], Value] = lambda b, x: x
    finish: Callable[[Body, Value], Value] = lambda b, x: x
    integers_as: Attribute | None = None
    """The dtype that integers and bools are converted to; None where they stay as they are."""
    floats_only: bool = False

    def __call__(self, call: Call) -> Sequence[SSAValue]:
        r = reduction(call)
        element = self.element(call, element_of(r.source))
        source = element_of(r.source)

        def load(b: Body, index: Index) -> Value:
            return self.map(b, b.widen(b.load(r.source, index), source))

        def values(b: Body, outer: Index) -> Sequence[Value]:
            combiner = on_dtype(self.combiner, element)
            total = b.reduce_one(combiner, r.sizes, lambda b, inner: load(b, r.source_index(outer, inner)))
            return [self.finish(b, total)]

        return reduced(call, r, element, values)

    def element(self, call: Call, source: Attribute) -> Attribute:
        """Return the dtype that elements are converted to first: that asked for, or the result's."""
        element = call.dtype("dtype") if call.has("dtype") else None
        if element is None:
            element = source if self.integers_as is None or is_float(source) else self.integers_as
        if self.floats_only and not is_float(element):
            raise NotLoweredError(f"elements of type {element}")
        if call.result.element_type != element:
            raise NotLoweredError(f"a result of type {call.result.element_type}, expected {element}")
        return element


def on_dtype(combiner: str, element: Attribute) -> str:
    """Return the combiner that orders elements of a dtype as torch does."""
    if element == i1:
        return {"max": "any", "min": "all", "sum": "any", "prod": "all"}.get(combiner, combiner)
    return f"u{combiner}" if is_unsigned(element) and combiner in ("max", "min") else combiner


def _mean(call: Call) -> Sequence[SSAValue]:
    count = reduction(call).count
    combination = Combination(
        "sum", finish=lambda b, total: b.div(total, b.constant(as_number(count))), floats_only=True
    )
    return combination(call)


def as_number(expr: Expr) -> Number:
    """Return an expression as a number, to be used as a float."""
    return float(int(expr)) if expr.is_Integer else expr


def _test(combiner: str) -> Lowering:
    """Return the lowering of a test of all elements for non-zero; of bytes the result is a byte."""

    def lower(call: Call) -> Sequence[SSAValue]:
        r = reduction(call)
        source = element_of(r.source)

        def values(b: Body, outer: Index) -> Sequence[Value]:
            def value(b: Body, inner: Index) -> Value:
                return b.cast(b.load(r.source, r.source_index(outer, inner)), source, i1)

            return [b.reduce_one(combiner, r.sizes, value)]

        return reduced(call, r, i1, values)

    return lower


def _arg(combiner: str, *, with_value: bool) -> Lowering:
    """Return the lowering of the place of an extreme, and perhaps of the extreme itself."""

    def lower(call: Call) -> Sequence[SSAValue]:
        r = reduction(call)
        outs = call.results
        element = element_of(r.source)
        # Signed comparison would take true for -1, and bytes from 128 on for negative.
        ordered = i64 if is_unsigned(element) else element

        def fill(b: Body, outer: Index, destinations: Sequence[Value]) -> None:
            def slots(b: Body, inner: Index) -> Sequence[Value]:
                value = b.widen(b.load(r.source, r.source_index(outer, inner)), element)
                return [value, b.cast_register(b.index_value(flat(inner, r.sizes)), i64)]

            value, place = b.reduce([combiner], r.sizes, slots)
            index = r.result_index(outer)
            if with_value:
                b.store(value, destinations[0], index)
            b.store_as(b.cast(place, i64, outs[-1].element_type), destinations[-1], index)

        sizes = sizes_of(r.source)
        return nest(call, ordered, [sizes[d] for d in r.kept], outs, fill)

    return lower


def mean_and_deviation(b: Body, r: Reduction, outer: Index) -> tuple[Value, Value]:
    """Emit the mean of the reduced elements and the sum of their squared distances from it.

    In two passes, each a plain sum: a single pass (Welford's) divides at every element, and that chain of divisions
    takes longer than reading the elements again. Two passes are also the more accurate way.
    """

    def element(b: Body, inner: Index) -> Value:
        return b.load_element(r.source, r.source_index(outer, inner))

    mean = b.div(b.reduce_one("sum", r.sizes, element), b.constant(as_number(r.count)))

    def squared(b: Body, inner: Index) -> Value:
        distance = b.sub(element(b, inner), mean)
        return b.mul(distance, distance)

    return mean, b.reduce_one("sum", r.sizes, squared)


def _mean_and_corrected_deviation(b: Body, r: Reduction, outer: Index) -> tuple[Value, Value]:
    """Emit the same without what the rounding of the mean does to the sum of squares.

    The corrected two-pass algorithm: Chan, Golub and LeVeque, Algorithms for computing the sample variance (1983).
    Eager sums in f64.
    """

    def element(b: Body, inner: Index) -> Value:
        return b.load_element(r.source, r.source_index(outer, inner))

    count = b.constant(as_number(r.count))
    mean = b.div(b.reduce_one("sum", r.sizes, element), count)

    def slots(b: Body, inner: Index) -> Sequence[Value]:
        distance = b.sub(element(b, inner), mean)
        return [distance, b.mul(distance, distance)]

    rest, squares = b.reduce(["sum", "sum"], r.sizes, slots)
    corrected = b.clamp(b.sub(squares, b.mul(rest, b.div(rest, count))), b.constant(0), None)
    return mean, b.select(b.intrinsic("isinf", squares), squares, corrected)


def _variance(finish: Callable[[Body, Value], Value], *, with_mean: bool = False) -> Lowering:
    """Return the lowering of the variance, or `finish` of it, and perhaps the mean."""

    def lower(call: Call) -> Sequence[SSAValue]:
        r = reduction(call)
        correction = _correction(call)

        def values(b: Body, outer: Index) -> Sequence[Value]:
            mean, squares = _mean_and_corrected_deviation(b, r, outer)
            variance = finish(b, b.div(squares, _freedom(b, r.count, correction)))
            return [variance, mean] if with_mean else [variance]

        return reduced(call, r, element_of(r.source), values)

    return lower


def _correction(call: Call) -> float:
    """Return what is subtracted from the number of elements, in any of its spellings."""
    if not call.op.operator.endswith(".correction"):
        return float(call.flag("unbiased"))
    correction = call.number("correction") if call.has("correction") else 1
    if not isinstance(correction, (int, float)):
        raise NotLoweredError("a symbolic correction")
    return float(correction)


def _freedom(b: Body, count: Expr, correction: float) -> Value:
    """Emit what a sum of squares is divided by; never negative, as in eager."""
    if count.is_Integer:
        return b.constant(max(0.0, int(count) - correction))
    if correction.is_integer():
        return b.constant(Max(count - int(correction), ZERO))
    return b.maximum(b.sub(b.constant(count), b.constant(correction)), b.constant(0))


def _logsumexp(call: Call) -> Sequence[SSAValue]:
    r = reduction(call)
    element = element_of(r.source)
    if not is_float(element):
        element = call.result.element_type

    def values(b: Body, outer: Index) -> Sequence[Value]:
        def load(b: Body, inner: Index) -> Value:
            return b.load_element(r.source, r.source_index(outer, inner))

        highest = b.reduce_one("max", r.sizes, load)
        # An infinite maximum would make the differences NaN.
        base = b.select(b.intrinsic("isinf", highest), b.constant(0), highest)

        def power(b: Body, inner: Index) -> Value:
            return b.round(b.math(math.ExpOp, b.round(b.sub(load(b, inner), base))))

        total = b.round(b.reduce_one("sum", r.sizes, power))
        return [b.add(b.round(b.math(math.LogOp, total)), base)]

    return reduced(call, r, element, values)


def _norm(argument: str) -> Lowering:
    """Return the lowering of a vector norm whose order is the given argument."""

    def lower(call: Call) -> Sequence[SSAValue]:
        order = call.number(argument) if call.has(argument) or argument == "ord" else 2
        if not isinstance(order, (int, float)):
            raise NotLoweredError("a symbolic order")
        return _norm_of_order(float(order))(call)

    return lower


def _norm_of_order(order: float) -> Combination:
    if order in (float("inf"), float("-inf")):
        return Combination("max" if order > 0 else "min", absolute, floats_only=True)
    if order == 0:
        return Combination("sum", lambda b, x: b.cast(b.compare("ne", x, 0), i1, b.compute), floats_only=True)
    if order == 1:
        return Combination("sum", absolute, floats_only=True)
    if order == 2:
        return Combination("sum", lambda b, x: b.mul(x, x), lambda b, x: b.math(math.SqrtOp, x), floats_only=True)
    return Combination(
        "sum",
        lambda b, x: b.math(math.PowFOp, absolute(b, x), b.constant(order)),
        lambda b, x: b.math(math.PowFOp, x, b.constant(1 / order)),
        floats_only=True,
    )


def _aminmax(call: Call) -> Sequence[SSAValue]:
    r = reduction(call)
    element = element_of(r.source)

    def values(b: Body, outer: Index) -> Sequence[Value]:
        def load(b: Body, inner: Index) -> Sequence[Value]:
            value = b.load_element(r.source, r.source_index(outer, inner))
            return [value, value]

        return b.reduce([on_dtype("min", element), on_dtype("max", element)], r.sizes, load)

    return reduced(call, r, element, values)


def _count_nonzero(call: Call) -> Sequence[SSAValue]:
    r = reduction(call)
    source = element_of(r.source)

    def values(b: Body, outer: Index) -> Sequence[Value]:
        def value(b: Body, inner: Index) -> Value:
            return b.cast(b.cast(b.load(r.source, r.source_index(outer, inner)), source, i1), i1, i64)

        return [b.reduce_one("sum", r.sizes, value)]

    return reduced(call, r, i64, values)


def _square_root(b: Body, x: Value) -> Value:
    return b.math(math.SqrtOp, x)


def _entries(name: str, overloads: str, lowering: Lowering) -> dict[str, Lowering]:
    return {f"aten.{name}.{overload}": lowering for overload in overloads.split()}


def _without_nan(b: Body, x: Value) -> Value:
    return b.select(b.intrinsic("isnan", x), b.constant(0), x) if is_float(b.compute) else x


LOWERINGS: dict[str, Lowering] = {
    **_entries("sum", "default dim_IntList", Combination("sum", integers_as=i64)),
    **_entries("nansum", "default", Combination("sum", _without_nan, integers_as=i64)),
    **_entries("prod", "default dim_int", Combination("prod", integers_as=i64)),
    **_entries("mean", "default dim", _mean),
    **_entries("amax", "default", Combination("max")),
    **_entries("amin", "default", Combination("min")),
    **_entries("max", "default", Combination("max")),
    **_entries("min", "default", Combination("min")),
    **_entries("aminmax", "default", _aminmax),
    **_entries("max", "dim", _arg("argmax", with_value=True)),
    **_entries("min", "dim", _arg("argmin", with_value=True)),
    **_entries("argmax", "default", _arg("argmax", with_value=False)),
    **_entries("argmin", "default", _arg("argmin", with_value=False)),
    **_entries("any", "default dim dims", _test("any")),
    **_entries("all", "default dim dims", _test("all")),
    **_entries("count_nonzero", "default dim_IntList", _count_nonzero),
    **_entries("var", "default dim correction", _variance(lambda b, x: x)),
    **_entries("std", "default dim correction", _variance(_square_root)),
    **_entries("var_mean", "default dim correction", _variance(lambda b, x: x, with_mean=True)),
    **_entries("std_mean", "default dim correction", _variance(_square_root, with_mean=True)),
    **_entries("logsumexp", "default", _logsumexp),
    **_entries("linalg_vector_norm", "default", _norm("ord")),
    **_entries("norm", "Scalar ScalarOpt_dim ScalarOpt_dim_dtype ScalarOpt_dtype", _norm("p")),
}
