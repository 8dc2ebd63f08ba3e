"""Scatters: writes at positions that are loaded, to a copy of a tensor, replacing what is there or combined with it.

Several positions may be the same. So the dimensions of the positions are a scan, in eager's order: what is written last
stays, sums round as eager's do, and the result is the same every time. The dimensions around are parallel loops, as
they never meet; those behind are innermost, where they lie side by side in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import i1
from xdsl.ir import Attribute, SSAValue

from tilewright.dialects.combiners import COMBINERS
from tilewright.dialects.loop import layout_of, register_type
from tilewright.dialects.sym_expr import Expr, integer
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, Tensor, element_of, sizes_of
from tilewright.passes.lowering.dtypes import Number, compute_type
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import broadcast, converted, gathered, nest, with_element
from tilewright.passes.lowering.positions import (
    OUT_OF_RANGE,
    Position,
    all_inside,
    at_places,
    check_positions,
    load_position,
    out_of_bounds,
)
from tilewright.passes.lowering.reductions import on_dtype

Places = Mapping[int, Position]
"""The positions to write to, by dimension."""


@dataclass(frozen=True)
class Scatter:
    """What is written where: the dimensions of the result without a position are, in order, `outer` and `inner`.

    `places` and `value` take the indices of the loops around, of the scan over `steps`, and of those inside.
    """

    outer: Sequence[Expr]
    steps: Sequence[Expr]
    inner: Sequence[Expr]
    places: Callable[[Body, Index, Index, Index], Places]
    """Emit the positions to write to."""
    value: Callable[[Body, Index, Index, Index], Value]
    """Emit the element to write, in the result's dtype."""

    def emit(self, call: Call, start: SSAValue, combiner: str | None, *, reset: bool = False) -> Sequence[SSAValue]:
        """Add a nest that combines with the elements of a copy of `start`, or overwrites them.

        With `reset`, what `start` has where something is written does not count.
        """
        return self.write(call, call.result, start, combiner, reset=reset)

    def emit_wide(self, call: Call, start: SSAValue, combiner: str, *, reset: bool = False) -> Sequence[SSAValue]:
        """Do as `emit`, but combine in the compute type, so that each element of the result is rounded once."""
        element = call.result.element_type
        wide = compute_type(element)
        if wide == element:
            return self.emit(call, start, combiner, reset=reset)
        out = with_element(call.result, wide)

        def value(b: Body, i: Index, k: Index, j: Index) -> Value:
            return b.cast(self.value(b, i, k, j), element, wide)

        first = converted(call, start, out)
        (total,) = replace(self, value=value).write(call, out, first, combiner, reset=reset)
        return [converted(call, total, call.result)]

    def write(
        self, call: Call, out: Tensor, start: SSAValue, combiner: str | None, *, reset: bool
    ) -> Sequence[SSAValue]:
        """Do as `emit`, for a result of type `out`, which `value` emits elements of."""
        layout = layout_of(out)
        rank = len(layout.sizes)
        combiner = None if combiner is None else on_dtype(combiner, out.element_type)
        # A dimension around whose elements lie side by side in memory had better be the innermost one.
        dense = [d for d, size in enumerate(self.outer) if layout.strides[d] == 1 and size != 1][:1]
        around = [size for d, size in enumerate(self.outer) if d not in dense]
        inside = [*self.inner, *(self.outer[d] for d in dense)]

        def fill(b: Body, around: Index, destinations: Sequence[Value]) -> None:
            def scan(value: Callable[[Body, Index, Index, Index], Value], combine: str | None) -> None:
                def store(b: Body, k: Index, within: Index) -> None:
                    i, j = list(around), within[: len(self.inner)]
                    for d, x in zip(dense, within[len(self.inner) :], strict=True):
                        i.insert(d, x)
                    places = self.places(b, i, k, j)
                    index, mask = at_places([*i, *j], places, rank), all_inside(b, places)
                    b.store_as(value(b, i, k, j), destinations[0], index, mask=mask, combine=combine)

                b.scan(self.steps, lambda b, k: b.loop(inside, lambda b, within: store(b, k, within)))

            if reset and combiner is not None:
                neutral = _identity(combiner, out.element_type)
                scan(lambda b, i, k, j: b.constant(neutral, out.element_type), None)
            scan(self.value, combiner)

        return nest(call, call.result.element_type, around, [out], fill, start)


