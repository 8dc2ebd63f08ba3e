"""Padding by reflection and by repetition of the edge, with gradients. Padding with a constant is in `indexing`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from tilewright.dialects.loop import layout_of
from tilewright.dialects.sym_expr import Expr, Max, Min
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.nest import ZERO, copied, nest
from tilewright.passes.lowering.windows import by_rank

Inward = Callable[[Expr, Expr], Expr]
"""From a place along a dimension, perhaps beyond its ends, and its size to the place that is repeated there."""


def _reflected(x: Expr, size: Expr) -> Expr:
    """Return the place that mirrors `x` at the first or the last element."""
    before = Max(x, -x)
    return size - 1 - Max(size - 1 - before, before - size + 1)


def _nearest(x: Expr, size: Expr) -> Expr:
    return Min(Max(x, ZERO), size - 1)


def _access(call: Call, sizes: Sequence[Expr], rank: int, inward: Inward) -> Callable[[Index], Index]:
    """Return the access from the padded tensor to that of `sizes`, whose last `rank` dimensions are padded."""
    widths = call.sizes("padding") or ()
    first = len(sizes) - rank
    # Widths come in pairs, those of the last dimension first.
    before = {len(sizes) - 1 - n: width for n, width in enumerate(widths[::2])}

    def access(index: Index) -> Index:
        return [x if d < first else inward(x - before[d], sizes[d]) for d, x in enumerate(index)]

    return access


def _pad(inward: Inward) -> Callable[[int], Lowering]:
    def of_rank(rank: int) -> Lowering:
        def lower(call: Call) -> Sequence[SSAValue]:
            source = call.tensor("self")
            return copied(call, source, _access(call, sizes_of(source), rank, inward))

        return lower

    return of_rank


def _pad_backward(inward: Inward) -> Callable[[int], Lowering]:
    """Return the lowerings of the gradients: each place gets the sum over all places that repeat it, in their order."""

    def of_rank(rank: int) -> Lowering:
        def lower(call: Call) -> Sequence[SSAValue]:
            grad, out = call.tensor("grad_output"), call.result
            sizes = layout_of(out).sizes
            access = _access(call, sizes, rank, inward)
            last = len(sizes) - rank - (len(sizes) > rank and layout_of(out).strides[-rank - 1] == 1)
            channels = sizes[last:-rank]

            def fill(b: Body, outer: Index, destinations: Sequence[Value]) -> None:
                def clear(b: Body, index: Index) -> None:
                    at, channel = index[:rank], index[rank:]
                    b.store_as(b.constant(0, b.element), destinations[0], [*outer, *channel, *at])

                def add(b: Body, at: Index, channel: Index) -> None:
                    index = [*outer, *channel, *at]
                    b.store_as(b.load(grad, index), destinations[0], access(index), combine="sum")

                b.loop([*sizes[-rank:], *channels], clear)
                b.scan(sizes_of(grad)[-rank:], lambda b, at: b.loop(channels, lambda b, channel: add(b, at, channel)))

            return nest(call, element_of(grad), sizes[:last], [out], fill)

        return lower

    return of_rank


LOWERINGS: dict[str, Lowering] = {
    **by_rank("reflection_pad{}d", "123", _pad(_reflected)),
    **by_rank("reflection_pad{}d_backward", "123", _pad_backward(_reflected)),
    **by_rank("replication_pad{}d", "123", _pad(_nearest)),
    **by_rank("replication_pad{}d_backward", "123", _pad_backward(_nearest)),
}
