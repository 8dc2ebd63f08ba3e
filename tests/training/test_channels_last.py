"""Convolutions that are given channels last: forward, backward, and what the caller sees."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.training.conftest import Trainer, same
from torch import Tensor, nn

from tilewright.backends.host.abi import native_target
from tilewright.passes.pipelines import PIPELINES
from tilewright.tools import torch_compile

EVERYWHERE = PIPELINES[f"cuda-{native_target().vector_bits}"].replace(
    "channels-last", "channels-last{devices=cpu,cuda}"
)


class Net(nn.Module):
    """Convolutions of every kind, and between them what follows their layout and what does not."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.grouped = nn.Conv2d(8, 16, 3, padding=1, groups=2)
        self.pointwise, self.groups = nn.Conv2d(16, 8, 1, bias=False), nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.gate, self.single = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 1, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        a = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        b = self.groups(self.pointwise(F.gelu(self.grouped(self.depthwise(a)))))
        c = self.up(torch.cat((F.dropout(a, 0.0), F.pad(b, (1, 0))[..., 1:]), 1))
        d = c * torch.sigmoid(self.gate(F.adaptive_avg_pool2d(c, 1)))
        return d, self.head(d.mean((2, 3))), self.single(d), d.permute(0, 2, 3, 1).reshape(-1, 8)


def _step(model: nn.Module, call: Callable[..., Any], x: Tensor) -> list[Any]:
    outputs = call(x)
    torch.stack([o.float().pow(2).mean() for o in outputs]).sum().backward()
    return [*(o.detach() for o in outputs), *(t.grad for t in (*model.parameters(), x)), *model.buffers()]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_training_step(trainer: Trainer, tmp_path: Path, dynamic: bool) -> None:
    def run(model: nn.Module, call: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(3, 3, 16, 20, generator=generator, device="cpu").to(torch.get_default_device())
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        return _step(model, call, x.requires_grad_())

    trainer.check(Net, run, pipeline=EVERYWHERE, dump=tmp_path)
    (text,) = (p.read_text() for p in tmp_path.glob("*-backward/*-channels-last.ir"))
    arguments = text[text.index("@forward(") : text.index(") -> (")]
    assert arguments.count("[160, 1, 40, 8]") >= 2  # saved as they are, for the pooling and the convolutions


def test_a_backward_graph_that_is_left_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its views were traced on contiguous tensors, and the forward graph saves others."""
    compile_graph = torch_compile._compile_graph

    def compile_forward(*args: Any, is_forward: bool) -> Any:
        if not is_forward:
            raise RuntimeError("no")
        return compile_graph(*args, is_forward=is_forward)

    monkeypatch.setattr(torch_compile, "_compile_graph", compile_forward)
    x, weight, head = (torch.randn(sizes, requires_grad=True) for sizes in ((2, 3, 5, 5), (4, 3, 3, 3), (36, 2)))

    def program(x: Tensor) -> Tensor:
        return torch.relu(F.conv2d(x, weight)).flatten(1) @ head

    expected = torch.autograd.grad(program(x).sum(), [x, weight, head])
    total = torch.compile(program, backend="tilewright", options={"pipeline": EVERYWHERE, "strict": False})(x).sum()
    with pytest.warns(UserWarning, match="backward: RuntimeError: no"):
        found = torch.autograd.grad(total, [x, weight, head])
    same(list(found), list(expected), 1e-4)


def test_what_the_caller_sees(trainer: Trainer) -> None:
    weight, volume = torch.randn(8, 4, 3, 3), torch.randn(8, 2, 3, 3, 3)
    single = torch.randn(8, 1, 3, 3)
    images = [torch.randn(n, 4, 6, 5) for n in (1, 3)]
    images += [images[1].to(memory_format=torch.channels_last), images[1].transpose(2, 3)]

    def program(*images: Tensor) -> list[Tensor]:
        results = [F.conv2d(F.conv2d(x, weight, padding=1)[:, ::2], weight) for x in images]
        frames = images[0].reshape(1, 2, 2, 6, 5).repeat(1, 1, 2, 1, 1)
        return [*results, F.conv3d(frames, volume), F.conv2d(images[1][:, :1], single)]

    with torch.no_grad():
        found = trainer.compiled(program, pipeline=EVERYWHERE)(*images)
        same(found, program(*images), 1e-4)
