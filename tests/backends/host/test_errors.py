"""Failures inside a host program: eager's exceptions, clear messages for bad input, and nothing leaked."""

import ctypes
import gc
import resource
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from tilewright.backends.host import abi, runtime
from tilewright.backends.host.runtime import load_program

Load = Callable[..., Any]

V16 = "memref<16xf32, #sym.layout<[16], [1]>>"
INDEX = "memref<4xi64, #sym.layout<[4], [1]>>"
V4 = "memref<4xf32, #sym.layout<[4], [1]>>"
M44 = "memref<4x4xf32, #sym.layout<[4, 4], [4, 1]>>"
M48 = "memref<4x8xf32, #sym.layout<[4, 8], [8, 1]>>"

MM = f"""
func.func @forward(%x : {M48}, %y : {M48}) -> {M48} {{
  %a = host.call "aten.neg.default"(self = %x) : ({M48}) -> {M48}
  %z = host.call "aten.mm.default"(self = %a, mat2 = %y) : ({M48}, {M48}) -> {M48}
  func.return %z : {M48}
}}"""

INDEX_SELECT = f"""
func.func @forward(%x : {V16}, %i : {INDEX}) -> {V4} {{
  %a = host.call "aten.neg.default"(self = %x) : ({V16}) -> {V16}
  %y = host.call "aten.index_select.default"(self = %a, dim = 0 : i64, index = %i) : ({V16}, {INDEX}) -> {V4}
  func.return %y : {V4}
}}"""

CALL_BACK = f"""
func.func @forward(%x : {V16}, %i : {INDEX}) -> {V16} {{
  %a = host.call "aten.neg.default"(self = %x) : ({V16}) -> {V16}
  %y = host.call "aten.index_fill.int_Scalar"(self = %a, dim = 0 : i64, index = %i, value = 1.5 : f64)
    : ({V16}, {INDEX}) -> {V16}
  func.return %y : {V16}
}}"""


def resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


def test_dedicated_function_raises_what_eager_raises(load_either: Load) -> None:
    program = load_either(MM)
    assert program.stats.calls["shim"] == {"aten.mm.default": 1}
    x = torch.randn(4, 8)
    with pytest.raises(RuntimeError) as expected:
        torch.mm(-x, x)
    with pytest.raises(RuntimeError) as found:
        program([x, x])
    assert str(found.value) == str(expected.value)


def test_dispatcher_raises_what_eager_raises(load_either: Load) -> None:
    program = load_either(INDEX_SELECT)
    assert program.stats.calls["dispatcher"]["aten.index_select.default"] == 1
    x, good, bad = torch.randn(16), torch.tensor([0, 3, 2, 1]), torch.tensor([0, 16, 2, 1])
    with pytest.raises(IndexError) as expected:
        torch.index_select(-x, 0, bad)
    with pytest.raises(IndexError) as found:
        program([x, bad])
    assert str(found.value) == str(expected.value)
    assert torch.equal(program([x, good])[0], (-x)[good])


def test_call_back_raises_what_eager_raises(load_either: Load) -> None:
    program = load_either(CALL_BACK)
    assert program.stats.num_callbacks == 1
    x, bad = torch.randn(16), torch.tensor([0, -40, 2, 1])
    with pytest.raises(IndexError) as expected:
        torch.index_fill(-x, 0, bad, 1.5)
    with pytest.raises(IndexError) as found:
        program([x, bad])
    assert str(found.value) == str(expected.value)


