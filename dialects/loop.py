"""The `loop` dialect: parallel loops, reductions and indexed accesses, on tensors (level 1) and on buffers (level 2).

One form serves both levels and both targets. A `loop.nest` is a tree: its parallel loops hold scalar operations,
reductions (`loop.reduce`, giving scalars), further parallel loops (`loop.for`) and loops that run in order
(`loop.scan`), in program order. Tensors are accessed by logical indices, one per dimension, given by index expressions
over the loops' index values. The dialect cannot say in what order parallel iterations run, how many there are at a time
on a target, or anything of threads, registers and vector units.

```
func.func @softmax(%x : tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>)
    -> tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>> {
  %y = loop.nest (%i : s0) outs(%o : tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>) {
    %m = loop.reduce "max" (%k : 8) {
      %v = loop.load %x[%i, %k] : tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>> -> f32
      loop.yield %v : f32
    } : f32
    loop.for (%k : 8) {
      %v = loop.load %x[%i, %k] : tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>> -> f32
      %d = arith.subf %v, %m : f32
      loop.store %d, %o[%i, %k] : f32, tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
    }
  }
  func.return %y : tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
}
```
"""

from __future__ import annotations

from xdsl.ir import Dialect

from tilewright.dialects.loop_access import (
    ApplyOp,
    LoadOp,
    StoreOp,
    ViewOp,
    element_in_register,
    layout_of,
    register_type,
)
from tilewright.dialects.loop_base import Bounds, Loop, LoopDim
from tilewright.dialects.loop_check import CheckOp
from tilewright.dialects.loop_combine import CombineOp
from tilewright.dialects.loop_kernel import KernelOp
from tilewright.dialects.loop_nest import ForOp, NestOp
from tilewright.dialects.loop_order import AfterOp
from tilewright.dialects.loop_random import RandomOp
from tilewright.dialects.loop_reduce import ReduceOp, YieldOp
from tilewright.dialects.loop_scalar import CastOp, CmpOp, IntrinsicOp, SelectOp
from tilewright.dialects.loop_scan import PrefixOp, ScanOp

__all__ = [
    "AfterOp",
    "ApplyOp",
    "Bounds",
    "CastOp",
    "CheckOp",
    "CmpOp",
    "CombineOp",
    "ForOp",
    "IntrinsicOp",
    "KernelOp",
    "LoadOp",
    "Loop",
    "LoopDialect",
    "LoopDim",
    "NestOp",
    "PrefixOp",
    "RandomOp",
    "ReduceOp",
    "ScanOp",
    "SelectOp",
    "StoreOp",
    "ViewOp",
    "YieldOp",
    "element_in_register",
    "layout_of",
    "register_type",
]

LoopDialect = Dialect(
    "loop",
    [
        NestOp,
        ForOp,
        ReduceOp,
        ScanOp,
        PrefixOp,
        YieldOp,
        LoadOp,
        StoreOp,
        ApplyOp,
        ViewOp,
        AfterOp,
        KernelOp,
        CombineOp,
        CastOp,
        SelectOp,
        CmpOp,
        IntrinsicOp,
        CheckOp,
        RandomOp,
    ],
)
