"""Fuse loop nests: what one computes and another reads need not go through memory.

Before:
```
!X = tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
!Y = tensor<?xf32, #sym.layout<[s0], [1]>>
func.func @sum_of_squares(%x : !X) -> !Y {
  %a = loop.nest (%i : s0, %k : 8) outs(%o : !X) {
    %v = loop.load %x[%i, %k] : !X -> f32
    %e = arith.mulf %v, %v : f32
    loop.store %e, %o[%i, %k] : f32, !X
  }
  %b = loop.nest (%i : s0) outs(%o : !Y) {
    %s = loop.reduce "sum" (%k : 8) {
      %v = loop.load %a[%i, %k] : !X -> f32
      loop.yield %v : f32
    } : f32
    loop.store %s, %o[%i] : f32, !Y
  }
  func.return %b : !Y
}
```
After:
```
!X = tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
!Y = tensor<?xf32, #sym.layout<[s0], [1]>>
func.func @sum_of_squares(%x : !X) -> !Y {
  %b = loop.nest (%i : s0) outs(%o : !Y) {
    %s = loop.reduce "sum" (%k : 8) {
      %v = loop.load %x[%i, %k] : !X -> f32
      %e = arith.mulf %v, %v : f32
      loop.yield %e : f32
    } : f32
    loop.store %s, %o[%i] : f32, !Y
  }
  func.return %b : !Y
}
```

Three steps, each in its own file of `passes/fusion`:

1. `inline`: a pointwise producer is computed where it is loaded, if each element is needed once or costs little.
2. `trees`: a producer and its consumer that share outer loops, up to splits and merges of these, become one tree;
   stored values are used as they are, and destinations that are no longer needed go. Then nests side by side that read
   the same elements.
3. `siblings`: inside a tree, loops next to each other with equal bounds become one.

It leaves alone producers that free much more memory than they take, if a call stands before their consumer, producers
whose consumer needs more than the shared iterations stored (a product along another dimension), and pairs with an
extern call or another nest in between that depends on the one and is needed by the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.analysis.memory_edges import check_ordered
from tilewright.passes.analysis.order import ProgramOrder
from tilewright.passes.analysis.ranges import symbol_ranges
from tilewright.passes.analysis.sizes import SizeHints
from tilewright.passes.fusion.held import HeldMemory
from tilewright.passes.fusion.inline import InlineLimits, ProducerInliner
from tilewright.passes.fusion.trees import TreeLimits, TreeMerger


@dataclass(frozen=True)
class LoopFusePass(ModulePass):
    """Fuse loop nests, so that what one computes and another reads need not go through memory."""

    name = "loop-fuse"

    max_ops: int = 512
    """Scalar operations in one nest, beyond which nothing is added to it."""

    max_buffers: int = 24
    """Tensors that one nest reads or writes, beyond which trees are not merged."""

    recompute_ops: int = 16
    """Scalar operations that may be computed several times to save a tensor, if none is expensive."""

    held_ratio: int = 2
    """How many times the bytes of a tensor what it is computed from may take, and stay alive behind a call instead."""

    min_parallel: int = 64
    """Independent iterations that a merged nest keeps, if there were as many."""

    small: int = 32768
    """Iterations up to which a nest is too small for its parallelism to matter."""

    programs: int = 264
    """Independent iterations that a merged nest keeps on a GPU, if there were as many."""

    cached: int = 1 << 23
    """Bytes of a tensor that the caches of a CPU may keep from one nest to the next."""

    work: int = 4096
    """Iterations that one of fewer programs of a GPU may do."""

    inline: bool = True
    """Compute pointwise producers where they are used."""

    horizontal: bool = True
    """Merge nests that read the same."""

    siblings: bool = True
    """Merge loops inside a nest."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        inline = InlineLimits(self.max_ops, self.recompute_ops)
        trees = TreeLimits(
            self.max_ops,
            self.max_buffers,
            self.min_parallel,
            self.small,
            self.programs,
            self.cached,
            self.work,
            self.horizontal,
            self.siblings,
        )
        for function in op.ops:
            if not isinstance(function, FuncOp) or function.is_declaration:
                continue
            check_ordered(function.body.block)
            order, names, hints = ProgramOrder(function.body.block), IndexNames(), SizeHints(function)
            held = HeldMemory(order, hints, self.held_ratio)
            if self.inline:
                ProducerInliner(order, names, hints, inline, held).run()
            TreeMerger(order, names, hints, symbol_ranges(function), trees, held).run()
