"""Save a dear value that a later loop over the same range would compute again.

Fusion puts the passes over a row side by side in one nest, and each computes what it needs: a softmax takes the
exponential of each element once for the sum and once for the result. The place where the later loop stores its result
can hold the value in between, if nothing else is still needed from there.

Before:
```
loop.kernel @k(%x : memref<?xf32, #sym.layout<[n], [1]>>, %y : memref<?xf32, #sym.layout<[n], [1]>>) symbols [n] {
  loop.nest () {
    %s = loop.reduce "sum" (%k : n) {
      %v = loop.load %x[%k] : memref<?xf32, #sym.layout<[n], [1]>> -> f32
      %e = math.exp %v : f32
      loop.yield %e : f32
    } : f32
    loop.for (%k : n) {
      %v = loop.load %x[%k] : memref<?xf32, #sym.layout<[n], [1]>> -> f32
      %e = math.exp %v : f32
      %q = arith.divf %e, %s : f32
      loop.store %q, %y[%k] : f32, memref<?xf32, #sym.layout<[n], [1]>>
    }
  }
}
```
After:
```
loop.kernel @k(%x : memref<?xf32, #sym.layout<[n], [1]>>, %y : memref<?xf32, #sym.layout<[n], [1]>>) symbols [n] {
  loop.nest () {
    %s = loop.reduce "sum" (%k : n) {
      %v = loop.load %x[%k] : memref<?xf32, #sym.layout<[n], [1]>> -> f32
      %e = math.exp %v : f32
      loop.store %e, %y[%k] : f32, memref<?xf32, #sym.layout<[n], [1]>>
      loop.yield %e : f32
    } : f32
    loop.for (%k : n) {
      %e = loop.load %y[%k] : memref<?xf32, #sym.layout<[n], [1]>> -> f32
      %q = arith.divf %e, %s : f32
      loop.store %q, %y[%k] : f32, memref<?xf32, #sym.layout<[n], [1]>>
    }
  }
}
```
A value of another type than the buffer's elements is computed again, and so is one that costs no more than a load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import Pure

from tilewright.dialects.loop import ForOp, LoadOp, Loop, NestOp, StoreOp
from tilewright.dialects.sym_expr import Expr
from tilewright.passes.analysis.index_space import IndexSpace
from tilewright.passes.analysis.kernels import kernels_for
from tilewright.passes.analysis.legality import is_leaf
from tilewright.passes.lowering_cpu.cost import takes_long


@dataclass(frozen=True)
class _Value:
    """A value in the body of a loop; equal values of two loops over the same range have the same number."""

    value: SSAValue
    number: int
    dear: bool


class _Pair:
    """Two innermost loops side by side that run over the same range."""

    def __init__(self, earlier: Loop, later: ForOp):
        self.earlier = earlier
        self.later = later
        self._numbers: dict[object, int] = {}
        self._space = IndexSpace()
        self._there = {
            self._space.symbol(b): self._space.symbol(a) for a, b in zip(earlier.indices, later.indices, strict=True)
        }

    def save(self) -> bool:
        """Save one value that both loops compute. Return whether there was one, and a place for it."""
        places = [op for op in self.later.block.ops if isinstance(op, StoreOp) and self._is_place(op)]
        if not places:
            return False
        have = {v.number: v.value for v in self._values(self.earlier, places) if v.dear}
        for found in reversed(self._values(self.later, places)):
            if found.number not in have:
                continue
            for store in places:
                if store.value.type == found.value.type and self._is_last_use(store, found.value):
                    self._move(store, have[found.number], found.value)
                    return True
        return False

    def _element(self, op: LoadOp | StoreOp) -> tuple[Expr, ...]:
        """Return the indices of an access, in terms of the earlier loop if it is in one of the two."""
        return tuple(e.xreplace(self._there) for e in self._space.access(op.access, op.indices))

    def _is_place(self, store: StoreOp) -> bool:
        """Whether the element that `store` writes can be written by the earlier loop already.

        Others may load it before that loop, and the two loops themselves if it is the one that they then replace.
        """
        inside = {v for op in self.later.block.ops for v in op.results}
        if store.mask is not None or store.combine is not None or any(v in inside for v in store.indices):
            return False
        for op in (use.operation for use in store.target.uses):
            if op is store:
                continue
            if not isinstance(op, LoadOp):
                return False
            if op.parent in (self.earlier.block, self.later.block):
                if self._element(op) != self._element(store) or _follows(op, store):
                    return False
            elif not self._runs_before(op):
                return False
        return True

    def _runs_before(self, op: Operation) -> bool:
        """Whether all of `op` is done when an iteration of the loops around the two comes to the earlier one."""
        while op.parent is not self.earlier.parent:
            above = op.parent_op()
            if above is None:
                return False
            op = above
        return _follows(self.earlier, op)

    def _values(self, loop: Loop, places: Sequence[StoreOp]) -> list[_Value]:
        """Return the values in the body of a loop that are functions of its indices and of memory."""
        found = {v: _Value(v, self._number(("index", i)), False) for i, v in enumerate(loop.indices)}
        inside = {r for op in loop.block.ops for r in op.results}
        for op in loop.block.ops:
            if len(op.results) != 1 or any(v in inside and v not in found for v in op.operands):
                continue
            operands = [found.get(v) or _Value(v, self._number(v), False) for v in op.operands]
            if op.has_trait(Pure) or (isinstance(op, LoadOp) and _is_stable(op, places)):
                properties: tuple[tuple[str, Attribute], ...] = tuple(sorted(op.properties.items()))
                number = self._number((op.name, properties, *(v.number for v in operands)))
                found[op.results[0]] = _Value(op.results[0], number, takes_long(op) or any(v.dear for v in operands))
        return list(found.values())

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _is_last_use(self, store: StoreOp, again: SSAValue) -> bool:
        """Whether the later loop loads what `store` overwrites for nothing but `again`, which is not what it stores."""
        if store.value is again:
            return False
        needed: set[Operation] = set()
        work: list[Operation] = [op for op in self.later.block.ops if isinstance(op, StoreOp)]
        while work:
            op = work.pop()
            for value in op.operands:
                owner = value.owner
                if value is not again and isinstance(owner, Operation) and owner.parent is self.later.block:
                    if isinstance(owner, LoadOp) and owner.source is store.target:
                        return False
                    if owner not in needed:
                        needed.add(owner)
                        work.append(owner)
        return True

    def _move(self, store: StoreOp, saved: SSAValue, again: SSAValue) -> None:
        """Store `saved` of the earlier loop where `store` will, and load it in place of `again`."""
        exprs = self._space.access(store.access, store.indices)
        here, there = (self._space.to_operands(e) for e in (exprs, self._element(store)))
        assert isinstance(saved.owner, Operation)
        assert isinstance(again.owner, Operation)
        Rewriter.insert_op(StoreOp.get(saved, store.target, *there), InsertPoint.after(saved.owner))
        load = LoadOp.get(store.target, *here)
        load.result.name_hint = again.name_hint
        Rewriter.insert_op(load, InsertPoint.before(again.owner))
        again.replace_all_uses_with(load.result)
        _erase_unused(self.later.block)


def _is_stable(load: LoadOp, places: Sequence[StoreOp]) -> bool:
    """Whether nothing is stored between two runs of `load` but, at the end, to one of `places`."""
    stores = [use.operation for use in load.source.uses if isinstance(use.operation, StoreOp)]
    return all(op in places for op in stores)


def _follows(op: Operation, other: Operation) -> bool:
    """Whether `op` comes after `other` in the block of both."""
    if op.parent is not other.parent:
        return False
    step = other.next_op
    while step is not None and step is not op:
        step = step.next_op
    return step is op


def _pairs(block: Block) -> list[_Pair]:
    """Return each two innermost loops side by side in `block` that run over the same range, the nearest first."""
    loops = [op for op in block.ops if isinstance(op, Loop) and is_leaf(op) and op.lanes is None]
    return [
        _Pair(earlier, later)
        for i, later in enumerate(loops)
        for earlier in reversed(loops[:i])
        if isinstance(later, ForOp)
        and (earlier.bounds, earlier.steps, *earlier.bound_operands)
        == (later.bounds, later.steps, *later.bound_operands)
    ]


def _erase_unused(block: Block) -> None:
    for op in reversed(list(block.ops)):
        if (op.has_trait(Pure) or isinstance(op, LoadOp)) and not any(r.first_use for r in op.results):
            Rewriter.erase_op(op)


@dataclass(frozen=True)
class LoopSaveValuesPass(ModulePass):
    """Save dear values that a later loop over the same range would compute again, where a buffer has room for them."""

    name = "loop-save-values"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_for(op, "cpu"):
            for loop in [o for o in kernel.walk() if isinstance(o, (NestOp, ForOp))]:
                for pair in _pairs(loop.block):
                    while pair.save():
                        pass
