"""Memory as the interpreter sees it: strided tensors, and beside each a record of the bytes that were ever written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tilewright.backends.reference.dtypes import as_signed
from tilewright.backends.reference.errors import ExecutionError

_POISON = 0xFF
"""The byte that fills new memory: floats made of it are NaN, integers -1."""


@dataclass(frozen=True)
class Buffer:
    """A tensor in memory, perhaps a view of another's storage."""

    tensor: Tensor
    written: Tensor | None = None
    """For each byte of each element whether it was written: bool, with the sizes of the tensor and the bytes of an
    element; a view of a record of the whole storage. None where everything was, as in inputs."""

    @property
    def elements(self) -> Tensor:
        """The tensor with its elements as registers hold them: integers are signed."""
        return self.tensor.view(as_signed(self.tensor.dtype))

    @property
    def storage_bytes(self) -> int:
        return self.tensor.untyped_storage().nbytes()

    @staticmethod
    def allocate(dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int]) -> Buffer:
        """Return new memory of which nothing was written."""
        count = span(sizes, strides)
        raw = torch.full((count * dtype.itemsize,), _POISON, dtype=torch.uint8)
        whole = Buffer(raw, torch.zeros(raw.numel(), 1, dtype=torch.bool))
        return whole.view(dtype, sizes, strides, 0)

    def view(self, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int], first_byte: int) -> Buffer:
        """Return another view of the same storage, whose first element lies at `first_byte`.

        Raises `ExecutionError` if the view leaves the storage or lies across its elements. One without elements does
        neither, wherever it begins.
        """
        width = dtype.itemsize
        if 0 in sizes:
            first_byte = 0
        last_byte = first_byte + span(sizes, strides) * width
        if first_byte % width or first_byte < 0 or last_byte > self.storage_bytes:
            raise ExecutionError(
                f"a view of {dtype} with sizes {list(sizes)} and strides {list(strides)} takes bytes {first_byte} to "
                f"{last_byte} of a storage with {self.storage_bytes} bytes"
            )
        tensor = torch.empty(0, dtype=dtype)
        tensor.set_(self.tensor.untyped_storage(), first_byte // width, tuple(sizes), tuple(strides))
        if self.written is None:
            return Buffer(tensor)
        byte_strides = [s * width for s in strides]
        return Buffer(tensor, self.written.as_strided((*sizes, width), (*byte_strides, 1), first_byte))

    def first_byte(self) -> int:
        """Return where in its storage the first element lies."""
        return int(self.tensor.storage_offset()) * self.tensor.itemsize

    def flat(self) -> Buffer:
        """Return the storage from the first element to the last, as one dimension."""
        reach = span(self.tensor.shape, self.tensor.stride())
        return self.view(self.tensor.dtype, [reach], [1], self.first_byte())

    def first_unwritten(self) -> tuple[int, ...] | None:
        """Return the index of the first element that was never written, or None if all were."""
        if self.written is None:
            return None
        missing = ~self.written.all(dim=-1)
        return first_true(missing) if missing.any() else None


def span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements of storage a layout reaches over."""
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def first_true(mask: Tensor) -> tuple[int, ...]:
    """Return the index of the first true element of `mask`, which has one."""
    return tuple(int(i) for i in mask.nonzero()[0])
