"""Embedding bags in inference: the sum or mean of the rows of a table that each bag names, in their order."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from tilewright.dialects.loop import LoopDim, layout_of
from tilewright.dialects.sym_expr import Expr, Max, Min, integer
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.dtypes import is_float
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import ZERO, nest
from tilewright.passes.lowering.positions import check_positions, load_at, load_position

_SUM, _MEAN, _MAX = 0, 1, 2
_ERROR = "RuntimeError: embedding_bag: Expected idx >= 0 && idx < num_embeddings"


def _bounds(b: Body, call: Call, bag: Expr) -> LoopDim:
    """Return the loop over the positions in a bag, whatever the offsets say within those that there are."""
    offsets, count = call.tensor("offsets"), sizes_of(call.tensor("indices"))[0]
    bags = sizes_of(offsets)[0]
    first = b.cast(b.load(offsets, [bag]), element_of(offsets), i64)
    if call.flag("include_last_offset"):
        end = b.cast(b.load(offsets, [bag + 1]), element_of(offsets), i64)
    else:
        is_last = b.compare("eq", b.index_value(bag), b.index_value(bags - 1))
        following = b.load(offsets, [Min(bag + 1, bags - 1)])
        whole = b.constant(int(count) if count.is_Integer else count, i64)
        end = b.select(is_last, whole, b.cast(following, element_of(offsets), i64))
    lower, upper = (Max(ZERO, Min(b.as_index(v), count)) for v in (first, end))
    return LoopDim(lower, upper)


def _embedding_bag(call: Call) -> Sequence[SSAValue | None]:
    """Compute the bags alone. What else there is of results is for the gradient, and must not be used."""
    weight, positions = call.tensor("weight"), call.tensor("indices")
    out, mode = call.result, call.integer("mode")
    check_positions(positions)
    check_positions(call.tensor("offsets"))
    if any(result.first_use is not None for result in call.op.results[1:]):
        raise NotLoweredError("an embedding bag with a gradient")
    if mode not in (_SUM, _MEAN) or call.integer("padding_idx") >= 0 or not is_float(element_of(weight)):
        raise NotLoweredError("maxima, padding, or a table of integers")
    if len(sizes_of(positions)) != 1:
        raise NotLoweredError("positions of more than one dimension")
    factors, (rows, width) = call.optional_tensor("per_sample_weights"), sizes_of(weight)

    def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
        bag = _bounds(b, call, index[0])

        def element(b: Body, k: Index, column: Index) -> Sequence[Value]:
            place = load_position(b, positions, k, rows, _ERROR)
            value = b.widen(load_at(b, weight, column, {0: place}), b.element)
            return [value if factors is None else b.mul(value, b.load_element(factors, k))]

        def column(b: Body, at: Index) -> None:
            (total,) = b.reduce_over(["sum"], [bag], lambda b, k: element(b, k, at), ordered=True)
            if mode == _MEAN:
                total = b.div(total, b.constant(Max(bag.upper - bag.lower, integer(1))))
            b.store(total, destinations[0], [*index, *at])

        b.loop([width], column)

    (result,) = nest(call, element_of(weight), layout_of(out).sizes[:1], [out], fill)
    return [result, *(None for _ in call.op.results[1:])]


LOWERINGS: dict[str, Lowering] = {
    "aten._embedding_bag.default": _embedding_bag,
    "aten._embedding_bag_forward_only.default": _embedding_bag,
}
