"""Padding by what is inside, columns of images, and embedding bags as loops, compared with eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.passes.lowering_checks import FLOATS, aten, calls, check, check_exactly, lowered, sample
from torch import Tensor

pytestmark = pytest.mark.usefixtures("device")

FIXED_AND_SYMBOLIC = pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
PADDED: dict[str, tuple[Tensor, list[int]]] = {
    "rows": (sample(torch.float32, 2, 3, 9), [2, 3]),
    "images": (sample(torch.float32, 2, 3, 9, 7), [2, 3, 1, 4]),
    "one image": (sample(torch.float32, 3, 9, 7), [2, 3, 0, 4]),
    "channels last": (sample(torch.float32, 2, 3, 9, 7).to(memory_format=torch.channels_last), [1, 1, 1, 1]),
    "volumes": (sample(torch.float32, 2, 3, 9, 7, 5), [1, 2, 3, 2, 4, 4]),
    "cropped": (sample(torch.float32, 2, 3, 9, 7), [-1, 3, 2, -2]),
}


@FIXED_AND_SYMBOLIC
@pytest.mark.parametrize("how", ["reflection", "replication"])
@pytest.mark.parametrize("name", PADDED)
def test_padding_by_what_is_inside(name: str, how: str, dynamic: bool) -> None:
    x, widths = PADDED[name]
    rank = len(widths) // 2
    pad, backward = getattr(aten, f"{how}_pad{rank}d"), getattr(aten, f"{how}_pad{rank}d_backward")
    if name == "channels last" and torch.__version__ < "2.12":
        pytest.skip("PyTorch 2.11 traces other strides than eager gives")
    check_exactly(lambda x: pad(x, widths), x, dynamic=dynamic)
    if name == "channels last":
        return  # torch traces other strides for this gradient than eager gives
    grad = torch.empty_like(pad(x, widths)).copy_(torch.randn(pad(x, widths).shape))
    check(lambda g, x: backward(g, x, widths), grad, x, dynamic=dynamic)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64], ids=str)
def test_padding_of_any_dtype(dtype: torch.dtype) -> None:
    check_exactly(lambda x: aten.reflection_pad2d(x, [2, 1, 1, 2]), sample(dtype, 2, 3, 4, 5))
    check_exactly(lambda x: aten.replication_pad2d(x, [2, 1, 1, 2]), sample(dtype, 2, 3, 4, 5))


COLUMNS: list[Any] = [
    ([3, 3], [1, 1], [0, 0], [1, 1]),
    ([2, 3], [2, 1], [1, 2], [1, 2]),
    ([2, 2], [1, 1], [0, 0], [2, 2]),
]
"""Kernel, dilation, padding and stride."""


@FIXED_AND_SYMBOLIC
@pytest.mark.parametrize("windows", COLUMNS, ids=str)
def test_columns_of_images(windows: Any, dynamic: bool) -> None:
    x = sample(torch.float32, 2, 3, 9, 7)
    check_exactly(lambda x: aten.im2col(x, *windows), x, dynamic=dynamic)
    check_exactly(lambda x: aten.im2col(x, *windows), x[0], dynamic=dynamic)
    columns = aten.im2col(x, *windows)
    check(lambda c: aten.col2im(c, [9, 7], *windows), columns, dynamic=dynamic)
    check(lambda c: aten.col2im(c, [9, 7], *windows), columns[0].double(), dynamic=dynamic)


@FIXED_AND_SYMBOLIC
@pytest.mark.parametrize("mode", [0, 1], ids=["sum", "mean"])
def test_bags(mode: int, dynamic: bool) -> None:
    table, positions = sample(torch.float32, 11, 6), torch.randint(0, 11, (20,))
    starts, ends = torch.tensor([0, 3, 3, 9, 15]), torch.tensor([0, 3, 3, 9, 15, 20])
    check(lambda w, i, o: aten._embedding_bag(w, i, o, False, mode)[0], table, positions, starts, dynamic=dynamic)
    check(
        lambda w, i, o: aten._embedding_bag_forward_only(w, i, o, False, mode, False, None, True)[0],
        table.double(),
        positions,
        ends,
        dynamic=dynamic,
    )


def test_bags_with_factors() -> None:
    args = sample(torch.float32, 11, 6), torch.randint(0, 11, (20,)), torch.tensor([0, 3, 3, 9]), torch.randn(20)
    check(lambda w, i, o, f: aten._embedding_bag(w, i, o, False, 0, False, f)[0], *args)


def test_bags_with_a_gradient_stay_a_call() -> None:
    args = sample(torch.float32, 11, 6), torch.randint(0, 11, (20,)), torch.tensor([0, 3, 3, 9])
    graph = lowered(lambda w, i, o: aten._embedding_bag(w, i, o)[:3], *args)
    assert calls(graph.module) == ["aten._embedding_bag.default"]
