"""Host programs for a CUDA device, run on one that is not there (`fake_cuda.py`)."""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Callable

import pytest
import torch
from tests.backends.host.fake_cuda import STREAM, FakeDevice
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from tilewright.backends.cuda import driver
from tilewright.backends.cuda.driver import CudaError
from tilewright.backends.cuda.kernel import UNEVEN, WIDE, Kernel
from tilewright.backends.host import routes
from tilewright.backends.host.emit_llvm import emit_llvm
from tilewright.backends.host.emit_python import emit_python
from tilewright.backends.host.plan import HostPlan, find_program, make_plan
from tilewright.backends.host.runtime import Program, load_program
from tilewright.backends.host.variants import SizeVariant
from tilewright.dialects.aten import Aten
from tilewright.dialects.host import Host
from tilewright.dialects.loop import LoopDialect
from tilewright.dialects.sym import Sym
from tilewright.dialects.tt import Tt

KERNEL = """
tt.func public @add_one(%x : !tt.ptr<f32> {tt.divisibility = 16 : i32}, %y : !tt.ptr<f32>, %n0 : i64)
    attributes {grid = #sym.expr<(n0 + 3) floordiv 4>, symbols = ["n0"], num_warps = 4 : i32, num_stages = 1 : i32} {
  tt.return
}
"""

NARROW = KERNEL.replace("%n0 : i64", "%n0 : i64 {tt.divisibility = 16 : i32}").replace(
    "num_warps", "reach = #sym.expr<n0 + 1024>, wide = @wide, num_warps"
) + KERNEL.replace("@add_one", "@wide")
"""A kernel for even sizes and indices of 32 bits, and the one that takes over."""

PROGRAM = """
func.func @forward(%x : memref<?xf32, #sym.layout<[s0], [1], device "cuda:0">>, %s0 : i64)
    -> memref<?xf32, #sym.layout<[s0], [1], device "cuda:0">> attributes {aten.symbol_args = {s0 = 1 : i64}} {
  %y = host.alloc : memref<?xf32, #sym.layout<[s0], [1], device "cuda:0">>
  host.launch @add_one(%x, %y) symbols [s0] : memref<?xf32, #sym.layout<[s0], [1], device "cuda:0">>,
      memref<?xf32, #sym.layout<[s0], [1], device "cuda:0">>
  func.return %y : memref<?xf32, #sym.layout<[s0], [1], device "cuda:0">>
}
"""


def parse(text: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, Sym, LoopDialect, Aten, Host, Tt):
        context.load_dialect(dialect)
    module = Parser(context, text).parse_module()
    module.verify()
    return module


def plan_of(text: str) -> HostPlan:
    return make_plan(find_program(parse(text)))


def _add_one(x: int, y: int, n: int) -> None:
    source, target = (ctypes.c_float * n).from_address(x), (ctypes.c_float * n).from_address(y)
    for i in range(n):
        target[i] = source[i] + 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    fake = FakeDevice({"add_one": _add_one}, {"add_one": 3})
    fake.install(monkeypatch)
    return fake


@pytest.fixture
def kernel(fake: FakeDevice) -> Kernel:
    return fake.kernel("add_one")


@pytest.fixture
def load(kernel: Kernel) -> Callable[..., Program]:
    def load_text(text: str = KERNEL + PROGRAM) -> Program:
        return load_program(parse(text), {"add_one": kernel})

    return load_text


def test_a_launch_passes_grid_block_stream_and_arguments(load: Callable[..., Program], fake: FakeDevice) -> None:
    program = load()
    x = torch.rand(10)
    (y,) = program([x, 10])
    assert isinstance(y, torch.Tensor)
    assert torch.equal(y, x + 1)
    (launch,) = fake.launches
    assert (launch.image, launch.programs, launch.threads, launch.stream) == ("add_one", 3, 128, STREAM)
    assert launch.arguments == (x.data_ptr(), y.data_ptr(), 10)
    assert fake.log == ["enter 0", "allocate on 1:0", "leave"]


