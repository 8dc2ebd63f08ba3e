"""Share equal values of Triton kernels, loads included, and remove what nobody uses.

A kernel goes over its data once per loop of the tree that it was: a softmax loads a row for its maximum, for its sum
and for its result. Where the loads are equal, so are the values computed from them, and the row stays in registers.
Loads through equal pointers under equal masks give equal values unless something may have been stored to the same
buffer in between; the buffers of a kernel do not overlap, so other stores do not matter.

Before:
```
tt.func public @square(%x : !tt.ptr<f32>, %y : !tt.ptr<f32>) attributes {grid = #sym.expr<1>} {
  %k = tt.make_range {start = 0 : i32, end = 16 : i32} : tensor<16xi32>
  %xs = tt.splat %x : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
  %p = tt.addptr %xs, %k : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
  %ys = tt.splat %y : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
  %q = tt.addptr %ys, %k : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
  %a = tt.load %p : tensor<16x!tt.ptr<f32>>
  tt.store %q, %a : tensor<16x!tt.ptr<f32>>
  %b = tt.load %p : tensor<16x!tt.ptr<f32>>
  %c = arith.mulf %a, %b : tensor<16xf32>
  tt.store %q, %c : tensor<16x!tt.ptr<f32>>
  tt.return
}
```
After:
```
tt.func public @square(%x : !tt.ptr<f32>, %y : !tt.ptr<f32>) attributes {grid = #sym.expr<1>} {
  %k = tt.make_range {start = 0 : i32, end = 16 : i32} : tensor<16xi32>
  %xs = tt.splat %x : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
  %p = tt.addptr %xs, %k : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
  %ys = tt.splat %y : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
  %q = tt.addptr %ys, %k : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
  %a = tt.load %p : tensor<16x!tt.ptr<f32>>
  tt.store %q, %a : tensor<16x!tt.ptr<f32>>
  %c = arith.mulf %a, %a : tensor<16xf32>
  tt.store %q, %c : tensor<16x!tt.ptr<f32>>
  tt.return
}
```
It leaves alone loads that are volatile, and those through pointers that come from elsewhere than an argument.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.traits import IsTerminator, is_side_effect_free

from tilewright.dialects import tt
from tilewright.passes.analysis.pointers import base_of, writes

Known = dict[Hashable, Operation]


class _Sharing:
    """Shares the values of one kernel."""

    def __init__(self) -> None:
        self._known: Known = {}
        self._times: dict[SSAValue | None, int] = {}
        """How often each buffer may have been stored to so far; under None, any of them."""

    def visit(self, block: Block) -> None:
        """Share the values of a block with each other and with those of the blocks around it."""
        added: list[Hashable] = []
        for op in block.ops:
            if op.regions:
                self._enter(op)
                continue
            for base in writes(op):
                self._times[base] = self._times.get(base, 0) + 1
            key = self._key(op)
            equal = None if key is None else self._known.get(key)
            if equal is not None:
                Rewriter.replace_op(op, [], equal.results)
            elif key is not None:
                self._known[key] = op
                added.append(key)
        for key in added:
            del self._known[key]

    def _enter(self, op: Operation) -> None:
        """Visit the regions of `op`, which may run often: what they store may be there from the start."""
        stored = dict.fromkeys(base for inner in op.walk() for base in writes(inner))
        for base in stored:
            self._times[base] = self._times.get(base, 0) + 1
        around = self._known
        if isinstance(op, (tt.ReduceOp, tt.ScanOp)):
            # What combines two elements refers to nothing outside.
            self._known = {}
        for region in op.regions:
            for block in region.blocks:
                self.visit(block)
        self._known = around
        for base in stored:
            self._times[base] = self._times.get(base, 0) + 1

    def _key(self, op: Operation) -> Hashable | None:
        """Return what equal operations have in common, None where there is nothing to share."""
        time: Hashable = None
        if isinstance(op, tt.LoadOp):
            base = base_of(op.ptr)
            if base is None or op.isVolatile is not None:
                return None
            time = (self._times.get(base, 0), self._times.get(None, 0))
        elif not op.results or op.has_trait(IsTerminator) or not is_side_effect_free(op):
            return None
        properties = tuple(sorted(op.properties.items()))
        return (op.name, time, properties, tuple(op.attributes.items()), *op.operands, *(r.type for r in op.results))


def _sweep(block: Block) -> None:
    """Remove operations whose results nobody uses, last first."""
    for op in _reversed(block):
        for region in op.regions:
            for inner in region.blocks:
                _sweep(inner)
        if any(r.first_use is not None for r in op.results) or op.has_trait(IsTerminator) or not op.results:
            continue
        if is_side_effect_free(op) or (isinstance(op, tt.LoadOp) and op.isVolatile is None):
            block.erase_op(op)


def _reversed(block: Block) -> Iterator[Operation]:
    op = block.last_op
    while op is not None:
        before = op.prev_op
        yield op
        op = before


@dataclass(frozen=True)
class TtCsePass(ModulePass):
    """Share equal values of Triton kernels, loads included, and remove what nobody uses."""

    name = "tt-cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, tt.FuncOp):
                _Sharing().visit(function.block)
                _sweep(function.block)
