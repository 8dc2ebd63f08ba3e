"""What a host program printed as Python calls, and what callbacks from a native one share with it."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from tilewright.backends.host.torch_internals import is_view
from tilewright.dialects.cpu_errors import exception_of


class Shape(NamedTuple):
    """What a program is compiled to expect of a tensor."""

    dtype: torch.dtype
    sizes: Sequence[int]
    strides: Sequence[int]

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.sizes)} with strides {list(self.strides)}"

    def fits(self, tensor: Tensor) -> bool:
        """Whether a tensor has the dtype, the sizes and, wherever it matters, the strides."""
        if tensor.dtype != self.dtype or tuple(tensor.shape) != tuple(self.sizes):
            return False
        if 0 in self.sizes:
            return True
        return all(n == 1 or a == b for n, a, b in zip(self.sizes, self.strides, tensor.stride(), strict=True))


def shape_of(tensor: Tensor) -> Shape:
    """Return what a tensor is."""
    return Shape(tensor.dtype, tensor.shape, tensor.stride())


def view(base: Tensor, shape: Shape, byte_offset: int) -> Tensor:
    """See the storage of `base` through another layout that begins `byte_offset` bytes after its first element."""
    start = int(base.storage_offset()) * base.element_size() + byte_offset
    result = torch.empty((0,), dtype=shape.dtype, device=base.device)
    return result.set_(base.untyped_storage(), start // shape.dtype.itemsize, shape.sizes, shape.strides)


def conform(result: object, operator: str, shape: Shape) -> Tensor:
    """Return an operator's result with the strides that the program was compiled for, copied if it has others.

    Raises RuntimeError if it is no tensor, has another dtype or size, or has other strides but is a view.
    """
    if not isinstance(result, Tensor):
        raise RuntimeError(f"`{operator}` was traced to give {shape}, gave {type(result).__name__}")
    if shape.fits(result):
        return result
    if result.dtype != shape.dtype or tuple(result.shape) != tuple(shape.sizes) or is_view(result):
        raise RuntimeError(f"`{operator}` was traced to give {shape}, gave {shape_of(result)}")
    return torch.empty_strided(shape.sizes, shape.strides, dtype=shape.dtype, device=result.device).copy_(result)


@contextmanager
def on_device(device: str) -> Generator[None]:
    """Make a CUDA device the current one; a program is decorated with this."""
    with torch.cuda.device(device):
        yield


def current_stream(device: str) -> int:
    """Return the handle of the stream on which a CUDA device now runs what it is given."""
    return torch.cuda.current_stream(device).cuda_stream


def check_input(tensor: Tensor, number: int, shape: Shape, device: torch.device) -> None:
    """Raise ValueError unless an input is what the program was compiled for."""
    elsewhere = tensor.device.type != device.type or device.index not in (None, tensor.device.index)
    if elsewhere or not shape.fits(tensor):
        raise input_error(tensor, number, shape, device)


def check_rank(tensor: Tensor, number: int, rank: int) -> None:
    """Raise ValueError unless an input has as many dimensions as the program was compiled for."""
    if tensor.dim() != rank:
        raise rank_error(tensor, number, rank)


def check_kernel(status: int, errors: tuple[str, ...]) -> None:
    """Raise the exception that the status of a kernel stands for, if it is not 0."""
    if status:
        raise exception_of(errors, status)


def rank_error(tensor: Tensor, number: int, rank: int) -> ValueError:
    """Return the exception for an input that has more or fewer dimensions."""
    return ValueError(f"expected input {number} to have {rank} dimensions, found {shape_of(tensor)}")


def input_error(tensor: Tensor, number: int, shape: Shape, device: torch.device) -> ValueError:
    """Return the exception for an input that is not what the program was compiled for."""
    return ValueError(f"expected input {number} to be {shape} on {device}, found {shape_of(tensor)} on {tensor.device}")
