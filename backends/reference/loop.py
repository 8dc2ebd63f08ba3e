"""The loops of the `loop` dialect, each executed over its whole iteration space at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod

import torch
from torch import Tensor

from tilewright.backends.reference.buffers import Buffer
from tilewright.backends.reference.combine import combination
from tilewright.backends.reference.dtypes import memory_dtype_of
from tilewright.backends.reference.errors import failure
from tilewright.backends.reference.expressions import Number
from tilewright.backends.reference.frame import Frame, Space, aligned, execute, run_block
from tilewright.backends.reference.races import AccessLog, storage_of
from tilewright.dialects import loop
from tilewright.dialects.combiners import COMBINERS
from tilewright.dialects.loop import Loop, LoopDim, layout_of
from tilewright.dialects.type_guards import is_vector


def enter(op: Loop, frame: Frame) -> Frame:
    """Return the frame inside the loops of `op`, with their index values and mask set."""
    bounds = frame.evaluate(op.bounds.exprs, op.bound_operands, lanes=False)
    space = frame.space
    for number, loop_dim in enumerate(op.loops.dims):
        lower, upper = bounds[2 * number], bounds[2 * number + 1]
        step = loop_dim.step
        space = _extend(space, op, -((lower - upper) // step))
        position = step * torch.arange(space.extents[-1]).reshape(*(1,) * (space.depth - 1), -1)
        index = _aligned(lower, space.depth) + position
        if loop_dim.lanes:
            index = index[..., None] + torch.arange(step)
            _set_mask(op, loop_dim, index, _aligned(upper, space.depth), frame.inside(space))
        frame.set(op.indices[number], index)
    return frame.inside(space)


def _aligned(bound: Number, depth: int) -> Number:
    return bound if isinstance(bound, int) else aligned(bound, depth)


def _extend(space: Space, op: Loop, trips: Number) -> Space:
    """Return `space` with one loop of `op` more, of `trips` iterations, which may depend on the outer loops."""
    loops = (*space.loops, op)
    if isinstance(trips, int):
        extent = max(trips, 0)
        active = None if space.active is None else space.active[..., None]
        return Space((*space.extents, extent), loops, active)
    trips = aligned(trips, space.depth).clamp(min=0)
    extent = int(trips.max()) if trips.numel() else 0
    active = None if space.active is None else space.active[..., None]
    if trips.numel() and int(trips.min()) < extent:
        inside = torch.arange(extent) < trips[..., None]
        active = inside if active is None else active & inside
    return Space((*space.extents, extent), loops, active)


def _set_mask(op: Loop, loop_dim: LoopDim, index: Tensor, upper: Number, frame: Frame) -> None:
    """Set the mask of a loop with lanes; without one, all lanes must be within the bounds."""
    inside = index < (upper if isinstance(upper, int) else upper[..., None])
    if op.mask is not None:
        frame.set(op.mask, inside)
        return
    if frame.space.active is not None:
        inside = inside | ~frame.space.active[..., None]
    if not inside.all():
        raise failure(op, f"{loop_dim.step} lanes at a time leave the bounds of a loop that has no mask")


@execute.register
def _(op: loop.NestOp, frame: Frame) -> None:
    begins = op.begins
    for number, destination in enumerate(op.destinations):
        layout = layout_of(destination.type)
        sizes, strides = frame.sizes(layout.sizes), frame.sizes(layout.strides)
        buffer = Buffer.allocate(memory_dtype_of(destination), sizes, strides)
        if number in begins:
            buffer.tensor.copy_(frame.buffer(begins[number]).tensor)
            buffer = Buffer(buffer.tensor)
        frame.set(destination, buffer)
    run_block(op.block, enter(op, replace(frame, log=_log(op, frame))))
    for number, (destination, result) in enumerate(zip(op.destinations, op.outputs, strict=True)):
        buffer = frame.buffer(destination)
        missing = buffer.first_unwritten()
        if missing is not None:
            raise failure(op, f"element {list(missing)} of result {number} is never stored")
        frame.set(result, Buffer(buffer.tensor))


def _log(op: loop.NestOp, frame: Frame) -> AccessLog | None:
    """Return a record for the storages that a nest writes and also accesses elsewhere; None if there are none."""
    stores: set[int] = set()
    counts: Counter[int] = Counter()
    for access in op.walk():
        if isinstance(access, (loop.LoadOp, loop.StoreOp)):
            storage = storage_of(frame.buffer(access.source if isinstance(access, loop.LoadOp) else access.target))
            counts[storage] += 1
            if isinstance(access, loop.StoreOp):
                stores.add(storage)
    contested = frozenset(s for s in stores if counts[s] > 1)
    return AccessLog(contested, isinstance(op.parent_op(), loop.KernelOp)) if contested else None


@execute.register
def _(op: loop.ForOp, frame: Frame) -> None:
    run_block(op.block, enter(op, frame))


@execute.register
def _(op: loop.ScanOp, frame: Frame) -> None:
    """Run the iterations in order, each for all iterations of the loops around it at once."""
    inner = enter(op, frame)
    outer = frame.space.depth
    indices = [inner.register(index) for index in op.indices]
    # Accesses are in order here, so there are no races to find.
    inner = replace(inner, log=None, prefixes={})
    for point in product(*(range(n) for n in inner.space.extents[outer:])):
        active = None if inner.space.active is None else _at(inner.space.active, outer, point)
        for index, values in zip(op.indices, indices, strict=True):
            frame.set(index, _at(values, outer, point))
        ones = (1,) * len(point)
        space = Space((*frame.space.extents, *ones), inner.space.loops, active)
        run_block(op.block, inner.inside(space))


def _at(register: Tensor, outer: int, point: Sequence[int]) -> Tensor:
    """Return what a register is at a point of the loops behind the `outer` ones; a dim of size one has it for all."""
    where = [slice(i, i + 1) if n > 1 else slice(None) for i, n in zip(point, register.shape[outer:], strict=True)]
    return register[(slice(None),) * outer + tuple(where)]


@execute.register
def _(op: loop.PrefixOp, frame: Frame) -> None:
    assert frame.prefixes is not None
    combiner = combination(op.combiner.data, tuple(r.type for r in op.outputs))
    values = frame.registers(op.inputs, lanes=False)
    before = frame.prefixes.get(op)
    if before is None:
        before = [n.reshape((1,) * v.ndim) for n, v in zip(combiner.identity, values, strict=True)]
    after = combiner.combine(before, values)
    if frame.space.active is not None:
        active = frame.space.active[..., None] if is_vector(op.outputs[0].type) else frame.space.active
        after = [torch.where(active, a, b) for a, b in zip(after, before, strict=True)]
    frame.prefixes[op] = after
    for result, value in zip(op.outputs, after, strict=True):
        frame.set(result, value)


@execute.register
def _(op: loop.YieldOp, frame: Frame) -> None:
    pass  # The loop around it takes the values.


@execute.register
def _(op: loop.CombineOp, frame: Frame) -> None:
    combiner = combination(op.combiner.data, tuple(r.type for r in op.outputs))
    for result, value in zip(op.outputs, combiner.across_lanes(frame.registers(op.inputs, lanes=True)), strict=True):
        frame.set(result, value)


@execute.register
def _(op: loop.ReduceOp, frame: Frame) -> None:
    inner = enter(op, frame)
    run_block(op.block, inner)
    keep = _taking_part(op, inner)
    depth = frame.space.depth
    init = frame.registers(op.init, lanes=False)
    start = 0
    for name in op.names:
        part = slice(start, start + COMBINERS[name].arity)
        start = part.stop
        kinds = tuple(r.type for r in op.results[part])
        combiner = combination(name, kinds)
        slots = [inner.register(v) for v in op.yielded.values[part]]
        if keep is not None:
            slots = [torch.where(keep, s, n) for s, n in zip(slots, combiner.identity, strict=True)]
        slots = [_joined(s, depth, inner.space.extents) for s in slots]
        total = combiner.along(slots, depth, init[part], ordered=op.ordered is not None)
        for result, value in zip(op.results[part], total, strict=True):
            frame.set(result, value)


def _taking_part(op: loop.ReduceOp, inner: Frame) -> Tensor | None:
    """Return which points, and which of their lanes, a reduction combines; None if all."""
    keep = inner.space.active
    if op.mask is None:
        return keep if keep is None or not is_vector(op.results[0].type) else keep[..., None]
    mask = inner.register(op.mask)
    return mask if keep is None else mask & keep[..., None]


def _joined(register: Tensor, depth: int, extents: Sequence[int]) -> Tensor:
    """Return a register of a reduction's body with the dims of the reduction's loops, from `depth` on, made one."""
    lanes = register.shape[len(extents) :]
    outer = register.shape[:depth]
    return register.expand(*outer, *extents[depth:], *lanes).reshape(*outer, prod(extents[depth:]), *lanes)
