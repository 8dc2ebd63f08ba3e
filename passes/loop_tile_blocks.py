"""Split the loops of kernels for GPUs into blocks: what a program computes at a time, and what programs there are.

The loops of a nest become the grid, one program for each of their points. What a program computes at a time are the
points of loops with `blocks`, the axes of a block. As on CPUs a tile loop steps by the tile's size and a point loop
runs from there to its end, so the text says the same as before, and runs in the reference interpreter. Which loops
become axes, and how long, is decided from the accesses (`passes/blocks`).

Before:
```
!X = memref<409600xf32, #sym.layout<[409600], [1]>>
!Y = memref<4096xf32, #sym.layout<[4096], [1]>>
loop.kernel @k0(%x : !X, %y : !Y) symbols [] attributes {device = "cuda"} {
  loop.nest (%b : 4096) {
    %m = loop.reduce "max" (%k : 100) {
      %v = loop.load %x[100 * %b + %k] : !X -> f32
      loop.yield %v : f32
    } : f32
    loop.store %m, %y[%b] : f32, !Y
  }
}
```
After:
```
!X = memref<409600xf32, #sym.layout<[409600], [1]>>
!Y = memref<4096xf32, #sym.layout<[4096], [1]>>
loop.kernel @k0(%x : !X, %y : !Y) symbols [] attributes {device = "cuda", num_stages = 1 : i32, num_warps = 4 : i32} {
  loop.nest (%0 = 0 to 4096 step 8) {
    loop.for (%b = %0 to %0 + 8) attributes {blocks = array<i64: 8>} {
      %m = loop.reduce "max" (%k : 100) attributes {blocks = array<i64: 128>} {
        %v = loop.load %x[100 * %b + %k] : !X -> f32
        loop.yield %v : f32
      } : f32
      loop.store %m, %y[%b] : f32, !Y
    }
  }
}
```
A reduction that is too long for a block is one over tiles, whose body is one over the points of a tile. Loops that
depend on each other (a scan with more than `loop.prefix`, an `ordered` reduction) run one iteration after the other,
and so do those whose accesses do not move with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i32
from xdsl.passes import ModulePass

from tilewright.dialects.loop import ForOp, KernelOp, Loop, LoopDim, NestOp, ReduceOp, ScanOp
from tilewright.dialects.sym_expr import Ranges, bounds
from tilewright.passes.analysis.index_space import IndexSpace
from tilewright.passes.analysis.kernels import kernels_for
from tilewright.passes.blocks.choice import BlockChooser, BlockLimits
from tilewright.passes.rewriting.tiles import split_reduce, tile_loops


def _fits(this: LoopDim, size: int, ranges: Ranges) -> bool:
    """Whether a loop certainly has no more points than one tile, given the ranges of sizes."""
    most = bounds(this.upper - this.lower, ranges)[1]
    return most is not None and bool(most.is_Integer and most <= size)


def _apply(op: Loop, sizes: Sequence[int], fastest: int | None, ranges: Ranges) -> None:
    """Make axes of the loops of `op` that have a size above 1; the tiles of `fastest`, one of a nest, come last."""
    axes = [(i, size) for i, size in enumerate(sizes) if size > 1]
    if not axes:
        return
    dims = IndexSpace().loops(op)
    is_whole = all(_fits(d, size, ranges) for d, size in zip(dims, sizes, strict=True))
    if isinstance(op, ScanOp) or (is_whole and not isinstance(op, NestOp)):
        op.blocks = sizes
        return
    if isinstance(op, ReduceOp):
        _, points = split_reduce(op, axes)
    else:
        assert isinstance(op, (NestOp, ForOp))
        points = tile_loops(op, axes, in_order=True, last=fastest if isinstance(op, NestOp) else None)
    points.blocks = [size for _, size in axes]


def _warps(elements: int, per_thread: int) -> int:
    """Return how many warps compute a block: each thread `per_thread` elements of a small block, up to 32 of others."""
    if elements <= 256 * per_thread:
        return max(1, elements // (32 * per_thread))
    return min(32, max(8, elements // 512))


@dataclass(frozen=True)
class LoopTileBlocksPass(ModulePass):
    """Split the loops of kernels for GPUs into the programs of a grid, and the blocks that these compute."""

    name = "loop-tile-blocks"

    tile: int = 1024
    """The elements of a block without inner loops, or of several short rows."""

    persistent: int = 65536
    """The elements of a row that is one block, although it is gone through more than once."""

    looped: int = 4096
    """The elements of a tile of a longer row."""

    rows: int = 32
    """The rows of a tile that is reduced over rows."""

    columns: int = 64
    """The columns of such a tile."""

    programs: int = 264
    """With fewer programs than this, blocks are made smaller."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        limits = BlockLimits(self.tile, self.persistent, self.looped, self.rows, self.columns, self.programs)
        for kernel in kernels_for(op, "cuda"):
            _tile_kernel(kernel, limits)


def _tile_kernel(kernel: KernelOp, limits: BlockLimits) -> None:
    elements, per_thread = 1, 1
    for nest in [o for o in kernel.block.ops if isinstance(o, NestOp)]:
        chooser = BlockChooser(nest, limits, IndexSpace(kernel.ranges))
        sizes = chooser.run()
        elements, per_thread = max(elements, chooser.elements), max(per_thread, chooser.per_thread)
        fastest = chooser.fastest
        for op in reversed(list(sizes)):
            _apply(op, sizes[op], fastest, kernel.ranges)
    kernel.attributes["num_stages"] = IntegerAttr(1, i32)
    kernel.attributes["num_warps"] = IntegerAttr(_warps(elements, per_thread), i32)
