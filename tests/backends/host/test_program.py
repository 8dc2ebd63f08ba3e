"""What host programs compute, natively and as Python: values, strides, aliases, lifetimes."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Load = Callable[..., Any]
Define = Callable[[str, Callable[..., Tensor]], None]


def memref(shape: str, sizes: str, strides: str, element: str = "f32", offset: str = "") -> str:
    """Spell a memref type; `shape` is its part before the element type."""
    return f"memref<{shape}{element}, #sym.layout<[{sizes}], [{strides}]{offset}>>"


V16 = memref("16x", "16", "1")
M44 = memref("4x4x", "4, 4", "4, 1")
S = memref("?x", "s0", "1")
S8 = memref("?x8x", "s0, 8", "8, 1")
FLAT = memref("?x", "8 * s0", "1")
X4 = memref("?x4x", "s0, 4", "4, 1")


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) and a.stride() == b.stride() and a.dtype == b.dtype


MIXED = f"""
func.func @forward(%x : {S8}, %w : {memref("8x4x", "8, 4", "4, 1")}) -> ({FLAT}, {X4}) {{
  %f = host.view %x : {S8} to {FLAT}
  %y = host.alloc : {FLAT}
  host.launch @add_one(%f, %y) symbols [8 * s0] : {FLAT}, {FLAT}
  %y2 = host.view %y : {FLAT} to {S8}
  %z = host.call "aten.mm.default"(self = %y2, mat2 = %w)
    : ({S8}, {memref("8x4x", "8, 4", "4, 1")}) -> {X4}
  %q = host.call "aten.relu.default"(self = %z) : ({X4}) -> {X4}
  host.free %z : {X4}
  %r = host.call "aten.mul.Scalar"(self = %q, other = 2 : i64)
    : ({X4}) -> {X4}
  func.return %y, %r : {FLAT}, {X4}
}}
"""


@pytest.mark.parametrize("rows", [5, 1, 0, 33])
def test_kernel_and_three_ways_to_call(load_either: Load, rows: int) -> None:
    program = load_either(MIXED)
    assert program.stats.kernels == {"add_one": 1}
    assert program.stats.calls == {
        "shim": {"aten.mm.default": 1},
        "dispatcher": {"aten.relu.default": 1},
        "callback": {"aten.mul.Scalar": 1},
    }
    assert program.stats.num_callbacks == 1
    x, w = torch.randn(rows, 8), torch.randn(8, 4)
    for _ in range(3):
        flat, result = program([x, w])
        assert same(flat, (x + 1).flatten())
        assert same(result, torch.mm(x + 1, w).relu() * 2)


def test_inputs_keep_their_list_but_boxed_calls_empty_it(load_either: Load) -> None:
    program = load_either(MIXED)
    inputs: list[Tensor | int] = [torch.randn(2, 8), torch.randn(8, 4)]
    program(inputs)
    assert len(inputs) == 2
    program.run_boxed(inputs)
    assert inputs == []


def test_boxed_call_gives_up_an_input_when_it_dies(load: Load, define_operator: Define) -> None:
    """While `observe` runs the first input is gone, as a saved activation must be in a backward pass."""
    alive: list[bool] = []
    program = load(
        f"""
func.func @forward(%x : {V16}) -> {V16} {{
  %y = host.call "aten.neg.default"(self = %x) : ({V16}) -> {V16}
  %z = host.call "tilewright_test.observe.default"(x = %y) : ({V16}) -> {V16}
  func.return %z : {V16}
}}"""
    )
    inputs = [torch.randn(16)]
    reference = weakref.ref(inputs[0])

    def observe(y: Tensor) -> Tensor:
        alive.append(reference() is not None)
        return y.clone()

    define_operator("observe(Tensor x) -> Tensor", observe)
    program.run_boxed(inputs)
    assert alive == [False]


@pytest.mark.parametrize("size", [0, 1, 7])
def test_symbol_from_integer_argument_and_integer_results(load_either: Load, size: int) -> None:
    program = load_either(
        f"""
