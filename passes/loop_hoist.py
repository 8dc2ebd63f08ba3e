"""Move what is the same in all iterations of an inner loop in front of it.

Fusion puts a producer into every loop that needs its elements. What of it belongs to the row, such as a loaded index
and its check, is then computed for each element of each pass; in front of the loops it is computed once, and
`canonicalize` sees that the copies are equal.

Before:
```
!X = tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>
!I = tensor<4xi64, #sym.layout<[4], [1]>>
func.func @rows(%x : !X, %rows : !I) -> !X {
  %y = loop.nest (%i : 4) outs(%o : !X) {
    loop.for (%k : 8) {
      %n = loop.load %rows[%i] : !I -> i64
      %row = loop.cast %n : i64 to index
      %v = loop.load %x[%row, %k] : !X -> f32
      loop.store %v, %o[%i, %k] : f32, !X
    }
  }
  func.return %y : !X
}
```
After:
```
!X = tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>
!I = tensor<4xi64, #sym.layout<[4], [1]>>
func.func @rows(%x : !X, %rows : !I) -> !X {
  %y = loop.nest (%i : 4) outs(%o : !X) {
    %n = loop.load %rows[%i] : !I -> i64
    %row = loop.cast %n : i64 to index
    loop.for (%k : 8) {
      %v = loop.load %x[%row, %k] : !X -> f32
      loop.store %v, %o[%i, %k] : f32, !X
    }
  }
  func.return %y : !X
}
```

A load, a check or an integer division stays where the loop may have no iteration, for then it must not happen. Nothing
leaves a nest: it becomes a kernel, whose arguments are buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import IsTerminator, is_side_effect_free

from tilewright.dialects.loop import CheckOp, LoadOp, Loop, NestOp, StoreOp
from tilewright.dialects.sym_expr import Ranges, integer, provably_at_most
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.analysis.ranges import NamedRanges, symbol_ranges
from tilewright.passes.rewriting.clone import may_trap


@dataclass
class _Hoister:
    """Hoists in one nest, from the inside out, so that what leaves one loop may leave the next."""

    ranges: NamedRanges

    def visit(self, loop: Loop) -> None:
        """Hoist out of the loops inside `loop`."""
        self.ranges.enter(loop)
        inner = [op for op in loop.block.ops if isinstance(op, Loop)]
        for op in inner:
            self.visit(op)
            self._hoist(op, loop.block)

    def _hoist(self, loop: Loop, target: Block) -> None:
        runs = self._has_iterations(loop)
        stored = {op.target for op in loop.body.walk() if isinstance(op, StoreOp)}
        for op in list(loop.block.ops):
            if self._is_movable(op, loop, stored) and (runs or not _must_not_happen(op)):
                op.detach()
                target.insert_op_before(op, loop)

    def _is_movable(self, op: Operation, loop: Loop, stored: set[SSAValue]) -> bool:
        if op.regions or not op.results or op.has_trait(IsTerminator):
            return False
        if any(operand.owner is loop.block or _is_in(operand, loop.block) for operand in op.operands):
            return False
        if isinstance(op, LoadOp) and op.source in stored:
            return False
        return is_side_effect_free(op)

    def _has_iterations(self, loop: Loop) -> bool:
        bounds = loop.loops
        known = self.ranges.indices.dims(bounds.operands)
        return all(provably_at_most(integer(1), d.upper - d.lower, known) for d in bounds.dims)


def _is_in(value: SSAValue, block: Block) -> bool:
    owner = value.owner
    return isinstance(owner, Operation) and owner.parent is block


def _must_not_happen(op: Operation) -> bool:
    """Whether `op` does harm where the loop around it has no iteration."""
    return isinstance(op, (CheckOp, LoadOp)) or may_trap([op])


@dataclass(frozen=True)
class LoopHoistPass(ModulePass):
    """Move what is the same in all iterations of an inner loop in front of it."""

    name = "loop-hoist"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if not isinstance(function, FuncOp):
                continue
            sizes: Ranges = symbol_ranges(function)
            for block in function.body.blocks:
                for nest in [n for n in block.ops if isinstance(n, NestOp)]:
                    _Hoister(NamedRanges(IndexNames(), sizes)).visit(nest)