def _identity(combiner: str, element: Attribute) -> Number:
    (constant,) = COMBINERS[combiner].identity([register_type(element)])
    return constant.value.data


def _index_put(call: Call) -> Sequence[SSAValue]:
    """Write values, which broadcast, to the elements that `aten.index` would take."""
    source, values, given = call.tensor("self"), call.tensor("values"), call.tensors("indices")
    sizes = sizes_of(source)
    positions = {d: p for d, p in enumerate(given) if p is not None}
    if not positions or element_of(values) != element_of(source):
        raise NotLoweredError("no positions, or values of another dtype")
    if len(positions) == 1 and element_of(next(iter(positions.values()))) == i1:
        return _put_by_mask(call, *next(iter(positions.items())))
    for p in positions.values():
        check_positions(p)
    indexed = list(positions)
    first = indexed[0] if indexed[-1] - indexed[0] == len(indexed) - 1 else 0
    others = [size for d, size in enumerate(sizes) if d not in positions]

    def places(b: Body, i: Index, k: Index, j: Index) -> Places:
        return {
            d: load_position(b, p, broadcast(p, k), sizes[d], out_of_bounds("IndexError", d, sizes[d]), wraps=True)
            for d, p in positions.items()
        }

    def value(b: Body, i: Index, k: Index, j: Index) -> Value:
        return b.load(values, broadcast(values, [*i, *k, *j]))

    scatter = Scatter(others[:first], _common_sizes(list(positions.values())), others[first:], places, value)
    return scatter.emit(call, source, "sum" if call.flag("accumulate") else None)


def _put_by_mask(call: Call, d: int, mask: SSAValue) -> Sequence[SSAValue]:
    """Write values where a mask holds, whose first dimension is `d` of the result.

    They must be the same for all places that the mask picks: how many these are nobody knows before.
    """
    source, values = call.tensor("self"), call.tensor("values")
    rank, picked = len(sizes_of(source)), len(sizes_of(mask))
    behind = rank - d - picked
    shape = sizes_of(values)
    # The dimension of the places, and those in front of it, count from the end.
    if picked == 0 or (len(shape) > behind and (len(shape) > behind + 1 + d or shape[-behind - 1] != 1)):
        raise NotLoweredError("a value for each place of a mask")

    def value(b: Body, index: Index) -> Value:
        place = [*index[:d], integer(0), *index[d + picked :]]
        new, old = b.load(values, broadcast(values, place)), b.load(source, index)
        if call.flag("accumulate"):
            element = b.element
            new = b.cast(b.add(b.cast(old, element, b.compute), b.cast(new, element, b.compute)), b.compute, element)
        return b.select(b.load(mask, index[d : d + picked]), new, old)

    return gathered(call, value)


def _common_sizes(positions: Sequence[SSAValue]) -> list[Expr]:
    """Return the sizes that tensors of positions broadcast to."""
    rank = max(len(sizes_of(p)) for p in positions)
    aligned = [[integer(1)] * (rank - len(sizes_of(p))) + list(sizes_of(p)) for p in positions]
    return [next((s for s in sizes if s != 1), integer(1)) for sizes in zip(*aligned, strict=True)]


def _scattered(
    call: Call, value: Callable[[Body, Index], Value], combiner: str | None, *, reset: bool = False
) -> Sequence[SSAValue]:
    """Scatter along `dim`, at positions with as many dimensions as the result; `value` takes an index of theirs."""
    positions, sizes = call.tensor("index"), layout_of(call.result).sizes
    steps, d = sizes_of(positions), call.dim("dim", len(sizes))
    check_positions(positions)
    if not sizes or len(steps) != len(sizes):
        raise NotLoweredError("a scatter to a tensor without dimensions, or without positions")

    def places(b: Body, i: Index, k: Index, j: Index) -> Places:
        return {d: load_position(b, positions, [*i, *k, *j], sizes[d], out_of_bounds("RuntimeError", d, sizes[d]))}

    scatter = Scatter(steps[:d], [steps[d]], steps[d + 1 :], places, lambda b, i, k, j: value(b, [*i, *k, *j]))
    if combiner in ("sum", "prod"):
        return scatter.emit_wide(call, call.tensor("self"), combiner, reset=reset)
    return scatter.emit(call, call.tensor("self"), combiner, reset=reset)


