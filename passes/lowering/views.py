"""Views: each becomes a `loop.view`, whose map says which element of the source an element of the result is.

`as_strided` speaks of storage, not of the tensor that it is given; it is a view here where these are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import sympy
from xdsl.ir import SSAValue

from tilewright.dialects.loop import ViewOp, layout_of
from tilewright.dialects.sym import MapAttr, contiguous_strides
from tilewright.dialects.sym_expr import Expr, FloorDiv, Max, Mod, dim, exact_quotient, integer, provably_at_most
from tilewright.passes.lowering.body import Index
from tilewright.passes.lowering.call import Call, Lowering, Tensor, sizes_of, wrap_dim
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import ZERO, copied

Access = Callable[[Index], Index]
"""From an index of the result to the index of the source."""


def view(call: Call, source: SSAValue, kind: Tensor, access: Access) -> SSAValue:
    """Add a view of `source` with type `kind`."""
    rank = len(layout_of(kind).sizes)
    index = access([dim(i) for i in range(rank)])
    if len(index) != len(sizes_of(source)):
        raise ValueError(f"a view of {len(index)} dimensions of a tensor of {len(sizes_of(source))}")
    op = ViewOp.get(source, MapAttr.get(rank, index), kind)
    op.location = call.op.location
    call.ops.append(op)
    return op.result


def reshaped(sizes: Sequence[Expr], new_sizes: Sequence[Expr]) -> Access:
    """Return the access of a tensor of `sizes` viewed as one of `new_sizes`: the same elements in row-major order."""
    if any(s == 0 for s in (*sizes, *new_sizes)):
        return lambda index: [ZERO] * len(sizes)
    groups = list(_groups(sizes, new_sizes))

    def access(index: Index) -> Index:
        result = [ZERO] * len(sizes)
        for old, new in groups:
            offset = sum((index[d] * stride for d, stride in zip(new, _strides(new_sizes, new), strict=True)), ZERO)
            for position, (d, stride) in enumerate(zip(old, _strides(sizes, old), strict=True)):
                quotient = FloorDiv(offset, stride)
                # Below the first size of the group the quotient always is.
                result[d] = quotient if position == 0 else Mod(quotient, sizes[d])
        return result

    return access


def _groups(sizes: Sequence[Expr], new_sizes: Sequence[Expr]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the smallest runs of dimensions, old and new, with equal numbers of elements, leaving out sizes of one.

    What symbolic sizes do not show to be equal runs up to the end, where the numbers are equal in any view.
    """
    old = [d for d, size in enumerate(sizes) if size != 1]
    new = [d for d, size in enumerate(new_sizes) if size != 1]
    while old or new:
        group: list[int] = []
        new_group: list[int] = []
        count, new_count = integer(1), integer(1)
        while not group or not new_group or count != new_count:
            behind = not group or (bool(new_group) and _divides(count, new_count))
            if behind and old:
                group.append(old.pop(0))
                count = sympy.expand(count * sizes[group[-1]])
            elif new:
                new_group.append(new.pop(0))
                new_count = sympy.expand(new_count * new_sizes[new_group[-1]])
            elif old:
                group.append(old.pop(0))
            else:
                break
        yield group, new_group


def _divides(a: Expr, b: Expr) -> bool:
    """Whether `a` is the smaller of two numbers of elements, as far as one can tell."""
    if a.is_Integer and b.is_Integer:
        return bool(a < b)
    return exact_quotient(b, a) is not None


def _strides(sizes: Sequence[Expr], dims: Sequence[int]) -> tuple[Expr, ...]:
    return contiguous_strides([sizes[d] for d in dims])


def _reshape(call: Call) -> Sequence[SSAValue]:
    source, kind = call.tensor("self"), call.result
    return [view(call, source, kind, reshaped(sizes_of(source), layout_of(kind).sizes))]


def _reshape_or_copy(call: Call) -> Sequence[SSAValue]:
    """`reshape` is a view where the strides allow it; this is sure for contiguous sources only, others are copied."""
    source, kind = call.tensor("self"), call.result
    layout = layout_of(source.type)
    dense = contiguous_strides(layout.sizes)
    if all(size == 1 or s == d for size, s, d in zip(layout.sizes, layout.strides, dense, strict=True)):
        return _reshape(call)
    return copied(call, source, reshaped(layout.sizes, layout_of(kind).sizes))


def _identity(argument: str) -> Lowering:
    return lambda call: [view(call, call.tensor(argument), call.result, lambda i: i)]


