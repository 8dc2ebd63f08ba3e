"""Loads, stores and atomic operations of programs. Where a mask is false no memory is touched, whatever the address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor
from xdsl.ir import Operation

from tilewright.backends.reference.buffers import first_true
from tilewright.backends.reference.errors import failure
from tilewright.backends.reference.frame import Frame
from tilewright.backends.reference.pointers import Pointers, Programs
from tilewright.backends.reference.traffic import Points

_POISON = 0xFF
"""The byte that a load without another value gives where its mask is false: floats made of it are NaN, integers -1."""


def load(op: Operation, pointers: Pointers, mask: Tensor | None, other: Tensor | None, frame: Frame) -> Tensor:
    """Return the elements at `pointers`; where `mask` is false `other`, or else what nobody should use.

    Raises `ExecutionError` for an access outside of the buffer, of an element that was never written, or of one that
    another program writes.
    """
    valid = _valid(pointers, mask, frame)
    offsets = _checked(op, pointers, valid, frame)
    buffer = pointers.buffer
    if other is None:
        other = torch.full((buffer.tensor.itemsize,), _POISON, dtype=torch.uint8).view(buffer.elements.dtype)
    if valid is not None and not valid.any():
        return torch.where(valid, other, other)
    programs = _programs(frame)
    if buffer.written is not None:
        missing = ~buffer.written[offsets].all(dim=-1)
        missing = missing if valid is None else missing & valid
        if missing.any():
            raise failure(op, f"{_describe(pointers, missing, frame)} was never stored")
    if programs.traffic.is_written(buffer):
        programs.traffic.load(op, _points(pointers, valid, frame))
    values = buffer.elements[offsets]
    return values if valid is None else torch.where(valid, values, other)


def store(op: Operation, pointers: Pointers, values: Tensor, mask: Tensor | None, frame: Frame) -> None:
    """Write `values` at `pointers` where `mask` is true; raises `ExecutionError` as `load` and `Traffic.store` do."""
    valid = _valid(pointers, mask, frame)
    _checked(op, pointers, valid, frame)
    points, (values,) = _points(pointers, valid, frame), _picked((values,), pointers, valid, frame)
    _programs(frame).traffic.store(op, points, values)
    if points.buffer.written is not None:
        points.buffer.written[points.offsets] = True


def update(
    op: Operation,
    pointers: Pointers,
    operands: Sequence[Tensor],
    function: Callable[..., Tensor],
    mask: Tensor | None,
    frame: Frame,
) -> Tensor:
    """Replace elements by `function` of them and the operands, one access after another; return what was there before.

    The order is that of the programs, and of the elements in each. Where `mask` is false the result is zero.
    """
    valid = _valid(pointers, mask, frame)
    _checked(op, pointers, valid, frame)
    points, operands = _points(pointers, valid, frame), _picked(operands, pointers, valid, frame)
    elements, written = points.buffer.elements, points.buffer.written
    if written is not None:
        missing = ~written[points.offsets].all(dim=-1)
        if missing.any():
            raise failure(op, f"{points.describe(missing, 'updates')}, which was never stored")
    _programs(frame).traffic.update(op, points)
    shape = _shape(pointers, frame)
    before = torch.empty_like(operands[-1])
    for turn in _turns(points.offsets):
        at = points.offsets[turn]
        before[turn] = elements[at]
        elements[at] = function(elements[at], *(o[turn] for o in operands))
    if valid is None:
        return before.reshape(shape)
    result = torch.zeros(shape, dtype=before.dtype)
    result[valid.expand(shape)] = before
    return result


def _turns(offsets: Tensor) -> list[Tensor]:
    """Split accesses into turns, each with no element twice and in order for each element; return their numbers."""
    if not offsets.numel():
        return []
    ordered, access = offsets.sort(stable=True)
    positions = torch.arange(ordered.numel())
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    turn = positions - torch.where(begins, positions, 0).cummax(0).values
    sizes = [int(n) for n in torch.bincount(turn)]
    return list(torch.split_with_sizes(access[turn.argsort(stable=True)], sizes))


def _programs(frame: Frame) -> Programs:
    assert frame.programs is not None
    return frame.programs


def _shape(pointers: Pointers, frame: Frame) -> tuple[int, ...]:
    """Return the shape of all accesses: of each program, though programs may have the same addresses."""
    return (_programs(frame).count, *pointers.offsets.shape[1:])


def _valid(pointers: Pointers, mask: Tensor | None, frame: Frame) -> Tensor | None:
    """Return where an access happens, None for everywhere."""
    active = frame.space.active
    if active is not None:
        active = active.reshape(-1, *(1,) * (pointers.offsets.ndim - 1))
        mask = active if mask is None else mask & active
    return None if mask is None or mask.all() else mask


def _checked(op: Operation, pointers: Pointers, valid: Tensor | None, frame: Frame) -> Tensor:
    """Return the offsets with those that are not valid made zero, all of them being in the buffer."""
    offsets, size = pointers.offsets, pointers.buffer.tensor.numel()
    wrong = (offsets < 0) | (offsets >= size)
    wrong = wrong if valid is None else wrong & valid
    if wrong.any():
        elements = f"elements 0 to {size - 1}" if size else "no elements"
        raise failure(op, f"{_describe(pointers, wrong, frame)} is out of bounds, expected {elements}")
    return offsets if valid is None else torch.where(valid, offsets, 0)


def _describe(pointers: Pointers, which: Tensor, frame: Frame) -> str:
    """Return which element the first access is about for which `which` is true, and which program accesses it."""
    program, *_ = place = first_true(which)
    offset = int(pointers.offsets.expand(which.shape)[place])
    return f"for program {_programs(frame).first + program} element {offset} of `{pointers.name}`"


def _points(pointers: Pointers, valid: Tensor | None, frame: Frame) -> Points:
    programs, shape = _programs(frame), tuple(pointers.offsets.shape[1:])
    numbers = torch.arange(programs.first, programs.first + programs.count)
    threads = programs.traffic.first_thread(shape) + torch.arange(prod(shape)).reshape(1, *shape)
    given = (pointers.offsets, numbers.reshape(-1, *(1,) * len(shape)), threads)
    return Points(pointers.buffer, pointers.name, *_picked(given, pointers, valid, frame))


def _picked(values: Sequence[Tensor], pointers: Pointers, valid: Tensor | None, frame: Frame) -> list[Tensor]:
    """Return the values of all accesses that happen, in one dimension."""
    shape = _shape(pointers, frame)
    flat = [v.expand(shape).reshape(-1) for v in values]
    if valid is None:
        return flat
    chosen = valid.expand(shape).reshape(-1)
    return [v[chosen] for v in flat]
