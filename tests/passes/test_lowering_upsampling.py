"""Upsampling by whole factors as loops, and found again after tracing has taken it apart."""

# torch's own annotations are incomplete, and the reset of its compiler is not public.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.passes.lowering_checks import FLOATS, assert_close, aten, call_outputs, lowered_call, sample
from torch.nn import functional

from tilewright.dialects.aten import CallOp
from tilewright.stats import last_compile_stats, reset_compile_stats

pytestmark = pytest.mark.usefixtures("device")

SHAPES: dict[str, tuple[tuple[int, ...], list[int]]] = {
    "rows": ((2, 3, 5), [15]),
    "images": ((2, 3, 4, 5), [8, 35]),
    "volumes": ((2, 3, 4, 2, 3), [4, 6, 6]),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_upsampling(name: str, dtype: torch.dtype) -> None:
    shape, sizes = SHAPES[name]
    x = sample(dtype, *shape)
    operator = getattr(aten, f"upsample_nearest{len(sizes)}d")
    assert_close(call_outputs(operator.default, x, sizes), rtol=0, atol=0)
    grad = sample(dtype, *shape[:2], *sizes)
    backward = getattr(aten, f"upsample_nearest{len(sizes)}d_backward")
    tolerance = {} if dtype.itemsize > 2 else {"rtol": 2e-2, "atol": 1e-1}
    assert_close(call_outputs(backward.default, grad, sizes, list(shape)), **tolerance)


@pytest.mark.parametrize("args", [([7],), ([10], 2.0)], ids=["not whole", "scaled"])
def test_other_factors_stay_calls(args: Any) -> None:
    module = lowered_call(aten.upsample_nearest1d.default, sample(torch.float32, 2, 3, 5), *args).module
    assert any(isinstance(op, CallOp) for op in module.walk())


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear"])
@pytest.mark.parametrize("factor", [2, 3, 7, 1.5])
def test_interpolation_from_python(factor: float, mode: str, memory_format: torch.memory_format) -> None:
    # In f32 torch's decomposition of `bilinear` computes other weights than its kernel.
    dtype = torch.float64 if mode == "bilinear" else torch.float32
    x = sample(dtype, 2, 3, 30, 14).contiguous(memory_format=memory_format)

    def program(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x, scale_factor=factor, mode=mode) + 1

    reset_compile_stats()
    torch._dynamo.reset()
    found = torch.compile(program, backend="tilewright", fullgraph=True, dynamic=False)(x)
    tolerance = 1e-6 if mode == "bilinear" else 0
    torch.testing.assert_close(found, program(x), rtol=tolerance, atol=tolerance)
    assert found.stride() == program(x).stride()
    stats = last_compile_stats()
    assert stats["extern"] == []
    if mode != "bilinear" and factor != 1.5:
        assert stats["kernels"] == 1