def test_no_programs_are_not_launched(load: Callable[..., Program], fake: FakeDevice) -> None:
    (y,) = load()([torch.empty(0), 0])
    assert isinstance(y, torch.Tensor)
    assert y.shape == (0,)
    assert fake.launches == []


def test_a_buffer_that_begins_anywhere_takes_another_variant(load: Callable[..., Program], fake: FakeDevice) -> None:
    program = load()
    x = torch.rand(12)
    assert fake.compiled == []
    for _ in range(2):
        (y,) = program([x[1:], 11])
        assert isinstance(y, torch.Tensor)
        assert torch.equal(y, x[1:] + 1)
    assert fake.compiled == ["add_one.1"]
    program([x[4:], 8])
    assert [launch.image for launch in fake.launches] == ["add_one.1", "add_one.1", "add_one"]


def test_sizes_choose_a_variant(load: Callable[..., Program], fake: FakeDevice) -> None:
    program = load(NARROW + PROGRAM)
    x = torch.rand(40)
    for begin, end in ((0, 32), (0, 31), (1, 33), (1, 32), (0, 31)):
        (y,) = program([x[begin:end], end - begin])
        assert isinstance(y, torch.Tensor)
        assert torch.equal(y, x[begin:end] + 1)
    images = ["add_one", "add_one.2", "add_one.1", "add_one.3", "add_one.2"]
    assert [launch.image for launch in fake.launches] == images
    assert fake.compiled == images[1:4]


def test_more_than_32_bits_hold_takes_the_wide_kernel(fake: FakeDevice, kernel: Kernel) -> None:
    """The size is an argument that no buffer has: three billion elements are more than there is memory for."""
    fake.functions["add_one"] = lambda *_: None
    text = NARROW + PROGRAM.replace("[s0], [1]", "[8], [1]").replace("?x", "8x")
    program = load_program(parse(text.replace("(n0 + 3) floordiv 4", "1")), {"add_one": kernel})
    for size in (3_000_000_000, 2**31 - 1024, 2**31 - 1024 - 16, 3_000_000_001):
        program([torch.rand(8), size])
    assert [launch.image for launch in fake.launches] == ["add_one.4", "add_one.4", "add_one", "add_one.6"]
    assert fake.launches[0].arguments[2] == 3_000_000_000


def test_sizes_that_are_known_choose_when_a_program_is_compiled() -> None:
    def variant(size: str) -> SizeVariant:
        (found,) = plan_of(NARROW + PROGRAM.replace("symbols [s0]", f"symbols [{size}]")).variants.values()
        return found

    assert variant("64") == SizeVariant(0, (), None)
    assert variant("65") == SizeVariant(UNEVEN, (), None)
    assert variant("3000000000") == SizeVariant(WIDE, (), None)
    assert variant("32 * s0 + 16").divided == ()
    assert len(variant("2 * s0").divided) == 1


def test_a_failed_launch_names_the_kernel(load: Callable[..., Program], fake: FakeDevice) -> None:
    fake.status = 701
    program = load()
    with pytest.raises(CudaError, match="`@add_one`: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"):
        program([torch.rand(4), 4])
    assert fake.log[-1] == "leave"
    fake.status = 0
    assert len(program([torch.rand(4), 4])) == 1


def test_too_many_programs(load: Callable[..., Program], fake: FakeDevice) -> None:
    text = KERNEL.replace("(n0 + 3) floordiv 4", "1073741824 * n0")
    with pytest.raises(CudaError, match="`@add_one`: expected at most 2147483647 programs"):
        load(text + PROGRAM)([torch.rand(2), 2])
    assert fake.launches == []


def test_a_thread_without_a_context_gets_one(load: Callable[..., Program], fake: FakeDevice) -> None:
    fake.has_context = False
    (y,) = load()([torch.zeros(3), 3])
    assert isinstance(y, torch.Tensor)
    assert torch.equal(y, torch.ones(3))
    assert f"context {0xC0}" in fake.log


def test_an_input_that_does_not_fit_leaves_the_device_alone(load: Callable[..., Program], fake: FakeDevice) -> None:
    with pytest.raises(ValueError, match="expected input 0 to be float32"):
        load()([torch.rand(4, dtype=torch.float64), 4])
    assert fake.log == ["leave nothing"]


