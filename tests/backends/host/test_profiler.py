"""Kernels and operators of a host program in PyTorch's profiler."""

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Load = Callable[..., Any]

V16 = "memref<16xf32, #sym.layout<[16], [1]>>"
M44 = "memref<4x4xf32, #sym.layout<[4, 4], [4, 1]>>"


def recorded_counts(recorded: Any) -> dict[str, int]:
    return {event.key: event.count for event in recorded.key_averages()}


def test_ranges_while_a_profiler_records(load: Load) -> None:
    program = load(
        f"""
func.func @forward(%x : {V16}) -> {M44} {{
  %y = host.alloc : {V16}
  host.launch @add_one(%x, %y) symbols [16] : {V16}, {V16}
  %m = host.view %y : {V16} to {M44}
  %z = host.call "aten.mm.default"(self = %m, mat2 = %m) : ({M44}, {M44}) -> {M44}
  func.return %z : {M44}
}}"""
    )
    assert "record_function" not in program.source
    x = torch.randn(16)
    expected = program([x])[0]
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        (result,) = program([x])
    assert torch.equal(result, expected)
    counts = recorded_counts(recorded)
    assert counts["add_one"] == 1
    assert counts["aten.mm.default"] == 1
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        torch.neg(x)
    assert "add_one" not in recorded_counts(recorded)
