"""The backend where programs are not alone: threads, re-entry, recompilation, hooks, copies, worker processes."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset

import tilewright
from tilewright.backends.llvm import runtime


@pytest.fixture(autouse=True)
def nothing_is_left_to_eager(fresh_compiler: None) -> Iterator[None]:
    yield
    assert tilewright.last_compile_stats()["fallbacks"] == 0


def compiled(function: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="tilewright", options={"strict": True}, **arguments)


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 7), nn.GELU(), nn.LayerNorm(7))


def in_threads(work: Callable[[int], object], count: int) -> None:
    """Call `work` in threads that start together. Raises what one of them raises, or TimeoutError for a deadlock."""
    barrier = threading.Barrier(count)

    def start(number: int) -> None:
        barrier.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(start, i) for i in range(count)]:
            future.result(timeout=300)


needs_threads = pytest.mark.skipif(
    torch.__version__ < "2.12", reason="Dynamo of PyTorch 2.11 crashes in several threads, with any backend"
)


@pytest.mark.slow
@needs_threads
def test_models_are_compiled_and_trained_in_several_threads() -> None:
    models = [block(5 + i) for i in range(4)]
    compiled(torch.sin)  # torch's registry of backends is not made for two threads that ask for one at the same time

    def work(number: int) -> None:
        model, fast = models[number], compiled(models[number])
        for rows in (2, 3, 4):
            x = torch.randn(rows, 5 + number)
            y = fast(x)
            assert_close(y, model(x))
            y.sum().backward()

    in_threads(work, 4)


@needs_threads
def test_first_calls_of_one_model_in_several_threads() -> None:
    model = block(5)
    fast = compiled(model)

    def work(number: int) -> None:
        x = torch.randn(3, 5)
        y = fast(x)
        assert_close(y, model(x))
        y.sum().backward()

    in_threads(work, 4)


def test_programs_call_programs() -> None:
    inner = compiled(lambda x: torch.softmax(x, -1) + 1)

    @torch.library.custom_op("tilewright_test::inner", mutates_args=())
    def operator(x: Tensor) -> Tensor:
        return inner(x)

    operator.register_fake(torch.empty_like)

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return compiled(torch.sin)(x)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grads[0] * compiled(torch.cos)(x)

    x = torch.randn(3, 4, requires_grad=True)
    with torch.no_grad():
        outer = compiled(lambda x: operator(x * 2) * 3)
        assert_close(outer(x), (torch.softmax(x * 2, -1) + 1) * 3)
    y = compiled(lambda x: Sine.apply(x) * 2)(x)
    y.sum().backward()
    assert_close(y, torch.sin(x) * 2)
    assert_close(x.grad, torch.cos(x.detach()) * 2)
    first = compiled(lambda x: torch.sin(x) * 1)
    assert_close(compiled(lambda x: first(x) + first(x * 2))(x), torch.sin(x) + torch.sin(x * 2))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), LookupError("no"), MemoryError()])
def test_what_a_call_back_raises_passes_through(error: BaseException) -> None:
    raised: list[BaseException] = []

    @torch.library.custom_op("tilewright_test::raises", mutates_args=())
    def operator(x: Tensor) -> Tensor:
        if raised:
            raise raised[0]
        return x + 1

    operator.register_fake(torch.empty_like)
    fast = compiled(lambda x: operator(torch.exp(x) @ x) * 3)
    x = torch.rand(64, 64)
    expected = fast(x)
    raised.append(error)
    for _ in range(3):
        with pytest.raises(type(error)) as caught:
            fast(x)
        assert caught.value is error
    raised.clear()
    assert torch.equal(fast(x), expected)


def test_recompilation() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.softmax(x * 2, -1)

    fast = compiled(f)
    inputs = [
        torch.randn(3, 4),
        torch.randn(5, 4),
        torch.randn(6, 7).double(),
        torch.randn(4, 3).t(),
        torch.randn(0, 4),
    ]
    for x in [*inputs, torch.randn(3, 4, requires_grad=True)]:
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with mode():
                found, expected = fast(x), f(x)
                assert_close(found, expected)
                assert found.requires_grad == expected.requires_grad


def test_inputs_made_in_inference_mode() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        x.add_(1)
        return torch.relu(x @ w)

    fast = compiled(f)
    with torch.inference_mode():
        x, w = torch.randn(3, 4), torch.randn(4, 4)
        ours, expected = x.clone(), x.clone()
        assert_close(fast(ours, w), f(expected, w))
        assert_close(ours, expected)
    ours, expected = torch.ones(3, 4), torch.ones(3, 4)
    assert_close(fast(ours, w), f(expected, w))
    assert_close(ours, expected)


def test_module_and_tensor_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    calls: list[str] = []
    model[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model[0].register_forward_hook(lambda module, args, output: calls.append("forward") or output * 2)
    model[1].register_full_backward_hook(lambda module, grads, outputs: calls.append("backward"))
    fast, x = compiled(model), torch.randn(3, 4, requires_grad=True)
    gradients: list[Any] = []
    for run in (model, fast):
        x.grad = None
        y = run(x)
        y.register_hook(lambda grad: grad * 3)
        y.sum().backward()
        gradients.append(x.grad)
    assert calls == ["forward", "backward"] * 2
    assert_close(*gradients)

    def add_one(module: nn.Module, args: Any, output: Any) -> Any:
        return output + 1

    model[0].register_forward_hook(add_one)
    assert_close(fast(x), model(x))


def test_transforms() -> None:
    def f(x: Tensor) -> Tensor:
        return (torch.sin(x) * x).sum()

    x = torch.randn(3, 4)
    assert_close(compiled(lambda x: torch.func.grad(f)(x) + 1)(x), torch.func.grad(f)(x) + 1)
    assert_close(compiled(lambda x: torch.vmap(f)(x) + 1)(x), torch.vmap(f)(x) + 1)
    assert_close(torch.func.grad(compiled(f))(x), torch.func.grad(f)(x))


def test_copies_and_files() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.count = nn.Buffer(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)
            return self.linear(x) + self.count

    linear = nn.Linear(4, 4)
    model = nn.Sequential(linear, nn.BatchNorm1d(4)).eval()
    model.compile(backend="tilewright", options={"strict": True})
    x = torch.randn(5, 4)
    expected = model(x)
    assert_close(copy.deepcopy(model)(x), expected)
    assert_close(pickle.loads(pickle.dumps(model))(x), expected)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    with torch.no_grad():
        linear.weight.zero_()
    assert not torch.equal(model(x), expected)
    file.seek(0)
    model.load_state_dict(torch.load(file))
    assert_close(model(x), expected)

    fast: Any = compiled(Model())
    fast(x)
    other = copy.deepcopy(fast)
    fast(x)
    assert (fast.count, other.count) == (2, 1)
    assert_close(other(x), fast(x) - 1)


class Items(Dataset[Tensor]):
    """Items that a compiled function makes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return self.function(torch.full((300, 1000), float(index)))


