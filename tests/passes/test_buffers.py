"""Values, strides, mutation and aliasing stay the same from tensors to buffers to kernels."""

from __future__ import annotations

import random
import re
import sys

import pytest
import torch
from tests.passes.buffer_programs import PASSES, RandomProgram, check_stages, observe, parse, tensor, transformed
from torch import Tensor
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from tilewright.dialects import host, loop
from tilewright.passes.analysis.lifetimes import PlannedBytes, planned_bytes
from tilewright.passes.buffer_reuse import BufferReusePass
from tilewright.passes.bufferize import BufferizePass
from tilewright.passes.merge_kernels import MergeKernelsPass
from tilewright.passes.outline_kernels import OutlineKernelsPass

A, AT = tensor([4, 6], [6, 1]), tensor([6, 4], [1, 6])
ROW = tensor([6], [1])
SYMBOLS = "attributes {aten.symbols = {s0 = #sym.symbol<hint 5, 2 to 1000>}}"
BATCH = "tensor<?x6xf32, #sym.layout<[s0, 6], [6, 1]>>"


def pointwise(result: str, source: str, op: str = "math.exp", kind: str = A) -> str:
    """Return the text of a nest that applies `op` to each element."""
    rows = "s0" if "s0" in kind else "4"
    return f"""
  {result} = loop.nest (%i : {rows}, %j : 6) outs(%to : {kind}) {{
    %in = loop.load {source}[%i, %j] : {kind} -> f32
    %res = {op} %in : f32
    loop.store %res, %to[%i, %j] : f32, {kind}
  }}"""


def matrix() -> Tensor:
    return torch.arange(24.0).reshape(4, 6) / 8 - 1


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int) -> None:
    choose = random.Random(seed)
    program = RandomProgram(choose)
    text = program.text(choose.randint(1, 14))
    check_stages(text, *program.inputs())


def test_a_returned_view_of_an_argument_is_the_argument() -> None:
    text = f"""
func.func @forward(%x : {A}) -> ({AT}, {A}) {{
  %t = loop.view %x <(d0, d1) -> (d1, d0)> : {A} to {AT}
  func.return %t, %x : {AT}, {A}
}}"""
    check_stages(text, matrix())
    assert observe(transformed(text, BufferizePass()), [matrix()]).shares == [0, 0]


def test_two_results_of_one_buffer_share_it() -> None:
    text = f"""
func.func @forward(%x : {A}) -> ({A}, {AT}, {A}) {{{pointwise("%y", "%x")}
  %t = loop.view %y <(d0, d1) -> (d1, d0)> : {A} to {AT}
  func.return %y, %t, %y : {A}, {AT}, {A}
}}"""
    check_stages(text, matrix())
    assert observe(transformed(text, BufferizePass()), [matrix()]).shares == [1, 1, 1]


def test_an_expanded_result_has_stride_zero() -> None:
    wide = tensor([4, 6], [0, 1])
    text = f"""
func.func @forward(%x : {ROW}) -> {wide} {{
  %y = loop.nest (%j : 6) outs(%o : {ROW}) {{
    %v = loop.load %x[%j] : {ROW} -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%j] : f32, {ROW}
  }}
  %e = loop.view %y <(d0, d1) -> (d1)> : {ROW} to {wide}
  func.return %e : {wide}
}}"""
    check_stages(text, torch.arange(6.0))


@pytest.mark.parametrize("sizes", [(4, 6), (4, 0)])
def test_a_nest_of_an_expanded_type_is_stored_densely_and_returned_expanded(sizes: tuple[int, int]) -> None:
    rows, columns = sizes
    wide, row = tensor(sizes, [0, 1]), tensor([columns], [1])
    text = f"""
func.func @forward(%x : {row}) -> {wide} {{
  %y = loop.nest (%i : {rows}, %j : {columns}) outs(%o : {wide}) {{
    %v = loop.load %x[%j] : {row} -> f32
    loop.store %v, %o[%i, %j] : f32, {wide}
  }}
  func.return %y : {wide}
}}"""
    values = torch.arange(float(columns))
    module = transformed(text, BufferizePass(), BufferReusePass(), OutlineKernelsPass())
    (result,) = observe(module, [values]).results
    assert isinstance(result, Tensor)
    assert result.stride() == (0, 1)
    assert torch.equal(result, values.expand(rows, columns))


