"""What a host program printed as Python calls, and what callbacks from a native one share with it."""

from collections.abc import Sequence

import torch
from torch import Tensor


def view(base: Tensor, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int], byte_offset: int) -> Tensor:
    """See the storage of `base` through another layout, beginning `byte_offset` bytes after the first element of `base`."""
    start = base.storage_offset() * base.element_size() + byte_offset
    result = torch.empty((0,), dtype=dtype, device=base.device)
    return result.set_(base.untyped_storage(), start // dtype.itemsize, list(sizes), list(strides))


def has_layout(tensor: Tensor, sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor has these sizes and, wherever it matters, these strides."""
    if list(tensor.shape) != list(sizes):
        return False
    if 0 in sizes:
        return True
    own = tensor.stride()
    return all(n == 1 or a == b for n, a, b in zip(sizes, own, strides, strict=True))


def conform(result: Tensor, operator: str, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int]) -> Tensor:
    """Return an operator's result with the strides that the program was compiled for, copied if it has others.

    Raises RuntimeError if the result has another dtype or size, or has other strides but is a view.
    """
    if has_layout(result, sizes, strides) and result.dtype == dtype:
        return result
    if result.dtype != dtype or list(result.shape) != list(sizes) or result._is_view():
        raise RuntimeError(
            f"`{operator}` was traced to give {describe(dtype, sizes, strides)}, "
            f"gave {describe(result.dtype, result.shape, result.stride())}"
        )
    return torch.empty_strided(sizes, strides, dtype=dtype, device=result.device).copy_(result)


def check_input(
    tensor: Tensor, number: int, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int], device: torch.device
) -> None:
    """Raise unless an input is what the program was compiled for."""
    if tensor.dtype != dtype or tensor.device.type != device.type or not has_layout(tensor, sizes, strides):
        raise input_error(tensor, number, dtype, sizes, strides, device)


def input_error(
    tensor: Tensor, number: int, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int], device: torch.device
) -> ValueError:
    """Return the exception for an input that is not what the program was compiled for."""
    return ValueError(
        f"expected input {number} to be {describe(dtype, sizes, strides)} on {device}, "
        f"found {describe(tensor.dtype, tensor.shape, tensor.stride())} on {tensor.device}"
    )


def describe(dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int]) -> str:
    """Say what a tensor looks like."""
    return f"{str(dtype).removeprefix('torch.')} {list(sizes)} with strides {list(strides)}"
