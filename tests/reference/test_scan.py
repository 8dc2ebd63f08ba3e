"""Scans, prefixes and destinations that begin as another tensor, and loops that never run."""

from __future__ import annotations

import pytest
import torch
from tests.reference.conftest import Runner
from torch import Tensor

from tilewright.backends.reference.errors import ExecutionError

TYPES = """
!x = tensor<3x8xf32, #sym.layout<[3, 8], [8, 1]>>
!i = tensor<3x8xi64, #sym.layout<[3, 8], [8, 1]>>
"""


def assert_same(found: Tensor | int | None, expected: Tensor) -> None:
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_prefixes_combine_in_order(run: Runner) -> None:
    text = f"""{TYPES}
    func.func @forward(%x : !x) -> (!x, !x, !i) {{
      %y, %m, %p = loop.nest (%i : 3) outs(%o : !x, %q : !x, %r : !i) {{
        loop.scan (%k : 8) {{
          %v = loop.load %x[%i, %k] : !x -> f32
          %n = loop.cast %k : index to i64
          %s = loop.prefix "sum" %v : f32
          %a, %b = loop.prefix "last_argmax" %v, %n : f32, i64
          loop.store %s, %o[%i, %k] : f32, !x
          loop.store %a, %q[%i, %k] : f32, !x
          loop.store %b, %r[%i, %k] : i64, !i
        }}
      }}
      func.return %y, %m, %p : !x, !x, !i
    }}"""
    x = torch.randn(3, 8).round()
    total, largest, place = run.all(text, x)
    assert_same(total, x.cumsum(1))
    assert_same(largest, x.cummax(1).values)
    assert_same(place, x.cummax(1).indices)


def test_a_scan_goes_over_its_last_loop_first(run: Runner) -> None:
    text = f"""{TYPES}
    func.func @forward(%x : !x) -> !x {{
      %y = loop.nest () outs(%o : !x) {{
        loop.scan (%i : 3, %k : 8) {{
          %v = loop.load %x[%i, %k] : !x -> f32
          %s = loop.prefix "sum" %v : f32
          loop.store %s, %o[%i, %k] : f32, !x
        }}
      }}
      func.return %y : !x
    }}"""
    x = torch.randn(3, 8).round()
    assert_same(run(text, x), x.flatten().cumsum(0).view(3, 8))


SCATTER = f"""{TYPES}
func.func @forward(%x : !x, %at : !i, %z : !x) -> !x {{
  %y = loop.nest (%i : 3) outs(%o = %z : !x) {{
    loop.scan (%k : 8) {{
      %n = loop.load %at[%i, %k] : !i -> i64
      %p = loop.cast %n : i64 to index
      %v = loop.load %x[%i, %k] : !x -> f32
      loop.store %v, %o[%i, %p] COMBINE: f32, !x
    }}
  }}
  func.return %y : !x
}}"""


def test_stores_of_a_scan_take_turns(run: Runner) -> None:
    x, start = torch.randn(3, 8), torch.randn(3, 8)
    at = torch.randint(0, 8, (3, 8))
    kept = start.clone()
    assert_same(run(SCATTER.replace("COMBINE", 'combine "sum" '), x, at, start), start.scatter_add(1, at, x))
    assert_same(start, kept)
    assert_same(run(SCATTER.replace("COMBINE", ""), x, at, start), start.scatter(1, at, x))


def test_parallel_iterations_must_not_meet_in_a_scan(run: Runner) -> None:
    text = SCATTER.replace("COMBINE", 'combine "sum" ').replace("%o[%i, %p]", "%o[0, %p]")
    with pytest.raises(ExecutionError, match="3 iterations store to element"):
        run(text, torch.randn(3, 8), torch.zeros(3, 8, dtype=torch.int64), torch.randn(3, 8))


def test_bools_are_ordered(run: Runner) -> None:
    text = """
    !x = tensor<3x8xi1, #sym.layout<[3, 8], [8, 1]>>
    !r = tensor<3xi1, #sym.layout<[3], [1]>>
    func.func @forward(%x : !x) -> (!r, !r) {
      %y, %z = loop.nest (%i : 3) outs(%o : !r, %p : !r) {
        %a, %b = loop.reduce "max", "min" (%k : 8) {
          %v = loop.load %x[%i, %k] : !x -> i1
          loop.yield %v, %v : i1, i1
        } : i1, i1
        loop.store %a, %o[%i] : i1, !r
        loop.store %b, %p[%i] : i1, !r
      }
      func.return %y, %z : !r, !r
    }"""
    x = torch.tensor([[True] * 8, [False] * 8, [True, False] * 4])
    largest, least = run.all(text, x)
    assert_same(largest, x.any(1))
    assert_same(least, x.all(1))


def test_what_a_loop_without_iterations_would_do_is_not_checked(run: Runner) -> None:
    text = """
    !x = tensor<0x4xf32, #sym.layout<[0, 4], [4, 1]>>
    !y = tensor<5x0xf32, #sym.layout<[5, 0], [1, 1]>>
    func.func @forward(%x : !x) -> !y {
      %y = loop.nest (%i : 5) outs(%o : !y) {
        loop.for (%k : 0) {
          %v = loop.load %x[%i, %k] : !x -> f32
          loop.store %v, %o[%i, %k] : f32, !y
        }
      }
      func.return %y : !y
    }"""
    assert_same(run(text, torch.empty(0, 4)), torch.empty(5, 0))


def test_a_view_without_elements_may_begin_anywhere(run: Runner) -> None:
    text = """
    !x = tensor<0x4xf32, #sym.layout<[0, 4], [4, 1]>>
    !v = tensor<0x4xf32, #sym.layout<[0, 4], [4, 1], offset 40>>
    func.func @forward(%x : !x) -> !v {
      %v = loop.view %x <(d0, d1) -> (d0, d1)> : !x to !v
      func.return %v : !v
    }"""
    assert_same(run(text, torch.empty(0, 4)), torch.empty(0, 4))
