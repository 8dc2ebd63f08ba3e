"""Half precision on CUDA, where eager's kernels round in other places than on the CPU: its formulas, bit by bit.

No device is needed: what is lowered for CUDA runs in the reference interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVarTuple

import pytest
import torch
from tests.passes.lowering_checks import HALVES, aten, calls, sample
from tests.passes.test_lowering_elementwise import all_values, differing, shuffled
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from tilewright.backends.reference import run_function
from tilewright.frontends.decompositions import decomposition_table
from tilewright.frontends.fx import import_graph
from tilewright.tools.compile import run_passes
from tilewright.tools.universe import make_context

Ts = TypeVarTuple("Ts")


def on_cuda(program: Callable[[*Ts], Any], *args: *Ts) -> Tensor:
    """Run on the CPU what a program is lowered to for CUDA."""
    table = dict(decomposition_table())
    graph = import_graph(make_fx(program, tracing_mode="fake", decomposition_table=table)(*args))
    passes = 'retarget{device="cuda:0"},convert-aten-to-loop,retarget{device="cpu"}'
    run_passes(graph.module, make_context(), passes, verify=True)
    assert calls(graph.module) == []
    inputs: Any = args
    (result,) = run_function(graph.module, [*inputs, *graph.constants])
    assert isinstance(result, Tensor)
    return result


def wide(x: Tensor, y: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Compute in f32, and round the result."""
    return function(x.float(), y.float()).to(x.dtype)


def fused(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Compute `x + y * z` as one operation of f32; f64 has the product exactly."""
    return (x.double() + y.double() * z.double()).float()


TENTH = torch.tensor(0.1)
FORMULAS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Tensor, Tensor], Tensor]]] = {
    "add": (lambda x, y: aten.add(x, 0.1), lambda x, y: wide(x, y, lambda x, y: x + 0.1)),
    "rsub": (lambda x, y: aten.rsub(x, 0.1), lambda x, y: wide(x, y, lambda x, y: 0.1 - x)),
    "add, scaled": (lambda x, y: aten.add(x, y, alpha=0.1), lambda x, y: wide(x, y, lambda x, y: fused(x, TENTH, y))),
    "addcdiv": (
        lambda x, y: aten.addcdiv(x, y, x, value=0.1),
        lambda x, y: wide(x, y, lambda x, y: fused(x, TENTH, y / x)),
    ),
    "addcmul": (
        lambda x, y: aten.addcmul(x, y, y, value=0.1),
        lambda x, y: wide(x, y, lambda x, y: fused(x, TENTH, y * y)),
    ),
    "hardtanh_backward": (
        lambda g, x: aten.hardtanh_backward(g, x, -0.1, 0.3),
        lambda g, x: wide(g, x, lambda g, x: torch.where((x <= -0.1) | (x >= 0.3), 0, g)),
    ),
    "logit": (lambda x, y: aten.logit(x, 0.1), lambda x, y: wide(x, y, lambda x, y: torch.logit(x, 0.1))),
    "lerp": (
        lambda x, y: aten.lerp(x, y, 0.1),
        lambda x, y: wide(x, y, lambda x, y: fused(x, TENTH, y - x)),
    ),
    "pow": (lambda x, y: aten.pow(x, 3), lambda x, y: x * x * x),
    "pow 1/2": (lambda x, y: aten.pow(x, 0.5), lambda x, y: wide(x, y, lambda x, y: x.sqrt())),
    "pow -1/2": (lambda x, y: aten.pow(x, -0.5), lambda x, y: wide(x, y, lambda x, y: 1 / x.sqrt())),
    "sigmoid_backward": (aten.sigmoid_backward, lambda g, y: g * (1 - y) * y),
    "softshrink_backward": (
        lambda g, x: aten.softshrink_backward(g, x, 0.1),
        lambda g, x: torch.where((x >= -0.1) & (x <= 0.1), 0, g),
    ),
    "tanh_backward": (aten.tanh_backward, lambda g, y: g * (1 - y * y)),
    "threshold": (
        lambda x, y: aten.threshold(x, 0.1, 0.3),
        lambda x, y: torch.where(x <= TENTH.to(x.dtype), 0.3, x),
    ),
    "xlogy": (aten.xlogy, lambda x, y: wide(x, y, torch.xlogy)),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_every_16_bit_float(name: str, dtype: torch.dtype) -> None:
    program, formula = FORMULAS[name]
    x = all_values(dtype)
    y = shuffled(x)
    assert int(differing(on_cuda(program, x, y), formula(x, y)).sum()) <= 1


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_log_softmax_rounds_once(dtype: torch.dtype) -> None:
    x = sample(dtype, 35, 6)
    found = on_cuda(lambda x: aten._log_softmax(x, 1, False), x)
    torch.testing.assert_close(found, torch.log_softmax(x.float(), 1).to(dtype), rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_gradient_of_an_embedding_is_summed_in_f32(dtype: torch.dtype) -> None:
    grad, places = torch.ones(1000, 3, dtype=dtype), torch.zeros(1000, dtype=torch.int64)
    found = on_cuda(lambda g, i: aten.embedding_dense_backward(g, i, 2, -1, False), grad, places)
    assert torch.equal(found, torch.tensor([[1000.0] * 3, [0.0] * 3], dtype=dtype))


def test_a_tensor_without_dimensions_is_rounded_as_the_others() -> None:
    x = sample(torch.bfloat16, 50)
    assert torch.equal(on_cuda(aten.mul, x, TENTH), x * TENTH.bfloat16())


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_places_gather_the_gradients_of_overlapping_windows(memory_format: torch.memory_format) -> None:
    x = torch.randint(0, 4, (2, 3, 9, 8)).float().to(memory_format=memory_format)
    windows = [3, 3], [2, 2], [1, 1], [1, 1], False
    y, places = aten.max_pool2d_with_indices(x, *windows)
    gradient = torch.randn_like(y)
    found = on_cuda(lambda g, x, p: aten.max_pool2d_with_indices_backward(g, x, *windows, p), gradient, x, places)
    torch.testing.assert_close(found, aten.max_pool2d_with_indices_backward(gradient, x, *windows, places))
