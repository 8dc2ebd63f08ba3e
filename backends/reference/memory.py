"""Reading and writing elements of buffers at tensors of indices, with the checks that the dialects' rules call for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from xdsl.ir import Operation

from tilewright.backends.reference.buffers import Buffer, first_true
from tilewright.backends.reference.errors import failure

Indices = Sequence[Tensor]
"""One int64 tensor per dimension of a buffer; they broadcast together."""


def load(
    op: Operation, buffer: Buffer, indices: Indices, valid: Tensor | None, otherwise: Tensor | None = None
) -> Tensor:
    """Return the elements at `indices`, and `otherwise` or zero where `valid` is false: there no memory is touched.

    Raises `ExecutionError` naming `op` for an index out of bounds or an element that was never written.
    """
    indices = _checked(op, buffer, indices, valid)
    if otherwise is None:
        otherwise = torch.zeros((), dtype=buffer.elements.dtype)
    if valid is not None and not valid.any():
        return torch.where(valid, torch.zeros_like(otherwise), otherwise)
    if buffer.written is not None:
        missing = ~buffer.written[tuple(indices)].all(dim=-1)
        missing = missing if valid is None else missing & valid
        if missing.any():
            raise failure(op, f"reads element {_element(indices, missing)}, which was never stored")
    values = _gather(buffer.elements, indices)
    return values if valid is None else torch.where(valid, values, otherwise)


def _gather(tensor: Tensor, indices: Indices) -> Tensor:
    gathered = tensor[tuple(indices)]
    return gathered.clone() if all(i.ndim == 0 for i in indices) else gathered


def _checked(op: Operation, buffer: Buffer, indices: Indices, valid: Tensor | None) -> Indices:
    """Return `indices` with those that are not valid made zero, all of them being in bounds."""
    for number, (index, size) in enumerate(zip(indices, buffer.tensor.shape, strict=True)):
        wrong = (index < 0) | (index >= size)
        wrong = wrong if valid is None else wrong & valid
        if wrong.any():
            where = first_true(wrong)
            found = int(index.expand(wrong.shape)[where])
            raise failure(op, f"index {number} is {found}, expected 0 to {size - 1}, in iteration {list(where)}")
    if valid is None:
        return indices
    return [torch.where(valid, i, 0) for i in indices]


def _element(indices: Indices, where: Tensor) -> list[int]:
    """Return the indices at the first true element of `where`."""
    position = first_true(where)
    return [int(i.expand(where.shape)[position]) for i in indices]


def store(
    op: Operation,
    buffer: Buffer,
    values: Tensor,
    indices: Indices,
    valid: Tensor | None,
    shape: Sequence[int],
    *,
    once: bool = False,
) -> None:
    """Write `values` at `indices`, where `valid`, in each iteration of a space of sizes `shape`.

    Raises `ExecutionError` if an index is out of bounds, if two iterations write the same element or, with `once`, if
    it was written before.
    """
    indices, values = _points(op, buffer, values, indices, valid, shape)
    linear = _linear(buffer, indices)
    if _distinct(linear, buffer.tensor.numel()) < linear.numel():
        counts = torch.bincount(linear)
        twice = linear == counts.argmax()
        raise failure(op, f"{int(counts.max())} iterations store to element {_element(indices, twice)}")
    if buffer.written is not None:
        written = buffer.written[tuple(indices)].all(dim=-1)
        if once and written.any():
            raise failure(op, f"stores to element {_element(indices, written.expand(linear.shape))} a second time")
        buffer.written[tuple(indices)] = True
    buffer.elements[tuple(indices)] = values if indices else values.squeeze()


def _distinct(positions: Tensor, bound: int) -> int:
    """Return how many different numbers there are, all below `bound`: by a table, or by sorting if they are few."""
    if positions.numel() < bound // 8:
        ordered = positions.sort().values
        return min(1, ordered.numel()) + int((ordered[1:] != ordered[:-1]).sum())
    seen = torch.zeros(bound, dtype=torch.bool)
    seen[positions] = True
    return int(seen.sum())


_COMBINE = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin", "any": "amax", "all": "amin"}


def combine(
    op: Operation,
    how: str,
    buffer: Buffer,
    values: Tensor,
    indices: Indices,
    valid: Tensor | None,
    shape: Sequence[int],
) -> None:
    """Combine `values` with the elements at `indices`, some of which may be the same; otherwise as `store`."""
    if how not in _COMBINE:
        raise failure(op, f"the interpreter cannot combine by `{how}`, it knows {', '.join(_COMBINE)}")
    indices, values = _points(op, buffer, values, indices, valid, shape)
    if buffer.written is not None:
        missing = ~buffer.written[tuple(indices)].all(dim=-1)
        if missing.any():
            raise failure(op, f"combines with element {_element(indices, missing)}, which was never stored")
    linear = _linear(buffer, indices)
    elements = buffer.elements
    flat = elements.contiguous().reshape(-1)
    numbers = flat.to(torch.uint8) if flat.dtype == torch.bool else flat.clone()
    numbers.scatter_reduce_(0, linear, values.reshape(-1).to(numbers.dtype), _COMBINE[how])
    elements.copy_(numbers.to(elements.dtype).view(elements.shape))


def _points(
    op: Operation, buffer: Buffer, values: Tensor, indices: Indices, valid: Tensor | None, shape: Sequence[int]
) -> tuple[Indices, Tensor]:
    """Return the checked indices and the values of the valid points of `shape`, in one dimension."""
    indices = _checked(op, buffer, indices, valid)
    flat = [t.broadcast_to(tuple(shape)).reshape(-1) for t in (*indices, values)]
    if valid is not None:
        chosen = valid.broadcast_to(tuple(shape)).reshape(-1)
        flat = [t[chosen] for t in flat]
    return flat[:-1], flat[-1]


def _linear(buffer: Buffer, indices: Indices) -> Tensor:
    """Return the position of each element in row-major order."""
    linear = torch.zeros((1,), dtype=torch.int64)
    for index, size in zip(indices, buffer.tensor.shape, strict=True):
        linear = linear * size + index
    return linear
