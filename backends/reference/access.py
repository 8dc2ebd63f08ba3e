"""The accesses of the `loop` dialect: loads, stores, views and index values, on tensors and on buffers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from xdsl.dialects.builtin import f32
from xdsl.ir import Operation, SSAValue

from tilewright.backends.reference import memory
from tilewright.backends.reference.buffers import Buffer, first_true
from tilewright.backends.reference.combine import combination
from tilewright.backends.reference.dtypes import memory_dtype_of
from tilewright.backends.reference.errors import ExecutionError, failure
from tilewright.backends.reference.expressions import evaluate
from tilewright.backends.reference.frame import Frame, execute, lanes_of
from tilewright.backends.reference.races import Access
from tilewright.dialects import loop
from tilewright.dialects.loop import layout_of
from tilewright.dialects.loop_scalar import like
from tilewright.dialects.sym import MapAttr
from tilewright.dialects.sym_expr import dim
from tilewright.dialects.type_guards import is_tensor, is_vector


@execute.register
def _(op: loop.LoadOp, frame: Frame) -> None:
    vector = is_vector(op.result.type)
    indices = _indices(frame, op.access, op.indices, vector)
    otherwise = None if op.otherwise is None else frame.register(op.otherwise)
    buffer, valid = frame.buffer(op.source), _valid(frame, op.mask, vector)
    value = memory.load(op, buffer, indices, valid, otherwise)
    _record(op, frame, op.source, indices, valid)
    if vector and not any(is_vector(i.type) for i in op.indices):
        value = value.expand(*value.shape[:-1], *lanes_of(op.result))
    frame.set(op.result, value)


@execute.register
def _(op: loop.StoreOp, frame: Frame) -> None:
    vector = is_vector(op.value.type)
    indices = _indices(frame, op.access, op.indices, vector)
    valid = _valid(frame, op.mask, vector)
    buffer, value = frame.buffer(op.target), frame.register(op.value)
    shape = (*frame.space.extents, *lanes_of(op.value))
    in_turn = frame.prefixes is not None
    if op.combine is not None and in_turn:
        value = _combined(op, op.combine.data, frame, indices, valid)
    if op.combine is not None and not in_turn:
        memory.combine(op, op.combine.data, buffer, value, indices, valid, shape)
    else:
        once = is_tensor(op.target.type) and buffer.written is not None and not in_turn
        memory.store(op, buffer, value, indices, valid, shape, once=once)
    _record(op, frame, op.target, indices, valid)


def _combined(op: loop.StoreOp, combiner: str, frame: Frame, indices: list[Tensor], valid: Tensor | None) -> Tensor:
    """Return the elements at `indices` combined with the value of `op`."""
    value, kind = frame.register(op.value), op.value.type
    old = memory.load(op, frame.buffer(op.target), indices, valid)
    rank = max(old.ndim, value.ndim)
    slots = [t.reshape((1,) * (rank - t.ndim) + t.shape) for t in (old, value)]
    if value.dtype in (torch.bfloat16, torch.float16):
        kind, slots = like(kind, f32), [t.float() for t in slots]
    return combination(combiner, (kind,)).combine(slots[:1], slots[1:])[0].to(value.dtype)


def _indices(frame: Frame, access: MapAttr, operands: Sequence[SSAValue], lanes: bool) -> list[Tensor]:
    return [torch.as_tensor(n) for n in frame.evaluate(access.exprs, operands, lanes)]


def _valid(frame: Frame, mask: SSAValue | None, lanes: bool) -> Tensor | None:
    """Return where an access takes place: in the iterations there are, and where its mask is true; None everywhere."""
    active = frame.space.active
    if 0 in frame.space.extents:
        # Registers of the outer loops have a value for each of their iterations, though the body never runs.
        active = torch.zeros((1,) * frame.space.depth, dtype=torch.bool)
    if active is not None and lanes:
        active = active[..., None]
    if mask is None:
        return active
    chosen = frame.register(mask)
    return chosen if active is None else chosen & active


def _record(
    op: loop.LoadOp | loop.StoreOp, frame: Frame, name: SSAValue, indices: Sequence[Tensor], valid: Tensor | None
) -> None:
    """Record an access that the nest around it wants to know of."""
    buffer = frame.buffer(name)
    if frame.log is None or not frame.log.wants(buffer):
        return
    is_store = isinstance(op, loop.StoreOp)
    lanes = lanes_of(op.value if is_store else op.result)
    addresses = _position(buffer.tensor, indices) * buffer.tensor.itemsize
    if valid is not None:
        addresses = torch.where(valid, addresses, -1)
    addresses = addresses.expand((*frame.space.extents, *lanes))
    combines = is_store and op.combine is not None
    frame.log.record(buffer, Access(op, name, frame.space.loops, addresses, is_store, combines))


@execute.register
def _(op: loop.ApplyOp, frame: Frame) -> None:
    lanes = is_vector(op.result.type)
    frame.set(op.result, _indices(frame, op.access, op.indices, lanes)[0])


@execute.register
def _(op: loop.ViewOp, frame: Frame) -> None:
    view = view_by_layout(op, op.source, op.result, frame)
    _check_view(op, frame.buffer(op.source), view, frame)
    frame.set(op.result, view)


@execute.register
def _(op: loop.AfterOp, frame: Frame) -> None:
    frame.set(op.result, frame.content(op.source))


def view_by_layout(op: Operation, source: SSAValue, result: SSAValue, frame: Frame) -> Buffer:
    """Return the storage of `source` seen through the layout of the type of `result`.

    The offsets in the two types count from the same place, which need not be where the storage of an input begins.
    """
    buffer, dtype = frame.buffer(source), memory_dtype_of(result)
    old, new = layout_of(source.type), layout_of(result.type)
    skipped = frame.size(new.offset) * dtype.itemsize - frame.size(old.offset) * buffer.tensor.itemsize
    try:
        return buffer.view(dtype, frame.sizes(new.sizes), frame.sizes(new.strides), buffer.first_byte() + skipped)
    except ExecutionError as error:
        raise failure(op, error.message) from error


def _check_view(op: loop.ViewOp, source: Buffer, view: Buffer, frame: Frame) -> None:
    """Raise `ExecutionError` unless the layout of a view finds each element where its map does."""
    sizes = view.tensor.shape
    if view.tensor.numel() == 0:
        return
    grid = {dim(i): torch.arange(n).reshape(-1, *(1,) * (len(sizes) - 1 - i)) for i, n in enumerate(sizes)}
    values = {**frame.symbols, **grid}
    indices = [torch.as_tensor(evaluate(e, values)) for e in op.access.exprs]
    by_map = _position(source.tensor, indices)
    by_layout = _position(view.tensor, list(grid.values()))
    for number, (index, size) in enumerate(zip(indices, source.tensor.shape, strict=True)):
        if ((index < 0) | (index >= size)).any():
            reach = f"{int(index.min())} to {int(index.max())}"
            raise failure(op, f"the map leaves the source: index {number} goes from {reach}, expected 0 to {size - 1}")
    different = (by_map != by_layout).expand(sizes)
    if different.any():
        raise failure(op, f"the map and the layout disagree on where element {list(first_true(different))} lies")


def _position(tensor: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """Return where in the storage the elements at `indices` lie."""
    position = torch.tensor(tensor.storage_offset())
    for index, stride in zip(indices, tensor.stride(), strict=True):
        position = position + index * stride
    return position
