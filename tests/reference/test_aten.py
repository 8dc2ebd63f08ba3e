"""Calls of ATen operators: arguments of every kind, mutation, aliases, symbols."""

from __future__ import annotations

import torch
from tests.reference.conftest import Runner
from torch import Tensor

X = "tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>"


def test_numbers_lists_and_flags(run: Runner) -> None:
    text = """
    !x = tensor<2x3xf32, #sym.layout<[2, 3], [3, 1]>>
    !r = tensor<2x1xf32, #sym.layout<[2, 1], [1, 1]>>
    func.func @forward(%x : !x) -> !r {
      %a = aten.call "aten.add.Tensor"(self = %x, other = %x, alpha = 0.5 : f64) : (!x, !x) -> !x
      %y = aten.call "aten.sum.dim_IntList"(self = %a, dim = #sym.ints<[-1]>, keepdim = true) : (!x) -> !r
      func.return %y : !r
    }"""
    x = torch.randn(2, 3)
    torch.testing.assert_close(run(text, x), (1.5 * x).sum(-1, keepdim=True))


def test_lists_of_tensors_in_and_out(run: Runner) -> None:
    text = """
    !x = tensor<2x3xf32, #sym.layout<[2, 3], [3, 1]>>
    !c = tensor<2x6xf32, #sym.layout<[2, 6], [6, 1]>>
    !p = tensor<2x4xf32, #sym.layout<[2, 4], [6, 1]>>
    !q = tensor<2x2xf32, #sym.layout<[2, 2], [6, 1], offset 4>>
    func.func @forward(%x : !x, %z : !x) -> (!p, !q) {
      %c = aten.call "aten.cat.default"(tensors = [%x, %z], dim = 1 : i64) : (!x, !x) -> !c
      %p, %q = aten.call "aten.split.Tensor"(self = %c, split_size = 4 : i64, dim = 1 : i64) : (!c) -> (!p, !q)
      func.return %p, %q : !p, !q
    }"""
    x, z = torch.randn(2, 3), torch.randn(2, 3)
    both = torch.cat([x, z], 1)
    torch.testing.assert_close(run.all(text, x, z), [both[:, :4], both[:, 4:]], rtol=0, atol=0)


def test_optional_tensors_dtypes_and_devices(run: Runner) -> None:
    text = """
    !x = tensor<4x3xf32, #sym.layout<[4, 3], [3, 1]>>
    !r = tensor<2x3xf32, #sym.layout<[2, 3], [3, 1]>>
    !n = tensor<2xi64, #sym.layout<[2], [1]>>
    !h = tensor<2x3xbf16, #sym.layout<[2, 3], [3, 1]>>
    !f = tensor<2xbf16, #sym.layout<[2], [1]>>
    func.func @forward(%x : !x, %n : !n) -> (!h, !f) {
      %y = aten.call "aten.index.Tensor"(self = %x, indices = [%n, none]) : (!x, !n) -> !r
      %z = aten.call "aten._to_copy.default"(self = %y, dtype = #aten.dtype<bf16>) : (!r) -> !h
      %f = aten.call "aten.full.default"(size = #sym.ints<[2]>, fill_value = 3 : i64, dtype = #aten.dtype<bf16>,
          layout = #aten.layout<"strided">, device = #aten.device<"cpu">, pin_memory = false) : () -> !f
      func.return %z, %f : !h, !f
    }"""
    x, n = torch.randn(4, 3), torch.tensor([3, 1])
    found, filled = run.all(text, x, n)
    torch.testing.assert_close(found, x[n].bfloat16(), rtol=0, atol=0)
    torch.testing.assert_close(filled, torch.full((2,), 3.0, dtype=torch.bfloat16))


def test_undefined_results(run: Runner) -> None:
    text = """
    !x = tensor<2x3xf32, #sym.layout<[2, 3], [3, 1]>>
    !w = tensor<3xf32, #sym.layout<[3], [1]>>
    !s = tensor<2x1xf32, #sym.layout<[2, 1], [1, 1]>>
    func.func @forward(%g : !x, %x : !x, %m : !s, %r : !s, %w : !w) -> (!x, !w) {
      %a, %b, %c = aten.call "aten.native_layer_norm_backward.default"(grad_out = %g, input = %x,
          normalized_shape = #sym.ints<[3]>, mean = %m, rstd = %r, weight = %w, bias = none,
          output_mask = [true, true, false]) : (!x, !x, !s, !s, !w) -> (!x, !w, none)
      func.return %a, %b : !x, !w
    }"""
    x, w = torch.randn(2, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    g = torch.randn(2, 3)
    y, mean, rstd = torch.native_layer_norm(x, [3], w, None, 1e-5)
    expected = torch.autograd.grad(y, (x, w), g)
    found = run.all(text, g, x, mean.detach(), rstd.detach(), w)
    torch.testing.assert_close(found, list(expected))


def test_copy_writes_the_input(run: Runner) -> None:
    text = f"""
    !x = {X}
    func.func @forward(%x : !x) -> !x attributes {{aten.mutates = [0], aten.output_alias = [0]}} {{
      %y = aten.call "aten.mul.Tensor"(self = %x, other = %x) : (!x, !x) -> !x
      %z = aten.call "aten.copy_.default"(self = %x, src = %y) : (!x, !x) -> !x
      func.return %z : !x
    }}"""
    x = torch.randn(3, 8)
    before = x.clone()
    result = run(text, x)
    assert result.data_ptr() == x.data_ptr()
    torch.testing.assert_close(x, before * before)


def test_symbols_from_arguments_and_as_results(run: Runner) -> None:
    text = f"""
    !x = {X}
    !y = tensor<?x4xf32, #sym.layout<[2 * s0, 4], [4, 1]>>
    func.func @forward(%s : i64, %x : !x) -> (!y, i64) attributes {{aten.symbol_args = {{s0 = 0 : i64}}}} {{
      %y = aten.call "aten.view.default"(self = %x, size = #sym.ints<[2 * s0, 4]>) : (!x) -> !y
      %n = aten.size <s0 floordiv 2> : i64
      func.return %y, %n : !y, i64
    }}"""
    x = torch.randn(5, 8)
    view, size = run.all(text, 5, x)
    assert isinstance(view, Tensor)
    assert view.shape == (10, 4)
    assert size == 2


def test_a_result_is_copied_into_the_strides_of_its_type(run: Runner) -> None:
    text = """
    !x = tensor<2x3xf32, #sym.layout<[2, 3], [3, 1]>>
    !y = tensor<2x3xf32, #sym.layout<[2, 3], [1, 2]>>
    func.func @forward(%x : !x) -> !y {
      %y = aten.call "aten.relu.default"(self = %x) : (!x) -> !y
      func.return %y : !y
    }"""
    x = torch.randn(2, 3)
    found = run(text, x)
    assert found.stride() == (1, 2)
    torch.testing.assert_close(found, x.relu())
