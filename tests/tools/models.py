"""Models for tests, and their training steps compiled with every stage written to a folder."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gpt.py"


def small_gpt(layers: int = 1) -> nn.Module:
    """Return the model of the examples, smaller: ids below 50, 16 of them, to logits."""
    name = "tilewright_example_gpt"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLE)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name].GPT(vocabulary=50, length=16, width=32, heads=2, layers=layers)


class Residual(nn.Module):
    """Two convolutions with batch norm beside a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        same = stride == 1 and channels == out
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Images `[batch, 3, height, width]` to logits; `(2, 2, 2, 2)` blocks of 64 channels and more are ResNet-18."""

    def __init__(self, blocks: tuple[int, ...] = (2, 2, 2, 2), channels: int = 64, classes: int = 1000) -> None:
        super().__init__()
        stem = nn.Conv2d(3, channels, 7, 2, 3, bias=False)
        layers: list[nn.Module] = [stem, nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        width = channels
        for stage, count in enumerate(blocks):
            for number in range(count):
                layers.append(Residual(width, channels << stage, 2 if stage and not number else 1))
                width = channels << stage
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(self.layers(x), 1).flatten(1))


def dump_training(loss: Callable[..., Tensor], inputs: tuple[Any, ...], folder: Path, **arguments: Any) -> list[Path]:
    """Compile `loss` and its gradient, compare with eager, and return the folders with the stages of the graphs."""
    torch._dynamo.reset()
    options: dict[str, Any] = {"dump": str(folder), "strict": True}
    found = torch.compile(loss, backend="tilewright", options=options, **arguments)(*inputs)
    found.backward()
    torch.testing.assert_close(found, loss(*inputs))
    return sorted(folder.iterdir())
