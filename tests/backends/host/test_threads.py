"""Programs in several threads: re-entry, the GIL, and PyTorch's number of threads."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

Load = Callable[..., Any]
Define = Callable[[str, Callable[..., torch.Tensor]], None]

V16 = "memref<16xf32, #sym.layout<[16], [1]>>"


def launch(kernel: str, symbol: int) -> str:
    return f"""
func.func @forward(%x : {V16}) -> {V16} {{
  %y = host.alloc : {V16}
  host.launch @{kernel}(%x, %y) symbols [{symbol}] : {V16}, {V16}
  func.return %y : {V16}
}}"""


def in_new_thread(function: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@pytest.fixture
def restore_threads() -> object:
    threads = torch.get_num_threads()
    yield None
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_number_of_threads_is_honoured(load_either: Load, threads: int) -> None:
    """In a thread that has never asked PyTorch for it, too: there OpenMP would take all cores."""
    program = load_either(launch("count_threads", 0))
    torch.set_num_threads(threads)
    x = torch.zeros(16)
    assert program([x])[0][0] == threads
    assert in_new_thread(lambda: program([x])[0][0]) == threads


def test_gil_is_released(load: Load) -> None:
    program = load(launch("sleep", 200_000))
    x = torch.randn(16)
    ticks = 0
    thread = threading.Thread(target=lambda: program([x]))
    start = time.monotonic()
    thread.start()
    while thread.is_alive() and time.monotonic() - start < 5:
        ticks += 1
        time.sleep(0.005)
    thread.join()
    assert time.monotonic() - start < 5
    assert ticks > 10


def test_one_program_in_many_threads(load: Load) -> None:
    """With call-backs, errors and kernels at once; each thread sees its own results and its own exceptions."""
    program = load(
        f"""
func.func @forward(%x : {V16}, %i : memref<1xi64, #sym.layout<[1], [1]>>) -> {V16} {{
  %y = host.alloc : {V16}
  host.launch @add_one(%x, %y) symbols [16] : {V16}, {V16}
  %z = host.call "aten.index_fill.int_Scalar"(self = %y, dim = 0 : i64, index = %i, value = 0.5 : f64)
    : ({V16}, memref<1xi64, #sym.layout<[1], [1]>>) -> {V16}
  func.return %z : {V16}
}}"""
    )

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for step in range(50):
            x = torch.randn(16, generator=generator)
            index = 100 + seed if step % 5 == 0 else step % 16
            inputs = [x, torch.tensor([index])]
            if index >= 100:
                with pytest.raises(IndexError, match=f"index {index} is out of bounds"):
                    program(inputs)
            else:
                expected = (x + 1).index_fill(0, inputs[1], 0.5)
                assert torch.equal(program(inputs)[0], expected)

    with ThreadPoolExecutor(8) as pool:
        for result in [pool.submit(work, seed) for seed in range(8)]:
            result.result()


def test_program_that_calls_itself(load: Load, define_operator: Define) -> None:
    program = load(
        f"""
func.func @forward(%x : {V16}) -> {V16} {{
  %y = host.call "tilewright_test.again.default"(x = %x) : ({V16}) -> {V16}
  %z = host.call "aten.neg.default"(self = %y) : ({V16}) -> {V16}
  func.return %z : {V16}
}}"""
    )
    depth = 0

    def again(x: torch.Tensor) -> torch.Tensor:
        nonlocal depth
        depth += 1
        if depth == 4:
            raise IndexError("deep enough")
        try:
            return program([x])[0] + 1
        except IndexError:
            return x * 2

    define_operator("again(Tensor x) -> Tensor", again)
    x = torch.randn(16)
    (result,) = program([x])
    assert torch.equal(result, -(-(-(x * 2) + 1) + 1))


def test_gradient_mode_is_put_back(load: Load) -> None:
    program = load(launch("add_one", 16))
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            program([torch.randn(16, requires_grad=True)])
            assert torch.is_grad_enabled() == enabled
    with torch.inference_mode():
        assert program([torch.randn(16)])[0].is_inference()
