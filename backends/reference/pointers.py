"""Addresses in a kernel for a GPU, and the programs that use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from tilewright.backends.reference.buffers import Buffer
from tilewright.backends.reference.errors import ExecutionError
from tilewright.backends.reference.traffic import Traffic


@dataclass(frozen=True)
class Pointers:
    """Addresses of elements of one buffer: of which buffer stays known, so that no access can stray into another."""

    buffer: Buffer
    """The buffer from its first element to its last, in one dimension."""
    name: str
    """What the kernel calls its argument."""
    offsets: Tensor
    """For each program, and each element of a tensor of pointers, the number of the element that it points to."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Pointers:
        """Return these addresses after a change of the offsets."""
        return replace(self, offsets=function(self.offsets))

    def joined(self, other: Pointers, function: Callable[[Tensor, Tensor], Tensor]) -> Pointers:
        """Return addresses made of two. Raises `ExecutionError` if they do not point into one buffer."""
        if self.name != other.name:
            raise ExecutionError(f"pointers into `{self.name}` and `{other.name}` meet, expected one buffer")
        return replace(self, offsets=function(self.offsets, other.offsets))


@dataclass(frozen=True)
class Programs:
    """The programs of one launch that run at once."""

    first: int
    count: int
    total: int
    """How many the launch has."""
    traffic: Traffic
    """The accesses of the launch."""
