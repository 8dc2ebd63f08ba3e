"""Host programs and the kernels that they launch, on buffers."""

from __future__ import annotations

import pytest
import torch
from tests.reference.conftest import Runner

from tilewright.backends.reference.errors import ExecutionError

KERNEL = """
!f = memref<?xf32, #sym.layout<[n0], [1]>>
loop.kernel @exp(%a : !f, %b : !f) symbols [n0] {
  loop.nest (%i : n0) {
    %v = loop.load %a[%i] : !f -> f32
    %e = math.exp %v : f32
    loop.store %e, %b[%i] : f32, !f
  }
}
"""

PROGRAM = (
    KERNEL
    + """
!x = memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
!p = memref<?xf32, #sym.layout<[8 * s0], [1]>>
!r = memref<?xf32, #sym.layout<[s0], [1]>>
func.func @forward(%x : !x) -> (!x, !r, i64) {
  %f = host.view %x : !x to !p
  %y = host.alloc : !p
  host.launch @exp(%f, %y) symbols [8 * s0] : !p, !p
  %z = host.view %y : !p to !x
  %s = host.call "aten.sum.dim_IntList"(self = %z, dim = #sym.ints<[1]>) : (!x) -> !r
  %t = host.alloc : !r
  host.launch @exp(%s, %t) symbols [s0] : !r, !r
  host.free %s : !r
  host.free %y : !p
  %n = host.size <s0 + 1> : i64
  func.return %z, %t, %n : !x, !r, i64
}"""
)


def test_launches_views_and_calls(run: Runner) -> None:
    x = torch.randn(3, 8)
    exponential, total, size = run.all(PROGRAM, x)
    torch.testing.assert_close(exponential, x.exp(), rtol=0, atol=0)
    torch.testing.assert_close(total, x.exp().sum(1).exp())
    assert size == 4


def test_a_size_beyond_what_its_kernel_knows(run: Runner) -> None:
    text = PROGRAM.replace("symbols [n0] {", "symbols [n0] attributes {ranges = {n0 = #sym.symbol<3 to 24>}} {")
    run.all(text, torch.randn(3, 8))
    with pytest.raises(ExecutionError, match=r"the symbol `n0` is 2, expected 3 to 24"):
        run.all(text, torch.randn(2, 8))


def test_an_input_that_starts_inside_its_storage(run: Runner) -> None:
    storage = torch.randn(5, 8)
    exponential, _, _ = run.all(PROGRAM, storage[2:])
    torch.testing.assert_close(exponential, storage[2:].exp(), rtol=0, atol=0)


def test_memory_is_reused_for_another_element_type(run: Runner) -> None:
    text = """
    !x = memref<8xf32, #sym.layout<[8], [1]>>
    !h = memref<16xbf16, #sym.layout<[16], [1]>>
    !q = memref<4xbf16, #sym.layout<[4], [1], offset 12>>
    loop.kernel @store(%a : memref<4xbf16, #sym.layout<[4], [1]>>) symbols [] {
      loop.nest (%i : 4) {
        %c = arith.constant 3.0 : bf16
        loop.store %c, %a[%i] : bf16, memref<4xbf16, #sym.layout<[4], [1]>>
      }
    }
    func.func @forward(%x : !x) -> !x {
      %h = host.view %x : !x to !h
      %q = host.view %h : !h to !q
      host.launch @store(%q) symbols [] : !q
      func.return %x : !x
    }"""
    x = torch.zeros(8)
    found = run(text, x)
    assert found.data_ptr() == x.data_ptr()
    torch.testing.assert_close(x.view(torch.bfloat16), torch.tensor([0.0] * 12 + [3.0] * 4, dtype=torch.bfloat16))


def test_loops_directly_on_buffers_in_place(run: Runner) -> None:
    text = """
    !x = memref<?x4xf32, #sym.layout<[s0, 4], [1, s0]>>
    func.func @forward(%x : !x) -> !x attributes {aten.mutates = [0]} {
      loop.nest (%i : s0, %j : 4) {
        %v = loop.load %x[%i, %j] : !x -> f32
        %w = arith.addf %v, %v : f32
        loop.store %w, %x[%i, %j] : f32, !x
      }
      func.return %x : !x
    }"""
    x = torch.randn(4, 3).t()
    before = x.clone()
    torch.testing.assert_close(run(text, x), 2 * before, rtol=0, atol=0)
    torch.testing.assert_close(x, 2 * before, rtol=0, atol=0)


def test_a_kernel_alone(run: Runner) -> None:
    a, b = torch.randn(5), torch.zeros(5)
    assert run.all(KERNEL, a, b, 5, name="exp") == []
    torch.testing.assert_close(b, a.exp(), rtol=0, atol=0)


def test_out_arguments_of_calls_count_as_stored(run: Runner) -> None:
    text = """
    !x = memref<2x2xf32, #sym.layout<[2, 2], [2, 1]>>
    func.func @forward(%x : !x) -> !x {
      %y = host.alloc : !x
      %z = host.call "aten.mm.out"(self = %x, mat2 = %x, out = %y) : (!x, !x, !x) -> !x
      func.return %y : !x
    }"""
    x = torch.randn(2, 2)
    torch.testing.assert_close(run(text, x), x @ x)
