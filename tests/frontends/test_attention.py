"""Attention that is written out runs in the fused operator, and is as close to exact results as eager mode's."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.adapter import compiled
from torch import Tensor, nn

import tilewright

Function = Callable[..., Tensor]

ROWS, HEAD = 24, 16


def inputs(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]
    return [t.requires_grad_(grad) for t in made]


def wide(value: Any) -> Any:
    return value.detach().double().requires_grad_(value.requires_grad) if value.is_floating_point() else value


def results(f: Function, given: list[Tensor]) -> list[Tensor]:
    out = f(*given)
    sources = [t for t in given if t.requires_grad]
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(out.shape, generator=generator).to(out.dtype)
    return [out, *(torch.autograd.grad(out, sources, direction) if sources else ())]


def check(f: Function, given: list[Tensor], *, fused: bool = True) -> None:
    """Compare with eager mode, by the distance from results in f64, and tell by the operators whether it was fused."""
    torch.compiler.reset()
    tilewright.reset_compile_stats()
    found, eager, exact = results(compiled(f), given), results(f, given), results(f, [wide(t) for t in given])
    operators = tilewright.last_compile_stats()["extern"]
    assert any("scaled_dot_product" in name for name in operators) is fused
    assert not (fused and any("bmm" in name for name in operators))
    assert found[0].stride() == eager[0].stride()
    for a, b, c in zip(found, eager, exact, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a.isnan(), b.isnan())
        error, allowed = ((one.double() - c).nan_to_num().norm() for one in (a, b))
        assert error <= 1.05 * allowed + 1e-6 * c.nan_to_num().norm()


def products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * HEAD**-0.5, -1) @ v


def divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(HEAD)
    return torch.matmul(nn.Softmax(dim=-1)(scores), v)


def scaled_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q * HEAD**-0.5) @ k.mT).softmax(-1) @ v


def in_f32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = F.softmax(0.25 * torch.matmul(q, k.transpose(2, 3)), dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(F.dropout(weights, p=0.1, training=False), v)


def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    scores *= 0.25
    return scores.softmax(3) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.tril(torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool))
    return (q @ k.mT).masked_fill(~mask, float("-inf")).softmax(-1) @ v


def causal_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = torch.full((q.shape[-2], q.shape[-2]), float("-inf"), dtype=q.dtype).triu(1)
    return (q @ k.mT * 0.25 + bias).softmax(-1) @ v


def with_heads_apart(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2).reshape(2, ROWS, 2, HEAD).transpose(1, 2) for x in (q, k, v))
    return products(q, k, v).transpose(1, 2).reshape(2, ROWS, 2 * HEAD)


@pytest.mark.parametrize("f", [divided, scaled_query, in_f32, in_place, causal, causal_bias, with_heads_apart])
def test_written_out(f: Function) -> None:
    check(f, inputs(2, 2, ROWS, HEAD, grad=True))


def test_inference() -> None:
    check(products, inputs(2, 2, ROWS, HEAD))


@pytest.mark.parametrize(
    ("value", "keeps"),
    [(float("-inf"), False), (float("-inf"), True), (-1e9, True), (torch.finfo(torch.bfloat16).min, False)],
)
def test_masks_that_take_whole_rows(value: float, keeps: bool) -> None:
    def f(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = q @ k.mT * 0.25
        scores = torch.where(mask, scores, value) if keeps else scores.masked_fill(mask, value)
        return scores.softmax(-1) @ v

    mask = torch.rand(2, 1, ROWS, ROWS, generator=torch.Generator().manual_seed(3)) < 0.5
    mask[1, 0, 5] = not keeps
    check(f, [*inputs(2, 2, ROWS, HEAD, grad=True), mask])


def test_matrices_without_heads() -> None:
    def f(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.bmm(torch.bmm(q, k.mT).masked_fill(mask, float("-inf")).softmax(-1), v)

    mask = torch.arange(ROWS) > torch.tensor([ROWS, 5]).view(2, 1, 1)
    check(f, [*inputs(2, ROWS, HEAD, grad=True), mask])


def test_in_f32_where_it_is_faster() -> None:
    check(products, inputs(1, 1, 1024, HEAD, dtype=torch.float32))
    check(products, inputs(1, 1, 64, HEAD, dtype=torch.float32), fused=False)


def test_autocast() -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return products(q, k, v).float()

    given = inputs(2, 2, ROWS, HEAD, dtype=torch.float32, grad=True)
    found, eager = results(compiled(f), given), results(f, given)
    for a, b in zip(found, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def test_sizes_that_change() -> None:
    run = compiled(products, dynamic=True)
    for rows in (40, 72):
        given = inputs(2, 2, rows, HEAD)
        torch.testing.assert_close(run(*given), products(*given), rtol=2e-2, atol=2e-2)
    assert any("scaled_dot_product" in name for name in tilewright.last_compile_stats()["extern"])


def scores_needed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return scores.softmax(-1) @ v + scores.amax()


def value_written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    v = v * 2
    scores = q @ k.mT
    v.mul_(2)
    return scores.softmax(-1) @ v


def constant_written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = torch.full((q.shape[-2], q.shape[-2]), float("-inf"), dtype=q.dtype).triu(1)
    bias[0] = 1.0
    return (q @ k.mT + bias).softmax(-1) @ v


def bias_unknown(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT + v.mean()).softmax(-1) @ v


def other_dimension(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def negative(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * -1.0).softmax(-1) @ v


def filled_with_little(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(k.sum(-1, keepdim=True).mT > 0, -1.0).softmax(-1) @ v


@pytest.mark.parametrize(
    "f",
    [scores_needed, value_written, constant_written, bias_unknown, other_dimension, negative, filled_with_little],
)
def test_left_alone(f: Function) -> None:
    check(f, inputs(2, 2, ROWS, HEAD), fused=False)