def test_error_without_text_from_torch(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with PyTorch 2.11, which keeps no message: the failed call is repeated in Python."""
    monkeypatch.setattr("tilewright.backends.host.callbacks.last_error_text", lambda: None)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        load(MM)([torch.randn(4, 8), torch.randn(4, 8)])


@pytest.fixture
def forgiving_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every operator that is called from Python work, whatever its arguments."""

    def first_argument(**given: torch.Tensor) -> torch.Tensor:
        return given["self"]

    def find_operator(_: str) -> Callable[..., torch.Tensor]:
        return first_argument

    monkeypatch.setattr("tilewright.backends.host.callbacks.find_operator", find_operator)


@pytest.mark.usefixtures("forgiving_python")
def test_call_that_works_when_repeated(load: Load) -> None:
    x = torch.randn(4, 8)
    assert torch.equal(load(MM)([x, x])[0], -x)


@pytest.mark.usefixtures("forgiving_python")
def test_mutating_call_that_works_when_repeated_still_fails(load: Load) -> None:
    """Its effect may have happened twice."""
    program = load(
        f"""
func.func @forward(%x : {V16}, %y : {M44}) -> {V16} {{
  %z = host.call "aten.copy_.default"(self = %x, src = %y) : ({V16}, {M44}) -> {V16}
  func.return %x : {V16}
}}"""
    )
    with pytest.raises(RuntimeError, match=r"size of tensor a|worked when repeated"):
        program([torch.randn(16), torch.randn(4, 4)])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((torch.randn(4, 4), torch.randn(4, 8)), r"expected input 0 to be float32 \[4, 8\] .* found float32 \[4, 4\]"),
        ((torch.randn(4, 8), torch.randn(8, 4).t()), r"expected input 1 .* strides \[8, 1\] .* strides \[1, 4\]"),
        ((torch.randn(4, 8).double(), torch.randn(4, 8)), r"expected input 0 .* found float64"),
        ((torch.randn(32), torch.randn(4, 8)), r"expected input 0 .* found float32 \[32\]"),
        ((torch.empty(4, 8, device="meta"), torch.randn(4, 8)), r"expected input 0 .* on cpu, found .* on meta"),
    ],
)
def test_input_of_another_shape(load_either: Load, inputs: tuple[torch.Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_either(MM)(inputs)


def test_input_of_another_rank_where_a_size_is_read(load_either: Load) -> None:
    kind = "memref<8x?xf32, #sym.layout<[8, s0], [s0, 1]>>"
    program = load_either(f"func.func @forward(%x : {kind}) -> {kind} {{ func.return %x : {kind} }}")
    with pytest.raises(ValueError, match=r"expected input 0 to have 2 dimensions, found float32 \[8\]"):
        program([torch.randn(8)])
    with pytest.raises(ValueError, match=r"expected input 0 to be float32 \[8, 3\]"):
        program([torch.randn(4, 3)])


def test_strides_that_do_not_matter_are_not_compared(load_either: Load) -> None:
    one_row = "memref<1x4xf32, #sym.layout<[1, 4], [4, 1]>>"
    program = load_either(f"func.func @forward(%x : {one_row}) -> {one_row} {{ func.return %x : {one_row} }}")
    x = torch.randn(4, 1).t()
    assert x.stride() == (1, 1)
    assert program([x])[0].shape == (1, 4)


def test_wrong_number_and_kind_of_inputs(load: Load) -> None:
    program = load(MM)
    with pytest.raises(TypeError, match="expected a list of 2 inputs, found 3"):
        program([torch.randn(4, 8)] * 3)
    with pytest.raises(TypeError, match="Tensor"):
        program([torch.randn(4, 8), 3])
    integer = load("func.func @forward(%s0 : i64) -> i64 { func.return %s0 : i64 }")
    assert integer([-1]) == [-1]
    with pytest.raises(TypeError):
        integer([torch.randn(4)])
    with pytest.raises(OverflowError):
        integer([1 << 70])


def test_inputs_before_a_bad_one_are_given_up(load: Load) -> None:
    program = load(MM)
    x = torch.randn(4, 8)
    alive = weakref.ref(x.untyped_storage())
    with pytest.raises(TypeError, match="Tensor"):
        program([x, 3])
    del x
    gc.collect()
    assert alive() is None


@pytest.mark.slow
@pytest.mark.parametrize("text", [MM, INDEX_SELECT, CALL_BACK])
def test_failing_calls_leak_nothing(load: Load, text: str) -> None:
    large = text.replace("16xf32, #sym.layout<[16]", "4096xf32, #sym.layout<[4096]")
    large = large.replace("4x8xf32, #sym.layout<[4, 8], [8", "4x1024xf32, #sym.layout<[4, 1024], [1024")
    program = load(large)
    inputs = [torch.randn(4, 1024)] * 2 if text is MM else [torch.randn(4096), torch.tensor([0, 1, 2, 5000])]

    def fail(times: int) -> None:
        for _ in range(times):
            with pytest.raises((RuntimeError, IndexError)):
                program(inputs)

    fail(100)
    gc.collect()
    before = resident_kib()
    # Not more: PyTorch takes 10 ms to describe where its exception comes from.
    fail(500)
    gc.collect()
    # One leaked tensor of 16 KiB in each call would be 8 MB.
    assert resident_kib() - before < 2048


def test_good_calls_leak_nothing(load: Load) -> None:
    """Also with lists, boxed optional values and dropped results, which pass through PyTorch's own containers."""
    x8 = "memref<2x4096xf32, #sym.layout<[2, 4096], [4096, 1]>>"
    half = "memref<1x4096xf32, #sym.layout<[1, 4096], [4096, 1]>>"
    stacked = "memref<2x1x4096xf32, #sym.layout<[2, 1, 4096], [4096, 4096, 1]>>"
    second = "memref<1x4096xf32, #sym.layout<[1, 4096], [4096, 1], offset 4096>>"
    program = load(
        f"""
func.func @forward(%x : {x8}) -> {x8} {{
  %a, %b = host.call "aten.split.Tensor"(self = %x, split_size = 1 : i64) : ({x8}) -> ({half}, {second})
  %c = host.call "aten.nan_to_num.default"(self = %a, nan = 0.5 : f64) : ({half}) -> {half}
  %s = host.call "aten.stack.default"(tensors = [%c, %b]) : ({half}, {second}) -> {stacked}
  %v = host.view %s : {stacked} to {x8}
  %d = host.call "aten.mul.Scalar"(self = %v, other = 2.0 : f64) : ({x8}) -> {x8}
  func.return %d : {x8}
}}"""
    )
    x = torch.randn(2, 4096)

    def call(times: int) -> None:
        for _ in range(times):
            program([x])

    assert torch.equal(program([x])[0], x * 2)
    call(500)
    gc.collect()
    before = resident_kib()
    call(4_000)
    assert resident_kib() - before < 4096


def test_interrupt_in_a_call_back_passes_through(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(CALL_BACK)

    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilewright.backends.host.callbacks.fill_in", interrupted)
    with pytest.raises(KeyboardInterrupt):
        program([torch.randn(16), torch.tensor([0, 1, 2, 3])])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"func.func @f(%x : {V16}) -> i64 {{ %n = host.size <s9> : i64 func.return %n : i64 }}", "size `s9`"),
        (
            f'func.func @f(%x : {V16}) -> {V16} {{ %y = host.call "mylib.op.default"(x = %x) : ({V16}) -> {V16} '
            f"func.return %y : {V16} }}",
            "no operator `mylib.op.default`",
        ),
    ],
)
def test_bad_program_in_python_mode(load: Load, text: str, message: str) -> None:
    with pytest.raises(VerifyException, match=message):
        load(text, mode="python")


