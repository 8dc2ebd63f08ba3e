"""Reductions and scans of the `tt` dialect, whose regions combine two partial results.

A region is executed on many pairs at once. The order is always the same: a reduction combines the two halves of its
axis until one element is left, so a region that is not commutative shows; a scan combines runs of 1, 2, 4, .. elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tilewright.backends.reference.frame import Frame, execute, run_block
from tilewright.backends.reference.functions import broadcast
from tilewright.dialects import tt

Slots = Sequence[Tensor]


def _combined(op: tt.ReduceOp | tt.ScanOp, earlier: Slots, later: Slots, frame: Frame) -> list[Tensor]:
    """Execute a region on two tuples of slots of one shape, each pair as if it were a program."""
    shape = earlier[0].shape
    for argument, value in zip(op.block.args, (*earlier, *later), strict=True):
        frame.set(argument, value.reshape(-1))
    run_block(op.block, frame)
    assert op.block.last_op is not None
    return [frame.register(v).expand(shape.numel()).reshape(shape) for v in op.block.last_op.operands]


def _slots(op: tt.ReduceOp | tt.ScanOp, frame: Frame) -> tuple[int, list[Tensor]]:
    """Return the dim to combine along, and the slots, of one shape."""
    return op.axis.value.data + 1, broadcast(*(frame.register(v) for v in op.srcs))


@execute.register
def _(op: tt.ReduceOp, frame: Frame) -> None:
    dim, slots = _slots(op, frame)
    length = slots[0].shape[dim]
    while length > 1:
        length //= 2
        first, second = ([t.narrow(dim, begin, length) for t in slots] for begin in (0, length))
        slots = _combined(op, first, second, frame)
    for result, slot in zip(op.outputs, slots, strict=True):
        frame.set(result, slot.select(dim, 0))


@execute.register
def _(op: tt.ScanOp, frame: Frame) -> None:
    dim, slots = _slots(op, frame)
    reverse = op.reverse is not None and bool(op.reverse.value.data)
    slots = [t.flip(dim) for t in slots] if reverse else slots
    length, run = slots[0].shape[dim], 1
    while run < length:
        earlier, later = ([t.narrow(dim, begin, length - run) for t in slots] for begin in (0, run))
        combined = _combined(op, earlier, later, frame)
        slots = [torch.cat([t.narrow(dim, 0, run), c], dim) for t, c in zip(slots, combined, strict=True)]
        run *= 2
    for result, slot in zip(op.outputs, slots, strict=True):
        frame.set(result, slot.flip(dim) if reverse else slot)


@execute.register
def _(op: tt.ReduceReturnOp | tt.ScanReturnOp, frame: Frame) -> None:
    pass  # The operation around it takes the values.
