"""Nests that compute partial results: of each element of a reduction, and of each group of what is reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from tilewright.dialects.loop import Bounds, LoadOp, LoopDim, NestOp, ReduceOp, StoreOp, layout_of
from tilewright.dialects.sym import LayoutAttr
from tilewright.dialects.sym_expr import Expr, FloorDiv, Min, Mod, dim, integer
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.rewriting.indices import IndexRewriter


@dataclass(frozen=True)
class Split:
    """How to split a reduction."""

    position: int
    """The loop to split."""
    parts: Expr
    """How many parts it falls into."""
    length: Expr
    """The iterations of that loop for each of them, the last of which may have fewer."""
    whole: bool
    """Whether none has fewer."""
    across: bool
    """Whether the elements of the result are side by side in memory, rather than what is reduced."""
    outer: tuple[Expr, ...] = ()
    """The extents of the loops before that one, if each of their iterations has groups of its own."""

    @property
    def groups(self) -> Expr:
        """The number of partial results of each element."""
        return prod(self.outer, start=self.parts)

    @property
    def start(self) -> Expr:
        """Where the loop begins for group `d0`."""
        return self.length * (Mod(dim(0), self.parts) if self.outer else dim(0))

    def end(self, upper: Expr, most: Expr | None = None) -> Expr:
        """Return where the loop, which runs to `upper`, ends for group `d0`, of which `most` iterations are taken."""
        end = self.start + (self.length if most is None else most)
        return end if self.whole else Min(end, upper)

    def places(self) -> list[Expr]:
        """Return the indices of the loops before that one for group `d0`."""
        places: list[Expr] = []
        left = FloorDiv(dim(0), self.parts)
        for extent in reversed(self.outer[1:]):
            places.insert(0, Mod(left, extent))
            left = FloorDiv(left, extent)
        return [left, *places] if self.outer else []


class PartialNest:
    """A nest for the partial results of reductions with the loops of `op`, which is in `nest`. It begins empty."""

    def __init__(self, nest: NestOp, op: ReduceOp, kinds: Sequence[Attribute], split: Split) -> None:
        points = [d.upper for d in nest.loops.dims]
        sizes = [split.groups, *points] if split.across else [*points, split.groups]
        layout = LayoutAttr.contiguous(sizes, layout_of(nest.outputs[0].type).device)
        shape = [int(s) if s.is_Integer else DYNAMIC_INDEX for s in sizes]
        self.split = split
        self.op = NestOp.get(Bounds.extents(sizes), [TensorType(kind, shape, layout) for kind in kinds])
        self.op.location = op.location
        if "origin" in nest.attributes:
            self.op.attributes["origin"] = nest.attributes["origin"]
        self.group = self.op.indices[0 if split.across else len(points)]
        self.group.name_hint = "g"
        self._points = [v for v in self.op.indices if v is not self.group]
        self.values: dict[SSAValue, SSAValue] = dict(zip(nest.indices, self._points, strict=True))
        """What values of `nest` are here."""
        for old, new in self.values.items():
            new.name_hint = old.name_hint
        for result, destination in zip(self.op.outputs, self.op.destinations, strict=True):
            result.name_hint, destination.name_hint = "partial", "out"

    def copy(self, ops: Sequence[Operation]) -> None:
        """Add operations of the other nest."""
        self.op.block.add_ops([op.clone(self.values) for op in ops])

    def reduction(
        self, op: ReduceOp, names: Sequence[str], kinds: Sequence[Attribute], lengths: Sequence[Expr] | None = None
    ) -> tuple[ReduceOp, dict[SSAValue, SSAValue]]:
        """Add an empty reduction over the part of the loops of `op` that belongs to a group.

        With `lengths` it goes over so many first iterations of each loop only. Also returns what values of the other
        nest are in it.
        """
        split, dims = self.split, list(op.loops.dims)
        for i, this in enumerate(dims):
            most = None if lengths is None else lengths[i]
            if i < len(split.outer):
                dims[i] = LoopDim.extent(integer(1))
            elif i != split.position:
                dims[i] = this if most is None else LoopDim.extent(most)
            elif split.whole:
                dims[i] = LoopDim.extent(split.length if most is None else most)
            else:
                dims[i] = LoopDim(split.start, split.end(this.upper, most))
        reduce = ReduceOp.get(names, Bounds(tuple(dims), (self.group,)), kinds)
        reduce.location = op.location
        values = dict(self.values)
        for old, new in zip(op.indices, reduce.indices, strict=True):
            new.name_hint = old.name_hint
            values[old] = new
        self.op.block.add_op(reduce)
        return reduce, values

    def shift_index(self, reduce: ReduceOp) -> None:
        """Let the body of a reduction that `reduction` returned, now complete, begin where the group begins."""
        split = self.split
        starts = dict(enumerate(split.places()))
        if split.whole:
            starts[split.position] = split.start
        for position, start in starts.items():
            names, index = IndexNames(), reduce.indices[position]
            group, step = names.symbol(self.group), names.symbol(index)
            IndexRewriter(names, {step: start.xreplace({dim(0): group}) + step}, reduce.block).replace(index)

    def store(self, results: Sequence[SSAValue]) -> None:
        """Store the results of the nest, which are then complete."""
        place, indices = self._place(self._points, self.group)
        self.op.block.add_ops(
            [StoreOp.get(r, out, place, indices) for r, out in zip(results, self.op.destinations, strict=True)]
        )

    def load(self, number: int, points: Sequence[SSAValue], group: SSAValue) -> LoadOp:
        """Return a load of a partial result, given by the number of the reduction's result, of a point and a group."""
        place, indices = self._place(points, group)
        return LoadOp.get(self.op.outputs[number], place, indices)

    def _place(self, points: Sequence[SSAValue], group: SSAValue) -> tuple[list[Expr], list[SSAValue]]:
        indices = [group, *points] if self.split.across else [*points, group]
        return [dim(i) for i in range(len(indices))], indices