def test_an_operand_of_a_call_has_the_layout_of_its_type() -> None:
    wide = tensor([4, 6], [0, 1])
    text = f"""
func.func @forward(%x : {ROW}) -> {A} {{
  %y = loop.nest (%i : 4, %j : 6) outs(%o : {wide}) {{
    %v = loop.load %x[%j] : {ROW} -> f32
    loop.store %v, %o[%i, %j] : f32, {wide}
  }}
  %z = aten.call "aten.neg.default"(self = %y) : ({wide}) -> {A}
  func.return %z : {A}
}}"""
    module = transformed(text, BufferizePass())
    (call,) = [op for op in module.walk() if isinstance(op, host.CallOp)]
    assert str(call.operands[0].type) == wide.replace("tensor", "memref")
    (result,) = observe(module, [torch.arange(6.0)]).results
    assert isinstance(result, Tensor)
    assert torch.equal(result, -torch.arange(6.0).expand(4, 6))


def test_a_reshape_across_memory_is_copied() -> None:
    flat = tensor([24], [1])
    text = f"""
func.func @forward(%x : {A}) -> {flat} {{
  %t = loop.view %x <(d0, d1) -> (d1, d0)> : {A} to {AT}
  %f = loop.view %t <(d0) -> (d0 floordiv 4, d0 mod 4)> : {AT} to {flat}
  func.return %f : {flat}
}}"""
    found = observe(transformed(text, BufferizePass()), [matrix()])
    (result,) = found.results
    assert isinstance(result, Tensor)
    assert torch.equal(result, matrix().t().reshape(24))
    assert found.shares == [1]


def test_a_reshape_of_dims_that_are_adjacent_in_memory_is_a_view() -> None:
    text = """
func.func @forward(%x : tensor<?x6x4xf32, #sym.layout<[s0, 6, 4], [48, 8, 2]>>)
    -> tensor<?x24xf32, #sym.layout<[s0, 24], [48, 2]>> attributes {aten.symbols = {s0 = #sym.symbol<2 to 1000>}} {
  %f = loop.view %x <(d0, d1) -> (d0, d1 floordiv 4, d1 mod 4)>
      : tensor<?x6x4xf32, #sym.layout<[s0, 6, 4], [48, 8, 2]>> to tensor<?x24xf32, #sym.layout<[s0, 24], [48, 2]>>
  func.return %f : tensor<?x24xf32, #sym.layout<[s0, 24], [48, 2]>>
}"""
    check_stages(text, torch.randn(5, 6, 8)[:, :, ::2])
    assert observe(transformed(text, BufferizePass()), [torch.randn(5, 6, 8)[:, :, ::2]]).shares == [0]


def test_a_mutated_argument_is_read_before_it_is_written() -> None:
    text = f"""
func.func @forward(%x : {A}) -> {A} {{{pointwise("%y", "%x")}{pointwise("%z", "%x", "math.absf")}
  %c = aten.call "aten.copy_.default"(self = %x, src = %y) : ({A}, {A}) -> {A}
  func.return %z : {A}
}}"""
    check_stages(text, matrix())
    found = observe(transformed(text, BufferizePass(), BufferReusePass()), [matrix()])
    assert isinstance(found.inputs[0], Tensor)
    torch.testing.assert_close(found.inputs[0], matrix().exp())


