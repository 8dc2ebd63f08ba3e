"""Turn loop kernels into functions of structured CPU operations.

A nest becomes `cpu.parallel` over its iterations, or plain loops where there is too little to do for a second thread.
Loops become `scf.for`, reductions carry their results from iteration to iteration, accesses become loads and stores
at an element offset: one of consecutive elements where the address moves by one from lane to lane, else a gather or
scatter. The parts of an address that an inner loop does not change are computed outside of it.

Before:
```
loop.kernel @k0(%x : memref<?xf32, #sym.layout<[n0], [1]>>, %y : memref<?xf32, #sym.layout<[n0], [1]>>) symbols [n0] {
  loop.nest (%i : 100) {
    %v = loop.load %x[%i] : memref<?xf32, #sym.layout<[n0], [1]>> -> f32
    loop.store %v, %y[%i + n0] : f32, memref<?xf32, #sym.layout<[n0], [1]>>
  }
}
```
After:
```
func.func @k0(%x : memref<?xf32, #sym.layout<[n0], [1]>>, %y : memref<?xf32, #sym.layout<[n0], [1]>>, %n0 : i64) {
  %zero = arith.constant 0 : index
  %hundred = arith.constant 100 : index
  %n = arith.index_cast %n0 : i64 to index
  %one = arith.constant 1 : index
  scf.for %i = %zero to %hundred step %one {
    %v = cpu.load %x[%i] : memref<?xf32, #sym.layout<[n0], [1]>> -> f32
    %j = arith.addi %n, %i : index
    cpu.store %v, %y[%j] : f32, memref<?xf32, #sym.layout<[n0], [1]>>
  }
  func.return
}
```
A kernel with checks runs to its end and returns a status (`dialects/cpu_errors.py`). The host program and
kernels for other devices are left alone. Fails on an operation with a region that is not a loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.passes.analysis.kernels import kernels_for
from tilewright.passes.lowering_cpu.kernel import KernelLowering


@dataclass(frozen=True)
class ConvertLoopToCpuPass(ModulePass):
    """Turn loop kernels into functions of structured CPU operations."""

    name = "convert-loop-to-cpu"

    grain: int = 20000
    """The least work, in cycles of one core as estimated, that is worth waking a thread for."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_for(op, "cpu"):
            Rewriter.replace_op(kernel, KernelLowering(kernel, self.grain).lower(), [])
