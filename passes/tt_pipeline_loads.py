"""Let loops of Triton kernels load what later iterations need, while they compute.

The threads of a program wait for each other in a reduction, so that in a loop over rows, as in a layer norm's backward
pass, no thread loads from the next row before all have this one. Other programs have the memory meanwhile, unless there
are few. Then Triton can copy the elements of next iterations to shared memory, asynchronously; the loop says how many
iterations are under way at a time.

Before:
```
tt.func public @sums(%x : !tt.ptr<f32>, %y : !tt.ptr<f32>) attributes {grid = #sym.expr<1>} {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %end = arith.constant 64 : i32
  %length = arith.constant 1024 : i32
  %k = tt.make_range {start = 0 : i32, end = 1024 : i32} : tensor<1024xi32>
  scf.for %i = %zero to %end step %one : i32 {
    %start = arith.muli %i, %length : i32
    %row = tt.addptr %x, %start : !tt.ptr<f32>, i32
    %ps = tt.splat %row : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
    %p = tt.addptr %ps, %k : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
    %v = tt.load %p : tensor<1024x!tt.ptr<f32>>
    %sum = "tt.reduce"(%v) <{axis = 0 : i32}> ({
    ^bb0(%a : f32, %b : f32):
      %s = arith.addf %a, %b : f32
      tt.reduce.return %s : f32
    }) : (tensor<1024xf32>) -> f32
    %to = tt.addptr %y, %i : !tt.ptr<f32>, i32
    tt.store %to, %sum : !tt.ptr<f32>
  }
  tt.return
}
```
After:
```
tt.func public @sums(%x : !tt.ptr<f32>, %y : !tt.ptr<f32>) attributes {grid = #sym.expr<1>} {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %end = arith.constant 64 : i32
  %length = arith.constant 1024 : i32
  %k = tt.make_range {start = 0 : i32, end = 1024 : i32} : tensor<1024xi32>
  scf.for %i = %zero to %end step %one : i32 {
    %start = arith.muli %i, %length : i32
    %row = tt.addptr %x, %start : !tt.ptr<f32>, i32
    %ps = tt.splat %row : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
    %p = tt.addptr %ps, %k : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
    %v = tt.load %p : tensor<1024x!tt.ptr<f32>>
    %sum = "tt.reduce"(%v) <{axis = 0 : i32}> ({
    ^bb0(%a : f32, %b : f32):
      %s = arith.addf %a, %b : f32
      tt.reduce.return %s : f32
    }) : (tensor<1024xf32>) -> f32
    %to = tt.addptr %y, %i : !tt.ptr<f32>, i32
    tt.store %to, %sum : !tt.ptr<f32>
  } {tt.num_stages = 3 : i32}
  tt.return
}
```
It leaves alone kernels of many programs, or of a number that depends on sizes, loops without a reduction or a scan,
whose threads run ahead by themselves, loops around others, short ones, those that store to what they load or have a
barrier, and those whose tiles fill the shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i32
from xdsl.dialects.gpu import BarrierOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from tilewright.dialects import tt
from tilewright.dialects.sym import ExprAttr
from tilewright.passes.analysis.pointers import base_of, writes
from tilewright.passes.analysis.serial_loops import STAGES, loaded_bytes, trips


def _tile_bytes(loop: scf.ForOp) -> int:
    """Return the bytes of the tiles that each iteration loads; 0 if they cannot be loaded earlier, or need not."""
    loads: list[tt.LoadOp] = []
    waits = False
    stored: set[SSAValue | None] = set()
    for op in loop.body.walk():
        if isinstance(op, (scf.ForOp, scf.WhileOp, BarrierOp)):
            return 0
        stored.update(writes(op))
        waits |= isinstance(op, (tt.ReduceOp, tt.ScanOp))
        if isinstance(op, tt.LoadOp):
            loads.append(op)
    if not waits or (stored and (None in stored or any(base_of(load.ptr) in {None, *stored} for load in loads))):
        return 0
    return sum(loaded_bytes(load) for load in loads)


@dataclass(frozen=True)
class TtPipelineLoadsPass(ModulePass):
    """Let loops of Triton kernels load what later iterations need, while they compute."""

    name = "tt-pipeline-loads"

    stages: int = 3
    """Iterations that are under way at a time, the one that computes included."""

    programs: int = 528
    """A kernel of more programs has others to compute while one waits."""

    trips: int = 4
    """A loop of fewer iterations is not worth it."""

    shared: int = 98304
    """The bytes of shared memory that the tiles of a loop may take."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, tt.FuncOp) and self._has_few_programs(function):
                for loop in [o for o in function.walk() if isinstance(o, scf.ForOp)]:
                    self._pipeline(loop)

    def _has_few_programs(self, kernel: tt.FuncOp) -> bool:
        grid = kernel.attributes.get("grid")
        return isinstance(grid, ExprAttr) and bool(grid.expr.is_Integer and grid.expr <= self.programs)

    def _pipeline(self, loop: scf.ForOp) -> None:
        count, size = trips(loop), _tile_bytes(loop)
        if 0 < (self.stages - 1) * size <= self.shared and (count is None or count >= self.trips):
            loop.attributes[STAGES] = IntegerAttr(self.stages, i32)
