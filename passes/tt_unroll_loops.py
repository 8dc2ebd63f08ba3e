"""Unroll loops of Triton kernels that load little before they compute much, so that more loads are under way.

The assembler unrolls short loops itself. A longer body, as that of a variance, it leaves as it is, and all threads wait
for what they load in every iteration. Triton takes the attribute, and puts the loads of several iterations together.

Before:
```
tt.func public @sum(%x : !tt.ptr<f32>, %y : !tt.ptr<f32>)
    attributes {grid = #sym.expr<1>, num_warps = 2 : i32, num_stages = 1 : i32} {
  %zero = arith.constant 0 : i32
  %step = arith.constant 1024 : i32
  %end = arith.constant 65536 : i32
  %k = tt.make_range {start = 0 : i32, end = 1024 : i32} : tensor<1024xi32>
  %start = arith.constant dense<0.0> : tensor<1024xf32>
  %sum = scf.for %i = %zero to %end step %step iter_args(%s = %start) -> (tensor<1024xf32>) : i32 {
    %tile = tt.addptr %x, %i : !tt.ptr<f32>, i32
    %ps = tt.splat %tile : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
    %p = tt.addptr %ps, %k : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
    %v = tt.load %p : tensor<1024x!tt.ptr<f32>>
    %a = arith.mulf %v, %v : tensor<1024xf32>
    %b = arith.mulf %a, %v : tensor<1024xf32>
    %c = arith.mulf %b, %a : tensor<1024xf32>
    %d = arith.addf %c, %s : tensor<1024xf32>
    scf.yield %d : tensor<1024xf32>
  }
  %qs = tt.splat %y : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
  %q = tt.addptr %qs, %k : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
  tt.store %q, %sum : tensor<1024x!tt.ptr<f32>>
  tt.return
}
```
After:
```
tt.func public @sum(%x : !tt.ptr<f32>, %y : !tt.ptr<f32>)
    attributes {grid = #sym.expr<1>, num_warps = 2 : i32, num_stages = 1 : i32} {
  %zero = arith.constant 0 : i32
  %step = arith.constant 1024 : i32
  %end = arith.constant 65536 : i32
  %k = tt.make_range {start = 0 : i32, end = 1024 : i32} : tensor<1024xi32>
  %start = arith.constant dense<0.0> : tensor<1024xf32>
  %sum = scf.for %i = %zero to %end step %step iter_args(%s = %start) -> (tensor<1024xf32>) : i32 {
    %tile = tt.addptr %x, %i : !tt.ptr<f32>, i32
    %ps = tt.splat %tile : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
    %p = tt.addptr %ps, %k : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
    %v = tt.load %p : tensor<1024x!tt.ptr<f32>>
    %a = arith.mulf %v, %v : tensor<1024xf32>
    %b = arith.mulf %a, %v : tensor<1024xf32>
    %c = arith.mulf %b, %a : tensor<1024xf32>
    %d = arith.addf %c, %s : tensor<1024xf32>
    scf.yield %d : tensor<1024xf32>
  } {tt.loop_unroll_factor = 2 : i32}
  %qs = tt.splat %y : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
  %q = tt.addptr %qs, %k : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
  tt.store %q, %sum : tensor<1024x!tt.ptr<f32>>
  tt.return
}
```
It leaves alone loops that store or have loops or reductions in them, short ones, those that load enough as they are,
and those that `tt-pipeline-loads` took care of.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, math, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i32
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from tilewright.dialects import tt
from tilewright.dialects.type_guards import is_integer_constant, is_tensor
from tilewright.passes.analysis.serial_loops import STAGES, loaded_bytes, trips

_UNROLLED = "tt.loop_unroll_factor"
_WARP = 32


@dataclass
class _Work:
    """What the body of a loop does in each iteration, all threads together."""

    operations: int = 0
    loaded: int = 0
    """Bytes."""

    @staticmethod
    def of(loop: scf.ForOp) -> _Work | None:
        """Return the work of a loop, None if it does something else than loading and computing."""
        found = _Work()
        for op in loop.body.walk():
            if isinstance(op, tt.LoadOp):
                found.loaded += loaded_bytes(op)
            elif op.regions or isinstance(op, (tt.StoreOp, tt.AtomicRMWOp, tt.AtomicCASOp)):
                return None
            elif _computes(op):
                kind = op.results[0].type
                found.operations += prod(kind.get_shape()) if is_tensor(kind) else 0
        return found


def _computes(op: Operation) -> bool:
    return isinstance(op, tt.ExternElementwiseOp) or op.name.startswith((f"{arith.Arith.name}.", f"{math.Math.name}."))


@dataclass(frozen=True)
class TtUnrollLoopsPass(ModulePass):
    """Unroll loops of Triton kernels that load little before they compute much."""

    name = "tt-unroll-loops"

    operations: int = 64
    """The operations of a thread in each iteration from which on the assembler leaves a loop as it is."""

    loaded: int = 128
    """The bytes that a thread should load at a time."""

    most: int = 4
    """How many iterations become one, at most."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            warps = function.attributes.get("num_warps")
            if isinstance(function, tt.FuncOp) and warps is not None and is_integer_constant(warps):
                for loop in [o for o in function.walk() if isinstance(o, scf.ForOp)]:
                    self._unroll(loop, _WARP * warps.value.data)

    def _unroll(self, loop: scf.ForOp, threads: int) -> None:
        work = None if STAGES in loop.attributes else _Work.of(loop)
        if work is None or not work.loaded or work.operations < self.operations * threads:
            return
        factor, count = self.most, trips(loop)
        while factor * work.loaded > self.loaded * threads or (count is not None and count < 2 * factor):
            factor //= 2
        if factor > 1:
            loop.attributes[_UNROLLED] = IntegerAttr(factor, i32)
