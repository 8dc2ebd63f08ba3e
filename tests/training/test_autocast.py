"""Autocast: 16-bit products, and what stays in f32, forward and backward."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.training.conftest import Mlp, Trainer
from torch import Tensor, nn

TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 2e-3}


def device_type() -> str:
    return torch.get_default_device().type


def data() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(4, 16, requires_grad=True)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_around_the_model(trainer: Trainer, dtype: torch.dtype) -> None:
    def run(model: nn.Module, call: Any) -> list[Any]:
        with torch.autocast(device_type(), dtype=dtype):
            return trainer.step(model, call, data())

    trainer.check(Mlp, run, tolerance=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("cache", [True, False])
def test_inside_the_model(trainer: Trainer, dtype: torch.dtype, cache: bool) -> None:
    class Cast(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast(device_type(), dtype=dtype, cache_enabled=cache):
                return super().forward(x) + super().forward(x * 2)

    trainer.check(Cast, lambda model, call: trainer.step(model, call, data()), tolerance=TOLERANCES[dtype])


def test_nested(trainer: Trainer) -> None:
    class Nested(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast(device_type(), dtype=torch.bfloat16):
                h = self.first(x)
                with torch.autocast(device_type(), enabled=False):
                    h = self.norm(h.float())
                with torch.autocast(device_type(), dtype=torch.float16):
                    h = F.gelu(h)
                return self.second(h).float().softmax(-1)

    trainer.check(Nested, lambda model, call: trainer.step(model, call, data()), tolerance=2e-2)


def test_scaled_gradients(trainer: Trainer) -> None:
    def run(model: nn.Module, call: Any) -> list[Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device_type(), init_scale=8.0)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast(device_type(), dtype=torch.bfloat16):
                loss = call(data()).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        return [p.detach() for p in model.parameters()]

    trainer.check(Mlp, run, tolerance=5e-3)