func.func @forward(%s0 : i64, %x : {S}) -> (i64, {S}, i64)
    attributes {{aten.symbol_args = {{s0 = 0 : i64}}}} {{
  %y = host.alloc : {S}
  host.launch @add_one(%x, %y) symbols [s0] : {S}, {S}
  %n = host.size <(s0 + 1) floordiv 2 - 3 * (s0 mod 4) + max(s0, 3)> : i64
  func.return %n, %y, %s0 : i64, {S}, i64
}}"""
    )
    x = torch.randn(size)
    number, result, same_size = program([size, x])
    assert (number, same_size) == ((size + 1) // 2 - 3 * (size % 4) + max(size, 3), size)
    assert same(result, x + 1)


@pytest.mark.parametrize("value", [-7, -4, -1, 0, 1, 5, 8])
def test_division_rounds_down(load_either: Load, value: int) -> None:
    program = load_either(
        """
func.func @forward(%s0 : i64) -> (i64, i64, i64, i64) attributes {aten.symbol_args = {s0 = 0 : i64}} {
  %a = host.size <s0 floordiv 4> : i64
  %b = host.size <s0 mod 4> : i64
  %c = host.size <s0 * s0 * s0 - (s0 floordiv 3) * 2> : i64
  %d = host.size <min(s0, 2) - -5> : i64
  func.return %a, %b, %c, %d : i64, i64, i64, i64
}"""
    )
    assert program([value]) == [value // 4, value % 4, value**3 - value // 3 * 2, min(value, 2) + 5]


def test_zero_dim_tensors_and_dtypes(load_either: Load) -> None:
    scalar_bf16 = memref("", "", "", "bf16")
    byte = memref("3x", "3", "1", "i1")
    program = load_either(
        f"""
func.func @forward(%x : {scalar_bf16}, %m : {byte}) -> ({scalar_bf16}, {byte}, {memref("3x", "3", "1", "i64")}) {{
  %y = host.call "aten.exp.default"(self = %x) : ({scalar_bf16}) -> {scalar_bf16}
  %n = host.call "aten.logical_not.default"(self = %m) : ({byte}) -> {byte}
  %c = host.call "aten.cumsum.default"(self = %n, dim = 0 : i64) : ({byte}) -> {memref("3x", "3", "1", "i64")}
  func.return %y, %n, %c : {scalar_bf16}, {byte}, {memref("3x", "3", "1", "i64")}
}}"""
    )
    x, m = torch.tensor(0.3, dtype=torch.bfloat16), torch.tensor([True, False, False])
    y, n, c = program([x, m])
    assert same(y, x.exp())
    assert same(n, ~m)
    assert same(c, (~m).cumsum(0))


TRANSPOSED = memref("4x4x", "4, 4", "1, 4")


def test_strided_input_with_offset_parameter_and_gradient(load_either: Load) -> None:
    row = memref("4x", "4", "4", offset=", offset 2")
    program = load_either(
        f"""
func.func @forward(%x : {TRANSPOSED}) -> {memref("4x", "4", "4")} {{
  %row = host.view %x : {TRANSPOSED} to {row}
  %y = host.call "aten.mul.Tensor"(self = %row, other = %row)
    : ({row}, {row}) -> {memref("4x", "4", "1")}
  %z = host.alloc : {memref("4x", "4", "4")}
  %w = host.call "aten.copy_.default"(self = %z, src = %y)
    : ({memref("4x", "4", "4")}, {memref("4x", "4", "1")}) -> {memref("4x", "4", "4")}
  func.return %z : {memref("4x", "4", "4")}
}}"""
    )
    storage = torch.randn(40)
    x = storage[5:21].view(4, 4).t()
    expected = torch.empty_strided((4,), (4,)).copy_(x[2] ** 2)
    assert same(program([x])[0], expected)
    parameter = torch.nn.Parameter(x)
    result = program([parameter])[0]
    assert same(result, expected)
    assert not result.requires_grad
    assert torch.is_grad_enabled()


def test_result_that_is_an_input_is_the_same_object(load: Load) -> None:
    program = load(f"func.func @forward(%x : {V16}, %y : {V16}) -> ({V16}, {V16}, {V16}) {{"
                   f"  func.return %y, %x, %y : {V16}, {V16}, {V16} }}")  # fmt: skip
    x, y = torch.randn(16), torch.nn.Parameter(torch.randn(16))
    results = program([x, y])
    assert results[0] is y
    assert results[1] is x
    assert results[2] is y


def test_mutation_reaches_the_input_and_its_alias(load_either: Load) -> None:
    program = load_either(
        f"""
