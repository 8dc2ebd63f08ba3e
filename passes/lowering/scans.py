"""Running sums, products and extremes along a dimension: each element is combined with all those before it.

Like eager, sums and products of f32 are kept in f64 on a CPU, but in f32 on CUDA, those of 16-bit floats in f32, and
each result is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import f32, f64, i64
from xdsl.ir import Attribute, SSAValue

from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.dtypes import compute_type, is_float, is_unsigned
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import nest


def _accumulator(element: Attribute, *, on_cuda: bool) -> Attribute:
    """Return the type that a running combination of elements is kept in (torch: acc_type)."""
    return f64 if element == f32 and not on_cuda else compute_type(element)


def _cumulative(combiner: str) -> Lowering:
    """Return the lowering of a running sum or the like, by a combiner with one slot."""

    def lower(call: Call) -> Sequence[SSAValue]:
        source, out = call.tensor("self"), call.result
        given = call.dtype("dtype") if call.has("dtype") else None
        element = out.element_type
        expected = given or (element_of(source) if is_float(element_of(source)) else i64)
        if element != expected:
            raise NotLoweredError(f"a result of type {element}, expected {expected}")
        d, sizes = call.dim("dim", len(sizes_of(source))), sizes_of(source)
        kept = _accumulator(element, on_cuda=call.on_cuda)

        def fill(b: Body, around: Index, destinations: Sequence[Value]) -> None:
            def step(b: Body, k: Index) -> None:
                index = [*around[:d], *k, *around[d:]]
                value = b.cast(b.cast(b.load(source, index), element_of(source), element), element, kept)
                (total,) = b.prefix(combiner, value)
                b.store_as(b.cast(total, kept, element), destinations[0], index)

            b.scan(sizes[d : d + 1], step)

        return nest(call, element, [*sizes[:d], *sizes[d + 1 :]], [out], fill)

    return lower


def _extreme(combiner: str) -> Lowering:
    """Return the lowering of a running extreme and its place, the last one of equal elements."""

    def lower(call: Call) -> Sequence[SSAValue]:
        source = call.tensor("self")
        outs = call.results
        element = element_of(source)
        # Signed comparison would take bytes from 128 on for negative.
        ordered = i64 if is_unsigned(element) else element
        d, sizes = call.dim("dim", len(sizes_of(source))), sizes_of(source)

        def fill(b: Body, around: Index, destinations: Sequence[Value]) -> None:
            def step(b: Body, k: Index) -> None:
                index = [*around[:d], *k, *around[d:]]
                place = b.cast_register(b.index_value(k[0]), i64) if k else b.constant(0, i64)
                value, place = b.prefix(combiner, b.widen(b.load(source, index), element), place)
                b.store(value, destinations[0], index)
                b.store_as(place, destinations[1], index)

            b.scan(sizes[d : d + 1], step)

        return nest(call, ordered, [*sizes[:d], *sizes[d + 1 :]], outs, fill)

    return lower


LOWERINGS: dict[str, Lowering] = {
    "aten.cumsum.default": _cumulative("sum"),
    "aten.cumprod.default": _cumulative("prod"),
    "aten.logcumsumexp.default": _cumulative("logaddexp"),
    "aten.cummax.default": _extreme("last_argmax"),
    "aten.cummin.default": _extreme("last_argmin"),
}
