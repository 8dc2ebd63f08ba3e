"""Finds programs of a kernel for a GPU that depend on each other's order, which they have not.

The interpreter runs many programs at once and the rest one after the other, so a kernel in which one program reads what
another one stores may give the right values here and wrong ones elsewhere. Therefore it is recorded, for memory that a
launch writes, which program accessed an element how. Two programs may access the same element only if both read it,
both by atomic operations, or both store the same value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor
from xdsl.ir import Operation

from tilewright.backends.reference.buffers import Buffer, first_true
from tilewright.backends.reference.errors import failure
from tilewright.backends.reference.races import storage_of

_NOBODY, _SEVERAL = -1, -2


@dataclass(frozen=True)
class Points:
    """Accesses that happen: one-dimensional, without those that are masked off."""

    buffer: Buffer
    name: str
    """What the kernel calls the buffer."""
    offsets: Tensor
    """The number of the element."""
    programs: Tensor
    """Which program it is."""

    def describe(self, which: Tensor, verb: str) -> str:
        """Return what the first access for which `which` is true does."""
        (position,) = first_true(which)
        return f"program {int(self.programs[position])} {verb} element {int(self.offsets[position])} of `{self.name}`"


class _Record:
    """Which programs accessed each granule of one storage: the largest unit that no access takes only a part of."""

    def __init__(self, storage_bytes: int, granule: int) -> None:
        self.granule = granule
        self.kinds = {
            kind: torch.full((storage_bytes // granule,), _NOBODY, dtype=torch.int32)
            for kind in ("reads", "stores", "updates")
        }
        """For each kind of access the program that did it, nobody, or several."""

    def granules(self, points: Points) -> tuple[Tensor, Tensor]:
        """Return all granules that are accessed, and for each the number of its access."""
        width = points.buffer.tensor.itemsize
        first = (points.buffer.first_byte() + points.offsets * width) // self.granule
        parts = width // self.granule
        if parts == 1:
            return first, torch.arange(first.numel())
        return (first[:, None] + torch.arange(parts)).reshape(-1), torch.arange(first.numel()).repeat_interleave(parts)

    def others(self, points: Points, kind: str) -> Tensor:
        """Return for which accesses another program did `kind` to the same memory."""
        granules, access = self.granules(points)
        who = self.kinds[kind][granules]
        met = torch.zeros(points.offsets.numel(), dtype=torch.bool)
        met[access[(who != _NOBODY) & (who != points.programs[access])]] = True
        return met

    def add(self, points: Points, kind: str) -> None:
        """Record the accesses as of `kind`."""
        granules, access = self.granules(points)
        programs, who = points.programs[access], self.kinds[kind]
        who[granules] = torch.where(self.others(points, kind)[access], _SEVERAL, programs)
        # Of several programs at once in one granule, one is there now, and the others see it.
        who[granules[(who[granules] != programs)]] = _SEVERAL


class Traffic:
    """The accesses of one launch so far to the storages that it writes."""

    def __init__(self, buffers: Sequence[Buffer], written: Sequence[Buffer]) -> None:
        self._records: dict[int, _Record] = {}
        for buffer in written:
            storage = storage_of(buffer)
            shared = [b for b in buffers if storage_of(b) == storage]
            granule = gcd(*(b.tensor.itemsize for b in shared), *(b.first_byte() for b in shared))
            self._records[storage] = _Record(buffer.storage_bytes, granule)

    def of(self, buffer: Buffer) -> _Record | None:
        """Return what is known of the storage of `buffer`; None if no program writes it."""
        return self._records.get(storage_of(buffer))

    def load(self, op: Operation, points: Points) -> None:
        """Record a load. Raises `ExecutionError` if another program writes what it reads."""
        record = self.of(points.buffer)
        if record is not None:
            _refuse(op, points, record, "reads", ("stores", "updates"))
            record.add(points, "reads")

    def store(self, op: Operation, points: Points, values: Tensor) -> None:
        """Store `values` and record that; of programs that store the same value none is wrong.

        Raises `ExecutionError` if another program accesses what it changes, or the same one in another lane.
        """
        record = self.of(points.buffer)
        assert record is not None
        elements = points.buffer.elements
        changed = _bits(elements[points.offsets]) != _bits(values)
        if points.buffer.written is not None:
            changed |= ~points.buffer.written[points.offsets].all(dim=-1)
        _refuse(op, points, record, "stores", ("reads", "stores", "updates"), changed)
        elements[points.offsets] = values
        lost = _bits(elements[points.offsets]) != _bits(values)
        if lost.any():
            raise failure(op, f"{points.describe(lost, 'stores')}, to which another value is stored as well")
        record.add(points, "stores")

    def update(self, op: Operation, points: Points) -> None:
        """Record an atomic operation. Raises `ExecutionError` if another program accesses the element otherwise."""
        record = self.of(points.buffer)
        assert record is not None
        _refuse(op, points, record, "updates", ("reads", "stores"))
        record.add(points, "updates")

    def forget(self) -> None:
        """Forget all accesses, as what comes after them waits for them."""
        for record in self._records.values():
            for who in record.kinds.values():
                who.fill_(_NOBODY)


def _refuse(
    op: Operation, points: Points, record: _Record, verb: str, kinds: Sequence[str], where: Tensor | None = None
) -> None:
    """Raise `ExecutionError` if another program did one of `kinds` to what is accessed, or to what is `where`."""
    for kind in kinds:
        met = record.others(points, kind)
        met = met if where is None else met & where
        if met.any():
            raise failure(op, f"{points.describe(met, verb)}, which another program {kind}")


def _bits(values: Tensor) -> Tensor:
    """Return values as integers, of which NaN is equal to itself."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(kinds[values.itemsize]) if values.dtype != torch.bool else values
