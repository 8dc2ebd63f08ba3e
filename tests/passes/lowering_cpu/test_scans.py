"""Scans in kernels are the same before and after each pass, as machine code, and by eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.passes.lowering_cpu.conftest import Kernel

MakeKernel = Callable[..., "Kernel"]


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 3), (0, 5), (5, 0), (2, 16), (3, 100)])
def test_running_sums_of_rows(kernel: MakeKernel, rows: int, columns: int) -> None:
    body = """
      loop.nest (%i : n0) {
        loop.scan (%k : n1) {
          %v = loop.load %x[%i * n1 + %k] : $x -> f32
          %s = loop.prefix "sum" %v : f32
          loop.store %s, %y[%i * n1 + %k] : f32, $y
        }
      }
    """
    x = torch.randn(rows, columns).round()
    buffers = {"x": x.flatten(), "y": torch.zeros(x.numel())}
    kernel(body, buffers, ["y"], {"n0": rows, "n1": columns}).check([x.cumsum(1).flatten()])


@pytest.mark.parametrize("columns", [1, 7, 64, 100])
def test_running_extremes_of_columns(kernel: MakeKernel, columns: int) -> None:
    body = f"""
      loop.nest (%j : {columns}) {{
        loop.scan (%k : 9) {{
          %v = loop.load %x[%k * {columns} + %j] : $x -> f32
          %n = loop.cast %k : index to i64
          %m, %p = loop.prefix "last_argmin" %v, %n : f32, i64
          loop.store %m, %y[%k * {columns} + %j] : f32, $y
          loop.store %p, %z[%k * {columns} + %j] : i64, $z
        }}
      }}
    """
    x = torch.randn(9, columns).round()
    x[4, 0] = float("nan")
    buffers = {"x": x.flatten(), "y": torch.zeros(x.numel()), "z": torch.zeros(x.numel(), dtype=torch.int64)}
    least, places = x.cummin(0)
    kernel(body, buffers, ["y", "z"]).check([least.flatten(), places.flatten()])


SCATTER = """
  loop.nest () {
    loop.scan (%k : n0) {
      %n = loop.load %at[%k] : $at -> i64
      %p = loop.cast %n : i64 to index
      loop.for (%j : WIDTH) {
        %v = loop.load %x[%k * WIDTH + %j] : $x -> TYPE
        loop.store %v, %y[%p * WIDTH + %j] combine "sum" : TYPE, $y
      }
    }
  }
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64], ids=str)
@pytest.mark.parametrize("width", [1, 3, 64, 100])
def test_rows_added_to_rows(kernel: MakeKernel, width: int, dtype: torch.dtype) -> None:
    name = {torch.bfloat16: "bf16", torch.int64: "i64"}.get(dtype, f"f{dtype.itemsize * 8}")
    x, start = (torch.randn(n, width).mul(8).to(dtype) for n in (20, 6))
    at = torch.randint(0, 6, (20,))
    expected = start.clone()
    for row, place in zip(x, at, strict=True):
        expected[place] += row
    body = SCATTER.replace("WIDTH", str(width)).replace("TYPE", name)
    buffers = {"x": x.flatten(), "at": at, "y": start.flatten()}
    kernel(body, buffers, ["y"], {"n0": 20}).check([expected.flatten()])


def test_bools_that_are_ordered(kernel: MakeKernel) -> None:
    body = """
      loop.nest (%i : 5) {
        %a, %b = loop.reduce "max", "min" (%k : 37) {
          %v = loop.load %x[%i * 37 + %k] : $x -> i1
          loop.yield %v, %v : i1, i1
        } : i1, i1
        loop.store %a, %y[%i] : i1, $y
        loop.store %b, %z[%i] : i1, $z
      }
    """
    x = torch.rand(5, 37) > 0.5
    x[0], x[1], x[2] = True, False, torch.arange(37) == 36
    buffers = {"x": x.flatten(), "y": torch.zeros(5, dtype=torch.bool), "z": torch.zeros(5, dtype=torch.bool)}
    kernel(body, buffers, ["y", "z"]).check([x.any(1), x.all(1)])


@pytest.mark.parametrize(("width", "threads"), [(63, 1), (40, 2), (63, 3)])
def test_rows_shared_by_threads(kernel: MakeKernel, width: int, threads: int) -> None:
    count = 500
    x, start, at = torch.randn(count, width), torch.randn(50, width), torch.randint(0, 50, (count,))
    expected = start.clone()
    for row, place in zip(x, at, strict=True):
        expected[place] += row
    body = SCATTER.replace("WIDTH", str(width)).replace("TYPE", "f32").replace("n0", str(count))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        kernel(body, {"x": x.flatten(), "at": at, "y": start.flatten()}, ["y"]).check(
            [expected.flatten()], rtol=0, atol=0
        )
    finally:
        torch.set_num_threads(before)