@pytest.mark.slow
def test_worker_processes_that_are_forked() -> None:
    def f(x: Tensor) -> Tensor:
        return x.softmax(-1) + x

    fast = compiled(f)
    items = Items(fast)
    expected = [items[i] for i in range(4)]
    loaded = list(DataLoader(items, batch_size=1, num_workers=2, multiprocessing_context="fork", timeout=120))
    assert_close(torch.cat(loaded), torch.stack(expected))


def test_tensors_without_data() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.layer_norm(x @ w, (4,))
        y[0].mul_(2)
        return torch.softmax(y, -1).t().contiguous(), torch.cat([y, y])[1:]

    x, w = torch.randn(3, 4, device="meta", requires_grad=True), torch.randn(4, 4, device="meta")
    for found, expected in zip(compiled(f)(x, w), f(x, w), strict=True):
        assert (found.shape, found.stride(), found.device) == (expected.shape, expected.stride(), expected.device)
    torch.stack([y.sum() for y in compiled(f)(x, w)]).sum().backward()
    assert x.grad is not None
    assert x.grad.device.type == "meta"


def test_code_is_released_with_its_last_user() -> None:
    gc.collect()
    before = len(runtime._loaded)
    fast = compiled(lambda x: torch.softmax(x * 1.25, -1))
    fast(torch.randn(4, 5, requires_grad=True)).sum().backward()
    assert len(runtime._loaded) > before
    del fast
    torch._dynamo.reset()
    gc.collect()
    assert len(runtime._loaded) == before
