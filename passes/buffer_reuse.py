"""Let buffers take over the memory of buffers that are dead.

A nest's output takes over an input that nothing reads afterwards, where each element is read before it is overwritten
(`in_place`). Any other allocation takes over an earlier one that has died and is as large (`share`). What a call
returns in memory of its own is taken over like an allocation, and `addmm` adds to what it takes over. The order of the
program stays as it is. (Inductor: memory planning and in-place buffers.)

Before:
```
func.func @forward(%x : memref<8xf32, #sym.layout<[8], [1]>>) -> memref<8xf32, #sym.layout<[8], [1]>> {
  %a = host.alloc : memref<8xf32, #sym.layout<[8], [1]>>
  loop.nest (%i : 8) {
    %v = loop.load %x[%i] : memref<8xf32, #sym.layout<[8], [1]>> -> f32
    loop.store %v, %a[%i] : f32, memref<8xf32, #sym.layout<[8], [1]>>
  }
  %b = host.alloc : memref<8xf32, #sym.layout<[8], [1]>>
  loop.nest (%i : 8) {
    %v = loop.load %a[%i] : memref<8xf32, #sym.layout<[8], [1]>> -> f32
    %w = math.exp %v : f32
    loop.store %w, %b[%i] : f32, memref<8xf32, #sym.layout<[8], [1]>>
  }
  host.free %a : memref<8xf32, #sym.layout<[8], [1]>>
  %y = host.call "aten.cumsum.default"(self = %b, dim = 0 : i64)
      : (memref<8xf32, #sym.layout<[8], [1]>>) -> memref<8xf32, #sym.layout<[8], [1]>>
  host.free %b : memref<8xf32, #sym.layout<[8], [1]>>
  func.return %y : memref<8xf32, #sym.layout<[8], [1]>>
}
```
After:
```
func.func @forward(%x : memref<8xf32, #sym.layout<[8], [1]>>) -> memref<8xf32, #sym.layout<[8], [1]>> {
  %a = host.alloc : memref<8xf32, #sym.layout<[8], [1]>>
  loop.nest (%i : 8) {
    %v = loop.load %x[%i] : memref<8xf32, #sym.layout<[8], [1]>> -> f32
    loop.store %v, %a[%i] : f32, memref<8xf32, #sym.layout<[8], [1]>>
  }
  loop.nest (%i : 8) {
    %v = loop.load %a[%i] : memref<8xf32, #sym.layout<[8], [1]>> -> f32
    %w = math.exp %v : f32
    loop.store %w, %a[%i] : f32, memref<8xf32, #sym.layout<[8], [1]>>
  }
  %y = host.call "aten.cumsum.default"(self = %a, dim = 0 : i64)
      : (memref<8xf32, #sym.layout<[8], [1]>>) -> memref<8xf32, #sym.layout<[8], [1]>>
  host.free %a : memref<8xf32, #sym.layout<[8], [1]>>
  func.return %y : memref<8xf32, #sym.layout<[8], [1]>>
}
```

A buffer that is returned takes over memory only in place, where it is exactly as large: the caller keeps all of it.

Left alone: arguments, buffers that are returned as a view, and buffers that an operator may have returned under another
name.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.dialects import host, loop
from tilewright.dialects.call_syntax import OperandAttr
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.sym_expr import Expr, Ranges, integer
from tilewright.dialects.type_guards import is_memref
from tilewright.passes.analysis.aliasing import alias_sets, call_memory
from tilewright.passes.analysis.in_place import Access, accesses, can_overwrite
from tilewright.passes.analysis.layouts import is_dense
from tilewright.passes.analysis.lifetimes import buffers_used, byte_size, lifetimes
from tilewright.passes.analysis.ranges import symbol_ranges

# Products that may be stored where what they are added to was.
_ACCUMULATING = frozenset({"aten.addmm.default", "aten.baddbmm.default"})


@dataclass(eq=False)
class _Storage:
    """The memory of one allocation, and of those that took it over."""

    root: SSAValue
    size: Expr
    """In bytes."""
    end: int
    """The number of the operation that uses it last."""
    free: host.FreeOp | None
    """Where it is given up; None if it is returned."""
    has_views: bool
    is_whole: bool
    """Whether it surely is no part of a larger storage, as one of several results of a call may be."""

    @property
    def device(self) -> str:
        return layout_of(self.root.type).device

    def pass_on(self, heir: _Storage, before: Operation) -> None:
        """Let the allocation of `heir` take over this memory: where types differ, as a view made before `before`."""
        alloc, block = heir.root.owner, before.parent
        assert isinstance(alloc, host.AllocOp)
        assert block is not None
        name = heir.root
        if heir.root.type == self.root.type:
            name = self.root
        else:
            view = host.ViewOp.get(self.root, heir.root.type)
            view.result.name_hint = heir.root.name_hint
            block.insert_op_before(view, before)
            name = view.result
        alloc.result.replace_all_uses_with(name)
        if heir.free is not None:
            heir.free.operands[0] = self.root
        assert self.free is not None, "what is returned is not taken over"
        self.free.detach()
        self.free.erase()
        alloc.detach()
        alloc.erase()
        heir.root, heir.size, heir.is_whole = self.root, self.size, self.is_whole
        heir.has_views |= self.has_views or name is not self.root


def _storages(function: func.FuncOp) -> dict[SSAValue, _Storage]:
    """Return, for each allocation and each fresh result of a call whose whole life is known, its memory."""
    program = function.body.block
    sets = alias_sets(program)
    lives = lifetimes(program, sets)
    ranges = symbol_ranges(function)
    found: dict[SSAValue, _Storage] = {}
    for op in lives.ops:
        for root in op.results if isinstance(op, (host.AllocOp, host.CallOp)) else ():
            if not is_memref(root.type) or (isinstance(op, host.CallOp) and not _is_own_memory(op, root, ranges)):
                continue
            free, members = lives.frees.get(root), sets.members(root)
            is_known = all(sets.base(m) is root for m in members)
            if is_known and (free is None) == (root in lives.escaping):
                found[root] = _Storage(
                    root, byte_size(root), lives.last_use[root], free, len(members) > 1, len(op.results) == 1
                )
    return found


def _is_own_memory(call: host.CallOp, result: SSAValue, ranges: Ranges) -> bool:
    """Whether all that lies between the first and the last element of a call's result is the result's alone."""
    shares = call_memory(call).shares[call.results.index(result)]
    return not shares and is_dense(layout_of(result.type), ranges)


def _reuse_in_place(ops: list[Operation], storages: dict[SSAValue, _Storage]) -> None:
    """Let the outputs of nests take over inputs that end there."""
    starts = _first_uses(ops, storages)
    for number, op in enumerate(ops):
        if isinstance(op, host.CallOp) and op.operator in _ACCUMULATING:
            _accumulate_in_place(op, number, storages)
        if not isinstance(op, loop.NestOp):
            continue
        loads: dict[SSAValue, list[Access]] = {}
        stores: dict[SSAValue, list[Access]] = {}
        for access in accesses(op):
            group = loads if isinstance(access.op, loop.LoadOp) else stores
            group.setdefault(access.buffer, []).append(access)
        dying = [b for b in loads if b not in stores and b in storages and _ends_at(storages[b], number)]
        for target, written in stores.items():
            heir = storages.get(target)
            if heir is None or not isinstance(target.owner, host.AllocOp) or starts[target] != number:
                continue
            for source in dying:
                owner = storages[source]
                if not owner.has_views and _fits(owner, heir) and can_overwrite(loads[source], written):
                    owner.pass_on(heir, op)
                    storages[source] = storages.pop(target)
                    dying.remove(source)
                    break


def _accumulate_in_place(call: host.CallOp, number: int, storages: dict[SSAValue, _Storage]) -> None:
    """Let a product that is added to a dying buffer be added in its memory; `call`'s result is another name for it."""
    addend, result = call.operands[0], call.results[0]
    owner, heir = storages.get(addend), storages.get(result)
    if call.arguments.data.get("self") != OperandAttr(0) or list(call.operands).count(addend) != 1:
        return
    if owner is None or heir is None or owner.root is not addend or owner.has_views or not _ends_at(owner, number):
        return
    if addend.type != result.type or not _fits(owner, heir):
        return
    arguments = {**call.arguments.data, "out": OperandAttr(len(call.operands))}
    operator = f"{call.operator.removesuffix('default')}out"
    adding = host.CallOp.get(operator, arguments, [*call.operands, addend], call.result_types)
    adding.attributes.update(call.attributes)
    adding.location = call.location
    Rewriter.replace_op(call, adding)
    storages[adding.results[0]] = storages.pop(result)
    storages[adding.results[0]].root = adding.results[0]
    del storages[addend]