func.func @forward(%x : {M44}, %y : {V16}) -> {V16} attributes {{aten.mutates = [0 : i64]}} {{
  %flat = host.view %x : {M44} to {V16}
  %done = host.call "aten.copy_.default"(self = %flat, src = %y) : ({V16}, {V16}) -> {V16}
  func.return %flat : {V16}
}}"""
    )
    x, y = torch.zeros(4, 4), torch.randn(16)
    (alias,) = program([x, y])
    assert torch.equal(x.flatten(), y)
    assert alias.data_ptr() == x.data_ptr()


def test_view_result_keeps_its_base(load_either: Load) -> None:
    half = memref("8x", "8", "1", offset=", offset 8")
    program = load_either(
        f"""
func.func @forward(%x : {V16}) -> {half} {{
  %y = host.alloc : {V16}
  host.launch @add_one(%x, %y) symbols [16] : {V16}, {V16}
  %h = host.view %y : {V16} to {half}
  host.free %y : {V16}
  func.return %h : {half}
}}"""
    )
    x = torch.randn(16)
    (result,) = program([x])
    gc.collect()
    torch.randn(16)
    assert same(result, (x + 1)[8:])
    assert result.storage_offset() == 8


def test_buffer_and_its_views_are_results_together(load_either: Load) -> None:
    half = memref("8x", "8", "1", offset=", offset 8")
    program = load_either(
        f"""
func.func @forward(%x : {V16}) -> ({V16}, {half}, {V16}, {half}) {{
  %y = host.alloc : {V16}
  host.launch @add_one(%x, %y) symbols [16] : {V16}, {V16}
  %h = host.view %y : {V16} to {half}
  func.return %y, %h, %y, %h : {V16}, {half}, {V16}, {half}
}}"""
    )
    x = torch.randn(16)
    y, h, again, h_again = program([x])
    assert same(y, x + 1)
    assert same(h, (x + 1)[8:])
    assert y.data_ptr() == again.data_ptr() == h.data_ptr() - 32 == h_again.data_ptr() - 32


def test_freed_buffer_outlives_its_views(load: Load) -> None:
    """`host.free` gives up a handle; an address taken through a view later is still good."""
    large = memref("65536x", "65536", "1")
    program = load(
        f"""
func.func @forward(%x : {large}) -> {large} {{
  %y = host.alloc : {large}
  host.launch @add_one(%x, %y) symbols [65536] : {large}, {large}
  %v = host.view %y : {large} to {large}
  host.free %y : {large}
  %other = host.alloc : {large}
  host.launch @add_one(%v, %other) symbols [65536] : {large}, {large}
  func.return %other : {large}
}}"""
    )
    x = torch.randn(65536)
    assert same(program([x])[0], x + 1 + 1)


def test_buffer_reused_for_another_dtype(load_either: Load) -> None:
    i8s, i64s = memref("64x", "64", "1", "ui8"), memref("4x", "4", "1", "i64", ", offset 2")
    program = load_either(
        f"""
