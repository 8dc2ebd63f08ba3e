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

So does a buffer that begins as a copy of the place, is written in part, and copied back: what is left is the part. The
place may be a view, `x[0, i]` say, of what is copied to.

The copy stays where the old content of the place is still read: by an operation between the first write and the copy,
or by the writing nest itself at other elements than those that its iteration has yet to store (`analysis/in_place`).
It stays too where the buffer is returned, or is viewed, or where a call wants its very strides.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.dialects import host, loop
from tilewright.dialects.loop_access import element_in_register, layout_of
from tilewright.dialects.sym import LayoutAttr
from tilewright.dialects.sym_expr import Ranges
from tilewright.dialects.type_guards import is_memref
from tilewright.passes.analysis.aliasing import alias_sets, call_memory
from tilewright.passes.analysis.copies import Copy, copy_of
from tilewright.passes.analysis.in_place import accesses, can_overwrite
from tilewright.passes.analysis.layouts import equal, is_dense, memref_type, same_places
from tilewright.passes.analysis.lifetimes import buffers_used
from tilewright.passes.analysis.ranges import symbol_ranges


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


@dataclass(frozen=True)
class _Target:
    """The place that a buffer is to be in: a layout in the storage of `base`, and a value that is seen so, if any."""

    base: SSAValue
    layout: LayoutAttr
    value: SSAValue | None


@dataclass(frozen=True)
class _Span:
    """A buffer's life up to where it is copied: the operations that write it first, that change it, that copy it.

    The first two are one, unless the buffer begins as a copy of the target.
    """

    begin: int
    change: int
    copy: int

    @property
    def begins_as_target(self) -> bool:
        return self.begin != self.change


def _any_between(numbers: Sequence[int], first: int, last: int) -> bool:
    """Whether one of `numbers`, which ascend, is greater than `first` and less than `last`."""
    return bisect_right(numbers, first) < bisect_left(numbers, last)


