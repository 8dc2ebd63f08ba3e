"""Unfolding images into columns, one per window, and folding them back, where elements of several windows add up."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tilewright.dialects.loop import layout_of
from tilewright.dialects.sym_expr import Expr, FloorDiv, integer
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import nest
from tilewright.passes.lowering.windows import Axis, between, conjunction, flat


def _axes(call: Call, image: Sequence[Expr]) -> list[Axis]:
    """Return the windows of the last two dimensions of an image."""
    given = [call.integers(name) for name in ("kernel_size", "stride", "padding", "dilation")]
    if any(values is None or len(values) != 2 for values in given):
        raise NotLoweredError("windows that are not of two dimensions")
    axes: list[Axis] = []
    for size, kernel, stride, padding, dilation in zip(image[-2:], *(v or () for v in given), strict=True):
        reach = (kernel - 1) * dilation + 1
        axes.append(
            Axis(size, FloorDiv(size + 2 * padding - reach, integer(stride)) + 1, kernel, stride, padding, dilation)
        )
    return axes


def _row(channel: Expr, element: Index, axes: Sequence[Axis]) -> Expr:
    """Return the row of the columns that an element of all windows, in one channel, is in."""
    return flat([channel, *element], [integer(1), *(integer(a.kernel) for a in axes)])


def _place(axes: Sequence[Axis], window: Index, element: Index) -> Index:
    return [a.start(o) + x * a.dilation for a, o, x in zip(axes, window, element, strict=True)]


def _inside(b: Body, axes: Sequence[Axis], place: Index) -> Value | None:
    """Test whether a place is one of the image; None where there is no padding."""
    tests = (between(b, x, integer(0), a.size) if a.padding else None for a, x in zip(axes, place, strict=True))
    return conjunction(b, list(tests))


def _im2col(call: Call) -> Sequence[SSAValue]:
    image, out = call.tensor("self"), call.result
    sizes = sizes_of(image)
    if len(sizes) < 3:
        raise NotLoweredError("an image without channels")
    axes = _axes(call, sizes)
    batch = len(sizes) - 3

    def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
        channel, element, window = index[batch], index[batch + 1 : batch + 3], index[batch + 3 :]
        place = _place(axes, window, element)
        inside, source = _inside(b, axes, place), [*index[:batch], channel, *place]
        if inside is None:
            value = b.load(image, source)
        else:
            value = b.load(image, source, mask=inside, otherwise=b.constant(0, b.element))
        column = flat(window, [a.count for a in axes])
        b.store_as(value, destinations[0], [*index[:batch], _row(channel, element, axes), column])

    loops = [*sizes[:-2], *(integer(a.kernel) for a in axes), *(a.count for a in axes)]
    return nest(call, element_of(image), loops, [out], fill)


def _col2im(call: Call) -> Sequence[SSAValue]:
    """Add up one element of all windows after the other; the same element of two windows lies in two places."""
    columns, out = call.tensor("self"), call.result
    sizes = layout_of(out).sizes
    axes = _axes(call, sizes)
    batch = len(sizes) - 3

    def fill(b: Body, outer: Index, destinations: Sequence[Value]) -> None:
        def clear(b: Body, at: Index) -> None:
            b.store_as(b.constant(0, b.element), destinations[0], [*outer, *at])

        def add(b: Body, element: Index, window: Index) -> None:
            place = _place(axes, window, element)
            column = flat(window, [a.count for a in axes])
            value = b.load(columns, [*outer[:batch], _row(outer[batch], element, axes), column])
            mask = _inside(b, axes, place)
            b.store_as(value, destinations[0], [*outer, *place], mask=mask, combine="sum")

        windows = [a.count for a in axes]
        b.loop(sizes[-2:], clear)
        b.scan([integer(a.kernel) for a in axes], lambda b, e: b.loop(windows, lambda b, w: add(b, e, w)))

    return nest(call, element_of(columns), sizes[:-2], [out], fill)


LOWERINGS: dict[str, Lowering] = {"aten.im2col.default": _im2col, "aten.col2im.default": _col2im}
