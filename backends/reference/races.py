"""Finds accesses of a nest that depend on the order of its iterations, which have none.

The interpreter executes each operation for all iterations at once, so a nest that writes in place what another
iteration still has to read may give the right values here and wrong ones elsewhere. Therefore accesses to memory that
the nest both writes and accesses elsewhere are recorded: two accesses of one element, one of them a store, must be in
the same iteration of all the loops that they share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor
from xdsl.ir import Operation, SSAValue

from tilewright.backends.reference.buffers import Buffer
from tilewright.backends.reference.errors import failure, summary


@dataclass(frozen=True)
class Access:
    """All accesses by one load or store."""

    op: Operation
    name: SSAValue
    """The buffer as the program names it."""
    loops: Sequence[Operation]
    """For each loop around `op` the operation that it belongs to."""
    addresses: Tensor
    """For each point of the iteration space, and each lane, where in the storage the element lies, in bytes; or -1."""
    is_store: bool
    combines: bool

    def iterations(self, depth: int) -> Tensor:
        """Return the number of the iteration of the outermost `depth` loops that each access is in."""
        outer = self.addresses.shape[:depth]
        shape = (*outer, *(1,) * (self.addresses.ndim - depth))
        return torch.arange(prod(outer)).reshape(shape).expand(self.addresses.shape)


@dataclass(frozen=True)
class AccessLog:
    """The accesses of one nest to some storages."""

    storages: frozenset[int]
    """Where the storages begin."""
    is_kernel: bool
    """Whether buffers that have different names must not overlap."""
    accesses: dict[int, list[Access]] = field(default_factory=dict[int, list[Access]])

    def wants(self, buffer: Buffer) -> bool:
        """Whether accesses to `buffer` are to be recorded."""
        return storage_of(buffer) in self.storages

    def record(self, buffer: Buffer, access: Access) -> None:
        """Add an access to `buffer`, and check it against those that are there."""
        earlier = self.accesses.setdefault(storage_of(buffer), [])
        for other in earlier:
            if (other.is_store or access.is_store) and not (other.combines and access.combines):
                self._check(other, access, buffer.storage_bytes)
        earlier.append(access)

    def _check(self, a: Access, b: Access, storage_bytes: int) -> None:
        depth = 0
        while depth < min(len(a.loops), len(b.loops)) and a.loops[depth] is b.loops[depth]:
            depth += 1
        store, other = (a, b) if a.is_store else (b, a)
        owner = torch.full((storage_bytes,), -1, dtype=torch.int64)
        stored = store.addresses >= 0
        owner[store.addresses[stored]] = store.iterations(depth)[stored]
        accessed = other.addresses >= 0
        at = other.addresses[accessed]
        met = owner[at] >= 0
        if self.is_kernel and a.name is not b.name and met.any():
            raise failure(b.op, f"its buffer overlaps that of another access, `{summary(a.op)}`")
        wrong = met & (owner[at] != other.iterations(depth)[accessed])
        if wrong.any():
            raise failure(b.op, f"accesses the same element as another iteration of `{summary(a.op)}`")


def storage_of(buffer: Buffer) -> int:
    """Return what tells storages apart: where they begin."""
    return buffer.tensor.untyped_storage().data_ptr()
