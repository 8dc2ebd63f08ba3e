"""Make a scan parallel whose iterations have nothing of each other but what they combine in memory: by atomic stores.

On a CPU such a scan runs in order, or threads share it by rows. A GPU needs thousands of programs and has atomic
operations. The result then depends on which program comes first where sums round, as that of eager's kernels does.

Before:
```
!P = memref<100xi64, #sym.layout<[100], [1]>>
!X = memref<6400xf32, #sym.layout<[6400], [1]>>
loop.kernel @k0(%p : !P, %x : !X, %y : !X) symbols [] attributes {device = "cuda"} {
  loop.nest () {
    loop.scan (%i : 100) {
      %n = loop.load %p[%i] : !P -> i64
      %row = loop.cast %n : i64 to index
      loop.for (%k : 64) {
        %v = loop.load %x[64 * %i + %k] : !X -> f32
        loop.store %v, %y[64 * %row + %k] combine "sum" : f32, !X
      }
    }
  }
}
```
After:
```
!P = memref<100xi64, #sym.layout<[100], [1]>>
!X = memref<6400xf32, #sym.layout<[6400], [1]>>
loop.kernel @k0(%p : !P, %x : !X, %y : !X) symbols [] attributes {device = "cuda"} {
  loop.nest () {
    loop.for (%i : 100) {
      %n = loop.load %p[%i] : !P -> i64
      %row = loop.cast %n : i64 to index
      loop.for (%k : 64) {
        %v = loop.load %x[64 * %i + %k] : !X -> f32
        loop.store %v, %y[64 * %row + %k] combine "sum" : f32, !X
      }
    }
  }
}
```
`loop-collapse` makes the new loops part of the nest. A scan stays if it loads what it stores, has a `loop.prefix`, or
stores what a GPU cannot combine atomically: products, extremes of floats, integers below 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type, Float64Type, ModuleOp
from xdsl.ir import Attribute
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from tilewright.dialects.loop import ForOp, LoadOp, PrefixOp, ScanOp, StoreOp
from tilewright.dialects.type_guards import is_integer
from tilewright.passes.analysis.kernels import kernels_for
from tilewright.passes.rewriting.loops import move_ops

_ON_INTEGERS = frozenset({"sum", "max", "min", "umax", "umin"})
_FLOATS = (BFloat16Type, Float16Type, Float32Type, Float64Type)


def _is_atomic(combine: str, kind: Attribute) -> bool:
    """Whether a GPU combines values of type `kind` with what is in memory by one instruction."""
    if is_integer(kind):
        return combine in _ON_INTEGERS and kind.width.data in (32, 64)
    return combine == "sum" and isinstance(kind, _FLOATS)


def _can_be_parallel(scan: ScanOp) -> bool:
    ops = list(scan.body.walk())
    stores = [op for op in ops if isinstance(op, StoreOp)]
    targets = {op.target for op in stores}
    return (
        all(op.combine is not None and _is_atomic(op.combine.data, op.value.type) for op in stores)
        and not any(isinstance(op, PrefixOp) for op in ops)
        and not any(isinstance(op, LoadOp) and op.source in targets for op in ops)
    )


def _make_parallel(scan: ScanOp) -> None:
    parallel = ForOp.get(scan.loops)
    for old, new in zip(scan.indices, parallel.indices, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    move_ops(scan.block.ops, parallel.block)
    Rewriter.insert_op(parallel, InsertPoint.before(scan))
    Rewriter.erase_op(scan)


@dataclass(frozen=True)
class LoopScanToAtomicsPass(ModulePass):
    """Make scans of kernels for GPUs parallel that only combine in memory, by atomic stores."""

    name = "loop-scan-to-atomics"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_for(op, "cuda"):
            for scan in [o for o in kernel.walk() if isinstance(o, ScanOp)]:
                if _can_be_parallel(scan):
                    _make_parallel(scan)