def _element_of(call: Call, argument: str) -> Callable[[Body, Index], Value]:
    """Return how to emit the elements of an argument, a tensor or a number, as the result's."""
    given = call.operand(argument)
    if isinstance(given, SSAValue):
        if element_of(given) != call.result.element_type:
            raise NotLoweredError(f"values of type {element_of(given)}")
        return lambda b, index: b.load(given, index if sizes_of(given) else [])
    return lambda b, index: b.constant(given, b.element, rounded=True)


def _scatter(argument: str, combiner: str | None = None) -> Lowering:
    return lambda call: _scattered(call, _element_of(call, argument), combiner)


_REDUCTIONS = {"sum": "sum", "add": "sum", "prod": "prod", "multiply": "prod", "amax": "max", "amin": "min"}


def _scatter_reduce(argument: str) -> Lowering:
    """Return the lowering of a scatter whose argument `reduce` says how elements are combined; not as their mean."""

    def lower(call: Call) -> Sequence[SSAValue]:
        combiner = _REDUCTIONS.get(call.text("reduce") or "")
        if combiner is None:
            raise NotLoweredError(f"a scatter by `{call.text('reduce')}`")
        reset = call.has("include_self") and not call.flag("include_self")
        return _scattered(call, _element_of(call, argument), combiner, reset=reset)

    return lower


def _along_index(
    call: Call, value: Callable[[Body, Index], Value], combiner: str | None, error: str, *, wraps: bool = False
) -> Sequence[SSAValue]:
    """Write to the places along `dim` that a list of positions names; `value` takes an index with their numbers."""
    positions, sizes = call.tensor("index"), layout_of(call.result).sizes
    d, steps = call.dim("dim", len(sizes)), sizes_of(positions)
    check_positions(positions)
    if not sizes:
        raise NotLoweredError("a tensor without dimensions")

    def places(b: Body, i: Index, k: Index, j: Index) -> Places:
        return {d: load_position(b, positions, k, sizes[d], error, wraps=wraps)}

    def element(b: Body, i: Index, k: Index, j: Index) -> Value:
        return value(b, [*i, *(k or [integer(0)]), *j])

    return Scatter(sizes[:d], steps, sizes[d + 1 :], places, element).emit(call, call.tensor("self"), combiner)


def _index_add(call: Call) -> Sequence[SSAValue]:
    source, alpha = call.tensor("source"), call.number("alpha")
    element = _element_of(call, "source")
    if not sizes_of(source) and layout_of(call.result).sizes:
        raise NotLoweredError("a source without dimensions")

    def value(b: Body, index: Index) -> Value:
        if alpha == 1:
            return element(b, index)
        scaled = b.mul(b.constant(alpha), b.load_element(source, index))
        return b.cast(scaled, b.compute, b.element)

    return _along_index(call, value, "sum", OUT_OF_RANGE)


def _index_copy(call: Call) -> Sequence[SSAValue]:
    d, sizes = call.dim("dim", len(layout_of(call.result).sizes)), layout_of(call.result).sizes
    if not sizes or not sizes_of(call.tensor("source")):
        raise NotLoweredError("a tensor without dimensions")
    error = out_of_bounds("IndexError", d, sizes[d]).replace("index out", "index_copy_(): index out")
    return _along_index(call, _element_of(call, "source"), None, error)


def _index_fill(call: Call) -> Sequence[SSAValue]:
    d, sizes = call.dim("dim", len(layout_of(call.result).sizes)), layout_of(call.result).sizes
    error = out_of_bounds("IndexError", d, sizes[d]) if sizes else ""
    value = _element_of(call, "value")
    return _along_index(call, value, None, error, wraps=True)


LOWERINGS: dict[str, Lowering] = {
    "aten.index_put.default": _index_put,
    "aten.scatter.src": _scatter("src"),
    "aten.scatter.value": _scatter("value"),
    "aten.scatter.reduce": _scatter_reduce("src"),
    "aten.scatter.value_reduce": _scatter_reduce("value"),
    "aten.scatter_add.default": _scatter("src", "sum"),
    "aten.scatter_reduce.two": _scatter_reduce("src"),
    "aten.index_add.default": _index_add,
    "aten.index_copy.default": _index_copy,
    "aten.index_fill.int_Scalar": _index_fill,
    "aten.index_fill.int_Tensor": _index_fill,
}
