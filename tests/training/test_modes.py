"""Gradients where autograd is used in less common ways: modes, hooks, functions of one's own, partial gradients."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingParameterType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.training.conftest import Mlp, Trainer
from torch import Tensor, nn


def data(*shape: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(*(shape or (4, 16)), requires_grad=True)


def one_step(model: nn.Module, call: Any) -> list[Any]:
    return Trainer.step(model, call, data())


def test_gradients_accumulate(trainer: Trainer) -> None:
    def run(model: nn.Module, call: Any) -> list[Any]:
        outputs: list[Tensor] = []
        for scale in range(1, 4):
            output = call(data() * scale)
            output.pow(2).mean().backward()
            outputs.append(output.detach())
        return [*outputs, *(p.grad for p in model.parameters())]

    trainer.check(Mlp, run)


def test_a_graph_is_used_twice(trainer: Trainer) -> None:
    def run(model: nn.Module, call: Any) -> list[Any]:
        x = data()
        output = call(x)
        output.sum().backward(retain_graph=True)
        output.sum().backward()
        return [x.grad, *(p.grad for p in model.parameters())]

    trainer.check(Mlp, run)


def test_grad_modes_inside(trainer: Trainer) -> None:
    class Modes(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                constant = self.first(x).relu()
            output = super().forward(x)
            with torch.set_grad_enabled(False):
                weight = constant.mean()
                with torch.enable_grad():
                    output = output * weight
            return output + constant.sum()

    trainer.check(Modes, one_step)


def test_grad_modes_outside(trainer: Trainer) -> None:
    def run(model: nn.Module, call: Any) -> list[Any]:
        with torch.no_grad():
            first = call(data())
        trained = trainer.step(model, call, data())
        with torch.inference_mode():
            last = call(data()).clone()
        return [first, first.requires_grad, *trained, last, last.is_inference()]

    trainer.check(Mlp, run)


@pytest.mark.skipif(
    torch.__version__ < "2.12", reason="AOTAutograd of PyTorch 2.11 fails on parameters there, for any backend"
)
def test_inference_mode_inside(trainer: Trainer) -> None:
    class Inference(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            with torch.inference_mode():
                return super().forward(x)

    trainer.check(Inference, lambda model, call: call(data()))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x**3 * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * x * ctx.factor, None  # not the derivative, to see that it is used


def test_a_function_of_ones_own(trainer: Trainer) -> None:
    class Own(Mlp):
        def forward(self, x: Tensor) -> Any:
            return Cube.apply(super().forward(x), 2.0)

    trainer.check(Own, one_step)


def test_hooks(trainer: Trainer) -> None:
    class Hooked(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            hidden.register_hook(lambda grad: grad * 2)
            return self.second(hidden)

    def run(model: Hooked, call: Any) -> list[Any]:
        seen: list[Tensor] = []
        model.first.weight.register_hook(lambda grad: seen.append(grad.clone()))
        x = data()
        output = call(x)
        output.register_hook(lambda grad: grad * 3)
        output.sum().backward()
        return [x.grad, *seen]

    trainer.check(Hooked, run)  # type: ignore[arg-type]


def test_parameters_without_a_gradient(trainer: Trainer) -> None:
    class Unused(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(3, 3)
            self.frozen = nn.Parameter(torch.randn(16), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.frozen

    trainer.check(Unused, one_step)


def test_outputs_that_need_no_gradient_and_are_inputs(trainer: Trainer) -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5))

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return x * y + self.weight, y * 2, x, self.weight, (x > 0)

    def run(model: nn.Module, call: Any) -> list[Any]:
        x, y = data(4, 5), torch.rand(4, 5)
        outputs = call(x, y)
        (outputs[0].sum() + 2 * outputs[2].sum() + 3 * outputs[3].sum()).backward()
        return [
            *(o.detach() for o in outputs),
            *(o.requires_grad for o in outputs),
            x.grad,
            *(p.grad for p in model.parameters()),
        ]

    trainer.check(Several, run)


def test_second_derivatives_are_refused_as_elsewhere(trainer: Trainer) -> None:
    x = data()
    (grad,) = torch.autograd.grad(trainer.compiled(Mlp())(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        grad.sum().backward()


def test_tied_weights(trainer: Trainer) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 6)
            self.head = nn.Linear(6, 10, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embedding(tokens))

    def run(model: nn.Module, call: Any) -> list[Any]:
        logits = call(torch.tensor([[1, 2, 3], [2, 2, 9]]))
        F.cross_entropy(logits.flatten(0, 1), torch.tensor([0, 1, 2, 3, 4, -100])).backward()
        return [logits.detach(), *(p.grad for p in model.parameters())]

    trainer.check(Tied, run)


@pytest.mark.parametrize(
    "arguments", [{"padding_idx": 2}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=lambda a: next(iter(a))
)
def test_embeddings(trainer: Trainer, arguments: dict[str, Any]) -> None:
    def run(model: nn.Module, call: Any) -> list[Any]:
        output = call(torch.tensor([[1, 2, 3], [2, 2, 9]]))
        output.pow(2).sum().backward()
        return [output.detach(), *(p.detach() for p in model.parameters()), *(p.grad for p in model.parameters())]

    trainer.check(lambda: nn.Embedding(10, 6, **arguments), run)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"momentum": None}, {"track_running_stats": False}, {"affine": False}],
    ids=lambda a: next(iter(a), "plain"),
)
def test_batch_norm_in_both_modes(trainer: Trainer, arguments: dict[str, Any]) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.norm = nn.BatchNorm1d(6, **arguments)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.linear(x))

    def run(model: nn.Module, call: Any) -> list[Any]:
        outputs: list[Any] = []
        for training in (True, True, False, True):
            model.train(training)
            outputs += [t.clone() for t in trainer.step(model, call, data(5, 6)) if t is not None]
        return outputs

    trainer.check(Normed, run)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_strides_of_what_is_saved(trainer: Trainer, memory_format: torch.memory_format) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.second = nn.Conv2d(8, 4, 3, stride=2)

        def forward(self, x: Tensor) -> Tensor:
            hidden = F.relu(self.norm(self.first(x)))
            return self.second(hidden) * hidden.transpose(2, 3)[:, :4, :4, :4].exp()

    def run(model: nn.Module, call: Any) -> list[Any]:
        x = data(2, 3, 9, 9).detach().to(memory_format=memory_format).requires_grad_()
        return trainer.step(model, call, x)

    trainer.check(lambda: Net().to(memory_format=memory_format), run)  # pyright: ignore[reportCallIssue]


def test_sizes_that_change(trainer: Trainer) -> None:
    def run(model: nn.Module, call: Any) -> list[Any]:
        return [trainer.step(model, call, data(rows, 16)) for rows in (3, 5, 8, 5)]

    trainer.check(Mlp, run, dynamic=True)


def test_sparse_gradients_are_left_to_eager() -> None:
    model = nn.Embedding(10, 6, sparse=True)
    with pytest.warns(UserWarning, match="sparse_coo"):
        torch.compile(model, backend="tilewright", options={"strict": False})(torch.tensor([1, 2, 2])).sum().backward()
    assert model.weight.grad is not None
    torch.testing.assert_close(model.weight.grad.to_dense()[:4, 0], torch.tensor([0.0, 1.0, 2.0, 0.0]))
