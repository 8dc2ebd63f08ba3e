"""Tile loops: a loop over tiles steps by a tile's size, and one inside runs over the points from there to its end."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tilewright.dialects.loop import ForOp, Loop, LoopDim, NestOp, ReduceOp, YieldOp
from tilewright.dialects.sym_expr import Expr, Min
from tilewright.passes.analysis.index_space import IndexSpace
from tilewright.passes.rewriting.rebuild import set_loops


def fits(this: LoopDim, size: int) -> bool:
    """Whether a loop certainly has no more points than one tile of `size`."""
    extent = this.upper - this.lower
    return bool(extent.is_Integer and extent <= size)


def _points(this: LoopDim, start: Expr, size: int) -> LoopDim:
    """Return the loop over the points of the tile of `size` that begins at `start`."""
    extent = this.upper - this.lower
    whole = extent.is_Integer and extent % size == 0
    return LoopDim(start, start + size if whole else Min(start + size, this.upper))


def tile_loops(
    loop: NestOp | ForOp, sizes: Sequence[tuple[int, int]], *, in_order: bool = False, last: int | None = None
) -> ForOp:
    """Move loops of `loop`, given by position, into a loop inside it, in that order, in tiles of the given sizes.

    The loops over tiles come behind the loops that are not tiled, or with `in_order` take the places of the old ones;
    the one over tiles of the loop `last` comes last. A loop that fits one tile needs none over tiles. Returns the loop
    over points.
    """
    space = IndexSpace()
    dims = space.loops(loop)
    points = ForOp.get(space.bounds_over_operands(dims[i] for i, _ in sizes))
    for (i, _), index in zip(sizes, points.indices, strict=True):
        index.name_hint = loop.indices[i].name_hint
        loop.indices[i].replace_all_uses_with(index)
    for op in list(loop.block.ops):
        op.detach()
        points.block.add_op(op)
    size_of = dict(sizes)
    outer = [i for i in range(len(dims)) if i not in size_of]
    outer += [i for i, size in sizes if not fits(dims[i], size)]
    if in_order:
        outer.sort(key=lambda i: (i == last and i in size_of, i))
    for i in sorted(size_of, reverse=True):
        loop.block.erase_arg(loop.block.args[i])
    starts: dict[int, Expr] = {}
    for at, i in enumerate(outer):
        if i in size_of:
            starts[i] = space.declare(loop.block.insert_arg(IndexType(), at))
    tiles = [LoopDim(dims[i].lower, dims[i].upper, size_of[i]) if i in size_of else dims[i] for i in outer]
    set_loops(loop, space.bounds_over_operands(tiles))
    ranges = [_points(dims[i], starts[i], size) if i in starts else dims[i] for i, size in sizes]
    set_loops(points, space.bounds_over_operands(ranges))
    loop.block.add_op(points)
    return points


def split_reduce(op: ReduceOp, sizes: Sequence[tuple[int, int]]) -> tuple[ReduceOp, ReduceOp]:
    """Reduce within tiles along loops given by position, then over the tiles and along the other loops.

    Returns the reduction over tiles, which takes the place of `op`, and the one over points inside it. A loop that fits
    one tile is only in the latter.
    """
    space = IndexSpace()
    dims = space.loops(op)
    kinds = [r.type for r in op.results_]
    size_of = dict(sizes)
    others = [i for i in range(len(dims)) if i not in size_of]
    tiled = [i for i, size in sizes if not fits(dims[i], size)]
    outer_dims = [*(dims[i] for i in others), *(LoopDim(dims[i].lower, dims[i].upper, size_of[i]) for i in tiled)]
    outer = ReduceOp.get(op.names, space.bounds_over_operands(outer_dims), kinds, init=op.init)
    indices: dict[int, SSAValue] = dict(zip(others, outer.indices[: len(others)], strict=True))
    starts = {i: space.declare(index) for i, index in zip(tiled, outer.indices[len(others) :], strict=True)}
    ranges = [_points(dims[i], starts[i], size) if i in starts else dims[i] for i, size in sizes]
    inner = ReduceOp.get(op.names, space.bounds_over_operands(ranges), kinds)
    indices.update((i, index) for (i, _), index in zip(sizes, inner.indices, strict=True))
    outer.attributes = dict(op.attributes)
    Rewriter.insert_op(outer, InsertPoint.before(op))
    _move_body(op, [indices[i] for i in range(len(dims))], inner)
    outer.block.add_ops([inner, YieldOp.get(*inner.results)])
    for old, new, part in zip(op.results, outer.results, inner.results, strict=True):
        new.name_hint = part.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    Rewriter.erase_op(op)
    return outer, inner


def _move_body(op: Loop, indices: Sequence[SSAValue], to: Loop) -> None:
    for old, new in zip(op.indices, indices, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    for inner in list(op.block.ops):
        inner.detach()
        to.block.add_op(inner)
