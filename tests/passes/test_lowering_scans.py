"""Running sums, products and extremes as loops, compared with eager: in the same order and precision, so exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.passes.lowering_checks import (
    DTYPES,
    FLOATS,
    HALVES,
    aten,
    check,
    check_exactly,
    lowered,
    sample,
)
from torch import Tensor

from tilewright.dialects.loop import PrefixOp, ScanOp

pytestmark = pytest.mark.usefixtures("device")

FIXED_AND_SYMBOLIC = pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
ALONG = {"cumsum": aten.cumsum, "cumprod": aten.cumprod, "cummax": aten.cummax, "cummin": aten.cummin}


@FIXED_AND_SYMBOLIC
@pytest.mark.parametrize("d", [0, 1, -1])
@pytest.mark.parametrize("name", ALONG)
def test_scans(name: str, d: int, dynamic: bool) -> None:
    x = sample(torch.float32, 4, 7, 5)
    check_exactly(lambda x: ALONG[name](x, d), x, dynamic=dynamic)
    check_exactly(lambda x: ALONG[name](x, d), x.permute(2, 0, 1), dynamic=dynamic)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ALONG)
def test_scans_of_any_dtype(name: str, dtype: torch.dtype) -> None:
    for d, x in ((1, sample(dtype, 3, 40)), (0, sample(dtype, 5, 3))):

        def wide(x: Tensor, d: int = d) -> Any:
            # CUDA's kernels for half precision round each partial sum, which f32 does not.
            return ALONG[name](x.float(), d).to(dtype)

        half = dtype in HALVES and name in ("cumsum", "cumprod")
        check_exactly(lambda x, d=d: ALONG[name](x, d), x, on_device=wide if half else None)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("d", [0, 1])
def test_logarithms_of_running_sums(d: int, dtype: torch.dtype) -> None:
    check(lambda x: aten.logcumsumexp(x, d), sample(dtype, 6, 7))


def special() -> Tensor:
    x = sample(torch.float32, 4, 9, 5)
    x[x > 4], x[x < -4] = float("nan"), float("-inf")
    x[0, :3] = float("inf")
    return x


@pytest.mark.parametrize("name", [*ALONG, "logcumsumexp"])
def test_scans_of_nan_and_infinities(name: str) -> None:
    check(lambda x: getattr(aten, name)(x, 1), special())


@pytest.mark.parametrize("name", [*ALONG, "logcumsumexp"])
def test_scans_of_little(name: str) -> None:
    for x in (torch.tensor(1.5), torch.zeros(0, 3), torch.zeros(3, 0), sample(torch.float32, 1, 3)):
        check_exactly(lambda x: getattr(aten, name)(x, 0), x)


def test_scans_in_another_dtype() -> None:
    x = sample(torch.float32, 4, 5)
    check_exactly(lambda x: aten.cumsum(x, 1, dtype=torch.float64), x)
    check_exactly(lambda x: aten.cumsum(x, 1, dtype=torch.int32), x)
    check_exactly(lambda x: aten.cumprod(x, 1, dtype=torch.bfloat16), x)


def test_equal_extremes_have_the_last_place() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, -0.0, 0.0, -1.0, -1.0]])
    check_exactly(lambda x: aten.cummax(x, 1), x)
    check_exactly(lambda x: aten.cummin(x, 1), x)


def test_a_running_sum_is_one_scan() -> None:
    module = lowered(lambda x: aten.cumsum(x, 1), sample(torch.float32, 4, 5)).module
    (scan,) = [op for op in module.walk() if isinstance(op, ScanOp)]
    assert [op.combiner.data for op in scan.block.ops if isinstance(op, PrefixOp)] == ["sum"]
