"""Indexing by positions, and what makes a new tensor of others: concatenation, padding, flips, scatters of a slice."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate
from math import prod

from xdsl.ir import Operation, SSAValue

from tilewright.dialects.aten import CallOp
from tilewright.dialects.loop import layout_of
from tilewright.dialects.sym_expr import Expr, FloorDiv, Mod, integer
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of, wrap_dim
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import ZERO, broadcast, copied, gathered, nest
from tilewright.passes.lowering.positions import OUT_OF_RANGE, check_positions, load_at, load_position, out_of_bounds
from tilewright.passes.lowering.views import position, reshaped, slice_bounds
from tilewright.passes.lowering.windows import between

_PRODUCTS = frozenset({"aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default"})
_PERMUTE = "aten.permute.default"
_LONG_ROW = 1024
"""From how many elements on a row is a loop of its own on every target, not one of several in a block."""


def _embedding(call: Call) -> Sequence[SSAValue]:
    """Take rows of a table. `padding_idx` and `scale_grad_by_freq` matter to the gradient only."""
    weight, positions = call.tensor("weight"), call.tensor("indices")
    check_positions(positions)
    rank, size = len(sizes_of(positions)), sizes_of(weight)[0]

    def value(b: Body, index: Index) -> Value:
        place = load_position(b, positions, index[:rank], size, OUT_OF_RANGE)
        return load_at(b, weight, index[rank:], {0: place})

    return gathered(call, value)


def _index_select(call: Call) -> Sequence[SSAValue]:
    source, positions = call.tensor("self"), call.tensor("index")
    sizes = sizes_of(source)
    d = call.dim("dim", len(sizes))
    check_positions(positions)
    if not sizes:
        raise NotLoweredError("a selection from a tensor without dimensions")

    def value(b: Body, index: Index) -> Value:
        place = load_position(b, positions, [index[d]] if sizes_of(positions) else [], sizes[d], OUT_OF_RANGE)
        return load_at(b, source, [*index[:d], *index[d + 1 :]], {d: place})

    return gathered(call, value)


def _gather(call: Call) -> Sequence[SSAValue]:
    source, positions = call.tensor("self"), call.tensor("index")
    sizes = sizes_of(source)
    d = call.dim("dim", len(sizes))
    check_positions(positions)
    if not sizes or not sizes_of(positions):
        raise NotLoweredError("a gather on a tensor without dimensions")

    def value(b: Body, index: Index) -> Value:
        place = load_position(b, positions, index, sizes[d], out_of_bounds("RuntimeError", d, sizes[d]))
        return load_at(b, source, [*index[:d], *index[d + 1 :]], {d: place})

    return gathered(call, value)


def _index(call: Call) -> Sequence[SSAValue]:
    """Index some dimensions by tensors that broadcast against each other.

    Their common dimensions stand where the first of the indexed ones stood if these are adjacent, else in front.
    """
    source, given = call.tensor("self"), call.tensors("indices")
    sizes = sizes_of(source)
    positions = {d: p for d, p in enumerate(given) if p is not None}
    for p in positions.values():
        check_positions(p)
    indexed = list(positions)
    if not indexed:
        raise NotLoweredError("no positions")
    common = max(len(sizes_of(p)) for p in positions.values())
    adjacent = indexed[-1] - indexed[0] == len(indexed) - 1
    first = indexed[0] if adjacent else 0

    def value(b: Body, index: Index) -> Value:
        shared, others = index[first : first + common], [*index[:first], *index[first + common :]]
        places = {
            d: load_position(b, p, broadcast(p, shared), sizes[d], out_of_bounds("IndexError", d, sizes[d]), wraps=True)
            for d, p in positions.items()
        }
        return load_at(b, source, others, places)

    return gathered(call, value)


def _cat(call: Call) -> Sequence[SSAValue]:
    """Concatenate: each element is loaded from the operand it lies in; the loads from the others are masked off."""
    out = call.result
    # An operand of size [0] is allowed among operands of any rank.
    tensors = [t for t in call.tensors("tensors") if t is not None and sizes_of(t) != (0,)]
    rank = len(layout_of(out).sizes)
    d = call.dim("dim", rank)
    if not tensors or any(len(sizes_of(t)) != rank for t in tensors):
        raise NotLoweredError("a concatenation of tensors of different ranks")
    starts = list(accumulate((sizes_of(t)[d] for t in tensors), initial=ZERO))

    def value(b: Body, index: Index) -> Value:
        result = b.constant(0, out.element_type)
        for number, tensor in reversed(list(enumerate(tensors))):
            start, end = starts[number : number + 2]
            mask = between(b, index[d], start if number else None, end if number < len(tensors) - 1 else None)
            result = _load_masked(b, tensor, _moved(index, d, -start), mask, result)
        return result

    return gathered(call, value)


def _load_masked(b: Body, source: SSAValue, index: Index, mask: Value | None, otherwise: Value) -> Value:
    """Load an element as one of the result's dtype; where the mask is false the value is `otherwise`."""
    element = element_of(source)
    if mask is None:
        return b.cast(b.load(source, index), element, b.element)
    if element == b.element:
        return b.load(source, index, mask=mask, otherwise=otherwise)
    loaded = b.load(source, index, mask=mask, otherwise=b.constant(0, element))
    return b.select(mask, b.cast(loaded, element, b.element), otherwise)


