"""Compiled steps of the optimizers of `torch.optim`."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.training.conftest import Mlp, Trainer, same
from torch import Tensor, nn, optim

import tilewright

SHAPES = [(7, 5), (5,), (64, 17), (3, 1, 2), (1,)]

STEPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "sgd, one by one": (optim.SGD, {"foreach": False}),
    "adam": (optim.Adam, {}),
    "adam, amsgrad": (optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "adam, capturable": (optim.Adam, {"lr": torch.tensor(0.1), "maximize": True}),
    "adamw": (optim.AdamW, {"foreach": True}),
    "adamax": (optim.Adamax, {}),
    "adagrad": (optim.Adagrad, {}),
    "adadelta": (optim.Adadelta, {}),
    "asgd": (optim.ASGD, {}),
    "nadam": (optim.NAdam, {}),
    "radam": (optim.RAdam, {}),
    "rmsprop": (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "rprop": (optim.Rprop, {}),
}


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def on_device_of(values: Sequence[Tensor], argument: Any) -> Any:
    """Return an argument for the optimizer, a copy if it is a tensor."""
    return argument.to(values[0].device, copy=True) if isinstance(argument, Tensor) else argument


def run_steps(values: Sequence[Tensor], step: Callable[[], Any], count: int = 3) -> None:
    torch.manual_seed(1)
    for _ in range(count):
        for value in values:
            value.grad = torch.randn(value.shape)
        step()


@pytest.mark.parametrize("name", STEPS)
def test_steps(trainer: Trainer, name: str) -> None:
    kind, arguments = STEPS[name]
    results: list[list[Tensor]] = []
    for is_compiled in (False, True):
        values = parameters()
        optimizer = kind(values, **{"lr": 0.1, **{n: on_device_of(values, a) for n, a in arguments.items()}})
        run_steps(values, trainer.compiled(optimizer.step) if is_compiled else optimizer.step)
        results.append([v.detach() for v in values])
    assert tilewright.last_compile_stats()["extern"] == []
    same(results[1], results[0], 1e-5)


@pytest.mark.parametrize("kind", [optim.Adam, optim.SGD])
def test_one_kernel_for_parameters_of_many_sizes(trainer: Trainer, device: torch.device | None, kind: Any) -> None:
    values = [nn.Parameter(torch.randn(rows, 3 + rows % 4)) for rows in range(4, 24)]
    run_steps(values, trainer.compiled(kind(values, lr=0.1).step), count=1)
    stats = tilewright.last_compile_stats()
    assert stats["graphs"] == 1
    # On CUDA one launch is for all parameters whose lengths are multiples of 16, and one for the others.
    assert stats["kernels"] == (1 if device is None else 2)
    assert stats["bytes_planned"] == 0


def test_a_schedule_does_not_compile_again(trainer: Trainer) -> None:
    results: list[list[Tensor]] = []
    for is_compiled in (False, True):
        values = parameters()
        optimizer = optim.Adam(values, lr=torch.tensor(0.1))
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        step = trainer.compiled(optimizer.step) if is_compiled else optimizer.step

        def both(step: Callable[[], Any] = step, schedule: Any = schedule) -> None:
            step()
            schedule.step()

        run_steps(values, both, count=4)
        results.append([v.detach() for v in values])
    same(results[1], results[0], 1e-5)
    assert tilewright.last_compile_stats()["graphs"] == 1


def test_clipping(trainer: Trainer) -> None:
    results: list[list[Any]] = []
    for is_compiled in (False, True):
        values = parameters()
        run_steps(values, lambda: None, count=1)

        def clip(values: list[nn.Parameter] = values) -> Tensor:
            return nn.utils.clip_grad_norm_(values, 0.1)

        norm = (trainer.compiled(clip) if is_compiled else clip)()
        results.append([norm, *(v.grad for v in values)])
    same(results[1], results[0], 1e-5)


def test_a_whole_step(trainer: Trainer) -> None:
    results: list[list[Tensor]] = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = Mlp()
        optimizer = optim.AdamW(model.parameters(), lr=0.01)

        def step(x: Tensor, y: Tensor, model: nn.Module = model, optimizer: optim.Optimizer = optimizer) -> Tensor:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run = trainer.compiled(step) if is_compiled else step
        losses = [run(torch.randn(4, 16), torch.randn(4, 16)) for _ in range(3)]
        results.append([*losses, *(p.detach() for p in model.parameters())])
    same(results[1], results[0], 1e-4)
