"""Say which loads of Triton kernels should stay in the cache, and which should leave it soon.

A loop over tiles reads a row, or some columns, once, and as much of it as there is: the elements push out of the cache
what others still need. They are marked to be evicted first, unless a later loop of the kernel goes over the same buffer
again, as a softmax over long rows does; then they are marked to be evicted last, as is what all programs read alike,
such as the weights of a norm.

Before:
```
tt.func public @sum(%x : !tt.ptr<f32>, %y : !tt.ptr<f32>) attributes {grid = #sym.expr<64>} {
  %pid = tt.get_program_id x : i32
  %zero = arith.constant 0 : i32
  %step = arith.constant 1024 : i32
  %end = arith.constant 65536 : i32
  %start = arith.muli %pid, %end : i32
  %row = tt.addptr %x, %start : !tt.ptr<f32>, i32
  %k = tt.make_range {start = 0 : i32, end = 1024 : i32} : tensor<1024xi32>
  scf.for %i = %zero to %end step %step : i32 {
    %tile = tt.addptr %row, %i : !tt.ptr<f32>, i32
    %ps = tt.splat %tile : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
    %p = tt.addptr %ps, %k : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
    %v = tt.load %p : tensor<1024x!tt.ptr<f32>>
    tt.store %p, %v : tensor<1024x!tt.ptr<f32>>
  }
  tt.return
}
```
After:
```
tt.func public @sum(%x : !tt.ptr<f32>, %y : !tt.ptr<f32>) attributes {grid = #sym.expr<64>} {
  %pid = tt.get_program_id x : i32
  %zero = arith.constant 0 : i32
  %step = arith.constant 1024 : i32
  %end = arith.constant 65536 : i32
  %start = arith.muli %pid, %end : i32
  %row = tt.addptr %x, %start : !tt.ptr<f32>, i32
  %k = tt.make_range {start = 0 : i32, end = 1024 : i32} : tensor<1024xi32>
  scf.for %i = %zero to %end step %step : i32 {
    %tile = tt.addptr %row, %i : !tt.ptr<f32>, i32
    %ps = tt.splat %tile : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
    %p = tt.addptr %ps, %k : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
    %v = tt.load %p {cachePolicy = #tt.cache_policy<cache_modifier = none, eviction_policy = evict_first>}
      : tensor<1024x!tt.ptr<f32>>
    tt.store %p, %v : tensor<1024x!tt.ptr<f32>>
  }
  tt.return
}
```
It leaves alone loads that have a hint, those outside of loops that only one program makes, those at positions that were
loaded, and those of short steps, as windows are that overlap: what they read is soon read again. So are the ends of the
lines that a load of single elements reads, which `tt-split-odd-vectors` has made.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dialects import tt
from tilewright.dialects.type_guards import is_integer_constant, is_tensor
from tilewright.passes.analysis.pointers import base_of

_TILE = 16
"""A loop of at least this step goes over tiles."""


class _Origins:
    """Tells what a value of a kernel is computed from."""

    def __init__(self) -> None:
        self._found: dict[SSAValue, tuple[bool, bool]] = {}

    def of(self, value: SSAValue) -> tuple[bool, bool]:
        """Return whether `value` depends on the program, and whether it depends on something that was loaded."""
        known = self._found.get(value)
        if known is None:
            self._found[value] = (False, False)  # a value that a loop carries is what it begins as, and what it yields
            known = self._found[value] = self._trace(value)
        return known

    def _trace(self, value: SSAValue) -> tuple[bool, bool]:
        owner = value.owner
        if isinstance(value, BlockArgument):
            loop = value.block.parent_op()
            if not isinstance(loop, scf.ForOp):
                return False, False
            if value.index == 0:
                return self._any([loop.lb, loop.ub, loop.step])
            return True, True
        assert isinstance(owner, Operation)
        if isinstance(owner, tt.GetProgramIdOp):
            return True, False
        if isinstance(owner, (tt.LoadOp, tt.AtomicRMWOp, tt.AtomicCASOp)) or owner.regions:
            return True, True
        return self._any(list(owner.operands))

    def _any(self, values: list[SSAValue]) -> tuple[bool, bool]:
        found = [self.of(v) for v in values]
        return any(p for p, _ in found), any(loaded for _, loaded in found)


def _is_over_tiles(load: tt.LoadOp) -> bool:
    """Whether a load is in a loop that takes a tile in each step."""
    around = load.parent_op()
    while around is not None and not isinstance(around, tt.FuncOp):
        if isinstance(around, scf.ForOp):
            step = around.step.owner
            if isinstance(step, arith.ConstantOp) and is_integer_constant(step.value):
                return step.value.value.data >= _TILE
            return False
        around = around.parent_op()
    return False


def _is_split(load: tt.LoadOp) -> bool:
    """Whether `tt-split-odd-vectors` has made a load one of single elements."""
    owner = load.ptr.owner
    return isinstance(owner, Operation) and "tt.contiguity" in owner.attributes


def _add_hints(kernel: tt.FuncOp) -> None:
    origins = _Origins()
    read_later: set[SSAValue] = set()
    loads = [op for op in kernel.walk() if isinstance(op, tt.LoadOp)]
    for load in reversed(loads):
        base = base_of(load.ptr)
        if base is None or load.isVolatile is not None or not is_tensor(load.ptr.type):
            continue
        of_program, of_loaded = origins.of(load.ptr)
        hint = None
        if not of_program:
            hint = "evict_last"
        elif not of_loaded and _is_over_tiles(load):
            hint = "evict_last" if base in read_later else None if _is_split(load) else "evict_first"
        read_later.add(base)
        policy = None if hint is None else tt.CachePolicyAttr.get(eviction=hint)
        if policy is not None and load.cachePolicy is None:
            load.properties["cachePolicy"] = policy


@dataclass(frozen=True)
class TtCacheHintsPass(ModulePass):
    """Say which loads of Triton kernels should stay in the cache, and which should leave it soon."""

    name = "tt-cache-hints"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, tt.FuncOp):
                _add_hints(function)
