"""Kernels of CPU operations and structured control flow, on small sizes."""

from __future__ import annotations

import pytest
import torch
from tests.reference.conftest import Runner

F = "memref<?xf32, #sym.layout<[n0], [1]>>"

SOFTMAX = f"""
!f = {F}
func.func @softmax(%x : !f, %y : !f, %rows : i64, %columns : i64) {{
  %n = arith.index_cast %rows : i64 to index
  %c = arith.index_cast %columns : i64 to index
  %zero = arith.constant 0 : index
  %step = arith.constant 4 : index
  %low = arith.constant 0xff800000 : f32
  %none = arith.constant 0.0 : f32
  cpu.parallel %n grain 2 {{
  ^bb0(%begin : index, %end : index):
    %one = arith.constant 1 : index
    scf.for %i = %begin to %end step %one {{
      %row = arith.muli %i, %c : index
      %lows = vector.broadcast %low : f32 to vector<4xf32>
      %zeros = vector.broadcast %none : f32 to vector<4xf32>
      %m = scf.for %k = %zero to %c step %step iter_args(%a = %lows) -> (vector<4xf32>) {{
        %p = cpu.tail_mask %k, %c : vector<4xi1>
        %o = arith.addi %row, %k : index
        %v = cpu.load %x[%o] mask %p else %lows : !f -> vector<4xf32>
        %b = arith.maximumf %a, %v : vector<4xf32>
        scf.yield %b : vector<4xf32>
      }}
      %max = cpu.reduce "max" %m : vector<4xf32> to f32
      %maxs = vector.broadcast %max : f32 to vector<4xf32>
      %s = scf.for %k = %zero to %c step %step iter_args(%a = %zeros) -> (vector<4xf32>) {{
        %p = cpu.tail_mask %k, %c : vector<4xi1>
        %o = arith.addi %row, %k : index
        %v = cpu.load %x[%o] mask %p else %lows : !f -> vector<4xf32>
        %d = arith.subf %v, %maxs : vector<4xf32>
        %e = math.exp %d : vector<4xf32>
        cpu.store %e, %y[%o] mask %p : vector<4xf32>, !f
        %b = arith.addf %a, %e : vector<4xf32>
        scf.yield %b : vector<4xf32>
      }}
      %sum = cpu.reduce "sum" %s : vector<4xf32> to f32
      scf.for %k = %zero to %c step %one {{
        %o = arith.addi %row, %k : index
        %e = cpu.load %y[%o] : !f -> f32
        %q = arith.divf %e, %sum : f32
        cpu.store %q, %y[%o] : f32, !f
      }}
    }}
  }}
  func.return
}}
!x = memref<?x?xf32, #sym.layout<[s0, s1], [s1, 1]>>
func.func @forward(%x : !x) -> !x {{
  %y = host.alloc : !x
  host.launch @softmax(%x, %y) symbols [s0, s1] : !x, !x
  func.return %y : !x
}}
"""


@pytest.mark.parametrize("shape", [(7, 6), (1, 4), (5, 1), (0, 3)])
def test_softmax(run: Runner, shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    torch.testing.assert_close(run(SOFTMAX, x), x.softmax(-1), rtol=1e-6, atol=1e-6)


def test_gather_scatter_step_and_extract(run: Runner) -> None:
    text = """
    !a = memref<7xf32, #sym.layout<[7], [1]>>
    !b = memref<5xf32, #sym.layout<[5], [1]>>
    func.func @forward(%a : !a, %b : !b) {
      %s = cpu.step : vector<4xindex>
      %two = arith.constant dense<2> : vector<4xindex>
      %o = arith.muli %s, %two : vector<4xindex>
      %v = cpu.gather %a[%o] : !a -> vector<4xf32>
      cpu.scatter %v, %b[%s] : vector<4xf32>, !b
      %last = cpu.extract %v 3 : vector<4xf32> to f32
      %at = arith.constant 4 : index
      cpu.store %last, %b[%at] : f32, !b
      cpu.store %last, %b[%at] combine "sum" : f32, !b
      func.return
    }"""
    a, b = torch.randn(7), torch.zeros(5)
    run.all(text, a, b)
    torch.testing.assert_close(b, torch.stack([a[0], a[2], a[4], a[6], 2 * a[6]]))


def test_if(run: Runner) -> None:
    text = f"""
    func.func @forward(%a : {F}) {{
    %i = arith.constant 0 : index
    %v = cpu.load %a[%i] : {F} -> f32
    %z = arith.constant 0.0 : f32
    %c = loop.cmp "lt" %v, %z : f32
    %r = scf.if %c -> (f32) {{
      %n = arith.negf %v : f32
      scf.yield %n : f32
    }} else {{
      scf.yield %v : f32
    }}
    cpu.store %r, %a[%i] : f32, {F}
    func.return
    }}"""
    for value in (3.0, -2.0):
        a = torch.tensor([value])
        run.all(text, a)
        assert a.item() == abs(value)