func.func @forward(%x : {memref("4x", "4", "1", "i64")}, %b : {V16})
    -> ({i64s}, {memref("2x", "2", "1", "i64", ", offset 1")}) {{
  %pool = host.alloc : {i8s}
  %v = host.view %pool : {i8s} to {i64s}
  %done = host.call "aten.copy_.default"(self = %v, src = %x) : ({i64s}, {memref("4x", "4", "1", "i64")}) -> {i64s}
  %bits = host.view %b : {V16} to {memref("2x", "2", "1", "i64", ", offset 1")}
  func.return %v, %bits : {i64s}, {memref("2x", "2", "1", "i64", ", offset 1")}
}}"""
    )
    x, storage = torch.randint(0, 1000, (4,)), torch.randn(18)
    b = storage[2:]
    v, bits = program([x, b])
    assert same(v, x)
    assert v.storage_offset() == 2
    assert same(bits, b.view(torch.int64)[1:3])


def test_list_results_optional_arguments_and_undefined_results(load_either: Load) -> None:
    image, weight = memref("1x2x5x5x", "1, 2, 5, 5", "50, 25, 5, 1"), memref("3x2x3x3x", "3, 2, 3, 3", "18, 9, 3, 1")
    out = memref("1x3x5x5x", "1, 3, 5, 5", "75, 25, 5, 1")
    left, right = (
        memref("1x1x5x5x", "1, 1, 5, 5", "50, 25, 5, 1"),
        memref("1x1x5x5x", "1, 1, 5, 5", "50, 25, 5, 1", offset=", offset 25"),
    )
    shape = "stride = #sym.ints<[1, 1]>, padding = #sym.ints<[1, 1]>, dilation = #sym.ints<[1, 1]>"
    program = load_either(
        f"""
