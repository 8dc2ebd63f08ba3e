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
from tilewright.passes.blocks.sizes import power_at_most
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


@dataclass
class _Work:
    """What the programs of a kernel do at a time: the most that any of its nests asks for."""

    elements: int = 1
    """The elements of a block."""
    per_thread: int = 1
    """How many a thread computes of a small block."""
    kept: int = 0
    """How many tensors stay in registers from one loop over whole rows to the next."""
    repeated: bool = False
    """Whether loops go over the same rows again, tile by tile."""

    def add(self, chooser: BlockChooser) -> None:
        """Take in what was chosen for a nest."""
        self.elements = max(self.elements, chooser.elements)
        self.per_thread = max(self.per_thread, chooser.per_thread)
        self.kept = max(self.kept, chooser.kept)
        self.repeated |= chooser.repeated

    def warps(self) -> int:
        """Return how many warps compute a block, up to 32: each thread 16 elements of what is not a small block.

        Where rows are kept for reductions, threads wait for each other in between, the longer the more they are, so
        each keeps 32 elements, of all tensors together. Where rows are read again, from a cache, more threads do.
        """
        if self.elements <= 256 * self.per_thread:
            found = max(1, self.elements // (32 * self.per_thread))
        else:
            found = min(32, max(8, self.elements // 512))
        if self.kept:
            return min(found, max(2, power_at_most(self.elements * self.kept // 1024)))
        return max(found, min(16, self.elements // 256)) if self.repeated else found


@dataclass(frozen=True)
class LoopTileBlocksPass(ModulePass):
    """Split the loops of kernels for GPUs into the programs of a grid, and the blocks that these compute."""

    name = "loop-tile-blocks"

    tile: int = 1024
    """The elements of a block without inner loops, or of several short rows."""

    persistent: int = 16384
    """The elements of a row that is one block, although it is gone through more than once; four times as many where one
    tensor is only read."""

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
    work = _Work()
    for nest in [o for o in kernel.block.ops if isinstance(o, NestOp)]:
        chooser = BlockChooser(nest, limits, IndexSpace(kernel.ranges))
        sizes = chooser.run()
        work.add(chooser)
        fastest = chooser.fastest
        for op in reversed(list(sizes)):
            _apply(op, sizes[op], fastest, kernel.ranges)
    kernel.attributes["num_stages"] = IntegerAttr(1, i32)
    kernel.attributes["num_warps"] = IntegerAttr(work.warps(), i32)
