"""Finds programs of a kernel for a GPU, and threads of a program, that depend on an order that they do not have.

The interpreter runs many programs at once and the rest one after the other, and all threads of a program at the same
time. So a kernel in which one program reads what another one stores, or one thread what another one of the program
does, may give the right values here and wrong ones elsewhere. Therefore it is recorded, for memory that a launch
writes, who accessed an element how. Two programs may access the same element only if both read it, both by atomic
operations, or both store the same value; two threads of one program, that is two elements of a tensor, also if a
barrier is between.
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
from tilewright.dialects.tt_types import MAX_ELEMENTS

_KINDS = ("reads", "stores", "updates")

_EVERYBODY = (1 << 32) - 1
"""The number of all threads: each of them loads a scalar."""


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
    threads: Tensor
    """A number for the element of the tensor of pointers, and so the thread, which accesses of one shape share."""

    @property
    def is_scalar(self) -> bool:
        return self.threads.numel() > 0 and bool((self.threads == 0).all())

    def describe(self, which: Tensor, verb: str) -> str:
        """Return what the first access for which `which` is true does."""
        (position,) = first_true(which)
        return f"program {int(self.programs[position])} {verb} element {int(self.offsets[position])} of `{self.name}`"


class _Record:
    """Who accessed each granule of one storage: the largest unit that no access takes only a part of."""

    def __init__(self, storage_bytes: int, granule: int) -> None:
        self._granule = granule
        self._who = {kind: torch.zeros(storage_bytes // granule, dtype=torch.int64) for kind in _KINDS}
        """For each kind of access who did it: numbers up to `_nobody` are nobody, the next one is several."""
        self._nobody = 0

    def _granules(self, points: Points) -> tuple[Tensor, Tensor]:
        """Return all granules that are accessed, and for each the number of its access."""
        width = points.buffer.tensor.itemsize
        first = (points.buffer.first_byte() + points.offsets * width) // self._granule
        parts = width // self._granule
        if parts == 1:
            return first, torch.arange(first.numel())
        return (first[:, None] + torch.arange(parts)).reshape(-1), torch.arange(first.numel()).repeat_interleave(parts)

    def others(self, points: Points, numbers: Tensor, kind: str) -> Tensor:
        """Return for which accesses, by `numbers`, somebody else did `kind` to the same memory."""
        granules, access = self._granules(points)
        who = self._who[kind][granules]
        met = torch.zeros(points.offsets.numel(), dtype=torch.bool)
        met[access[(who > self._nobody) & (who != self._nobody + 2 + numbers[access])]] = True
        return met

    def add(self, points: Points, numbers: Tensor, kind: str) -> None:
        """Record the accesses as of `kind`."""
        granules, access = self._granules(points)
        mine, who, several = self._nobody + 2 + numbers[access], self._who[kind], self._nobody + 1
        who[granules] = torch.where(self.others(points, numbers, kind)[access], several, mine)
        # Of several at once in one granule, one is there now, and the others see it.
        who[granules[who[granules] != mine]] = several

    def forget(self) -> None:
        """Forget all accesses."""
        self._nobody += _EVERYBODY + 3


@dataclass(frozen=True)
class _Storage:
    """What is known of one storage."""

    programs: _Record
    threads: _Record
    """Of each program, since its last barrier."""


class Traffic:
    """The accesses of one launch so far to the storages that it writes."""

    def __init__(self, buffers: Sequence[Buffer], written: Sequence[Buffer]) -> None:
        self._storages: dict[int, _Storage] = {}
        self._shapes: dict[tuple[int, ...], int] = {(): 0}
        for buffer in written:
            storage = storage_of(buffer)
            shared = [b for b in buffers if storage_of(b) == storage]
            granule = gcd(*(b.tensor.itemsize for b in shared), *(b.first_byte() for b in shared))
            records = (_Record(buffer.storage_bytes, granule) for _ in range(2))
            self._storages[storage] = _Storage(*records)

    def first_thread(self, shape: tuple[int, ...]) -> int:
        """Return the number of the first element of tensors of a shape: no two shapes have elements in common.

        Tensors of one shape are spread over threads alike, as far as anybody may count on it.
        """
        return self._shapes.setdefault(shape, len(self._shapes)) * MAX_ELEMENTS

    def is_written(self, buffer: Buffer) -> bool:
        """Whether a program writes the storage of `buffer`."""
        return storage_of(buffer) in self._storages

    def load(self, op: Operation, points: Points) -> None:
        """Record a load. Raises `ExecutionError` if another program or thread writes what it reads."""
        storage = self._storages.get(storage_of(points.buffer))
        if storage is not None:
            threads = torch.full_like(points.threads, _EVERYBODY) if points.is_scalar else points.threads
            _refuse(op, points, storage, threads, "reads", ("stores", "updates"))
            _add(points, storage, "reads")

    def store(self, op: Operation, points: Points, values: Tensor) -> None:
        """Store `values` and record that; of programs that store the same value none is wrong.

        Raises `ExecutionError` if another program or thread accesses what it changes.
        """
        storage = self._storages[storage_of(points.buffer)]
        elements = points.buffer.elements
        changed = _bits(elements[points.offsets]) != _bits(values)
        if points.buffer.written is not None:
            changed |= ~points.buffer.written[points.offsets].all(dim=-1)
        _refuse(op, points, storage, points.threads, "stores", _KINDS, changed)
        elements[points.offsets] = values
        lost = _bits(elements[points.offsets]) != _bits(values)
        if lost.any():
            raise failure(op, f"{points.describe(lost, 'stores')}, to which another value is stored as well")
        _add(points, storage, "stores")

    def update(self, op: Operation, points: Points) -> None:
        """Record an atomic operation. Raises `ExecutionError` if another one accesses the element otherwise."""
        storage = self._storages[storage_of(points.buffer)]
        _refuse(op, points, storage, points.threads, "updates", ("reads", "stores"))
        _add(points, storage, "updates")

    def barrier(self) -> None:
        """Forget what threads did, as those of their program wait for them."""
        for storage in self._storages.values():
            storage.threads.forget()

    def forget(self) -> None:
        """Forget all accesses, as what comes after them waits for them."""
        self.barrier()
        for storage in self._storages.values():
            storage.programs.forget()


def _refuse(
    op: Operation,
    points: Points,
    storage: _Storage,
    threads: Tensor,
    verb: str,
    kinds: Sequence[str],
    where: Tensor | None = None,
) -> None:
    """Raise `ExecutionError` if somebody else did one of `kinds` to what is accessed, or to what is `where`."""
    for kind in kinds:
        for who, record, numbers in (
            ("another program", storage.programs, points.programs),
            ("another thread, without a barrier between,", storage.threads, threads),
        ):
            met = record.others(points, numbers, kind)
            met = met if where is None else met & where
            if met.any():
                raise failure(op, f"{points.describe(met, verb)}, which {who} {kind}")


def _add(points: Points, storage: _Storage, kind: str) -> None:
    storage.programs.add(points, points.programs, kind)
    storage.threads.add(points, points.threads, kind)


def _bits(values: Tensor) -> Tensor:
    """Return values as integers, of which NaN is equal to itself."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(kinds[values.itemsize]) if values.dtype != torch.bool else values