def _ends_at(storage: _Storage, number: int) -> bool:
    return storage.free is not None and storage.end == number


def _first_uses(ops: list[Operation], storages: dict[SSAValue, _Storage]) -> dict[SSAValue, int]:
    """Return the number of the first operation that uses each allocation."""
    first: dict[SSAValue, int] = {}
    for number, op in enumerate(ops):
        for value in () if isinstance(op, host.AllocOp) else buffers_used(op):
            if value in storages:
                first.setdefault(value, number)
    return first


def _fits(owner: _Storage, heir: _Storage) -> bool:
    """Whether two allocations hold as many elements of the same type, so that one can be computed in the other."""
    mine, theirs = owner.root.type, heir.root.type
    assert is_memref(mine)
    assert is_memref(theirs)
    if heir.free is None and not owner.is_whole:
        return False
    return mine.element_type == theirs.element_type and owner.size == heir.size and owner.device == heir.device


@dataclass
class _Pool:
    """The memory that is free at one point of the program. Of equal pieces, what died last is taken: it is warm."""

    waste_percent: int
    by_size: dict[tuple[str, Expr], list[_Storage]] = field(default_factory=dict[tuple[str, Expr], list[_Storage]])
    constants: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """For each device the constant sizes at hand, in ascending order."""

    def put(self, storage: _Storage) -> None:
        group = self.by_size.setdefault((storage.device, storage.size), [])
        if not group and storage.size.is_Integer:
            insort(self.constants.setdefault(storage.device, []), int(storage.size))
        group.append(storage)

    def take(self, wanted: _Storage) -> _Storage | None:
        """Return memory of the wanted size, or the smallest that is larger without wasting too much of it."""
        device, size = wanted.device, wanted.size
        group = self.by_size.get((device, size))
        if not group and size.is_Integer:
            sizes = self.constants.get(device, [])
            at = bisect_left(sizes, int(size))
            if at < len(sizes) and 100 * (sizes[at] - int(size)) <= self.waste_percent * sizes[at]:
                size = integer(sizes[at])
                group = self.by_size[device, size]
        if not group:
            return None
        found = group.pop()
        if not group and size.is_Integer:
            self.constants[device].remove(int(size))
        return found


