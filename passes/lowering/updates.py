"""Scatters to a part that a view selects, as updates: a nest over the part, whose destination begins as the whole.

What is not in the part is not touched, so that the cost is that of the part where the whole may be overwritten.
`indexing` has the same operators as functions that compute the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from tilewright.dialects.sym import LayoutAttr
from tilewright.passes.analysis.layouts import may_overlap
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import nest
from tilewright.passes.lowering.views import Access, as_strided, diagonal, inserted, position, shifted, slice_bounds


def _slice(call: Call) -> Access:
    sizes = sizes_of(call.tensor("self"))
    d = call.dim("dim", len(sizes))
    return shifted(d, *slice_bounds(call, sizes[d]))


def _select(call: Call) -> Access:
    sizes = sizes_of(call.tensor("self"))
    d = call.dim("dim", len(sizes))
    return inserted(d, position(call, call.size("index"), sizes[d]))


def _as_strided(call: Call) -> Access:
    access, sizes, strides = as_strided(call), call.sizes("size"), call.sizes("stride")
    assert sizes is not None
    assert strides is not None
    if may_overlap(LayoutAttr.get(sizes, strides), call.ranges):
        raise NotLoweredError("elements of a part that may be one")
    return access


def _update(part: Callable[[Call], Access]) -> Lowering:
    def lower(call: Call) -> Sequence[SSAValue]:
        whole, source, out = call.tensor("self"), call.tensor("src"), call.result
        access = part(call)
        if element_of(source) != element_of(whole):
            raise NotLoweredError("a part of another dtype")

        def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
            b.store_as(b.load(source, index), destinations[0], access(index))

        return nest(call, out.element_type, sizes_of(source), [out], fill, whole)

    return lower


LOWERINGS: dict[str, Lowering] = {
    "aten.as_strided_scatter.default": _update(_as_strided),
    "aten.diagonal_scatter.default": _update(diagonal),
    "aten.select_scatter.default": _update(_select),
    "aten.slice_scatter.default": _update(_slice),
}
"""What makes an update of each operator."""
