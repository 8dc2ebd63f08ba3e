"""Pooling by the largest element of each window, and the gradient, which goes back to the place that won.

Where channels lie side by side and windows do not overlap, each place looks whether it won its window, which is work
for vectors. Otherwise the windows are a scatter, one step each. Both add up in eager's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Attribute, SSAValue

from tilewright.dialects.combiners import COMBINERS
from tilewright.dialects.loop import layout_of, register_type
from tilewright.dialects.sym_expr import Expr, FloorDiv, Max, integer
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.dtypes import Category, Number, category, compute_type, is_float, is_unsigned
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import ZERO, nest
from tilewright.passes.lowering.windows import (
    FEW,
    Windows,
    adaptive_windows,
    by_rank,
    flat,
    is_channels_last,
    load_masked,
)

_INDEX_LIMIT = (1 << 63) - 1


def _lowest(element: Attribute) -> Number:
    return COMBINERS["max"].identity([register_type(compute_type(element))])[0].value.data


def _max_pool(rank: int) -> Lowering:
    """Return the lowering of the largest element of each window, and its place in row-major order.

    As in eager the first of equal elements wins, and the last of several NaN.
    """

    def lower(call: Call) -> Sequence[SSAValue]:
        source = call.tensor("self")
        out, places = call.results
        element = element_of(source)
        if category(element) is Category.BOOL or is_unsigned(element):
            raise NotLoweredError(f"elements of type {element}")
        windows = Windows.of(call, source, layout_of(out).sizes, rank, dilated=True)
        best = _best_in_loops
        if windows.are_few:
            dense = all(a.dilation == 1 for a in windows.axes)
            best = _best_clamped if dense and is_channels_last(source, rank) else _best_masked

        def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
            value, place = best(b, source, windows, index[:-rank], index[-rank:])
            b.store(value, destinations[0], index)
            b.store_as(place, destinations[1], index)

        return nest(call, element, layout_of(out).sizes, [out, places], fill)

    return lower


def _place_type(sizes: Sequence[Expr]) -> Attribute:
    """Return the narrowest type for the places in a plane: they take up registers beside the elements."""
    return i32 if all(s.is_Integer for s in sizes) and prod(int(s) for s in sizes) < 1 << 31 else i64


def _better(b: Body, value: Value, best: Value) -> Value:
    larger = b.compare("gt", value, best)
    return b.either(larger, b.compare("ne", value, value)) if is_float(b.compute) else larger


def _best_clamped(b: Body, source: SSAValue, windows: Windows, outer: Index, at: Index) -> tuple[Value, Value]:
    """Emit the largest element of a window and its place, where lanes are channels: all have the same window.

    Elements that are not there count as the nearest ones, which are in a window without gaps: nothing is masked.
    """
    sizes = [a.size for a in windows.axes]
    kind = _place_type(sizes)
    best: Value | None = None
    where: Value | None = None
    for offset in windows.offsets():
        place = windows.clamp(windows.at(at, offset), offset)
        value = b.load_element(source, [*outer, *place])
        here = b.cast_register(b.index_value(flat(place, sizes)), kind)
        if best is None or where is None:
            best, where = value, here
            continue
        better = _better(b, value, best)
        best, where = b.select(better, value, best), b.select(better, here, where)
    assert best is not None
    assert where is not None
    return best, b.cast_register(where, i64)


def _best_masked(b: Body, source: SSAValue, windows: Windows, outer: Index, at: Index) -> tuple[Value, Value]:
    """Emit the largest element of a window and its place, where lanes are windows side by side.

    What is compared in lanes is how far an element lies behind the start of its window, the same in all of them.
    """
    sizes = [a.size for a in windows.axes]
    kind = _place_type(sizes)

    def distance(offset: Sequence[int | Expr]) -> Value:
        expr = flat([integer(x) if isinstance(x, int) else x for x in offset], sizes)
        if expr.is_Integer:
            return b.constant(int(expr), kind)
        return b.cast_register(b.index_value(expr), kind)

    best = b.constant(_lowest(b.element))
    first = [
        FloorDiv(Max(ZERO, -a.start(o)) + (a.dilation - 1), integer(a.dilation)) * a.dilation if a.padding else ZERO
        for a, o in zip(windows.axes, at, strict=True)
    ]
    where = distance(first)
    for offset in windows.offsets():
        place = windows.at(at, offset)
        value = load_masked(b, source, [*outer, *place], windows.inside(b, place, offset), _lowest(b.element))
        better = _better(b, value, best)
        best, where = b.select(better, value, best), b.select(better, distance(offset), where)
    start = b.cast_register(b.index_value(flat(windows.at(at, [0] * len(at)), sizes)), i64)
    return best, b.add(start, b.cast_register(where, i64))


def _best_in_loops(b: Body, source: SSAValue, windows: Windows, outer: Index, at: Index) -> tuple[Value, Value]:
    def slots(b: Body, steps: Index) -> Sequence[Value]:
        place = windows.at(at, [step * a.dilation for step, a in zip(steps, windows.axes, strict=True)])
        position = b.cast_register(b.index_value(flat(place, [a.size for a in windows.axes])), i64)
        return [b.load_element(source, [*outer, *place]), position]

    value, place = b.reduce_over(["argmax"], windows.within(at), slots)
    return value, place


def _max_pool_backward(rank: int) -> Lowering:
    def lower(call: Call) -> Sequence[SSAValue]:
        grad = call.tensor("grad_output")
        windows = Windows.of(call, call.tensor("self"), sizes_of(grad), rank, dilated=True)
        if prod(a.overlap for a in windows.axes) <= (
            FEW if call.on_cuda else is_channels_last(call.tensor("self"), rank)
        ):
            return _gathered_gradient(call, windows)
        return _scattered_gradient(call, rank)

    return lower


def _gathered_gradient(call: Call, windows: Windows) -> Sequence[SSAValue]:
    """Let each place add up the gradients of the windows around it that it won."""
    grad, places, out = call.tensor("grad_output"), call.tensor("indices"), call.result
    rank = len(windows.axes)

    def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
        outer, at = index[:-rank], index[-rank:]
        here = b.cast_register(b.index_value(flat(at, [a.size for a in windows.axes])), i64)
        total: Value | None = None
        for window in windows.holding(at):
            exists, there = windows.exists(b, window), [*outer, *window]
            if exists is None:
                won = b.compare("eq", b.load(places, there), here)
            else:
                won = b.compare("eq", b.load(places, there, mask=exists, otherwise=b.constant(-1, i64)), here)
            share = b.select(won, load_masked(b, grad, there, exists, 0), b.constant(0))
            total = share if total is None else b.add(total, share)
        assert total is not None
        b.store(total, destinations[0], index)

    return nest(call, element_of(grad), layout_of(out).sizes, [out], fill)


def _scattered_gradient(call: Call, rank: int) -> Sequence[SSAValue]:
    """Add the gradient of each window to the place that won it, window after window; channels as they lie in memory."""
    grad, places, out = call.tensor("grad_output"), call.tensor("indices"), call.result
    sizes = layout_of(out).sizes
    together = is_channels_last(call.tensor("self"), rank) and not call.on_cuda
    plane, last = sizes[-rank:], len(sizes) - rank - together
    channels = sizes[last:-rank]
    if element_of(places) != i64:
        raise NotLoweredError(f"places of type {element_of(places)}")

    def fill(b: Body, outer: Index, destinations: Sequence[Value]) -> None:
        target = destinations[0]

        def clear(b: Body, index: Index) -> None:
            at, channel = index[:rank], index[rank:]
            b.store_as(b.constant(0, b.element), target, [*outer, *channel, *at])

        def add(b: Body, channel: Index, window: Index) -> None:
            index = [*outer, *channel, *window]
            place = _split(b.as_index(b.load(places, index)), plane)
            b.store_as(b.load(grad, index), target, [*outer, *channel, *place], combine="sum")

        b.loop([*plane, *channels], clear)
        b.scan(sizes_of(grad)[-rank:], lambda b, window: b.loop(channels, lambda b, channel: add(b, channel, window)))

    return nest(call, out.element_type, sizes[:last], [out], fill)


def _split(place: Expr, sizes: Sequence[Expr]) -> Index:
    """Return the index that has a place in row-major order."""
    index: Index = []
    for d in range(len(sizes)):
        behind = prod(sizes[d + 1 :], start=integer(1))
        row = FloorDiv(place, behind)
        index.append(row if d == 0 else row - sizes[d] * FloorDiv(place, behind * sizes[d]))
    return index


def _adaptive_max_pool(rank: int) -> Lowering:
    def lower(call: Call) -> Sequence[SSAValue]:
        source = call.tensor("self")
        out, places = call.results
        sizes, element = layout_of(out).sizes, element_of(source)
        if not is_float(element) or any(s == 0 for s in sizes):
            raise NotLoweredError(f"elements of type {element}, or none")

        def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
            outer, at = index[:-rank], index[-rank:]

            def slots(b: Body, a: Index) -> Sequence[Value]:
                place = b.cast_register(b.index_value(flat(a, sizes_of(source)[-rank:])), i64)
                return [b.load_element(source, [*outer, *a]), place]

            value, place = b.reduce_over(["argmax"], adaptive_windows(call, source, sizes, at), slots)
            b.store(value, destinations[0], index)
            b.store_as(place, destinations[1], index)

        return nest(call, element, sizes, [out, places], fill)

    return lower


LOWERINGS: dict[str, Lowering] = {
    **by_rank("max_pool{}d_with_indices", "23", _max_pool),
    **by_rank("max_pool{}d_with_indices_backward", "23", _max_pool_backward),
    **by_rank("adaptive_max_pool{}d", "23", _adaptive_max_pool),
    **by_rank("adaptive_max_pool{}d_backward", "23", lambda rank: lambda call: _scattered_gradient(call, rank)),
}
