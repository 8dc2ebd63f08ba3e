"""Numbers of compiled programs where they are easily wrong: signs of zero, extremes, dtypes that loops only move."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytestmark = pytest.mark.usefixtures("on_device")


def on_cuda() -> bool:
    """Whether the tests run on a CUDA device."""
    return torch.get_default_device().type == "cuda"


EXTREMES = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, -1e-45, 7.0, 1e9, 1e20, -1e20, 3e38, -3e38, inf, -inf, nan)


def assert_same(
    function: Callable[..., Any],
    *arguments: Tensor,
    rtol: float = 0.0,
    atol: float = 0.0,
    signs: bool = True,
    wide: bool = False,
) -> None:
    """Compare the results of a compiled function with eager's, and the `signs` of their zeros.

    Eager's are of `wide` arguments, in f64, and rounded, if its kernels are less precise.
    """
    torch.compiler.reset()
    expected = function(*(a.double() if wide else a.clone() for a in arguments))
    found = torch.compile(function, backend="tilewright", options={"strict": True})(*arguments)
    for a, b in zip(found, expected, strict=True):
        b = b.to(a.dtype) if wide else b
        if a.element_size() == 1 and a.is_floating_point():
            a, b = a.float(), b.float()
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
        if signs and a.is_floating_point():
            assert not ((a == 0) & (b == 0) & (torch.signbit(a) != torch.signbit(b))).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_bound_that_is_equal_leaves_zero_its_sign(dtype: torch.dtype) -> None:
    def clamps(x: Tensor) -> list[Tensor]:
        return [
            torch.relu(x),
            F.relu6(x),
            F.hardtanh(x, -0.0, 1.0),
            x.clamp(min=0),
            x.clamp(max=-0.0),
            x.clamp(nan, 1.0),
            x.clamp(2.0, 1.0),
        ]

    # On CUDA the maximum of zeros is positive, whichever comes first.
    assert_same(clamps, torch.tensor(EXTREMES * 3, dtype=dtype), signs=not on_cuda())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quotients_that_are_too_large(dtype: torch.dtype) -> None:
    def quotients(x: Tensor) -> list[Tensor]:
        return [x // 0.7, x // -0.3, 1 // x, torch.div(x, 1e-3, rounding_mode="floor")]

    # CUDA's kernels multiply by the reciprocal of a number, which rounds twice.
    rtol = 2 * torch.finfo(dtype).eps if on_cuda() else 0.0
    assert_same(quotients, torch.tensor(EXTREMES * 3, dtype=dtype), rtol=rtol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inverse_hyperbolic_functions_of_large_numbers(dtype: torch.dtype) -> None:
    def inverses(x: Tensor) -> list[Tensor]:
        return [torch.asinh(x), torch.acosh(x)]

    numbers = [*EXTREMES, 1e10, -1e10, 1.5, -20.0, *((1e300, -1e300) if dtype == torch.float64 else ())]
    tolerance = torch.finfo(dtype)
    assert_same(inverses, torch.tensor(numbers * 3, dtype=dtype), rtol=8 * tolerance.eps, atol=tolerance.tiny)


EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_floats_of_8_bits(dtype: torch.dtype) -> None:
    def quantize(x: Tensor) -> list[Tensor]:
        scale = x.abs().amax(1, keepdim=True) / 128
        y = (x / scale).to(dtype)
        return [y, y.float() * scale, y.bfloat16() + 1, y.t().contiguous(), torch.cat([y, y])[:, ::2]]

    assert_same(quantize, torch.randn(5, 7))


def test_floats_of_8_bits_are_written() -> None:
    def write(x: Tensor, y: Tensor) -> list[Tensor]:
        x[1:3] = y
        x[4].copy_(y[0].float() * 2)
        return [x, x.float()]

    kind = torch.float8_e4m3fn
    assert_same(write, torch.zeros(5, 37).to(kind), torch.randn(2, 37).to(kind))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_wide_unsigned_integers_are_not_negative(dtype: torch.dtype) -> None:
    def widen(x: Tensor) -> list[Tensor]:
        return [x.to(torch.int64), x.to(torch.float32) + 1, torch.cat([x, x]).to(torch.float64), x == x]

    largest = min(torch.iinfo(dtype).max, torch.iinfo(torch.int64).max)
    assert_same(widen, torch.tensor([0, 1, largest, largest - 5], dtype=dtype))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
def test_deviations_from_a_large_mean(offset: float, dim: int) -> None:
    def deviations(x: Tensor) -> list[Tensor]:
        return [x.var(dim), x.std(dim, correction=0), *torch.var_mean(x, dim)]

    # CUDA's kernels keep their running means in f32, those for the CPU in f64.
    x = torch.randn(64, 300) * (1 + offset / 1e3) + offset
    assert_same(deviations, x, rtol=1e-6, atol=1e-6, wide=on_cuda())
    assert_same(deviations, torch.full((64, 300), 0.1 + offset), atol=1e-12, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logarithms_of_sums_round_as_eager_mode_does(dtype: torch.dtype) -> None:
    rows = [torch.randn(40, 9), torch.full((1, 9), 2.0), torch.full((1, 9), -inf), torch.tensor(EXTREMES)[None, :9]]

    def reduce(x: Tensor) -> list[Tensor]:
        return [x.logsumexp(1), x[:41].logsumexp((0, 1), keepdim=True)]

    assert_same(reduce, torch.cat(rows).to(dtype))