def _moved(index: Index, d: int, by: Expr) -> Index:
    return [*index[:d], index[d] + by, *index[d + 1 :]]


def _stack(call: Call) -> Sequence[SSAValue]:
    tensors = [t for t in call.tensors("tensors") if t is not None]
    d = call.dim("dim", len(layout_of(call.result).sizes))

    def value(b: Body, index: Index) -> Value:
        inner = [*index[:d], *index[d + 1 :]]
        result = b.cast(b.load(tensors[-1], inner), element_of(tensors[-1]), b.element)
        for number, tensor in reversed(list(enumerate(tensors[:-1]))):
            mask = b.compare("eq", b.index_value(index[d]), number)
            result = _load_masked(b, tensor, inner, mask, result)
        return result

    return gathered(call, value)


def _pad(call: Call) -> Sequence[SSAValue]:
    """Pad with a constant; a negative width crops. Widths come in pairs, those of the last dimension first."""
    source, widths = call.tensor("self"), call.sizes("pad") or ()
    if _lengthens_rows(call, widths):
        return _lengthened(call, source)
    sizes = sizes_of(source)
    last = len(sizes) - 1
    before = {last - n: width for n, width in enumerate(widths[::2])}
    after = {last - n: width for n, width in enumerate(widths[1::2])}

    def value(b: Body, index: Index) -> Value:
        padding = b.constant(call.number("value"), b.element, rounded=True)
        mask: Value | None = None
        places: Index = []
        for d, size in enumerate(sizes):
            left = before.get(d, ZERO)
            places.append(index[d] - left)
            low = left if _may_be_positive(left) else None
            high = left + size if _may_be_positive(after.get(d, ZERO)) else None
            test = between(b, index[d], low, high)
            if test is not None:
                mask = test if mask is None else b.both(mask, test)
        return _load_masked(b, source, places, mask, padding)

    return gathered(call, value)


def _lengthens_rows(call: Call, widths: Sequence[Expr]) -> bool:
    """Whether long rows get longer at their end, for a product of matrices, which no nest could do for itself."""
    if len(widths) < 2 or not widths[1].is_positive or any(w != 0 for d, w in enumerate(widths) if d != 1):
        return False
    last = sizes_of(call.tensor("self"))[-1]
    readers = [use.operation for use in call.op.results[0].uses]
    readers += [use.operation for op in readers if _is_call_of(op, {_PERMUTE}) for use in op.results[0].uses]
    if not (last.is_Integer and int(last) >= _LONG_ROW):
        return False
    return all(_is_call_of(op, {_PERMUTE, *_PRODUCTS}) for op in readers)


def _is_call_of(op: Operation, operators: AbstractSet[str]) -> bool:
    return isinstance(op, CallOp) and op.operator in operators


def _lengthened(call: Call, source: SSAValue) -> Sequence[SSAValue]:
    """Fill rows up to their new end, in a loop behind the one that copies them: fusion lets that one be the loop that
    computes them."""
    *outer, size = sizes_of(source)
    longer = layout_of(call.result).sizes[-1]

    def fill(body: Body, row: Index, destinations: Sequence[Value]) -> None:
        padding = body.constant(call.number("value"), body.element, rounded=True)
        target = destinations[0]
        body.loop([size], lambda b, i: b.store_as(b.load(source, [*row, *i]), target, [*row, *i]))
        body.loop([longer - size], lambda b, i: b.store_as(padding, target, [*row, size + i[0]]))

    return nest(call, call.result.element_type, outer, [call.result], fill)


def _may_be_positive(width: Expr) -> bool:
    return not width.is_Integer or int(width) > 0


def _flip(call: Call) -> Sequence[SSAValue]:
    source = call.tensor("self")
    sizes = sizes_of(source)
    flipped = {wrap_dim(d, len(sizes)) for d in call.integers("dims") or ()}
    return copied(call, source, lambda i: [size - 1 - x if d in flipped else x for d, (x, size) in _sized(i, sizes)])


