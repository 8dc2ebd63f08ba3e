"""Compute where the result is wanted, instead of computing it elsewhere and copying it there.

What a program writes to an argument, or to a slice of a buffer, is computed into a buffer of its own first, because on
tensors nothing is overwritten. Here that buffer goes, and what wrote it writes to the place that it was copied to.
(Inductor: in-place mutation of inputs.)

Before:
```
func.func @forward(%x : memref<8xf32, #sym.layout<[8], [1]>>) {
  %t = host.alloc : memref<8xf32, #sym.layout<[8], [1]>>
  loop.nest (%i : 8) {
    %v = loop.load %x[%i] : memref<8xf32, #sym.layout<[8], [1]>> -> f32
    %w = math.exp %v : f32
    loop.store %w, %t[%i] : f32, memref<8xf32, #sym.layout<[8], [1]>>
  }
  loop.nest (%i : 8) {
    %v = loop.load %t[%i] : memref<8xf32, #sym.layout<[8], [1]>> -> f32
    loop.store %v, %x[%i] : f32, memref<8xf32, #sym.layout<[8], [1]>>
  }
  host.free %t : memref<8xf32, #sym.layout<[8], [1]>>
  func.return
}
```
After:
```
func.func @forward(%x : memref<8xf32, #sym.layout<[8], [1]>>) {
  loop.nest (%i : 8) {
    %v = loop.load %x[%i] : memref<8xf32, #sym.layout<[8], [1]>> -> f32
    %w = math.exp %v : f32
    loop.store %w, %x[%i] : f32, memref<8xf32, #sym.layout<[8], [1]>>
  }
  func.return
}
```

The copy stays where the old content of the place is still read: by an operation between the first write and the copy,
or by the writing nest itself at other elements than those that its iteration has yet to store (`analysis/in_place`).
It stays too where the buffer is returned, or is viewed, or where a call wants its very strides.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.dialects import host, loop
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.sym_expr import Expr, dim, integer
from tilewright.dialects.type_guards import is_memref
from tilewright.passes.analysis.aliasing import alias_sets, call_memory
from tilewright.passes.analysis.in_place import accesses, can_overwrite
from tilewright.passes.analysis.layouts import same_places
from tilewright.passes.analysis.lifetimes import buffers_used


def copied(nest: loop.NestOp) -> tuple[SSAValue, SSAValue] | None:
    """Return source and target of a nest that copies all elements of a buffer and does nothing else."""
    match list(nest.block.ops):
        case [loop.LoadOp(mask=None) as load, loop.StoreOp(mask=None, combine=None) as store]:
            pass
        case _:
            return None
    if store.value is not load.result or load.access != store.access or tuple(load.indices) != tuple(store.indices):
        return None
    sizes = layout_of(store.target.type).sizes
    if tuple(store.indices) != tuple(nest.indices) or layout_of(load.source.type).sizes != sizes:
        return None
    bounds = nest.loops.dims
    if any(d.lower != 0 or d.step != 1 for d in bounds):
        return None
    extents: dict[Expr, Expr] = {integer(0): integer(1), **{dim(i): d.upper for i, d in enumerate(bounds)}}
    if any(extents.get(e) != size for e, size in zip(store.access.exprs, sizes, strict=True)):
        return None
    return load.source, store.target


@dataclass
class _Uses:
    """The numbers of the operations that access some memory, ascending, and of those among them that write it."""

    all: list[int] = field(default_factory=list[int])
    writes: list[int] = field(default_factory=list[int])

    def add(self, other: _Uses) -> None:
        self.all = sorted({*self.all, *other.all})
        self.writes = sorted({*self.writes, *other.writes})

    def remove(self, number: int) -> None:
        self.all = [n for n in self.all if n != number]
        self.writes = [n for n in self.writes if n != number]


def _any_between(numbers: Sequence[int], first: int, last: int) -> bool:
    """Whether one of `numbers`, which ascend, is greater than `first` and less than `last`."""
    return bisect_right(numbers, first) < bisect_left(numbers, last)


class _Program:
    """A host program, and which of its operations access which memory."""

    def __init__(self, program: Block) -> None:
        self.ops = list(program.ops)
        self.block = program
        self.numbers = {op: n for n, op in enumerate(self.ops)}
        self.sets = alias_sets(program)
        self.uses: dict[int, _Uses] = {}
        for number, op in enumerate(self.ops):
            if isinstance(op, (host.AllocOp, host.FreeOp, host.ViewOp)):
                continue
            for value, writes in _accessed(op).items():
                uses = self.uses_of(value)
                if uses.all[-1:] != [number]:
                    uses.all.append(number)
                if writes and uses.writes[-1:] != [number]:
                    uses.writes.append(number)

    def uses_of(self, buffer: SSAValue) -> _Uses:
        """Return the uses of the memory that `buffer` may share."""
        return self.uses.setdefault(id(self.sets.members(buffer)), _Uses())

    def run(self) -> None:
        """Take the copies, in order."""
        for number, op in enumerate(self.ops):
            pair = copied(op) if isinstance(op, loop.NestOp) else None
            if pair is not None:
                self.elide(number, *pair)

    def elide(self, number: int, source: SSAValue, target: SSAValue) -> None:
        """Let what writes `source` write to `target`, if that is right, and drop the copy, operation `number`."""
        if self.sets.may_alias(source, target) or not self._can_move(source, target):
            return
        mine, theirs = self.uses_of(source), self.uses_of(target)
        first = mine.all[0]
        if first == number or _any_between(theirs.all, first, number) or not self._made_before(target, first):
            return
        if _any_between(theirs.writes, number, mine.all[-1] + 1):
            return
        if not self._survives(self.ops[first], source, target):
            return
        self._replace(number, source, target)
        mine.remove(number)
        theirs.remove(number)
        theirs.add(mine)

    def _can_move(self, source: SSAValue, target: SSAValue) -> bool:
        """Whether all that uses `source` could as well use `target`, as far as the layouts matter."""
        if not isinstance(source.owner, host.AllocOp):
            return False
        exact = same_places(layout_of(source.type), layout_of(target.type), {})
        for use in source.uses:
            op = use.operation
            if isinstance(op, (loop.LoadOp, loop.StoreOp, host.FreeOp)):
                continue
            if not exact or not isinstance(op, host.CallOp) or any(use.index in s for s in call_memory(op).shares):
                return False
        return True

    def _made_before(self, target: SSAValue, number: int) -> bool:
        """Whether `target`, or else what it is a view of, exists at operation `number`."""
        made = target.owner
        if isinstance(made, host.ViewOp) and self.numbers[made] > number:
            made = made.source.owner
        return not isinstance(made, Operation) or self.numbers[made] < number

    def _survives(self, op: Operation, source: SSAValue, target: SSAValue) -> bool:
        """Whether `op`, the first to write `source`, reads nothing of `target` that it would have overwritten."""
        used = [v for v in _accessed(op) if self.sets.may_alias(v, target)]
        if not used:
            return True
        if not isinstance(op, loop.NestOp):
            return False
        found = accesses(op)
        loads = [a for a in found if isinstance(a.op, loop.LoadOp)]
        stores = [a for a in found if isinstance(a.op, loop.StoreOp)]
        if any(self.sets.may_alias(a.buffer, target) for a in stores):
            return False
        if any(self.sets.base(v) is not self.sets.base(target) for v in used):
            return False
        written = [a for a in stores if a.buffer is source]
        return can_overwrite([a for a in loads if a.buffer in used], written, layout_of(target.type))

    def _replace(self, number: int, source: SSAValue, target: SSAValue) -> None:
        first, copy = self.ops[self.uses_of(source).all[0]], self.ops[number]
        made = target.owner
        if isinstance(made, host.ViewOp) and self.numbers[made] > self.numbers[first]:
            made.detach()
            self.block.insert_op_before(made, first)
            self.numbers[made] = self.numbers[first] - 1
        Rewriter.erase_op(copy)
        for use in list(source.uses):
            if isinstance(use.operation, host.FreeOp):
                Rewriter.erase_op(use.operation)
        alloc = source.owner
        assert isinstance(alloc, host.AllocOp)
        source.replace_all_uses_with(target)
        Rewriter.erase_op(alloc)


def _accessed(op: Operation) -> dict[SSAValue, bool]:
    """Return the buffers that an operation accesses, and for each whether it may write it."""
    if isinstance(op, loop.NestOp):
        found: dict[SSAValue, bool] = {}
        for access in op.walk():
            if isinstance(access, loop.LoadOp):
                found.setdefault(access.source, False)
            elif isinstance(access, loop.StoreOp):
                found[access.target] = True
        return found
    if isinstance(op, host.CallOp):
        written = {op.operands[i] for i in call_memory(op).writes}
        # What a call returns it may have written, to the memory of an operand.
        used = {o: o in written for o in (*op.operands, *op.results) if is_memref(o.type)}
        return used
    return dict.fromkeys(buffers_used(op), isinstance(op, host.LaunchOp))


@dataclass(frozen=True)
class ElideCopiesPass(ModulePass):
    """Compute where the result is wanted, instead of computing it elsewhere and copying it there."""

    name = "elide-copies"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, func.FuncOp) and len(function.body.blocks) == 1:
                _Program(function.body.block).run()
