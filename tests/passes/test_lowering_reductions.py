"""Reductions, softmax and norms as loops, compared with eager."""

from __future__ import annotations

from math import inf, nan
from typing import TypedDict

import pytest
import torch
from tests.passes.lowering_checks import (
    DTYPES,
    FLOATS,
    HALVES,
    INTEGERS,
    Unary,
    assert_close,
    aten,
    call_outputs,
    check,
    check_exactly,
    lowered,
    sample,
)
from torch import Tensor

from tilewright.dialects.loop import NestOp, ReduceOp

pytestmark = pytest.mark.usefixtures("device")

SUMS: dict[str, Unary] = {
    "all": aten.sum,
    "one": lambda x: aten.sum(x, [1]),
    "two": lambda x: aten.sum(x, [2, 0]),
    "kept": lambda x: aten.sum(x, [-1, 1], True),
    "empty list": lambda x: aten.sum(x, []),
    "to f32": lambda x: aten.sum(x, [0], dtype=torch.float32),
    "to f64": lambda x: aten.sum(x, [0], dtype=torch.float64),
}
FLOAT_REDUCTIONS: dict[str, Unary] = {
    "mean": aten.mean,
    "mean of some": lambda x: aten.mean(x, [0, 2], True),
    "logsumexp": lambda x: aten.logsumexp(x, [1]),
    "logsumexp of two": lambda x: aten.logsumexp(x, [0, -1], True),
    "norm": aten.linalg_vector_norm,
    "norm 1": lambda x: aten.linalg_vector_norm(x, 1, [1]),
    "norm 0": lambda x: aten.linalg_vector_norm(x, 0, [1]),
    "norm 3": lambda x: aten.linalg_vector_norm(x, 3, [1], True),
    "norm inf": lambda x: aten.linalg_vector_norm(x, inf, [0, 1]),
    "norm -inf": lambda x: aten.linalg_vector_norm(x, -inf, [0, 1]),
    "old norm": lambda x: aten.norm(x, 2, [1], True),
    "softmax": lambda x: aten._softmax(x, -1, False),
    "softmax in the middle": lambda x: aten._softmax(x, 1, False),
    "log_softmax": lambda x: aten._log_softmax(x, 2, False),
    "log_softmax in front": lambda x: aten._log_softmax(x, 0, False),
    "safe softmax": lambda x: aten._safe_softmax(x, 2),
    "layer_norm": lambda x: aten.native_layer_norm(x, [7, 6], None, None, 1e-5),
}
VARIANCES: dict[str, Unary] = {
    "var": lambda x: aten.var(x, [1]),
    "var of all": aten.var,
    "var, biased": lambda x: aten.var(x, [0, 1], correction=0),
    "var, corrected": lambda x: aten.var(x, [-1], correction=2, keepdim=True),
    "var, by a fraction": lambda x: aten.var(x, [-1], correction=0.5),
    "var of too few": lambda x: aten.var(aten.slice(x, 1, 0, 1), [1]),
    "std": lambda x: aten.std(x, [2]),
    "var_mean": lambda x: aten.var_mean(x, [1, 2], correction=1),
    "std_mean": lambda x: aten.std_mean(x, [0], correction=0, keepdim=True),
}
EXTREMES: dict[str, Unary] = {
    "amax": lambda x: aten.amax(x, [0, 2]),
    "amin": lambda x: aten.amin(x, [1], True),
    "max": aten.max,
    "min": aten.min,
    "max along": lambda x: aten.max(x, 1),
    "min along": lambda x: aten.min(x, -1, True),
    "argmax": aten.argmax,
    "argmax, kept": lambda x: aten.argmax(x, None, True),
    "argmin along": lambda x: aten.argmin(x, 0),
    "aminmax": lambda x: aten.aminmax(x, dim=1),
    "any": aten.any,
    "any along": lambda x: aten.any(x, 1),
    "any of none": lambda x: aten.any(x, []),
    "all along": lambda x: aten.all(x, 2, True),
    "all of two": lambda x: aten.all(x, [0, 2]),
    "count": aten.count_nonzero,
    "count along": lambda x: aten.count_nonzero(x, [1]),
}