def test_bad_program(load: Load, parse_program: Callable[[str], ModuleOp]) -> None:
    with pytest.raises(VerifyException, match="provides the size `s9`"):
        load("func.func @f() -> i64 { %n = host.size <s9> : i64 func.return %n : i64 }")
    launch = f"func.func @f(%x : {V16}) {{ host.launch @add_one(%x, %x) symbols [16] : {V16}, {V16} func.return }}"
    with pytest.raises(VerifyException, match="no code for the kernel `@add_one`"):
        load_program(parse_program(launch), {})
    with pytest.raises(VerifyException, match="expected 0 constants for `@f`, found 1"):
        load(launch, constants=[torch.randn(2)])
    elsewhere = launch.replace("[16], [1]>", '[16], [1], device "cuda:0">')
    with pytest.raises(VerifyException, match=r"`@add_one`, which runs on CUDA, to be a `tt.func`"):
        load(elsewhere)
    with pytest.raises(VerifyException, match="buffers of `@add_one` on the CPU or CUDA, found xpu:0"):
        load(elsewhere.replace("cuda", "xpu"))
    with pytest.raises(VerifyException, match="expected one host program in the module, found 0"):
        load_program(parse_program(""), {})


def test_unknown_operator_natively_fails_when_called(load: Load) -> None:
    program = load(f'func.func @f(%x : {V16}) -> {V16} {{ %y = host.call "mylib.op.default"(x = %x) : ({V16}) -> {V16} '
                   f"func.return %y : {V16} }}")  # fmt: skip
    with pytest.raises(VerifyException, match=r"no operator `mylib\.op\.default`"):
        program([torch.randn(16)])


def test_a_way_that_fails_is_not_tried_again(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fail(*_: int) -> int:
        calls.append(1)
        return 1

    function = ctypes.CFUNCTYPE(ctypes.c_int32, *(ctypes.c_void_p,) * 3)(fail)
    address = ctypes.cast(function, ctypes.c_void_p).value

    def symbol(name: str) -> int | None:
        return address if name == "aoti_torch_cpu_mm_out" else abi.torch_symbol(name)

    monkeypatch.setattr(runtime, "torch_symbol", symbol)
    program = load(f"""func.func @f(%x : {M44}) -> {M44} {{
        %y = host.call "aten.mm.default"(self = %x, mat2 = %x) : ({M44}, {M44}) -> {M44}
        func.return %y : {M44} }}""")
    x = torch.randn(4, 4)
    for _ in range(3):
        (y,) = program([x])
        assert isinstance(y, torch.Tensor)
        torch.testing.assert_close(y, x @ x)
    assert calls == [1]
