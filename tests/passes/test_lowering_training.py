"""Norms with their gradients, and the gradients of losses, as loops, compared with eager."""

# torch's own annotations are incomplete.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.passes.lowering_checks import FLOATS, HALVES, assert_close, aten, call_outputs, calls, lowered_call, sample
from torch import Tensor

from tilewright.backends.reference.interpreter import run_function

pytestmark = pytest.mark.usefixtures("device")

MASKS = ((True, True, True), (True, False, False), (False, True, True), (False, False, True), (False, True, False))
KINDS = (*((dtype, dtype) for dtype in FLOATS), (torch.bfloat16, torch.float32), (torch.float16, torch.float32))
"""Dtypes of operand and parameters."""


def _close(operator: Any, *args: Any) -> None:
    """Assert that an operator is about as close to the exact results as eager is: the order of a sum is free."""

    def exact(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    pairs = call_outputs(operator, *args)
    expected = [t for t in operator(*map(exact, args)) if t is not None]
    for (result, eager), truth in zip(pairs, expected, strict=True):
        assert (result.shape, result.stride()) == (eager.shape, eager.stride())
        step = torch.finfo(result.dtype).eps * truth.abs().max().item()
        error, bound = ((t.double() - truth.to(t.device)).abs().max().item() for t in (result, eager))
        assert error <= 1.5 * bound + 2 * step


def _statistics(dtype: torch.dtype, *shape: int) -> tuple[Tensor, Tensor]:
    return sample(dtype, *shape, scale=0.5), sample(dtype, *shape, scale=0.1).abs() + 0.5


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("rows", [3, 8], ids=lambda rows: f"{rows} rows")
def test_gradients_of_layer_norm(
    kind: tuple[torch.dtype, torch.dtype], affine: bool, mask: Sequence[bool], rows: int
) -> None:
    """Of 8 rows blocks are made, of 3 not."""
    dtype, parameters = kind
    if not affine and any(mask[1:]):
        return
    x, grad = sample(dtype, 5, rows, 7, 2), sample(dtype, 5, rows, 7, 2).flip(0) * 0.25
    weight, bias = (sample(parameters, 7, 2), sample(parameters, 7, 2)) if affine else (None, None)
    _, mean, rstd = aten.native_layer_norm(x, [7, 2], weight, bias, 1e-5)
    _close(aten.native_layer_norm_backward.default, grad, x, [7, 2], mean, rstd, weight, bias, list(mask))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(5, 33), (2, 24, 7)], ids=str)
def test_gradients_of_rms_norm(affine: bool, shape: tuple[int, ...]) -> None:
    """Eager has no such kernel on the CPU, where autograd differentiates the formula instead."""
    x, grad = sample(torch.float64, *shape).requires_grad_(), sample(torch.float64, *shape).flip(0)
    weight = sample(torch.float64, shape[-1]).requires_grad_() if affine else None
    rstd = (x * x).mean(-1, keepdim=True).add(1e-5).rsqrt()
    y = x * rstd if weight is None else x * rstd * weight
    expected = torch.autograd.grad(y, [x] if weight is None else [x, weight], grad)
    args = (grad, x.detach(), [shape[-1]], rstd.detach(), None if weight is None else weight.detach(), [True, affine])
    graph = lowered_call(aten._fused_rms_norm_backward.default, *args)
    assert calls(graph.module) == []
    results = run_function(graph.module, [a for a in args if isinstance(a, Tensor)])
    for result, gradient in zip(results, expected, strict=False):
        torch.testing.assert_close(result, gradient)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(6, 5), (3, 5, 7), (2, 5, 3, 4)], ids=str)
@pytest.mark.parametrize("channels_last", [True, False])
def test_batch_norm(
    kind: tuple[torch.dtype, torch.dtype], affine: bool, shape: tuple[int, ...], channels_last: bool
) -> None:
    dtype, parameters = kind
    x = sample(dtype, *shape)
    if channels_last:
        if len(shape) != 4:
            return
        x = x.to(memory_format=torch.channels_last)
    weight, bias = (sample(parameters, 5), sample(parameters, 5).flip(0)) if affine else (None, None)
    mean, variance = _statistics(parameters, 5)
    _close(aten._native_batch_norm_legit_functional.default, x, weight, bias, mean, variance, True, 0.1, 1e-5)
    _close(aten._native_batch_norm_legit.no_stats, x, weight, bias, True, 0.1, 1e-5)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_gradients_of_batch_norm(
    kind: tuple[torch.dtype, torch.dtype], affine: bool, train: bool, mask: Sequence[bool]
) -> None:
    dtype, parameters = kind
    if not affine and (any(mask[1:]) or (dtype in HALVES and (train or parameters is dtype))):
        return  # eager takes statistics in f32 then, and refuses some of them
    x, grad = sample(dtype, 2, 5, 3, 4), sample(dtype, 2, 5, 3, 4).flip(0) * 0.25
    weight, bias = (sample(parameters, 5), sample(parameters, 5)) if affine else (None, None)
    mean, variance = _statistics(parameters, 5)
    running = (mean, variance)
    _, saved_mean, saved_inverse = aten._native_batch_norm_legit.no_stats(x, weight, bias, True, 0.1, 1e-5)
    saved = (saved_mean, saved_inverse) if train else (torch.empty(0, dtype=parameters),) * 2
    operator = aten.native_batch_norm_backward.default
    _close(operator, grad, x, weight, *running, *saved, train, 1e-5, list(mask))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_group_norm(kind: tuple[torch.dtype, torch.dtype], affine: bool, mask: Sequence[bool]) -> None:
    dtype, parameters = kind
    x, grad = sample(dtype, 2, 6, 3, 5), sample(dtype, 2, 6, 3, 5).flip(0) * 0.25
    weight, bias = (sample(parameters, 6), sample(parameters, 6).flip(0)) if affine else (None, None)
    _close(aten.native_group_norm.default, x, weight, bias, 2, 6, 15, 3, 1e-5)
    if not affine and any(mask[1:]):
        return
    _, mean, rstd = aten.native_group_norm(x, weight, bias, 2, 6, 15, 3, 1e-5)
    _close(aten.native_group_norm_backward.default, grad, x, mean, rstd, weight, 2, 6, 15, 3, list(mask))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("shape", [(6, 5), (5,), (2, 5, 3, 4)], ids=str)
def test_gradient_of_nll_loss(dtype: torch.dtype, weighted: bool, reduction: int, shape: tuple[int, ...]) -> None:
    if dtype is torch.float16 and len(shape) == 4:
        return  # eager has no kernel
    x = sample(dtype, *shape)
    weight = sample(dtype, 5).abs() if weighted else None
    target = torch.arange(x.numel() // 5).reshape(shape[:1] + shape[2:] if len(shape) > 1 else ()) % 5
    target = torch.where(target == 3, -100, target)
    name = "nll_loss2d" if len(shape) == 4 else "nll_loss"
    loss, total = getattr(aten, f"{name}_forward")(x, target, weight, reduction, -100)
    grad = sample(dtype, *loss.shape)
    operator = getattr(aten, f"{name}_backward").default
    assert_close(call_outputs(operator, grad, x, target, weight, reduction, -100, total), rtol=0, atol=0)