class Tolerance(TypedDict):
    """What two results may differ by."""

    rtol: float
    atol: float


EXACT: Tolerance = {"rtol": 0.0, "atol": 0.0}


def tolerance(dtype: torch.dtype, times: int = 1) -> Tolerance:
    """Return what sums in another order may differ by: for half precision one rounding, since f32 is summed."""
    # Sums of some hundred numbers around 4 that cancel: a few units in the last place of the largest partial sum.
    wide = torch.promote_types(dtype, torch.float32)
    return {"rtol": times * 2 * torch.finfo(dtype).eps, "atol": times * 200 * torch.finfo(wide).eps}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_sums(name: str, dtype: torch.dtype) -> None:
    narrow = torch.float32 if name == "to f32" and dtype is torch.float64 else dtype
    check(SUMS[name], sample(dtype, 5, 7, 6), **(tolerance(narrow) if dtype.is_floating_point else EXACT))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_products_of_integers_are_64_bits_wide(dtype: torch.dtype) -> None:
    check_exactly(lambda x: aten.prod(x, 1), sample(dtype, 5, 7))
    check_exactly(aten.prod, sample(dtype, 5, 7))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FLOAT_REDUCTIONS)
def test_reductions_of_floats(name: str, dtype: torch.dtype) -> None:
    check(FLOAT_REDUCTIONS[name], sample(dtype, 5, 7, 6), **tolerance(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", VARIANCES)
def test_variances(name: str, dtype: torch.dtype) -> None:
    # Far from zero, where the difference of sums of squares would be lost in rounding.
    check(VARIANCES[name], sample(dtype, 5, 7, 6) + 50, **tolerance(dtype, 4))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_and_tests(name: str, dtype: torch.dtype) -> None:
    # Small integers make ties.
    x = sample(torch.float32, 5, 7, 6, scale=1.5).round()
    if dtype is torch.bool and name.startswith("arg"):
        pytest.skip("eager has none")
    check_exactly(EXTREMES[name], x.abs().to(dtype) if dtype is torch.uint8 else x.to(dtype))


def test_bytes_are_compared_as_unsigned() -> None:
    x = torch.tensor([[3, 200], [127, 128]], dtype=torch.uint8)
    for name in ("amax", "max along", "min along", "argmax"):
        check_exactly(EXTREMES[name], x.unsqueeze(0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", EXTREMES)
def test_a_nan_is_the_extreme(name: str, dtype: torch.dtype) -> None:
    x = sample(dtype, 3, 4, 5)
    x[1, 2, 3] = x[1, 3, 3] = nan
    x[0, 0, 0] = inf
    x[2, 0, 0] = -inf
    check_exactly(EXTREMES[name], x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [n for n in FLOAT_REDUCTIONS if "softmax" in n or "logsumexp" in n])
def test_infinities_in_softmax(name: str, dtype: torch.dtype) -> None:
    x = sample(dtype, 3, 4, 5)
    x[0] = -inf
    x[1, 1, 1] = inf
    x[2, 2] = -inf
    x[2, 1, 3] = nan
    check(FLOAT_REDUCTIONS[name], x, **tolerance(dtype))


@pytest.mark.parametrize("name", ["sum", "mean", "var", "any", "all", "prod"])
def test_reductions_of_nothing(name: str) -> None:
    check(getattr(aten, name), sample(torch.float32, 3, 0))
    if name in ("sum", "any"):
        check(lambda x: getattr(aten, name)(x, [1]), sample(torch.float32, 3, 0))
        check(lambda x: getattr(aten, name)(x, [0]), sample(torch.float32, 3, 0))


@pytest.mark.parametrize("name", [*SUMS, "mean", "max", "argmax", "any"])
def test_reductions_of_one_number(name: str) -> None:
    program = SUMS.get(name) or FLOAT_REDUCTIONS.get(name) or EXTREMES[name]
    if name in ("one", "two", "kept"):
        return check(lambda x: aten.sum(x, [-1], True), torch.tensor(2.5))
    check(program if not name.startswith("to") else SUMS["all"], torch.tensor(2.5))


def test_softmax_of_one_number() -> None:
    check_exactly(lambda x: aten._softmax(x, -1, False), torch.tensor(2.5))
    check_exactly(lambda x: aten._log_softmax(x, 0, False), torch.tensor(2.5))


DYNAMIC: dict[str, Unary] = {
    "sum": SUMS["two"],
    "mean": lambda x: aten.mean(x, [0, 2]),
    "argmax": EXTREMES["argmax"],
    "max": EXTREMES["max along"],
    "var": VARIANCES["var"],
    "var of all": VARIANCES["var of all"],
    "var, by a fraction": VARIANCES["var, by a fraction"],
    "softmax": FLOAT_REDUCTIONS["softmax"],
    "layer_norm": lambda x: aten.native_layer_norm(x, x.shape[1:], None, None, 1e-5),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_symbolic_sizes(name: str) -> None:
    check(DYNAMIC[name], sample(torch.float32, 5, 7, 6), dynamic=True, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("wide", [False, True], ids=["same", "f32 parameters"])
def test_parameters_of_norms(dtype: torch.dtype, wide: bool) -> None:
    x, kind = sample(dtype, 5, 7, 6), torch.float32 if wide else dtype
    weight, bias = sample(kind, 7, 6), sample(kind, 7, 6, scale=1)
    operator = aten.native_layer_norm.default
    for b in (bias, None):
        # With wide parameters the statistics are f32 in eager, but not where torch traces without data.
        pairs = call_outputs(operator, x, [7, 6], weight, b, 1e-5)[: 1 if wide else 3]
        assert_close(pairs, **tolerance(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("eps", [1e-5, None])
def test_rms_norm(dtype: torch.dtype, eps: float | None) -> None:
    x, weight = sample(dtype, 5, 7, 6), sample(dtype, 7, 6)
    assert_close(call_outputs(aten._fused_rms_norm.default, x, [7, 6], weight, eps), **tolerance(dtype))
    assert_close(call_outputs(aten._fused_rms_norm.default, x, [6], None, eps), **tolerance(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_gradients_of_softmax(dtype: torch.dtype) -> None:
    grad, x = sample(dtype, 4, 9), torch.softmax(sample(dtype, 4, 9, scale=1), 1)

    def backward(g: Tensor, y: Tensor) -> Tensor:
        return aten._softmax_backward_data(g, y, 1, y.dtype)

    def wide(g: Tensor, y: Tensor) -> Tensor:
        # CUDA's kernel for half precision rounds the products before it sums them.
        return backward(g.float(), y.float()).to(dtype)

    check(backward, grad, x, **tolerance(dtype), on_device=wide)
    check(lambda g, y: aten._log_softmax_backward_data(g, y, 1, y.dtype), grad, x.log(), **tolerance(dtype))


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "log_softmax"])
def test_one_nest_with_reductions_in_it(name: str) -> None:
    module = lowered(FLOAT_REDUCTIONS[name], sample(torch.float32, 5, 7, 6)).module
    (nest,) = [op for op in module.walk() if isinstance(op, NestOp)]
    reductions = [op for op in module.walk() if isinstance(op, ReduceOp)]
    assert len(reductions) == 2
    assert all(op.parent_op() is nest for op in reductions)


def test_a_sum_over_several_dimensions_is_one_reduction() -> None:
    module = lowered(SUMS["two"], sample(torch.float32, 5, 7, 6)).module
    (reduction,) = [op for op in module.walk() if isinstance(op, ReduceOp)]
    assert len(reduction.indices) == 2