def _permuted(order: Callable[[Call, int], Sequence[int]]) -> Lowering:
    """Return the lowering of an operator whose result has dimension `order[k]` of its operand at place k."""

    def lower(call: Call) -> Sequence[SSAValue]:
        source = call.tensor("self")
        rank = len(sizes_of(source))
        places = {old: new for new, old in enumerate(order(call, rank))}
        return [view(call, source, call.result, lambda i: [i[places[d]] for d in range(rank)])]

    return lower


def _permutation(call: Call, rank: int) -> Sequence[int]:
    given = call.integers("dims")
    return [wrap_dim(d, rank) for d in given or ()]


def _transposition(first: str, second: str) -> Callable[[Call, int], Sequence[int]]:
    def order(call: Call, rank: int) -> Sequence[int]:
        dims = list(range(rank))
        if rank:
            a, b = call.dim(first, rank), call.dim(second, rank)
            dims[a], dims[b] = dims[b], dims[a]
        return dims

    return order


def _expand(call: Call) -> Sequence[SSAValue]:
    source, kind = call.tensor("self"), call.result
    sizes, rank = sizes_of(source), len(layout_of(kind).sizes)
    first = rank - len(sizes)
    return [view(call, source, kind, lambda i: [ZERO if s == 1 else i[first + d] for d, s in enumerate(sizes)])]


def _unsqueeze(call: Call) -> Sequence[SSAValue]:
    source = call.tensor("self")
    added = call.dim("dim", len(sizes_of(source)) + 1)
    return [view(call, source, call.result, lambda i: [*i[:added], *i[added + 1 :]])]


def _squeeze(call: Call) -> Sequence[SSAValue]:
    """Drop sizes of one: all, or those among `dim`. Which ones a symbolic size is not, tracing has decided."""
    source, kind = call.tensor("self"), call.result
    sizes = sizes_of(source)
    named = range(len(sizes)) if call.op.operator.endswith(".default") else call.dims("dim", len(sizes))
    if call.op.operator.endswith(".dims") and not call.integers("dim"):
        named = range(0)
    dropped = [d for d in named if sizes[d] == 1]
    kept = [d for d in range(len(sizes)) if d not in dropped]
    if len(kept) != len(layout_of(kind).sizes):
        raise NotLoweredError("a squeeze of a symbolic size")

    def access(index: Index) -> Index:
        result = [ZERO] * len(sizes)
        for d, i in zip(kept, index, strict=True):
            result[d] = i
        return result

    return [view(call, source, kind, access)]


def position(call: Call, value: Expr, size: Expr) -> Expr:
    """Return a position along a dimension counted from its front. Raises `NotLoweredError` if its sign is not known."""
    value = call.simplify(value)
    if provably_at_most(ZERO, value, call.ranges):
        return value
    if provably_at_most(value, integer(-1), call.ranges):
        return call.simplify(size + value)
    raise NotLoweredError(f"a position {value} of unknown sign")


def slice_bounds(call: Call, size: Expr) -> tuple[Expr, int]:
    """Return the first element and the step of a slice with the arguments `start` and `step`.

    A start beyond the end needs no care: then the slice is empty.
    """
    step = call.integer("step")
    if not call.has("start"):
        return ZERO, step
    return call.simplify(Max(position(call, call.size("start"), size), ZERO)), step


def shifted(d: int, offset: Expr, step: int = 1) -> Access:
    """Return the access of a tensor from whose dimension `d` every `step`-th element is taken, starting at `offset`."""
    return lambda i: [*i[:d], offset + step * i[d], *i[d + 1 :]]


def inserted(d: int, index: Expr) -> Access:
    """Return the access of a tensor from whose dimension `d` the elements at `index` are taken."""
    return lambda i: [*i[:d], index, *i[d:]]


def _slice(call: Call) -> Sequence[SSAValue]:
    source = call.tensor("self")
    sizes = sizes_of(source)
    d = call.dim("dim", len(sizes))
    return [view(call, source, call.result, shifted(d, *slice_bounds(call, sizes[d])))]


def _select(call: Call) -> Sequence[SSAValue]:
    source = call.tensor("self")
    sizes = sizes_of(source)
    d = call.dim("dim", len(sizes))
    return [view(call, source, call.result, inserted(d, position(call, call.size("index"), sizes[d])))]


def _narrow(call: Call) -> Sequence[SSAValue]:
    source = call.tensor("self")
    sizes = sizes_of(source)
    d = call.dim("dim", len(sizes))
    return [view(call, source, call.result, shifted(d, position(call, call.size("start"), sizes[d])))]


