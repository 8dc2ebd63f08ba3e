"""How a compiled training step is compared with eager: from the same weights, on the same data."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
from tests.adapter import compiled
from torch import Tensor, nn

Run: TypeAlias = Callable[[nn.Module, Callable[..., Any]], Any]
"""Trains a model, given as a module and as what to call, and returns all that is to be compared."""


@pytest.fixture(autouse=True)
def fresh(fresh_compiler: None, on_device: None) -> None:
    """Each test here begins without compiled code, and follows `--device`."""


class Trainer:
    """Compiles with failures raised, so that nothing is left to eager unseen."""

    def compiled(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return compiled(function, **options)

    def check(self, make: Callable[[], nn.Module], run: Run, *, tolerance: float = 2e-4, **options: Any) -> None:
        """Assert that `run` gives the same of a model in eager mode and compiled: values, dtypes and strides."""
        results: list[Any] = []
        for is_compiled in (False, True):
            torch._dynamo.reset()
            torch.manual_seed(0)
            model = make()
            results.append(run(model, self.compiled(model, **options) if is_compiled else model))
        same(results[1], results[0], tolerance)

    @staticmethod
    def step(model: nn.Module, call: Callable[..., Any], *inputs: Tensor) -> list[Any]:
        """Return the output of one forward pass, all gradients of one backward pass, and the buffers after it."""
        output = call(*inputs)
        output.float().pow(2).mean().backward()
        gradients = [t.grad for t in (*model.parameters(), *inputs)]
        return [output.detach(), *gradients, *model.buffers()]


def same(found: Any, expected: Any, tolerance: float) -> None:
    """Assert that nested results agree."""
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            same(a, b, tolerance)
    elif isinstance(expected, Tensor):
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    else:
        assert found == expected


@pytest.fixture
def trainer() -> Trainer:
    return Trainer()


class Mlp(nn.Module):
    """Two linear layers with a norm and a GELU between them."""

    def __init__(self, features: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(features, 32)
        self.norm = nn.LayerNorm(32)
        self.second = nn.Linear(32, features)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.gelu(self.norm(self.first(x))))