func.func @forward(%x : {image}, %w : {weight}, %b : {memref("3x", "3", "1")})
    -> ({out}, {weight}, {memref("1x2x5x5x", "1, 2, 5, 5", "50, 25, 5, 1")}) {{
  %y = host.call "aten.convolution.default"(input = %x, weight = %w, bias = %b, {shape}, transposed = false,
      output_padding = #sym.ints<[0, 0]>, groups = 1 : i64) : ({image}, {weight}, {memref("3x", "3", "1")}) -> {out}
  %gx, %gw, %gb = host.call "aten.convolution_backward.default"(grad_output = %y, input = %x, weight = %w,
      bias_sizes = none, {shape}, transposed = false, output_padding = #sym.ints<[0, 0]>, groups = 1 : i64,
      output_mask = [false, true, false])
    : ({out}, {image}, {weight}) -> (none, {weight}, none)
  %a, %c = host.call "aten.split.Tensor"(self = %x, split_size = 1 : i64, dim = 1 : i64)
    : ({image}) -> ({left}, {right})
  %cat = host.call "aten.cat.default"(tensors = [%c, %a], dim = 1 : i64) : ({right}, {left}) -> {image}
  func.return %y, %gw, %cat : {out}, {weight}, {image}
}}"""
    )
    assert program.stats.num_callbacks == 0
    x, w, b = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3), torch.randn(3)
    y, gw, cat = program([x, w, b])
    expected = torch.conv2d(x, w, b, padding=1)
    torch.testing.assert_close(y, expected)
    expected_gw = torch.ops.aten.convolution_backward.default(
        expected, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]
    torch.testing.assert_close(gw, expected_gw)
    assert same(cat, torch.cat([x[:, 1:], x[:, :1]], 1))


def test_dispatcher_values_of_all_kinds(load_either: Load) -> None:
    f64 = memref("4x4x", "4, 4", "4, 1", "f64")
    cl = memref("1x2x2x4x", "1, 2, 2, 4", "16, 1, 8, 2", "f64")
    nchw = memref("1x2x2x4x", "1, 2, 2, 4", "16, 8, 4, 1", "f64")
    program = load_either(
        f"""
func.func @forward(%x : {f64}, %i : {memref("2x", "2", "1", "i64")})
    -> ({memref("4x2x", "4, 2", "1, 4", "f64")}, {memref("", "", "")}, {cl}, {f64}) {{
  %a = host.call "aten.index_select.default"(self = %x, dim = 1 : i64, index = %i)
    : ({f64}, {memref("2x", "2", "1", "i64")}) -> {memref("4x2x", "4, 2", "1, 4", "f64")}
  %b = host.call "aten.sum.dim_IntList"(self = %x, dim = #sym.ints<[0, -1]>, dtype = #aten.dtype<f32>)
    : ({f64}) -> {memref("", "", "")}
  %n = host.view %x : {f64} to {nchw}
  %c = host.call "aten.clone.default"(self = %n, memory_format = #aten.memory_format<"channels_last">)
    : ({nchw}) -> {cl}
  %d = host.call "aten.nan_to_num.default"(self = %x, nan = 1.5 : f64, posinf = none, neginf = -2.0 : f64)
    : ({f64}) -> {f64}
  func.return %a, %b, %c, %d : {memref("4x2x", "4, 2", "1, 4", "f64")}, {memref("", "", "")}, {cl}, {f64}
}}"""
    )
    assert program.stats.num_callbacks == 0
    x, i = torch.randn(4, 4, dtype=torch.float64), torch.tensor([2, 0])
    x[0, 0], x[1, 1], x[2, 2] = float("nan"), float("inf"), -float("inf")
    a, b, c, d = program([x, i])
    torch.testing.assert_close(a, x.index_select(1, i), equal_nan=True)
    assert a.stride() == (1, 4)
    torch.testing.assert_close(b, x.sum((0, 1), dtype=torch.float32), equal_nan=True)
    expected = torch.empty_strided((1, 2, 2, 4), (16, 1, 8, 2), dtype=torch.float64).copy_(x.view(1, 2, 2, 4))
    torch.testing.assert_close(c, expected, equal_nan=True)
    assert c.stride() == expected.stride()
    assert same(d, x.nan_to_num(1.5, None, -2.0))


def test_result_with_other_strides_than_traced_is_copied(load_either: Load) -> None:
    """`a` above shows it for a call that has the traced strides only after a copy; here in Python as well."""
    program = load_either(
        f"""
func.func @forward(%x : {M44}) -> {TRANSPOSED} {{
  %y = host.call "aten.mul.Scalar"(self = %x, other = 3 : i64) : ({M44}) -> {TRANSPOSED}
  %z = host.call "aten.neg.default"(self = %y) : ({TRANSPOSED}) -> {M44}
  func.return %y : {TRANSPOSED}
}}"""
    )
    x = torch.randn(4, 4)
    (y,) = program([x])
    assert torch.equal(y, x * 3)
    assert y.stride() == (1, 4)


def test_constants(load_either: Load) -> None:
    constant = torch.randn(16)
    program = load_either(
        f"""
func.func @forward(%x : {V16}, %c : {V16}) -> ({V16}, {V16}) attributes {{aten.constants = ["c"]}} {{
  %y = host.call "aten.maximum.default"(self = %x, other = %c) : ({V16}, {V16}) -> {V16}
  func.return %y, %c : {V16}, {V16}
}}""",
        constants=[constant],
    )
    x = torch.randn(16)
    for _ in range(3):
        y, c = program([x])
        assert same(y, torch.maximum(x, constant))
        assert c.data_ptr() == constant.data_ptr()


def test_integer_scalar_is_not_given_as_a_float(load_either: Load) -> None:
    i64 = memref("2x2x", "2, 2", "2, 1", "i64")
    program = load_either(
        f"""
func.func @forward(%b : {i64}, %x : {i64}) -> {i64} {{
  %y = host.call "aten.addmm.default"(self = %b, mat1 = %x, mat2 = %x, beta = 3 : i64) : ({i64}, {i64}, {i64}) -> {i64}
  func.return %y : {i64}
}}"""
    )
    b, x = torch.randint(0, 9, (2, 2)), torch.randint(0, 9, (2, 2))
    assert same(program([b, x])[0], torch.addmm(b, x, x, beta=3))


def test_code_and_constants_are_released(load: Load) -> None:
    constant = torch.randn(16)
    reference = weakref.ref(constant)
    program = load(
        f"""
func.func @forward(%x : {V16}, %c : {V16}) -> {V16} attributes {{aten.constants = ["c"]}} {{
  %y = host.call "aten.maximum.default"(self = %x, other = %c) : ({V16}, {V16}) -> {V16}
  func.return %y : {V16}
}}""",
        constants=[constant],
    )
    del constant
    gc.collect()
    assert reference() is not None
    program([torch.randn(16)])
    del program
    gc.collect()
    assert reference() is None