def _roll(call: Call) -> Sequence[SSAValue]:
    """Rotate along some dimensions, or all elements in row-major order if none is given."""
    source = call.tensor("self")
    sizes = sizes_of(source)
    shifts, dims = call.sizes("shifts") or (), call.integers("dims") or ()
    if not dims and len(shifts) == 1 and all(s != 0 for s in sizes):
        count = prod(sizes, start=integer(1))
        from_flat = reshaped([count], sizes)
        to_flat = reshaped(sizes, [count])
        return copied(call, source, lambda i: to_flat([Mod(from_flat(i)[0] - shifts[0], count)]))
    if len(shifts) != len(dims) or len({wrap_dim(d, len(sizes)) for d in dims}) != len(dims):
        raise NotLoweredError("several rotations along one dimension")
    by = {wrap_dim(d, len(sizes)): shift for d, shift in zip(dims, shifts, strict=True)}

    def access(index: Index) -> Index:
        return [Mod(x - by[d], size) if d in by and size != 0 else x for d, (x, size) in _sized(index, sizes)]

    return copied(call, source, access)


def _diag_embed(call: Call) -> Sequence[SSAValue]:
    """Put the last dimension on a diagonal of two, and zero beside it."""
    source, offset = call.tensor("self"), call.integer("offset")
    rank = len(sizes_of(source)) + 1
    first, second = call.dim("dim1", rank), call.dim("dim2", rank)
    if first == second:
        raise NotLoweredError("a diagonal of one dimension")

    def value(b: Body, index: Index) -> Value:
        row, column = index[first], index[second]
        on_diagonal = b.compare("eq", b.index_value(column - row), b.index_value(integer(offset)))
        others = [x for d, x in enumerate(index) if d not in (first, second)]
        return _load_masked(b, source, [*others, row + min(offset, 0)], on_diagonal, b.constant(0, b.element))

    return gathered(call, value)


def _repeat(call: Call) -> Sequence[SSAValue]:
    """Repeat along each dimension, and along new ones in front."""
    source = call.tensor("self")
    sizes = sizes_of(source)
    added = len(layout_of(call.result).sizes) - len(sizes)
    return copied(
        call, source, lambda i: [Mod(x, size) if size != 0 else x for _, (x, size) in _sized(i[added:], sizes)]
    )


def _sized(index: Index, sizes: Sequence[Expr]) -> list[tuple[int, tuple[Expr, Expr]]]:
    """Return the dimensions with index and size."""
    return list(enumerate(zip(index, sizes, strict=True)))


def _select_scatter(call: Call) -> Sequence[SSAValue]:
    """Copy `self`, with `src` in the place of one position along a dimension."""
    source = call.tensor("self")
    sizes = sizes_of(source)
    d = call.dim("dim", len(sizes))
    place = position(call, call.size("index"), sizes[d])

    def value(b: Body, index: Index) -> Value:
        mask = b.compare("eq", b.index_value(index[d]), b.index_value(place))
        return _load_masked(b, call.tensor("src"), [*index[:d], *index[d + 1 :]], mask, b.load(source, index))

    return gathered(call, value)


def _slice_scatter(call: Call) -> Sequence[SSAValue]:
    """Copy `self`, with `src` in the place of a slice."""
    source, part = call.tensor("self"), call.tensor("src")
    d = call.dim("dim", len(sizes_of(source)))
    start, step = slice_bounds(call, sizes_of(source)[d])
    end = start + step * sizes_of(part)[d]

    def value(b: Body, index: Index) -> Value:
        mask = between(b, index[d], start, end)
        assert mask is not None
        if step > 1:
            mask = b.both(mask, b.compare("eq", b.index_value(Mod(index[d] - start, integer(step))), 0))
        inner = [*index[:d], FloorDiv(index[d] - start, integer(step)), *index[d + 1 :]]
        return _load_masked(b, part, inner, mask, b.load(source, index))

    return gathered(call, value)


LOWERINGS: dict[str, Lowering] = {
    "aten.embedding.default": _embedding,
    "aten.index_select.default": _index_select,
    "aten.gather.default": _gather,
    "aten.index.Tensor": _index,
    "aten._unsafe_index.Tensor": _index,
    "aten.cat.default": _cat,
    "aten.stack.default": _stack,
    "aten.constant_pad_nd.default": _pad,
    "aten.diag_embed.default": _diag_embed,
    "aten.flip.default": _flip,
    "aten.roll.default": _roll,
    "aten.repeat.default": _repeat,
    "aten.select_scatter.default": _select_scatter,
    "aten.slice_scatter.default": _slice_scatter,
}
