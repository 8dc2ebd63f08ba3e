"""Activation checkpointing: what the forward pass does not keep, the backward pass computes again."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.training.conftest import Mlp, Trainer
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)


def one_step(model: nn.Module, call: Any) -> list[Any]:
    torch.manual_seed(1)
    return Trainer.step(model, call, torch.randn(4, 16, requires_grad=True))


class Residual(nn.Module):
    """Blocks, each under a checkpoint with the given arguments, with dropout if `p` is not zero."""

    def __init__(self, p: float = 0.0, **arguments: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Mlp() for _ in range(3)])
        self.p = p
        self.arguments = arguments

    def block(self, number: int, x: Tensor) -> Tensor:
        y = self.blocks[number](x)
        return F.dropout(y, self.p) if self.p else y

    def forward(self, x: Tensor) -> Tensor:
        for number in range(len(self.blocks)):
            x = x + checkpoint(self.block, number, x, use_reentrant=False, **self.arguments)
        return x


def save_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    is_product = operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


def must_recompute(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_RECOMPUTE


@pytest.mark.parametrize("preserve", [True, False])
def test_blocks(trainer: Trainer, preserve: bool) -> None:
    trainer.check(lambda: Residual(preserve_rng_state=preserve), one_step)


def test_a_sequence(trainer: Trainer) -> None:
    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*(Mlp() for _ in range(4)))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint_sequential(self.blocks, 2, x, use_reentrant=False)

    trainer.check(Sequence, one_step)


@pytest.mark.parametrize("policy", [save_products, must_recompute])
def test_policies(trainer: Trainer, policy: Any) -> None:
    contexts = partial(create_selective_checkpoint_contexts, policy)
    trainer.check(lambda: Residual(context_fn=contexts), one_step)


def test_dropout_of_eager(trainer: Trainer) -> None:
    trainer.check(lambda: Residual(p=0.2), one_step, random="eager")


@pytest.mark.parametrize("policy", [None, save_products, must_recompute])
def test_dropout_agrees_in_both_passes(trainer: Trainer, policy: Any) -> None:
    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            arguments: dict[str, Any] = (
                {} if policy is None else {"context_fn": partial(create_selective_checkpoint_contexts, policy)}
            )
            return checkpoint(self.noise, x, use_reentrant=False, **arguments)

        def noise(self, x: Tensor) -> Tensor:
            return F.dropout(x.exp(), 0.5)

    x = torch.randn(40, 50, requires_grad=True)
    y = trainer.compiled(Noise())(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


def test_random_operators_of_aten(trainer: Trainer) -> None:
    def noise(x: Tensor) -> Tensor:
        return x * torch.poisson(torch.full_like(x, 3.0)) + F.dropout(x, 0.5)

    x = torch.randn(40, 50, requires_grad=True)
    y = trainer.compiled(lambda x: checkpoint(noise, x, use_reentrant=False))(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_a_compiled_block_inside_a_checkpoint_of_eager(trainer: Trainer) -> None:
    block = trainer.compiled(lambda z: F.dropout(z.exp(), 0.5))
    x = torch.randn(40, 50, requires_grad=True)
    y = checkpoint(block, x, use_reentrant=False)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