def _share(ops: list[Operation], storages: dict[SSAValue, _Storage], waste_percent: int) -> None:
    """Let allocations take over memory that died before."""
    pool = _Pool(waste_percent)
    ending: dict[int, list[_Storage]] = {}
    for storage in storages.values():
        if storage.free is not None:
            ending.setdefault(storage.end, []).append(storage)
    for number, op in enumerate(ops):
        storage = storages.get(op.result) if isinstance(op, host.AllocOp) else None
        if storage is not None and storage.free is not None and op.parent is not None and storage.size != 0:
            owner = pool.take(storage)
            if owner is not None:
                owner.pass_on(storage, op)
        for dead in ending.get(number, ()):
            pool.put(dead)


@dataclass(frozen=True)
class BufferReusePass(ModulePass):
    """Let buffers take over the memory of buffers that are dead."""

    name = "buffer-reuse"

    in_place: bool = True
    """Compute the output of a nest in the memory of an input that ends there."""

    share: bool = True
    """Let an allocation take over one that has died."""

    waste_percent: int = 25
    """How much of a larger allocation may lie idle when a smaller one takes it over."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if not isinstance(function, func.FuncOp) or len(function.body.blocks) != 1:
                continue
            storages = _storages(function)
            ops = list(function.body.block.ops)
            if self.in_place:
                _reuse_in_place(ops, storages)
            if self.share:
                _share(ops, storages, self.waste_percent)
