"""Random numbers in compiled programs: reproducible, independent, and the same for whoever computes them."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.adapter import compiled
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tilewright
from tilewright.frontends.random_operators import RANDOM
from tilewright.tools.exported import compile_exported

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.mark.usefixtures("on_device")
def test_the_seed_decides() -> None:
    f = compiled(lambda x: (F.dropout(x, 0.5), torch.rand_like(x)))
    x = torch.ones(1000)
    first, second = f(x), f(x)
    torch.manual_seed(0)
    again = f(x)
    for a, b, c in zip(first, second, again, strict=True):
        assert torch.equal(a, c)
        assert not torch.equal(a, b)


def test_nothing_is_called_but_the_seed() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        drawn = (torch.rand(3, 5), torch.randn_like(x), torch.randint(7, (9,)), torch.bernoulli(x.sigmoid()))
        filled = (x.clone().uniform_(2, 3), x.clone().normal_(1, 2), x.clone().exponential_(2.0))
        return (F.dropout(x, 0.3), F.alpha_dropout(x, 0.3, True), *drawn, *filled)

    compiled(f)(torch.randn(4, 6))
    assert tilewright.last_compile_stats()["extern"] == ["aten.randint.low"]


def moments(numbers: Tensor) -> tuple[float, float, float]:
    """Return mean, variance, and the correlation of neighbours."""
    x = numbers.double().flatten()
    centred = x - x.mean()
    return float(x.mean()), float(x.var()), float((centred[1:] * centred[:-1]).mean() / x.var())


STATISTICS: dict[str, tuple[Callable[[], Tensor], float, float]] = {
    "rand": (lambda: torch.rand(400, 500), 0.5, 1 / 12),
    "rand f64": (lambda: torch.rand(400, 500, dtype=torch.float64), 0.5, 1 / 12),
    "rand bf16": (lambda: torch.rand(400, 500, dtype=torch.bfloat16), 0.5 - 2**-9, 1 / 12),
    "randn": (lambda: torch.randn(400, 500), 0.0, 1.0),
    "randn f64": (lambda: torch.randn(400, 500, dtype=torch.float64), 0.0, 1.0),
    "randint": (lambda: torch.randint(-3, 7, (400, 500)), 1.5, 99 / 12),
    "randint wide": (lambda: torch.randint(0, 2**40, (400, 500)) / 2**40, 0.5, 1 / 12),
    "bernoulli": (lambda: torch.bernoulli(torch.full((400, 500), 0.3)), 0.3, 0.21),
    "bernoulli p": (lambda: torch.empty(400, 500).bernoulli_(0.9), 0.9, 0.09),
    "uniform": (lambda: torch.empty(400, 500).uniform_(2, 6), 4.0, 16 / 12),
    "normal": (lambda: torch.empty(400, 500).normal_(2, 3), 2.0, 9.0),
    "exponential": (lambda: torch.empty(400, 500).exponential_(0.5), 2.0, 4.0),
    "dropout": (lambda: F.dropout(torch.ones(400, 500), 0.25), 1.0, 1 / 3),
}


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.usefixtures("on_device")
def test_statistics(name: str) -> None:
    make, mean, variance = STATISTICS[name]
    numbers = compiled(make)()
    assert numbers.dtype == make().dtype
    found = moments(numbers)
    # Five standard errors; the fourth moments of these distributions are at most nine times the squared variance.
    error = 5 / math.sqrt(numbers.numel())
    assert abs(found[0] - mean) < error * math.sqrt(variance)
    assert abs(found[1] - variance) < error * 3 * variance
    assert abs(found[2]) < error


@pytest.mark.usefixtures("on_device")
def test_uniform_numbers_stay_below_one() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        numbers = compiled(lambda d: torch.rand(100_000, dtype=d))(dtype)
        assert float(numbers.min()) >= 0
        assert float(numbers.max()) < 1


@pytest.mark.usefixtures("on_device")
def test_operators_and_calls_are_independent() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        return torch.rand_like(x), torch.rand_like(x), torch.rand_like(x)

    g = compiled(f)
    draws = [*g(torch.empty(50_000)), *g(torch.empty(50_000))]
    correlation = torch.corrcoef(torch.stack(draws))
    assert float((correlation - torch.eye(6)).abs().max()) < 0.03


def alone(seed: Tensor, x: Tensor) -> Tensor:
    return RANDOM(seed, 2, list(x.shape), list(range(x.ndim)), distribution="uniform", dtype=torch.float32)


def rows(seed: Tensor, x: Tensor) -> Tensor:
    return x.softmax(-1) * 0 + alone(seed, x)


def across(seed: Tensor, x: Tensor) -> Tensor:
    return (alone(seed, x).transpose(0, -1) + 0).transpose(0, -1)


def test_the_same_numbers_in_whatever_kernel() -> None:
    seed = torch.tensor(12345)
    for size in ([1000], [7, 143], [3, 64, 5]):
        numbers = alone(seed, torch.empty(size))
        for f in (alone, rows, across):
            for dynamic in (False, True):
                torch._dynamo.reset()
                assert torch.equal(compiled(f, dynamic=dynamic)(seed, torch.randn(size)), numbers), (f, size, dynamic)


def normal(seed: Tensor, x: Tensor) -> Tensor:
    return RANDOM(seed, 2, list(x.shape), list(range(x.ndim)), distribution="normal", dtype=torch.float32)


@pytest.mark.parametrize("pipeline", ["", "cpu-128"])
def test_normal_numbers_in_whatever_kernel(pipeline: str) -> None:
    programs: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
        normal,
        lambda seed, x: x.softmax(-1) * 0 + normal(seed, x),
        lambda seed, x: normal(seed, x).transpose(0, -1) + x.transpose(0, -1),
    )
    for size in ([3], [7, 143]):
        for f in programs:
            torch._dynamo.reset()
            seed, x = torch.tensor(12345), torch.randn(size)
            torch.testing.assert_close(compiled(f, pipeline=pipeline)(seed, x), f(seed, x), check_stride=False)


def test_threads_and_vector_width_change_nothing() -> None:
    threads = torch.get_num_threads()

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.dropout(x, 0.5), torch.randn_like(x, dtype=torch.float64)

    results: list[tuple[Tensor, Tensor]] = []
    try:
        for count, pipeline in ((1, ""), (2, ""), (2, "cpu-128")):
            torch._dynamo.reset()
            torch.set_num_threads(count)
            torch.manual_seed(3)
            results.append(compiled(f, pipeline=pipeline)(torch.ones(300, 1001)))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert torch.equal(results[0][0], other[0])
        torch.testing.assert_close(results[0][1], other[1], rtol=1e-12, atol=1e-12)


def test_dropout_keeps_what_eager_keeps_scaled_alike() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for p in (0.1, 0.3, 0.9):
            x = torch.randn(1000, dtype=dtype)
            scale = float(F.dropout(torch.ones(200, dtype=dtype), p).max())
            torch._dynamo.reset()
            y = compiled(F.dropout)(x, p)
            kept = y != 0
            assert torch.equal(y[kept], (x * torch.tensor(scale, dtype=dtype))[kept])


@pytest.mark.parametrize(("p", "train"), [(0.0, True), (1.0, True), (0.5, False)])
@pytest.mark.usefixtures("on_device")
def test_dropout_at_the_ends(p: float, train: bool) -> None:
    x = torch.randn(5, 7, requires_grad=True)
    x.data[0, 0] = math.nan
    results: list[tuple[Tensor, Any]] = []
    for f in (F.dropout, compiled(F.dropout)):
        x.grad = None
        y = f(x, p, train)
        y.sum().backward()
        results.append((y.detach(), x.grad))
    torch.testing.assert_close(results[0], results[1], equal_nan=True, rtol=0, atol=0)


@pytest.mark.usefixtures("on_device")
def test_dropout_of_nothing_and_of_sizes_that_change() -> None:
    f = compiled(lambda x: F.dropout(x * 1, 0.5), dynamic=True)
    for rows in (4, 0, 9, 130):
        x = torch.ones(rows, 50, requires_grad=True)
        y = f(x)
        y.sum().backward()
        assert x.grad is not None
        assert y.shape == x.shape
        assert torch.equal(x.grad, y.detach())


@pytest.mark.usefixtures("on_device")
def test_sizes_that_are_computed() -> None:
    def f(x: Tensor) -> Tensor:
        rows = F.dropout(x.reshape(-1, 4).t(), 0.5).sum(0)
        return rows + F.dropout(torch.cat([x, x]), 0.5).sum() * torch.rand(x.shape[0] ** 2 + 1, 1).mean()

    g = compiled(f, dynamic=True)
    for rows in (3, 5, 6):
        x = torch.ones(rows, 8, requires_grad=True)
        y = g(x)
        y.sum().backward()
        assert y.shape == f(x).shape
        assert x.grad is not None


@pytest.mark.usefixtures("on_device")
def test_the_backward_pass_agrees() -> None:
    x = torch.randn(50, 37, requires_grad=True)
    y = compiled(lambda x: F.dropout(x, 0.3))(x)
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    assert torch.equal(x.grad != 0, y != 0)


@pytest.mark.parametrize("random", ["compiled", "eager"])
def test_a_checkpoint_draws_the_same_again(random: str) -> None:
    def block(x: Tensor) -> Tensor:
        return F.dropout(x.exp(), 0.3) * x.sin()

    x = torch.randn(50, 37, requires_grad=True)
    y = compiled(lambda x: checkpoint(block, x, use_reentrant=False), random=random)(x)
    y.sum().backward()
    noise = (y / (x.exp() * x.sin())).detach()
    (expected,) = torch.autograd.grad((x.exp() * x.sin() * noise).sum(), x)
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-4)


EAGER: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x * 2, 0.3) + F.dropout(x, 0.1),
    "all dropped": lambda x: F.dropout(x * 2, 1.0) + torch.rand_like(x),
    "transposed": lambda x: F.dropout(x.t() * 2, 0.3),
    "in place, transposed": lambda x: F.dropout(x.t() * 2, 0.3, inplace=True),
    "in place": lambda x: F.dropout(x * 2, 0.3, inplace=True),
    "alpha": lambda x: F.alpha_dropout(x, 0.3, True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "several": lambda x: x * torch.rand(50, 37) + torch.randn(37) * torch.randint(0, 9, (37,)) * x,
    "in the middle": lambda x: (x @ torch.rand(37, 5)).relu() @ torch.bernoulli(torch.full((5, 4), 0.5)),
}


@pytest.mark.parametrize("name", EAGER)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_numbers_of_eager(name: str, dtype: torch.dtype) -> None:
    f = EAGER[name]
    x = torch.randn(50, 37, requires_grad=True)
    results: list[Any] = []
    for run in (f, compiled(f, random="eager")):
        torch.manual_seed(7)
        x.grad = None
        y = run(x)
        y.sum().backward()
        results.append((y.detach(), x.grad, torch.get_rng_state()))
    torch.testing.assert_close(results[0], results[1])


def test_an_own_generator_stays_that() -> None:
    generator = torch.Generator()

    def f(x: Tensor) -> Tensor:
        return x.bernoulli_(0.5, generator=generator)

    generator.manual_seed(3)
    expected = f(torch.empty(20))
    generator.manual_seed(3)
    found = torch.compile(f, backend="tilewright")(torch.empty(20))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("random", ["compiled", "eager"])
def test_exported_programs(random: str) -> None:
    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x * 2, 0.5, True) + torch.rand_like(x)

    x = torch.ones(40, 50)
    program = torch.export.export(Noise(), (x,))
    run = compile_exported(program, options={"random": random})
    first, second = run(x), run(x)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(run(x), first)
    torch.manual_seed(0)
    assert torch.equal(Noise()(x), first) == (random == "eager")


def test_layers_share_a_kernel() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(F.gelu(self.linear(x)), 0.2)

    model = nn.Sequential(*(Layer() for _ in range(5)))
    with torch.no_grad():
        compiled(model)(torch.randn(8, 16))
    assert tilewright.last_compile_stats()["kernels"] == 1