def test_an_argument_that_takes_its_own_transpose_keeps_what_it_was() -> None:
    square, turned = tensor([3, 3], [3, 1]), tensor([3, 3], [1, 3])
    text = f"""
func.func @forward(%x : {square}) -> {square} {{
  %t = loop.view %x <(d0, d1) -> (d1, d0)> : {square} to {turned}
  %c = aten.call "aten.copy_.default"(self = %x, src = %t) : ({square}, {turned}) -> {square}
  func.return %c : {square}
}}"""
    values = torch.arange(9.0).reshape(3, 3)
    for passes in ([BufferizePass()], [BufferizePass(), BufferReusePass(), OutlineKernelsPass()]):
        found = observe(transformed(text, *passes), [values])
        assert isinstance(found.inputs[0], Tensor)
        assert torch.equal(found.inputs[0], values.t())
        assert found.shares == [0]


def test_a_copy_that_converts_or_broadcasts_stays_a_call() -> None:
    row = tensor([6], [1], "f64")
    text = f"""
func.func @forward(%x : {A}, %r : {row}) -> {A} {{
  %c = aten.call "aten.copy_.default"(self = %x, src = %r) : ({A}, {row}) -> {A}
  func.return %c : {A}
}}"""
    check_stages(text, matrix(), torch.arange(6.0, dtype=torch.float64))


def test_a_call_in_place_writes_the_buffer_itself() -> None:
    text = f"""
func.func @forward(%x : {A}) -> ({A}, {A}) {{{pointwise("%y", "%x")}
  %z = aten.call "aten.add_.Tensor"(self = %y, other = %x) : ({A}, {A}) -> {A}
  %w = aten.call "aten.mul_.Tensor"(self = %x, other = %z) : ({A}, {A}) -> {A}{pointwise("%u", "%w", "math.absf")}
  func.return %z, %u : {A}, {A}
}}"""
    check_stages(text, matrix())


def test_buffers_with_views_that_live_are_not_reused() -> None:
    part = tensor([2, 6], [6, 1])
    text = f"""
func.func @forward(%x : {A}) -> ({A}, {part}) {{{pointwise("%y", "%x")}
  %v = aten.call "aten.as_strided.default"(self = %y, size = #sym.ints<[2, 6]>, stride = #sym.ints<[6, 1]>)
      : ({A}) -> {part}{pointwise("%z", "%x", "math.absf")}
  %n = aten.call "aten.neg.default"(self = %z) : ({A}) -> {A}
  %m = aten.call "aten.neg.default"(self = %v) : ({part}) -> {part}
  func.return %n, %m : {A}, {part}
}}"""
    check_stages(text, matrix())


def test_the_halves_of_a_split_are_views() -> None:
    half = "tensor<2x6xf32, #sym.layout<[2, 6], [6, 1]>>"
    second = "tensor<2x6xf32, #sym.layout<[2, 6], [6, 1], offset 12>>"
    text = f"""
func.func @forward(%x : {A}) -> ({half}, {second}) {{{pointwise("%y", "%x")}
  %a, %b = aten.call "aten.split.Tensor"(self = %y, split_size = 2 : i64) : ({A}) -> ({half}, {second})
  func.return %a, %b : {half}, {second}
}}"""
    check_stages(text, matrix())
    assert observe(transformed(text, BufferizePass()), [matrix()]).shares == [1, 1]


@pytest.mark.parametrize("rows", [2, 5, 9])
def test_symbolic_sizes(rows: int) -> None:
    text = f"""
func.func @forward(%x : {BATCH}) -> ({BATCH}, i64) {SYMBOLS} {{{pointwise("%y", "%x", kind=BATCH)}
  {pointwise("%z", "%y", "math.absf", BATCH)}
  %w = aten.call "aten.neg.default"(self = %z) : ({BATCH}) -> {BATCH}{pointwise("%u", "%w", "math.absf", BATCH)}
  %n = aten.size <6 * s0> : i64
  func.return %u, %n : {BATCH}, i64
}}"""
    texts = check_stages(text, torch.randn(rows, 6))
    # `%z` takes over `%y`, and `%u`, which is returned, what the call made.
    assert texts[1].count("host.alloc") == 3
    assert texts[3].count("host.alloc") == 1


