"""Elements of a row computed where they are read, from what the row gives: the values are eager's."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests import adapter
from torch import Tensor
from torch.nn import functional as F

ROWS, CLASSES = 24, 300
INPUTS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]

pytestmark = pytest.mark.usefixtures("on_device")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def cross_entropy(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x, y)


def in_single(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), y, reduction="none")


def of_a_sum(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x + x.sum(0), y, reduction="sum")


def chosen_probability(x: Tensor, y: Tensor) -> Tensor:
    return x.softmax(-1).gather(1, y.clamp(min=0)[:, None])


def first_normed(x: Tensor, y: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[1:])[:, 0] * y


def written_later(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    chances = x.log_softmax(-1)
    x.mul_(2)
    return chances.gather(1, y.clamp(min=0)[:, None]), x.sum(0)


PROGRAMS = [cross_entropy, in_single, of_a_sum, chosen_probability, first_normed, written_later]


def given(dtype: torch.dtype, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = 3 * torch.randn(rows, CLASSES)
    y = torch.randint(0, CLASSES, (rows,))
    y[1] = -100
    return x.to(dtype), y


@pytest.mark.parametrize("dtype", INPUTS, ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_values(program: Callable[[Tensor, Tensor], object], dtype: torch.dtype) -> None:
    x, y = given(dtype)
    again = x.clone()
    torch.testing.assert_close(adapter.compiled(program)(x, y), program(again, y))
    torch.testing.assert_close(x, again)


def test_sizes_that_are_not_known() -> None:
    compiled = adapter.compiled(cross_entropy, dynamic=True)
    for rows in (5, 24, 77):
        x, y = given(torch.float32, rows)
        torch.testing.assert_close(compiled(x, y), cross_entropy(x, y))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_rows_that_are_not_finite(value: float) -> None:
    x, y = given(torch.float32)
    x[3, 7] = value
    x[5] = value
    torch.testing.assert_close(adapter.compiled(in_single)(x, y), in_single(x, y), equal_nan=True)


def test_gradient() -> None:
    x, y = given(torch.float32)
    grads: list[Tensor | None] = []
    for function in (cross_entropy, adapter.compiled(cross_entropy)):
        leaf = x.clone().requires_grad_()
        function(leaf, y).backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[1], grads[0])


def test_nothing_of_the_size_of_the_classes_is_allocated(tmp_path: Path) -> None:
    adapter.compiled(cross_entropy, dump=str(tmp_path), cache=None)(*given(torch.float32))
    (text,) = (path.read_text() for path in tmp_path.glob("*/*-merge-kernels.ir"))
    allocated = [line for line in text.splitlines() if "host.alloc" in line]
    assert allocated
    assert not any(str(CLASSES) in line for line in allocated)
