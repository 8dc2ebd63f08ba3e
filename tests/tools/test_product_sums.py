"""Sums of matrix products, as the gradients of weights that are used again and again: values and memory."""

# torch.compile and Tensor.backward have partial types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tilewright

pytestmark = pytest.mark.usefixtures("on_device")


def _recurrence(x: Tensor, w: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        x = torch.tanh(x @ w)
    return x.sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_gradient_of_a_weight_that_is_used_in_each_step(dtype: torch.dtype, steps: int) -> None:
    x, w = torch.randn(5, 7, dtype=dtype), torch.randn(7, 7, dtype=dtype)
    compiled = torch.compile(_recurrence, backend="tilewright", options={"strict": True})
    for _ in range(2):
        mine, theirs = w.clone().requires_grad_(), w.clone().requires_grad_()
        compiled(x, mine, steps).backward()
        _recurrence(x, theirs, steps).backward()
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("batched", [False, True])
def test_products_add_in_place(batched: bool) -> None:
    def f(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> Tensor:
        return (x @ w + y @ w) + z @ w

    tilewright.reset_compile_stats()
    shape = (3, 4, 6) if batched else (4, 6)
    x, y, z = (torch.randn(shape) for _ in range(3))
    w = torch.randn((3, 6, 8) if batched else (6, 8))
    found = torch.compile(f, backend="tilewright", options={"strict": True})(x, y, z, w)
    torch.testing.assert_close(found, f(x, y, z, w))
    product, adding = ("bmm.default", "baddbmm.out") if batched else ("mm.default", "addmm.out")
    found_stats = tilewright.last_compile_stats()
    assert found_stats["extern"] == [f"aten.{adding}", f"aten.{product}"]
    assert found_stats["callbacks"] == 0
    assert found_stats["kernels"] == 0