def test_a_size_that_a_nest_reads_as_a_number_becomes_a_symbol_of_the_kernel() -> None:
    kind = "tensor<?xi64, #sym.layout<[s0], [1]>>"
    text = f"""
func.func @forward(%n : i64, %x : {kind}) -> {kind} attributes {{aten.symbol_args = {{s0 = 0 : i64}}}} {{
  %c = arith.constant 3 : i64
  %m = aten.size <2 * s0> : i64
  %y = loop.nest (%i : s0) outs(%o : {kind}) {{
    %v = loop.load %x[%i] : {kind} -> i64
    %a = arith.addi %v, %n : i64
    %b = arith.muli %a, %c : i64
    %d = arith.subi %b, %m : i64
    loop.store %d, %o[%i] : i64, {kind}
  }}
  func.return %y : {kind}
}}"""
    check_stages(text, 4, torch.arange(4))


def test_views_of_a_written_buffer_are_one_parameter() -> None:
    whole = "memref<8xf32, #sym.layout<[8], [1]>>"
    low, high = "memref<4xf32, #sym.layout<[4], [1]>>", "memref<4xf32, #sym.layout<[4], [1], offset 4>>"
    text = f"""
func.func @forward(%x : {whole}) -> {whole} {{
  %a = host.view %x : {whole} to {low}
  %b = host.view %x : {whole} to {high}
  loop.nest (%i : 4) {{
    %v = loop.load %a[%i] : {low} -> f32
    loop.store %v, %b[%i] : f32, {high}
  }}
  func.return %x : {whole}
}}"""
    module = transformed(text, OutlineKernelsPass())
    (kernel,) = [op for op in module.ops if isinstance(op, loop.KernelOp)]
    assert len(kernel.buffers) == 1
    assert observe(module, [torch.arange(8.0)]).same(observe(parse(text), [torch.arange(8.0)]))


@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.name)
def test_the_example_of_the_pass_is_what_it_does(step: ModulePass) -> None:
    text = sys.modules[type(step).__module__].__doc__
    assert text is not None
    before, after = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    assert str(transformed(before, step)) == str(parse(after))


def only_function(module: ModuleOp) -> func.FuncOp:
    (found,) = [op for op in module.ops if isinstance(op, func.FuncOp)]
    return found


def test_planned_bytes_count_what_lives_at_a_time() -> None:
    text = f"""
func.func @forward(%x : {BATCH}) -> {BATCH} {SYMBOLS} {{
  {pointwise("%y", "%x", kind=BATCH)}{pointwise("%z", "%y", "math.absf", BATCH)}
  {pointwise("%u", "%z", "math.exp", BATCH)}
  func.return %u : {BATCH}
}}"""
    module = transformed(text, BufferizePass())
    size = 5 * 6 * 4
    assert planned_bytes(only_function(module)) == PlannedBytes(total=3 * size, peak=2 * size)
    BufferReusePass().apply(None, module)  # pyright: ignore[reportArgumentType]
    assert planned_bytes(only_function(module)) == PlannedBytes(total=size, peak=size)


def test_equal_layers_become_one_kernel() -> None:
    layers = "".join(pointwise(f"%y{i + 1}", f"%y{i}") for i in range(12))
    text = f"func.func @forward(%y0 : {A}) -> {A} {{{layers}\n  func.return %y12 : {A}\n}}"
    passes = (BufferizePass(), OutlineKernelsPass(), MergeKernelsPass())
    module = transformed(text, *passes)
    assert len([op for op in module.ops if isinstance(op, loop.KernelOp)]) == 1
    check_stages(text, matrix() / 100)
