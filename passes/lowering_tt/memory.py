"""Loads and stores of kernels as accesses through pointers, and the barriers between them.

The threads of a program run side by side, and Triton decides which of them has which element of a tensor. So what one
iteration stored and loads again may have been stored by another thread. Where both go through the same pointers, the
value itself is taken instead; else a barrier comes between, and also where a store might overtake a load.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerType, i1
from xdsl.dialects.gpu import BarrierOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects import tt
from tilewright.dialects.loop import LoadOp, Loop, StoreOp, register_type
from tilewright.dialects.sym_expr import Expr
from tilewright.dialects.type_guards import is_integer, is_memref
from tilewright.passes.lowering_tt.builder import Shape, TensorBuilder, element_of, shape_of
from tilewright.passes.lowering_tt.casts import convert_integer
from tilewright.passes.lowering_tt.index import IndexBuilder
from tilewright.passes.lowering_tt.scope import Scope

_BYTE = IntegerType(8)

_ATOMIC_FLOAT = {"sum": "fadd"}
_ATOMIC_INTEGER = {"sum": "add", "max": "max", "min": "min", "umax": "umax", "umin": "umin"}


def in_memory(element: Attribute) -> Attribute:
    """Return the type that an element of a buffer has in memory: a bool is a byte, integers have no sign."""
    kind = register_type(element)
    return _BYTE if kind == i1 else kind


def pointer_to(buffer: SSAValue) -> tt.PointerType:
    """Return the type of the pointer to a buffer."""
    kind = buffer.type
    assert is_memref(kind)
    return tt.PointerType(in_memory(kind.element_type))


@dataclass(frozen=True)
class _Stored:
    """The last store to a buffer, if every element that it wrote is known by its pointers."""

    pointer: SSAValue
    value: SSAValue
    mask: SSAValue | None


class MemoryBuilder:
    """Builds accesses to the buffers whose pointers are in `pointers`."""

    def __init__(self, builder: TensorBuilder, index: IndexBuilder, scope: Scope):
        self._builder = builder
        self._index = index
        self._scope = scope
        self.pointers: dict[SSAValue, SSAValue] = {}
        self._stored: dict[SSAValue, _Stored | None] = {}
        """The buffers that were stored to since the last barrier."""
        self._ways: dict[SSAValue, set[bool]] = {}
        """For these, whether the stores combine, as they may among each other but not with those that do not."""
        self._loaded: dict[SSAValue, list[tt.LoadOp]] = {}
        """The loads since the last barrier of buffers that the kernel also stores to."""
        self._written: set[SSAValue] = set()
        self._in_turn: set[SSAValue] = set()
        """The buffers that the iterations of a scan around store to."""

    def add_buffer(self, buffer: SSAValue, pointer: SSAValue) -> None:
        """Let a buffer of the kernel be at a pointer."""
        self.pointers[buffer] = pointer
        if any(isinstance(use.operation, StoreOp) for use in buffer.uses):
            self._written.add(buffer)

    def _pointer(self, op: LoadOp | StoreOp, buffer: SSAValue, shapes: Sequence[Shape]) -> SSAValue:
        """Return where an access goes, in a shape that `shapes` broadcast to."""
        (expr,) = self._index.space.access(op.access, op.indices)
        return self._pointer_at(self._index.over_parts(expr), buffer, shapes)

    def _pointer_at(self, expr: Expr, buffer: SSAValue, shapes: Sequence[Shape]) -> SSAValue:
        """Return where an index over parts is in a buffer, in a shape that `shapes` broadcast to."""
        index = self._index.evaluate(expr)
        pointer, b, hint = self.pointers[buffer], self._builder, f"{buffer.name_hint or 'buffer'}_ptr"
        if index.scalar is not None:
            pointer = b.shared(tt.AddPtrOp, [pointer, index.scalar], pointer.type, hint=hint)
        if index.tensor is not None:
            shapes = [*shapes, shape_of(index.tensor)]
        shape = b.common_shape(shapes)
        if not shape:
            return pointer
        pointer = b.fit(pointer, shape)
        if index.tensor is None:
            return pointer
        offset = b.fit(index.tensor, shape)
        return b.shared(tt.AddPtrOp, [pointer, offset], pointer.type, hint=hint)

    def load(self, op: LoadOp, mask: SSAValue | None, otherwise: SSAValue | None) -> SSAValue:
        """Load where the points are there and `mask`, if there is one, holds; else give `otherwise`."""
        b = self._builder
        if mask is None and op.source not in self._written:
            repeated = self._load_rows(op)
            if repeated is not None:
                return self._in_register(op.source, repeated)
        present = self._scope.mask_of(op.operands)
        given = [v for v in (mask, otherwise, present) if v is not None]
        pointer = self._pointer(op, op.source, [shape_of(v) for v in given])
        shape = shape_of(pointer)
        mask = b.both(present, mask)
        mask = None if mask is None else b.fit(mask, shape)
        if otherwise is not None:
            if element_of(otherwise) == i1:
                otherwise = convert_integer(b, otherwise, _BYTE)
            otherwise = b.fit(otherwise, shape)
        if op.source in self._written:
            found = self._forward(op.source, pointer, mask) if otherwise is None else None
            if found is not None:
                return self._in_register(op.source, found)
            if op.source in self._stored:
                self._barrier()
        load = tt.LoadOp.get(pointer, mask, otherwise)
        value = b.emit(load, op.source.name_hint)
        if op.source in self._written:
            self._loaded.setdefault(op.source, []).append(load)
        return self._in_register(op.source, value)

    def _load_rows(self, op: LoadOp) -> SSAValue | None:
        """Load once what several points side by side have in common; None if there is nothing like that.

        A thread then loads elements side by side as one, which it could not if each stood there several times.
        """
        (expr,) = self._index.space.access(op.access, op.indices)
        repeats = self._index.repeats(self._index.over_parts(expr))
        if repeats is None:
            return None
        b, shapes = self._builder, self._index.shapes(repeats.expr)
        present = self._scope.mask_of_rows(op.operands, repeats)
        given = shapes if present is None else [*shapes, shape_of(present)]
        rank = max(map(len, given))
        place = self._index.place(repeats.axis, rank)
        rows = self._index.shapes(repeats.number)[0][self._index.place(repeats.number, rank)]
        if any(shape and b.lifted(shape, rank)[place] not in (1, rows) for shape in given):
            return None
        pointer = self._pointer_at(repeats.expr, op.source, [] if present is None else [shape_of(present)])
        shape = shape_of(pointer)
        load = tt.LoadOp.get(pointer, None if present is None else b.fit(present, shape))
        value = b.emit(load, op.source.name_hint)
        apart = tt.ExpandDimsOp.get(value, place + 1)
        several = (*shape[: place + 1], repeats.by, *shape[place + 1 :])
        repeated = tt.BroadcastOp.get(b.emit(apart, value.name_hint), several)
        whole = (*shape[:place], rows * repeats.by, *shape[place + 1 :])
        return b.emit(tt.ReshapeOp.get(b.emit(repeated, value.name_hint), whole), value.name_hint)

    def _in_register(self, buffer: SSAValue, value: SSAValue) -> SSAValue:
        kind = buffer.type
        assert is_memref(kind)
        return convert_integer(self._builder, value, i1) if register_type(kind.element_type) == i1 else value

    def _forward(self, buffer: SSAValue, pointer: SSAValue, mask: SSAValue | None) -> SSAValue | None:
        """Return what was stored last at these very pointers."""
        stored = self._stored.get(buffer)
        if stored is None or stored.pointer is not pointer or stored.mask not in (None, mask):
            return None
        return stored.value

    def store(self, op: StoreOp, value: SSAValue, mask: SSAValue | None) -> None:
        """Store where the points are there and `mask`, if there is one, holds."""
        pointer, value, mask = self._prepare(op, value, mask)
        self._before_store(op, pointer, value)
        self._builder.append(tt.StoreOp.get(pointer, value, mask))
        self._stored[op.target] = _Stored(pointer, value, mask)

    def combine(self, op: StoreOp, value: SSAValue, mask: SSAValue | None) -> None:
        """Combine with what is in memory, atomically."""
        assert op.combine is not None
        kind, combine = element_of(value), op.combine.data
        name = (_ATOMIC_INTEGER if is_integer(kind) else _ATOMIC_FLOAT).get(combine)
        if name is None or (is_integer(kind) and kind.bitwidth < 32):
            raise PassFailedException(f"no atomic `{combine}` of {kind}, expected a store in a `loop.scan`")
        pointer, value, mask = self._prepare(op, value, mask)
        self._before_store(op, pointer, value)
        self._builder.append(tt.AtomicRMWOp.get(name, pointer, value, mask))
        self._stored[op.target] = None

    def _prepare(
        self, op: StoreOp, value: SSAValue, mask: SSAValue | None
    ) -> tuple[SSAValue, SSAValue, SSAValue | None]:
        """Return the pointer, value and mask of a store of all points around it."""
        b = self._builder
        mask = b.both(self._scope.mask(), mask)
        given = [value] if mask is None else [value, mask]
        pointer = self._pointer(op, op.target, [self._scope.shape, *(shape_of(v) for v in given)])
        shape = shape_of(pointer)
        if element_of(value) == i1:
            value = convert_integer(b, value, _BYTE)
        return pointer, b.fit(value, shape), None if mask is None else b.fit(mask, shape)

    def _before_store(self, op: StoreOp, pointer: SSAValue, value: SSAValue) -> None:
        """Let no store overtake another thread's load of an element, its store of the other way, or in a scan any."""
        buffer, combines = op.target, op.combine is not None
        again = buffer in self._in_turn and buffer in self._stored
        mixed = (not combines) in self._ways.get(buffer, ())
        loads = self._loaded.get(buffer, ())
        if again or mixed or any(load.ptr is not pointer or not _depends(value, load) for load in loads):
            self._barrier()
        self._ways.setdefault(buffer, set()).add(combines)

    def _barrier(self) -> None:
        self._builder.append(BarrierOp())
        self._stored.clear()
        self._ways.clear()
        self._loaded.clear()

    @contextmanager
    def iterations(self, op: Loop, *, in_order: bool) -> Generator[None]:
        """Build a loop of which nothing is known before, between and behind iterations that are built inside.

        Where they run `in_order`, what one stores the next may load or store again.
        """
        before = dict(self._stored), {buffer: list(loads) for buffer, loads in self._loaded.items()}
        stores: dict[SSAValue, set[bool]] = {}
        for store in (o for o in op.walk() if isinstance(o, StoreOp)):
            stores.setdefault(store.target, set()).add(store.combine is not None)
        ways = {buffer: set(found) for buffer, found in self._ways.items()}
        in_turn = self._in_turn
        if in_order:
            self._in_turn = in_turn.union(stores)
        for buffer, found in stores.items():
            if in_order or buffer in self._stored:
                self._stored[buffer] = None
            if in_order:
                self._ways[buffer] = self._ways.get(buffer, set()) | found
        yield
        for buffer, found in (*ways.items(), *stores.items()):
            self._ways[buffer] = self._ways.get(buffer, set()) | found
        self._in_turn = in_turn
        self._stored = {**before[0], **self._stored, **dict.fromkeys(stores)}
        for buffer, loads in before[1].items():
            now = self._loaded.setdefault(buffer, [])
            now.extend(load for load in loads if load not in now)


def _depends(value: SSAValue, load: tt.LoadOp) -> bool:
    """Whether a value is computed from what `load` gives, so that it cannot be stored before."""
    seen: set[Operation] = set()
    waiting: list[SSAValue] = [value]
    while waiting:
        owner = waiting.pop().owner
        if owner is load:
            return True
        if isinstance(owner, Operation) and owner not in seen:
            seen.add(owner)
            waiting += owner.operands
    return False
