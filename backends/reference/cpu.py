"""The `cpu` dialect, on registers of a single value or vector."""

from __future__ import annotations

import torch
from torch import Tensor
from xdsl.dialects import memref
from xdsl.ir import SSAValue

from tilewright.backends.reference import memory
from tilewright.backends.reference.buffers import Buffer
from tilewright.backends.reference.combine import combination
from tilewright.backends.reference.dtypes import memory_dtype_of
from tilewright.backends.reference.frame import Frame, execute, lanes_of, run_block
from tilewright.dialects import cpu
from tilewright.dialects.cpu_transpose import TransposeOp

_CHUNKS = 3
"""How many chunks a parallel region is split into where its grain allows: some, not all equally long."""


@execute.register
def _(op: cpu.ParallelOp, frame: Frame) -> None:
    extent = frame.integer(op.extent)
    chunks = max(1, min(_CHUNKS, extent // op.grain.value.data))
    length = -(-extent // chunks)
    for begin in range(0, extent, max(length, 1)):
        for argument, bound in zip(op.block.args, (begin, min(begin + length, extent)), strict=True):
            frame.set(argument, torch.tensor(bound))
        run_block(op.block, frame)


def _offsets(offset: SSAValue, value: SSAValue, frame: Frame) -> Tensor:
    """Return where the elements of `value` lie: one after the other from `offset` on."""
    first = frame.register(offset)
    lanes = lanes_of(value)
    return first + torch.arange(lanes[0]) if lanes else first


def _load(op: cpu.LoadOp | cpu.GatherOp, offsets: Tensor, frame: Frame) -> None:
    mask, otherwise = (None if v is None else frame.register(v) for v in (op.mask, op.otherwise))
    frame.set(op.result, memory.load(op, frame.buffer(op.source), [offsets], mask, otherwise))


def _store(op: cpu.StoreOp | cpu.ScatterOp, offsets: Tensor, frame: Frame) -> None:
    mask = None if op.mask is None else frame.register(op.mask)
    buffer, value = frame.buffer(op.target), frame.register(op.value)
    if op.combine is not None:
        memory.combine(op, op.combine.data, buffer, value, [offsets], mask, lanes_of(op.value))
    else:
        memory.store(op, buffer, value, [offsets], mask, lanes_of(op.value))


@execute.register
def _(op: cpu.LoadOp, frame: Frame) -> None:
    _load(op, _offsets(op.offset, op.result, frame), frame)


@execute.register
def _(op: cpu.GatherOp, frame: Frame) -> None:
    _load(op, frame.register(op.offset), frame)


@execute.register
def _(op: cpu.StoreOp, frame: Frame) -> None:
    _store(op, _offsets(op.offset, op.value, frame), frame)


@execute.register
def _(op: cpu.ScatterOp, frame: Frame) -> None:
    _store(op, frame.register(op.offset), frame)


@execute.register
def _(op: cpu.StepOp, frame: Frame) -> None:
    frame.set(op.result, torch.arange(*lanes_of(op.result)))


@execute.register
def _(op: cpu.TailMaskOp, frame: Frame) -> None:
    lanes = torch.arange(*lanes_of(op.result))
    frame.set(op.result, frame.register(op.position) + lanes < frame.register(op.end))


@execute.register
def _(op: cpu.ReduceOp, frame: Frame) -> None:
    combiner = combination(op.combiner.data, (op.result.type,))
    frame.set(op.result, combiner.across_lanes([frame.register(op.input)])[0])


@execute.register
def _(op: cpu.ExtractOp, frame: Frame) -> None:
    first, lanes = op.lane.value.data, lanes_of(op.result)
    part = frame.register(op.input)[..., first : first + lanes[0]] if lanes else frame.register(op.input)[..., first]
    frame.set(op.result, part)


@execute.register
def _(op: TransposeOp, frame: Frame) -> None:
    square = torch.stack([frame.register(v) for v in op.rows], dim=-1)
    for lane, column in enumerate(op.columns):
        frame.set(column, square[..., lane, :])


@execute.register
def _(op: memref.AllocaOp, frame: Frame) -> None:
    sizes = op.memref.type.get_shape()
    frame.set(op.memref, Buffer.allocate(memory_dtype_of(op.memref), sizes, [1] * len(sizes)))
