"""Pooling by the mean of each window, and the gradient, which each place gathers from the windows that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import SSAValue

from tilewright.dialects.loop import LoopDim, layout_of
from tilewright.dialects.sym_expr import Expr, Max, Min, integer, provably_at_most
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.dtypes import is_float
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import ZERO, nest
from tilewright.passes.lowering.windows import (
    FEW,
    Windows,
    adaptive_window,
    adaptive_windows,
    by_rank,
    conjunction,
    is_channels_last,
    load_masked,
)


def _avg_pool(rank: int) -> Lowering:
    def lower(call: Call) -> Sequence[SSAValue]:
        source, out = call.tensor("self"), call.result
        element = element_of(source)
        if not is_float(element):
            raise NotLoweredError(f"elements of type {element}")
        windows = Windows.of(call, source, layout_of(out).sizes, rank, dilated=False)

        def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
            outer, at = index[:-rank], index[-rank:]
            total = _sum_of(b, source, windows, outer, at)
            b.store(b.div(total, _divisor(b, call, windows, at)), destinations[0], index)

        return nest(call, element, layout_of(out).sizes, [out], fill)

    return lower


def _sum_of(b: Body, source: SSAValue, windows: Windows, outer: Index, at: Index) -> Value:
    """Emit the sum of a window."""
    if not windows.are_few:
        return b.reduce_over(
            ["sum"], windows.within(at), lambda b, a: [b.load_element(source, [*outer, *windows.at(at, a)])]
        )[0]
    total: Value | None = None
    for offset in windows.offsets():
        place = windows.at(at, offset)
        inside = windows.inside(b, place, offset)
        if is_channels_last(source, len(at)) and inside is not None:
            # The mask is the same in all lanes: to select is cheaper than to load by a mask.
            value = b.load_element(source, [*outer, *windows.clamp(place, offset)])
            value = b.select(inside, value, b.constant(0))
        else:
            value = load_masked(b, source, [*outer, *place], inside, 0)
        total = value if total is None else b.add(total, value)
    assert total is not None
    return total


def _divisor(b: Body, call: Call, windows: Windows, at: Index) -> Value:
    """Emit what the sum of a window is divided by: the number of its elements, perhaps with the padding."""
    if call.has("divisor_override"):
        return b.constant(call.number("divisor_override"))
    count: Expr = integer(1)
    for a, o in zip(windows.axes, at, strict=True):
        start, whole = a.start(o), call.flag("count_include_pad")
        end = start + a.kernel
        last = a.start(a.count - 1) + a.kernel
        limit = a.size + (a.padding if whole else 0)
        if not provably_at_most(last, limit, call.ranges):
            end = Min(end, limit)
        count = count * (end - (Max(start, ZERO) if a.padding and not whole else start))
    count = call.simplify(count)
    return b.constant(float(int(count)) if count.is_Integer else count)


def _avg_pool_backward(rank: int) -> Lowering:
    def lower(call: Call) -> Sequence[SSAValue]:
        grad, out = call.tensor("grad_output"), call.result
        element = element_of(grad)
        windows = Windows.of(call, call.tensor("self"), sizes_of(grad), rank, dilated=False)
        if not is_float(element) or prod(a.overlap for a in windows.axes) > FEW:
            raise NotLoweredError(f"elements of type {element}, or many windows to an element")

        def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
            outer, at = index[:-rank], index[-rank:]
            total: Value | None = None
            for window in windows.holding(at):
                holds = [_holds(b, windows, d, x, o) for d, (x, o) in enumerate(zip(at, window, strict=True))]
                mask = conjunction(b, [windows.exists(b, window), *holds])
                share = load_masked(b, grad, [*outer, *window], mask, 0)
                share = b.div(share, _divisor(b, call, windows, window))
                if mask is not None and not _is_constant_divisor(call, windows):
                    share = b.select(mask, share, b.constant(0))
                total = share if total is None else b.add(total, share)
            assert total is not None
            b.store(total, destinations[0], index)

        return nest(call, element, layout_of(out).sizes, [out], fill)

    return lower


def _holds(b: Body, windows: Windows, d: int, x: Expr, o: Expr) -> Value | None:
    """Test whether a window reaches as far as an element that it begins before; None where all do."""
    a = windows.axes[d]
    if a.kernel % a.stride == 0:
        return None
    return b.compare("lt", b.index_value(x - a.start(o)), b.index_value(integer(a.kernel)))


def _is_constant_divisor(call: Call, windows: Windows) -> bool:
    return call.has("divisor_override") or (windows.starts and not call.flag("ceil_mode"))


def _adaptive_avg_pool(rank: int) -> Lowering:
    def lower(call: Call) -> Sequence[SSAValue]:
        source, out = call.tensor("self"), call.result
        sizes, element = layout_of(out).sizes, element_of(source)
        if not is_float(element) or any(s == 0 for s in sizes):
            raise NotLoweredError(f"elements of type {element}, or none")

        def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
            outer, at = index[:-rank], index[-rank:]
            dims = adaptive_windows(call, source, sizes, at)
            total = b.reduce_over(["sum"], dims, lambda b, a: [b.load_element(source, [*outer, *a])])[0]
            b.store(_over_sizes(b, total, dims), destinations[0], index)

        return nest(call, element, sizes, [out], fill)

    return lower


def _over_sizes(b: Body, value: Value, dims: Sequence[LoopDim]) -> Value:
    """Emit a value divided by the length of each loop in turn, as eager does."""
    for d in dims:
        length = b.call.simplify(d.upper - d.lower)
        value = b.div(value, b.constant(float(int(length)) if length.is_Integer else length))
    return value


def _adaptive_avg_pool_backward(rank: int) -> Lowering:
    def lower(call: Call) -> Sequence[SSAValue]:
        grad, source, out = call.tensor("grad_output"), call.tensor("self"), call.result
        counts, element = sizes_of(grad), element_of(grad)
        if not is_float(element) or any(s == 0 for s in (*counts[-rank:], *sizes_of(source)[-rank:])):
            raise NotLoweredError(f"elements of type {element}, or none")

        def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
            outer, at = index[:-rank], index[-rank:]
            # A window holds an element as an element would hold the window, were they to share it the other way round.
            holding = [
                adaptive_window(m, n, x) for n, m, x in zip(sizes_of(source)[-rank:], counts[-rank:], at, strict=True)
            ]

            def share(b: Body, window: Index) -> Sequence[Value]:
                dims = adaptive_windows(call, source, counts, window)
                return [_over_sizes(b, b.load_element(grad, [*outer, *window]), dims)]

            b.store(b.reduce_over(["sum"], holding, share)[0], destinations[0], index)

        return nest(call, element, layout_of(out).sizes, [out], fill)

    return lower


LOWERINGS: dict[str, Lowering] = {
    **by_rank("avg_pool{}d", "123", _avg_pool),
    **by_rank("avg_pool{}d_backward", "23", _avg_pool_backward),
    **by_rank("_adaptive_avg_pool{}d", "23", _adaptive_avg_pool),
    **by_rank("_adaptive_avg_pool{}d_backward", "23", _adaptive_avg_pool_backward),
}