def _split(call: Call) -> Sequence[SSAValue]:
    """Split along a dimension; where each part begins follows from the sizes of those before it."""
    source, kinds = call.tensor("self"), call.results
    d = call.dim("dim", len(sizes_of(source)))
    starts = accumulate((layout_of(k).sizes[d] for k in kinds[:-1]), initial=ZERO)
    return [view(call, source, kind, shifted(d, start)) for kind, start in zip(kinds, starts, strict=True)]


def _unbind(call: Call) -> Sequence[SSAValue]:
    source = call.tensor("self")
    d = call.dim("dim", len(sizes_of(source)))
    return [view(call, source, kind, inserted(d, integer(n))) for n, kind in enumerate(call.results)]


def diagonal(call: Call) -> Access:
    """Return the access of a diagonal, with the arguments `offset`, `dim1` and `dim2`."""
    rank = len(sizes_of(call.tensor("self")))
    first, second, offset = call.dim("dim1", rank), call.dim("dim2", rank), call.integer("offset")

    def access(index: Index) -> Index:
        others = iter(index[:-1])
        along = {first: index[-1] + max(-offset, 0), second: index[-1] + max(offset, 0)}
        return [along[d] if d in along else next(others) for d in range(rank)]

    return access


def _diagonal(call: Call) -> Sequence[SSAValue]:
    return [view(call, call.tensor("self"), call.result, diagonal(call))]


def _unfold(call: Call) -> Sequence[SSAValue]:
    """Take windows along a dimension: the last dimension of the result is the place within the window."""
    source = call.tensor("self")
    rank, step = len(sizes_of(source)), call.integer("step")
    if rank == 0:
        raise NotLoweredError("windows of a tensor without dimensions")
    d = call.dim("dimension", rank)
    return [view(call, source, call.result, lambda i: [*i[:d], step * i[d] + i[-1], *i[d + 1 : -1]])]


def as_strided(call: Call) -> Access:
    """Return the access of elements whose places are given, in a tensor that lies row by row at its storage's start.

    Raises `NotLoweredError` for other tensors, and for places that may be beyond the tensor.
    """
    layout = layout_of(call.tensor("self").type)
    dense = contiguous_strides(layout.sizes)
    sizes, strides = call.sizes("size"), call.sizes("stride")
    offset = call.size("storage_offset") if call.has("storage_offset") else layout.offset
    if layout.strides != dense or layout.offset != 0 or sizes is None or strides is None:
        raise NotLoweredError("places in a storage that is not the tensor, row by row")
    last = sum(((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)), offset)
    if not provably_at_most(last, sympy.Mul(*layout.sizes) - 1, call.ranges):
        raise NotLoweredError("places beyond the tensor")

    def access(index: Index) -> Index:
        place = sum((i * stride for i, stride in zip(index, strides, strict=True)), offset)
        return [
            FloorDiv(place, step) if d == 0 else Mod(FloorDiv(place, step), size)
            for d, (step, size) in enumerate(zip(dense, layout.sizes, strict=True))
        ]

    return access


def _as_strided(call: Call) -> Sequence[SSAValue]:
    return [view(call, call.tensor("self"), call.result, as_strided(call))]


LOWERINGS: dict[str, Lowering] = {
    "aten.as_strided.default": _as_strided,
    **dict.fromkeys(
        (
            "aten._reshape_alias.default",
            "aten._unsafe_view.default",
            "aten.unflatten.int",
            "aten.view.default",
        ),
        _reshape,
    ),
    **dict.fromkeys(("aten.reshape.default", "aten.flatten.using_ints"), _reshape_or_copy),
    **dict.fromkeys(("aten.alias.default", "aten.detach.default", "aten.lift_fresh.default"), _identity("self")),
    "prims.view_of.default": _identity("a"),
    "aten.permute.default": _permuted(_permutation),
    "aten.transpose.int": _permuted(_transposition("dim0", "dim1")),
    "aten.t.default": _permuted(lambda call, rank: range(rank)[::-1]),
    "aten.expand.default": _expand,
    "aten.unsqueeze.default": _unsqueeze,
    **dict.fromkeys(("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims"), _squeeze),
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.narrow.default": _narrow,
    **dict.fromkeys(
        (
            "aten.chunk.default",
            "aten.split.Tensor",
            "aten.split.sizes",
            "aten.split_with_sizes.default",
            "aten.unsafe_chunk.default",
            "aten.unsafe_split.Tensor",
            "aten.unsafe_split_with_sizes.default",
        ),
        _split,
    ),
    "aten.unbind.int": _unbind,
    "aten.diagonal.default": _diagonal,
    "aten.unfold.default": _unfold,
}