class _Program:
    """A host program, and which of its operations access which memory."""

    def __init__(self, function: func.FuncOp) -> None:
        self.block: Block = function.body.block
        self.ranges: Ranges = symbol_ranges(function)
        self.ops = list(self.block.ops)
        self.numbers = {op: n for n, op in enumerate(self.ops)}
        self.sets = alias_sets(self.block)
        self.uses: dict[int, _Uses] = {}
        for number, op in enumerate(self.ops):
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
        """Take the copies, last to first: what is written to a buffer that went may then be written through it."""
        copies = [n for n, op in enumerate(self.ops) if isinstance(op, loop.NestOp) and copy_of(op) is not None]
        found = True
        while found:
            # One that went may have stood between the writes and the copy of another.
            left = [n for n in reversed(copies) if self.ops[n].parent is not None and not self.elide(n)]
            found, copies = len(left) < len(copies), left[::-1]

    def elide(self, number: int) -> bool:
        """Let what writes the source of a copy, operation `number`, write to its target, if that is right."""
        op = self.ops[number]
        assert isinstance(op, loop.NestOp)
        copy = copy_of(op)
        assert copy is not None
        source = self.sets.base(copy.source)
        if not isinstance(source.owner, host.AllocOp) or self.sets.may_alias(source, copy.target):
            return False
        mine, theirs = self.uses_of(source), self.uses_of(copy.target)
        if mine.all[0] == number or not self._exists_before(self.sets.base(copy.target), source):
            return False
        target = self._target(copy, source)
        if target is None or not self._may_be(source, target.layout):
            return False
        span = self._span(number, source, target)
        if (
            _any_between(theirs.writes, span.begin, span.change)
            or _any_between(theirs.all, span.change, number)
            or not self._lasts(number, source, target)
            or not self._survives(self.ops[span.change], source, target)
        ):
            return False
        self._replace(span, source, target)
        for gone in (number, span.begin) if span.begins_as_target else (number,):
            mine.remove(gone)
            theirs.remove(gone)
        theirs.add(mine)
        return True

    def _exists_before(self, buffer: SSAValue, source: SSAValue) -> bool:
        """Whether `buffer` is made before `source` is accessed or viewed."""
        if not isinstance(buffer.owner, Operation):
            return True
        users = [use.operation for use in source.uses if isinstance(use.operation, host.ViewOp)]
        first = min([self.uses_of(source).all[0], *(self.numbers[op] for op in users)])
        return self.numbers[buffer.owner] < first

    def _target(self, copy: Copy, source: SSAValue) -> _Target | None:
        """Return the place for all of the buffer `source`, which is what is copied or what that is a view of.

        None if there is none: the addresses are not linear, or the view is only of a part, or goes another way through
        the buffer than through the target.
        """
        base, whole = self.sets.base(copy.target), copy.is_whole
        layout = layout_of(copy.target.type) if whole else copy.written_layout(self.ranges)
        if layout is None or element_in_register(base.type) != element_in_register(source.type):
            return None
        if copy.source is source:
            return _Target(base, layout, copy.target if whole else None)
        seen, all_of_it = layout_of(copy.source.type), layout_of(source.type)
        covers = (
            equal(sympy.Mul(*seen.sizes), sympy.Mul(*all_of_it.sizes), self.ranges)
            and is_dense(seen, self.ranges)
            and is_dense(all_of_it, self.ranges)
        )
        if not covers or not same_places(seen, layout, self.ranges):
            return None
        offset = layout.offset - seen.offset
        return _Target(base, LayoutAttr.get(all_of_it.sizes, all_of_it.strides, offset, layout.device), None)

    def _may_be(self, source: SSAValue, layout: LayoutAttr) -> bool:
        """Whether all that uses `source` and its views could as well use a buffer in `layout`, and its views."""
        exact = same_places(layout_of(source.type), layout, self.ranges)
        for buffer in self.sets.members(source):
            if self.sets.base(buffer) is not source:
                return False
            for use in buffer.uses:
                op = use.operation
                if isinstance(op, (loop.LoadOp, loop.StoreOp, host.FreeOp)):
                    continue
                if not exact or not isinstance(op, (host.CallOp, host.ViewOp)):
                    return False
                if isinstance(op, host.CallOp) and any(use.index in s for s in call_memory(op).shares):
                    return False
        return True

    def _span(self, number: int, source: SSAValue, target: _Target) -> _Span:
        writes = self.uses_of(source).writes
        first = self.ops[writes[0]]
        copy = copy_of(first) if isinstance(first, loop.NestOp) else None
        if copy is None or copy.target is not source or self.sets.base(copy.source) is not target.base:
            return _Span(writes[0], writes[0], number)
        layout = copy.read_layout(self.ranges)
        if layout is None or not self._is_same_place(layout, target.layout):
            return _Span(writes[0], writes[0], number)
        return _Span(writes[0], min(writes[1] if len(writes) > 1 else number, number), number)

    def _is_same_place(self, a: LayoutAttr, b: LayoutAttr) -> bool:
        return same_places(a, b, self.ranges) and equal(a.offset, b.offset, self.ranges)

    def _survives(self, op: Operation, source: SSAValue, target: _Target) -> bool:
        """Whether `op`, which writes `source`, reads nothing of the target that it would have overwritten."""
        writes = [v for v, is_write in _accessed(op).items() if is_write and self.sets.may_alias(v, target.base)]
        return not writes and self._overwrites(op, target.base, source, source, target)

    def _lasts(self, number: int, source: SSAValue, target: _Target) -> bool:
        """Whether after the copy, operation `number`, what the target holds is read before it is overwritten."""
        last, writes = self.uses_of(source).all[-1], self.uses_of(target.base).writes
        after = bisect_right(writes, number)
        if after == len(writes) or last < writes[after]:
            return True
        return last == writes[after] and self._overwrites(self.ops[last], source, target.base, source, target)

    def _overwrites(self, op: Operation, read: SSAValue, written: SSAValue, source: SSAValue, target: _Target) -> bool:
        """Whether `op` may write the memory of `written`, if `source` is in the target, without harm to what it reads
        of the memory of `read`."""
        used = [v for v in _accessed(op) if self.sets.may_alias(v, read)]
        if not used:
            return True
        if not isinstance(op, loop.NestOp) or any(self.sets.base(v) is not self.sets.base(read) for v in used):
            return False
        found = accesses(op)
        loads = [a for a in found if isinstance(a.op, loop.LoadOp) and a.buffer in used]
        stores = [a for a in found if isinstance(a.op, loop.StoreOp) and self.sets.may_alias(a.buffer, written)]
        if any(self.sets.base(a.buffer) is not self.sets.base(written) for a in stores):
            return False
        return can_overwrite(loads, stores, lambda buffer: self._moved(buffer, source, target))

    def _moved(self, buffer: SSAValue, source: SSAValue, target: _Target) -> LayoutAttr:
        """Return where `buffer` will be in the target's storage: it is `source`, a view of it, or there already."""
        old = layout_of(buffer.type)
        if buffer is source:
            return target.layout
        if self.sets.base(buffer) is not source:
            return old
        return LayoutAttr.get(old.sizes, old.strides, old.offset + target.layout.offset, target.layout.device)

    def _replace(self, span: _Span, source: SSAValue, target: _Target) -> None:
        """Put `source` and its views into the target, and drop what copies from one to the other."""
        Rewriter.erase_op(self.ops[span.copy])
        if span.begins_as_target:
            Rewriter.erase_op(self.ops[span.begin])
        for buffer in list(self.sets.members(source)):
            for use in list(buffer.uses):
                if isinstance(use.operation, host.FreeOp):
                    Rewriter.erase_op(use.operation)
            made = buffer.owner
            if buffer is not source and isinstance(made, host.ViewOp):
                self._replace_view(made, self._moved(buffer, source, target), target.base)
        alloc = source.owner
        assert isinstance(alloc, host.AllocOp)
        if source.first_use is not None:
            source.replace_all_uses_with(self._value_at(span.begin, target))
        Rewriter.erase_op(alloc)

    def _replace_view(self, view: host.ViewOp, layout: LayoutAttr, base: SSAValue) -> None:
        assert is_memref(view.result.type)
        new = host.ViewOp.get(base, memref_type(view.result.type.element_type, layout))
        new.result.name_hint = view.result.name_hint
        self.sets.add(new.result, base=base)
        self.numbers[new] = self.numbers[view]
        Rewriter.replace_op(view, new)

    def _value_at(self, number: int, target: _Target) -> SSAValue:
        """Return the target as a value that exists before operation `number`."""
        value = target.value
        if value is None and target.layout == layout_of(target.base.type):
            value = target.base
        made = None if value is None else value.owner
        if value is None:
            assert is_memref(target.base.type)
            made = host.ViewOp.get(target.base, memref_type(target.base.type.element_type, target.layout))
            value = made.result
            self.sets.add(value, base=target.base)
        elif isinstance(made, host.ViewOp) and self.numbers[made] > number:
            made.detach()
        else:
            return value
        # Operation `number` may be gone; what stands behind it in its place is not.
        first = next(op for op in self.ops[number:] if op.parent is not None)
        self.block.insert_op_before(made, first)
        self.numbers[made] = number - 1
        return value


def _accessed(op: Operation) -> dict[SSAValue, bool]:
    """Return the buffers that an operation accesses, and for each whether it may write it."""
    if isinstance(op, (host.AllocOp, host.FreeOp, host.ViewOp)):
        return {}
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
        return {o: o in written for o in (*op.operands, *op.results) if is_memref(o.type)}
    return dict.fromkeys(buffers_used(op), isinstance(op, host.LaunchOp))


@dataclass(frozen=True)
class ElideCopiesPass(ModulePass):
    """Compute where the result is wanted, instead of computing it elsewhere and copying it there."""

    name = "elide-copies"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, func.FuncOp) and len(function.body.blocks) == 1:
                _Program(function).run()
