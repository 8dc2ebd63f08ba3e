"""Turn loop kernels of a GPU into functions of Triton IR.

The loops of a nest become a grid of programs. A loop whose points are computed together (`blocks`) becomes an axis of
tensors, along which a value that does not depend on it has size 1; a mask says which of its points are there. Other
loops become `scf.for`. Reductions over blocks become `tt.reduce`, scans over blocks `tt.scan`; a reduction over many
blocks combines them element by element and reduces once. Index expressions are split into what is the same for all
points, a scalar, and the rest, in i32 if all offsets of the kernel fit.

Before:
```
loop.kernel @k0(%x : memref<64xf32, #sym.layout<[64], [1]>>, %y : memref<64xf32, #sym.layout<[64], [1]>>) symbols []
    attributes {device = "cuda"} {
  loop.nest (%t = 0 to 64 step 16) {
    loop.for (%k = %t to %t + 16) attributes {blocks = array<i64: 16>} {
      %v = loop.load %x[%k] : memref<64xf32, #sym.layout<[64], [1]>> -> f32
      %e = math.absf %v : f32
      loop.store %e, %y[%k] : f32, memref<64xf32, #sym.layout<[64], [1]>>
    }
  }
}
```
After:
```
tt.func public @k0(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %y: !tt.ptr<f32> {tt.divisibility = 16 : i32})
    attributes {grid = #sym.expr<4>, num_warps = 4 : i32, num_stages = 1 : i32} {
  %pid = tt.get_program_id x : i32
  %k = tt.make_range {start = 0 : i32, end = 16 : i32} : tensor<16xi32>
  %0 = arith.constant 16 : i32
  %1 = arith.muli %pid, %0 : i32
  %x_ptr = tt.addptr %x, %1 : !tt.ptr<f32>, i32
  %x_ptr_1 = tt.splat %x_ptr : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
  %x_ptr_2 = tt.addptr %x_ptr_1, %k : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
  %x_1 = tt.load %x_ptr_2 : tensor<16x!tt.ptr<f32>>
  %abs = math.absf %x_1 : tensor<16xf32>
  %y_ptr = tt.addptr %y, %1 : !tt.ptr<f32>, i32
  %y_ptr_1 = tt.splat %y_ptr : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
  %y_ptr_2 = tt.addptr %y_ptr_1, %k : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
  tt.store %y_ptr_2, %abs : tensor<16x!tt.ptr<f32>>
  tt.return
}
```
Kernels of other devices and the host program are left alone. Fails on what has no lowering.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.passes.analysis.kernels import kernels_for
from tilewright.passes.lowering_tt.kernel import KernelLowering


@dataclass(frozen=True)
class ConvertLoopToTtPass(ModulePass):
    """Turn loop kernels of a GPU into functions of Triton IR."""

    name = "convert-loop-to-tt"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_for(op, "cuda"):
            Rewriter.replace_op(kernel, KernelLowering(kernel).lower(), [])
