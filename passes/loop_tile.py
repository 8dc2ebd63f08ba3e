"""Split the loops of kernels into tiles: units of work for threads, squares for transposes, blocks for long sums.

The loops of a nest come to run over tiles, and the points of a tile are loops inside. What a tile is depends on the
accesses, by the cost model that `vectorize` uses too: elements side by side make a long tile, elements that lie side
by side along different loops in different accesses (a transpose) make a rectangle whose cache lines are used whole,
and a reduction over columns makes a tile of columns. A nest over rows keeps its rows whole. A long floating point sum
is taken block by block, so that its rounding error grows with the length of a block rather than of the sum.

Before:
```
loop.kernel @k0(%x : memref<?xf32, #sym.layout<[n0], [1]>>, %y : memref<?xf32, #sym.layout<[n0], [1]>>) symbols [n0] {
  loop.nest (%i : n0) {
    %v = loop.load %x[%i] : memref<?xf32, #sym.layout<[n0], [1]>> -> f32
    loop.store %v, %y[%i] : f32, memref<?xf32, #sym.layout<[n0], [1]>>
  }
}
```
After:
```
loop.kernel @k0(%x : memref<?xf32, #sym.layout<[n0], [1]>>, %y : memref<?xf32, #sym.layout<[n0], [1]>>) symbols [n0] {
  loop.nest (%b = 0 to n0 step 4096) {
    loop.for (%i = %b to min(%b + 4096, n0)) {
      %v = loop.load %x[%i] : memref<?xf32, #sym.layout<[n0], [1]>> -> f32
      loop.store %v, %y[%i] : f32, memref<?xf32, #sym.layout<[n0], [1]>>
    }
  }
}
```
A reduction marked `ordered` keeps its order, so it is not cut into blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import AnyFloat, ModuleOp, UnitAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from tilewright.dialects.loop import ForOp, LoadOp, Loop, NestOp, ReduceOp, StoreOp
from tilewright.passes.analysis.index_space import IndexSpace, stride
from tilewright.passes.analysis.kernels import nests_for
from tilewright.passes.analysis.legality import dependents, is_leaf, slot_groups
from tilewright.passes.lowering_cpu.cost import Choice, CostModel, access_kind
from tilewright.passes.lowering_cpu.kernel import PARALLEL
from tilewright.passes.rewriting.tiles import split_reduce, tile_loops


def _accesses(loop: Loop) -> list[LoadOp | StoreOp]:
    return [op for op in loop.walk() if isinstance(op, (LoadOp, StoreOp))]


def _transposed(space: IndexSpace, nest: NestOp, lane: int) -> int | None:
    """Return the loop of `nest` along which accesses that are not contiguous along `lane` are, if there are some."""
    found, index = dependents(nest, lane), space.symbol(nest.indices[lane])
    votes = [0] * len(nest.loops.dims)
    for op in _accesses(nest):
        if access_kind(space, op, found, index) is None:
            (expr,) = space.access(op.access, op.indices)
            for i, other in enumerate(nest.indices):
                votes[i] += i != lane and stride(expr, space.symbol(other)) == 1
    most = max(votes)
    return votes.index(most) if most else None


def _rounds(op: ReduceOp) -> bool:
    """Whether the result of a reduction depends on the order by rounding."""
    kinds = [r.type for r in op.results_]
    return any(
        name in ("sum", "prod", "welford") and isinstance(kinds[slots][0], AnyFloat) for name, slots in slot_groups(op)
    )


def _known_trips(op: Loop) -> float:
    """Return how many iterations the loops of `op` have together, infinity if it depends on sizes."""
    space = IndexSpace()
    total = 1
    for this in space.loops(op):
        most = space.largest_extent(this)
        if most is None:
            return math.inf
        total *= -(-most // this.step)
    return total


@dataclass(frozen=True)
class LoopTilePass(ModulePass):
    """Split parallel loops into tiles, units of work for threads, and long sums into blocks."""

    name = "loop-tile"

    size: int = 4096
    """The elements of a tile whose accesses are all contiguous."""

    columns: int = 64
    """The columns of a tile when a reduction runs over rows."""

    across: int = 64
    """The length of a rectangular tile along the loop that will not take lanes."""

    along: int = 16
    """The length of a rectangular tile along the loop that will take lanes."""

    units: int = 4
    """With fewer iterations than this in a nest, the loops inside are shared by threads instead."""

    block: int = 512
    """The elements that are added up one after the other, in each lane, before a new partial sum begins."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for nest in nests_for(op, "cpu"):
            self._tile_nest(nest)

    def _tile_nest(self, nest: NestOp) -> None:
        if nest.lanes is not None or any(d.step != 1 or d.lower != 0 for d in nest.loops.dims):
            return
        space = IndexSpace()
        choices = CostModel(space).best(nest).choices
        for op in [o for o in nest.walk() if isinstance(o, ReduceOp)]:
            self._block(space, op, choices)
        on_nest = next((c for c in choices if c.loop is nest), None)
        leaf = is_leaf(nest)
        if leaf and nest.loops.dims:
            inner = len(nest.loops.dims) - 1 if on_nest is None else on_nest.position
            tile_loops(nest, self._sizes(space, nest, inner))
        elif on_nest is not None:
            tile_loops(nest, [(on_nest.position, self.columns)])
        if _known_trips(nest) < self.units:
            for op in list(nest.block.ops):
                self._share(op)

    def _sizes(self, space: IndexSpace, nest: NestOp, inner: int) -> list[tuple[int, int]]:
        """Return the loops of an innermost nest to tile, the loop `inner` last, with the sizes of their tiles."""
        across = _transposed(space, nest, inner)
        if across is None:
            return [(inner, self.size)]
        return [(across, self.across), (inner, self.along)]

    def _block(self, space: IndexSpace, op: ReduceOp, choices: Sequence[Choice]) -> None:
        """Cut a long sum into blocks."""
        dims = space.loops(op)
        if op.ordered is not None or op.lanes is not None or not _rounds(op) or not is_leaf(op):
            return
        if any(d.step != 1 for d in dims):
            return
        choice = next((c for c in choices if c.loop is op), None)
        position = len(dims) - 1 if choice is None else choice.position
        size = self.block * (1 if choice is None else 16)
        if _known_trips(op) > size:
            split_reduce(op, [(position, size)])

    def _share(self, op: Operation) -> None:
        """Mark the loops in a nest of few iterations whose own iterations are enough for several threads."""
        if isinstance(op, ReduceOp) and op.ordered is None:
            if is_leaf(op) and all(d.step == 1 for d in op.loops.dims) and _known_trips(op) > self.size:
                op, _ = split_reduce(op, [(len(op.loops.dims) - 1, self.size)])
            if not is_leaf(op):
                op.attributes[PARALLEL] = UnitAttr()
        elif isinstance(op, ForOp) and is_leaf(op):
            if _known_trips(op) > self.size and all(d.step == 1 for d in op.loops.dims):
                tile_loops(op, [(len(op.loops.dims) - 1, self.size)])
                op.attributes[PARALLEL] = UnitAttr()
        elif isinstance(op, ForOp) and _known_trips(op) <= self.columns:
            for inner in list(op.block.ops):
                self._share(inner)
        elif isinstance(op, ForOp):
            op.attributes[PARALLEL] = UnitAttr()
