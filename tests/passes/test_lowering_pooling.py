"""Pooling as loops, compared with eager in values, places and strides."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest
import torch
from tests.passes.lowering_checks import FLOATS, aten, calls, check, check_exactly, lowered, sample
from torch import Tensor

from tilewright.dialects.loop import ScanOp

pytestmark = pytest.mark.usefixtures("device")

Arguments: TypeAlias = tuple[list[int], list[int], list[int], list[int], bool]

FIXED_AND_SYMBOLIC = pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
WINDOWS: dict[str, Arguments] = {
    "overlapping": ([3, 3], [2, 2], [1, 1], [1, 1], False),
    "side by side": ([2], [], [0], [1], False),
    "with gaps": ([3, 2], [1, 2], [1, 1], [2, 1], True),
    "large": ([6], [2], [3], [1], True),
    "apart": ([2, 2], [3, 3], [0, 0], [1, 1], True),
}
"""Kernel, stride, padding, dilation, and whether the last window may begin late."""

INPUTS: dict[str, Tensor] = {
    "contiguous": sample(torch.float32, 2, 3, 13, 11),
    "channels last": sample(torch.float32, 2, 3, 13, 11).to(memory_format=torch.channels_last),
    "transposed": sample(torch.float32, 2, 3, 11, 13).transpose(2, 3),
    "one image": sample(torch.float32, 3, 13, 11),
    "no image": sample(torch.float32, 0, 3, 13, 11),
}


def like(x: Tensor) -> Tensor:
    """Return a gradient for `x`, laid out alike."""
    return torch.empty_like(x).copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))


@FIXED_AND_SYMBOLIC
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("windows", WINDOWS)
def test_max_pool(windows: str, name: str, dynamic: bool) -> None:
    if dynamic and name == "no image":
        return
    x, args = INPUTS[name], WINDOWS[windows]
    check_exactly(lambda x: aten.max_pool2d_with_indices(x, *args), x, dynamic=dynamic)
    y, places = aten.max_pool2d_with_indices(x, *args)
    check(lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *args, i), like(y), x, places, dynamic=dynamic)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("windows", WINDOWS)
def test_max_pool_of_nan_and_infinities(windows: str, memory_format: torch.memory_format) -> None:
    x = sample(torch.float32, 2, 3, 13, 11).contiguous(memory_format=memory_format)
    x[x > 5], x[x < -2] = float("nan"), float("-inf")
    check_exactly(lambda x: aten.max_pool2d_with_indices(x, *WINDOWS[windows])[0], x)

    def contiguous(x: Tensor) -> list[Tensor]:
        # CUDA's kernel for channels last has place 0 for windows of minus infinity, inside of them or not.
        return [
            y.contiguous(memory_format=memory_format)
            for y in aten.max_pool2d_with_indices(x.contiguous(), *WINDOWS[windows])
        ]

    if windows != "large":  # there the first of several NaN wins
        check_exactly(lambda x: aten.max_pool2d_with_indices(x, *WINDOWS[windows]), x, on_device=contiguous)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.int64], ids=str)
def test_max_pool_of_any_dtype(dtype: torch.dtype) -> None:
    x = sample(dtype, 2, 3, 9, 8)
    for args in WINDOWS.values():
        check_exactly(lambda x, args=args: aten.max_pool2d_with_indices(x, *args), x)


def test_max_pool_of_volumes() -> None:
    x = sample(torch.float32, 2, 3, 6, 7, 5)
    args: Any = ([2, 3, 2], [2, 2, 1], [1, 1, 0], [1, 1, 1], True)
    check_exactly(lambda x: aten.max_pool3d_with_indices(x, *args), x)
    y, places = aten.max_pool3d_with_indices(x, *args)
    check(lambda g, x, i: aten.max_pool3d_with_indices_backward(g, x, *args, i), like(y), x, places)


@FIXED_AND_SYMBOLIC
@pytest.mark.parametrize("name", ["contiguous", "channels last", "transposed", "one image"])
@pytest.mark.parametrize("windows", ["overlapping", "side by side", "large", "apart"])
@pytest.mark.parametrize(("whole", "divisor"), [(True, None), (False, None), (True, 7)])
def test_avg_pool(windows: str, name: str, whole: bool, divisor: int | None, dynamic: bool) -> None:
    x, (kernel, stride, padding, _, late) = INPUTS[name], WINDOWS[windows]
    args: Any = (kernel, stride, padding, late, whole, divisor)
    check(lambda x: aten.avg_pool2d(x, *args), x, dynamic=dynamic)

    def contiguous(g: Tensor, x: Tensor) -> Tensor:
        # CUDA's kernel for channels last forgets the padding (https://github.com/pytorch/pytorch/issues/188344).
        return torch.empty_like(x).copy_(aten.avg_pool2d_backward(g.contiguous(), x.contiguous(), *args))

    check(
        lambda g, x: aten.avg_pool2d_backward(g, x, *args),
        like(aten.avg_pool2d(x, *args)),
        x,
        dynamic=dynamic,
        on_device=contiguous if name == "channels last" else None,
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_means_of_any_dtype(dtype: torch.dtype) -> None:
    x = sample(dtype, 2, 3, 9, 8)
    check(lambda x: aten.avg_pool2d(x, [3, 3], [2, 2], [1, 1]), x)
    check(lambda x: aten._adaptive_avg_pool2d(x, [4, 3]), x)
    y = aten.avg_pool2d(x, [2, 2])
    check_exactly(lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], False, True, None), like(y), x)


def test_avg_pool_of_volumes_and_rows() -> None:
    x = sample(torch.float32, 2, 3, 6, 7, 5)
    args: Any = ([2, 3, 2], [2, 2, 1], [1, 1, 0], False, False, None)
    check(lambda x: aten.avg_pool3d(x, *args), x)
    check(lambda g, x: aten.avg_pool3d_backward(g, x, *args), like(aten.avg_pool3d(x, *args)), x)
    check(lambda x: aten.avg_pool1d(x, [3], [2], [1]), sample(torch.float32, 2, 3, 9))


@FIXED_AND_SYMBOLIC
@pytest.mark.parametrize("name", ["contiguous", "channels last", "transposed", "one image"])
@pytest.mark.parametrize("sizes", [[1, 1], [5, 5], [13, 4], [20, 3]], ids=str)
def test_adaptive_pools(sizes: list[int], name: str, dynamic: bool) -> None:
    x = INPUTS[name]
    check(lambda x: aten._adaptive_avg_pool2d(x, sizes), x, dynamic=dynamic)
    y = aten._adaptive_avg_pool2d(x, sizes)
    check(aten._adaptive_avg_pool2d_backward, like(y), x, dynamic=dynamic)
    check_exactly(lambda x: aten.adaptive_max_pool2d(x, sizes), x, dynamic=dynamic)
    y, places = aten.adaptive_max_pool2d(x, sizes)
    check(aten.adaptive_max_pool2d_backward, like(y), x, places, dynamic=dynamic)


def test_adaptive_pools_of_volumes() -> None:
    x = sample(torch.float32, 2, 3, 6, 7, 5)
    check(lambda x: aten._adaptive_avg_pool3d(x, [2, 3, 5]), x)
    check(aten._adaptive_avg_pool3d_backward, like(aten._adaptive_avg_pool3d(x, [2, 3, 5])), x)
    check_exactly(lambda x: aten.adaptive_max_pool3d(x, [2, 3, 5]), x)


def test_gradients_of_maxima_are_gathered_or_scattered() -> None:
    kernel: Any = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    for x, scans in ((INPUTS["contiguous"], 1), (INPUTS["channels last"], 0)):
        y, places = aten.max_pool2d_with_indices(x, *kernel)
        graph = lowered(lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *kernel, i), like(y), x, places)
        assert calls(graph.module) == []
        assert len([op for op in graph.module.walk() if isinstance(op, ScanOp)]) == scans