def test_code_is_loaded_once_and_unloaded_with_its_last_user(fake: FakeDevice) -> None:
    first, second = fake.kernel("add_one"), fake.kernel("add_one")
    assert len(fake._images) == 1  # pyright: ignore[reportPrivateUsage]
    del first
    gc.collect()
    assert "unload" not in fake.log
    del second
    gc.collect()
    assert fake.log == ["unload"]


def test_a_child_process_unloads_nothing(fake: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = fake.kernel("add_one")
    monkeypatch.setattr(driver.os, "getpid", lambda: -1)
    del kernel
    gc.collect()
    assert fake.log == []


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_LIBRARY", "libcuda-that-is-not-there.so")
    with pytest.raises(CudaError, match="this machine has no CUDA driver"):
        driver.cuda_driver.__wrapped__()


def test_much_shared_memory_is_asked_for(fake: FakeDevice) -> None:
    fake.kernel("add_one", shared=100_000)
    assert fake.log[0] == "attribute 8 is 100000"
    with pytest.raises(CudaError, match="needs 300000 bytes of shared memory, cuda:0 has 232448"):
        fake.kernel("add_one", shared=300_000)


def test_python_launches_the_same_way(kernel: Kernel, fake: FakeDevice) -> None:
    x, y = torch.rand(9), torch.empty(9)
    kernel.launch(3, 0, STREAM, [x.data_ptr(), y.data_ptr()], [9])
    kernel.launch(2, 0, STREAM, [x[1:].data_ptr(), y.data_ptr()], [8])
    kernel.launch(0, 0, STREAM, [x.data_ptr(), y.data_ptr()], [0])
    assert [(launch.image, launch.programs, launch.threads) for launch in fake.launches] == [
        ("add_one", 3, 128),
        ("add_one.1", 2, 128),
    ]
    assert torch.equal(y[:8], x[1:] + 1)
    fake.status = 701
    with pytest.raises(CudaError, match="@add_one"):
        kernel.launch(1, 0, STREAM, [x.data_ptr(), y.data_ptr()], [4])


def test_python_text() -> None:
    text = emit_python(plan_of(KERNEL + PROGRAM))
    assert "@on_device('cuda:0')\ndef program(kernels, constants, arg0, arg1):" in text
    assert "    stream = current_stream('cuda:0')\n" in text
    assert "kernels['add_one']((3 + size0) // 4, 0, stream, arg0.data_ptr(), buf0.data_ptr(), size0)" in text
    text = emit_python(plan_of(NARROW + PROGRAM))
    assert "(2 if (size0) % 16 else 0) + (4 if 1024 + size0 >= 2147483648 else 0), stream" in text


def test_a_program_without_kernels_on_cuda_has_no_guard() -> None:
    text = emit_llvm(plan_of(PROGRAM.replace("host.launch", "//").replace("      memref", "//"))).text
    assert "aoti_torch_empty_strided" in text
    assert "cuda_guard" not in text


def test_a_kernel_that_is_not_lowered() -> None:
    with pytest.raises(VerifyException, match="which runs on CUDA, to be a `tt"):
        plan_of(KERNEL.replace("grid = #sym.expr<(n0 + 3) floordiv 4>, ", "") + PROGRAM)


def with_launches(*devices: tuple[str, str]) -> str:
    """The text of a program with a launch for each pair of devices, on one buffer on each of the two."""

    def kind(device: str) -> str:
        return f'memref<8xf32, #sym.layout<[8], [1], device "{device}">>'

    names = {device: f"%x{number}" for number, device in enumerate(dict.fromkeys(d for pair in devices for d in pair))}
    arguments = ", ".join(f"{name} : {kind(device)}" for device, name in names.items())
    launches = "\n".join(
        f"host.launch @add_one({names[a]}, {names[b]}) symbols [8] : {kind(a)}, {kind(b)}" for a, b in devices
    )
    return f"{KERNEL} func.func @forward({arguments}) {{ {launches} func.return }}"


def test_devices_of_kernels() -> None:
    assert plan_of(with_launches(("cuda:1", "cuda:1"))).device == "cuda:1"
    with pytest.raises(VerifyException, match="buffers of `@add_one` on one device, found cuda:0, cuda:1"):
        plan_of(with_launches(("cuda:0", "cuda:1")))
    with pytest.raises(VerifyException, match="buffers of `@add_one` on one device, found cuda:0, cpu"):
        plan_of(with_launches(("cuda:0", "cpu")))
    with pytest.raises(VerifyException, match="kernels on one CUDA device, found cuda:0, cuda:1"):
        plan_of(with_launches(("cuda:0", "cuda:0"), ("cuda:1", "cuda:1")))


def memref(element: str, *sizes: int) -> str:
    """Return the text of the type of a contiguous buffer on `cuda:0`."""
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    shape = "".join(f"{size}x" for size in sizes)
    return f'memref<{shape}{element}, #sym.layout<{list(sizes)}, {strides}, device "cuda:0">>'


def attention(backward: bool) -> HostPlan:
    """Return the plan of attention as tracing gives it, with the state of the generator on `cuda:0`."""
    rows, sums, number = memref("f32", 2, 4, 8, 64), memref("f32", 2, 4, 32), memref("i64")
    forward = "aten._scaled_dot_product_efficient_attention"
    if not backward:
        return plan_of(f"""
            func.func @forward(%x : {rows}) -> ({rows}, {sums}, {number}, {number}) {{
              %y, %l, %s, %o = host.call "{forward}.default"(query = %x, key = %x, value = %x, attn_bias = none,
                  compute_log_sumexp = true) : ({rows}, {rows}, {rows}) -> ({rows}, {sums}, {number}, {number})
              func.return %y, %l, %s, %o : {rows}, {sums}, {number}, {number}
            }}""")
    return plan_of(f"""
        func.func @backward(%x : {rows}, %l : {sums}, %s : {number}, %o : {number}) -> {rows} {{
          %q, %k, %v, %b = host.call "{forward}_backward.default"(grad_out_ = %x, query = %x, key = %x, value = %x,
              attn_bias = none, out = %x, logsumexp = %l, philox_seed = %s, philox_offset = %o, dropout_p = 0.0 : f64,
              grad_input_mask = [true, true, true, false])
              : ({rows}, {rows}, {rows}, {rows}, {rows}, {sums}, {number}, {number}) -> ({rows}, {rows}, {rows}, none)
          func.return %q : {rows}
        }}""")


def test_state_of_the_generator_may_be_on_the_cpu() -> None:
    forward, backward = emit_llvm(attention(backward=False)).text, emit_llvm(attention(backward=True)).text
    # The two results that are tensors of the device; then two inputs, and the one result that is used.
    assert forward.count("call i32 @conforms(") == 1 + 2
    assert backward.count("call i32 @conforms(") == 2 + 1
    assert emit_python(attention(backward=True)).count("check_input(arg") == 2


def test_a_tensor_that_a_schema_wants_may_be_left_out() -> None:
    text = emit_llvm(attention(backward=True)).text
    assert text.count("call i32 @aoti_torch_new_uninitialized_tensor(") == 1
    assert "aoti_torch_call_dispatcher" in text


def test_operators_on_the_device_have_its_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    def any_symbol(name: str) -> int:
        return 1

    monkeypatch.setattr(routes, "torch_symbol", any_symbol)
    square = memref("f32", 8, 8)
    call = f'host.call "aten.mm.default"(self = %x, mat2 = %y) : ({square}, {square}) -> {square}'
    program = f"func.func @f(%x : {square}, %y : {square}) -> {square} {{ %z = {call} func.return %z : {square} }}"
    assert "@aoti_torch_cuda_mm_out(" in emit_llvm(plan_of(program)).text
    on_cpu = square.replace(', device "cuda:0"', "")
    mixed = program.replace(f"%x : {square}", f"%x : {on_cpu}").replace(
        f"({square}, {square}) ->", f"({on_cpu}, {square}) ->"
    )
    assert "aoti_torch_call_dispatcher" in emit_llvm(plan_of(mixed)).text
