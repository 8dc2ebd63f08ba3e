"""Kernels for a GPU: programs, control flow in which they differ, atomic operations, launches."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.reference.conftest import Runner
from tests.reference.kernels import kernel

from tilewright.backends.reference.errors import ExecutionError

COPY = """
  %v = tt.load %a0 : !p0
  tt.store %a1, %v : !p1"""


@pytest.mark.parametrize("programs", [0, 1, 3, 100_000])
def test_grid_of_a_symbol(run: Runner, programs: int) -> None:
    x, y = torch.randn(16 * programs), torch.zeros(16 * programs)
    run.all(kernel(COPY, ["f32", "f32"], grid="n0", symbols=["n0"]), x, y, programs, name="k")
    assert torch.equal(x, y)


def test_sizes_that_32_bits_do_not_hold_take_another_kernel(run: Runner) -> None:
    parts = [
        kernel(f"%v = arith.constant dense<{n}> : !v0\ntt.store %a0, %v : !p0", ["i32"], symbols=["n0"]) for n in (1, 2)
    ]
    _, _, wide = parts[1].replace("@k(", "@wide(").partition("tt.func")
    narrow = parts[0].replace("grid =", "reach = #sym.expr<n0 + 16>, wide = @wide, grid =")
    kind = "memref<16xi32, #sym.layout<[16], [1]>>"
    program = f"""
      func.func @f(%x : {kind}, %n : i64) attributes {{aten.symbol_args = {{s0 = 1 : i64}}}} {{
        host.launch @k(%x) symbols [s0] : {kind}
        func.return
      }}"""
    x = torch.zeros(16, dtype=torch.int32)
    for size, expected in ((100, 1), (2**31 - 17, 1), (2**31 - 16, 2), (3_000_000_000, 2)):
        run.all(f"{narrow} tt.func{wide} {program}", x, size, name="f")
        assert x.tolist() == [expected] * 16
    with pytest.raises(ExecutionError, match="indices of the kernel reach 3000000016, expected less than 2"):
        run.all(f"{narrow} tt.func{wide}", x, 3_000_000_000, name="k")


def test_number_of_programs(run: Runner) -> None:
    text = """
      %n = tt.get_num_programs x : i32
      %y = tt.get_program_id y : i32
      %s = arith.addi %n, %y : i32
      %v = tt.splat %s : i32 -> !i
      tt.store %a0, %v : !p0"""
    x = torch.zeros(48, dtype=torch.int32)
    run.all(kernel(text, ["i32"], grid=3), x, name="k")
    assert x.tolist() == [3] * 48


def test_loop_of_different_length(run: Runner) -> None:
    text = """
      %zero = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      %start = arith.constant dense<0> : !i
      %ones = arith.constant dense<1> : !i
      %r, %q = scf.for %k = %zero to %pid step %one iter_args(%c = %start, %p = %a0) -> (!i, !p0) : i32 {
        %ks = tt.splat %k : i32 -> !i
        %n = arith.addi %c, %ks : !i
        tt.store %p, %n : !p0
        %next = tt.addptr %p, %ones : !p0, !i
        scf.yield %n, %next : !i, !p0
      }
      tt.store %a1, %r : !p1"""
    programs = 7
    x, y = (torch.full((16 * programs + 16,), -1, dtype=torch.int32) for _ in range(2))
    text = text.replace("tt.store %p, %n : !p0", "")
    run.all(kernel(text, ["i32", "i32"], grid=programs), x, y, name="k")
    expected = torch.arange(programs) * (torch.arange(programs) - 1) // 2
    assert torch.equal(y[: 16 * programs], expected.repeat_interleave(16).int())


def test_branches(run: Runner) -> None:
    text = """
      %three = arith.constant 3 : i32
      %c = arith.cmpi slt, %pid, %three : i32
      %v = tt.load %a0 : !p0
      %r = scf.if %c -> (!v0) {
        tt.store %a0, %at : !p0
        scf.yield %at : !i
      } else {
        %n = arith.addi %v, %v : !i
        scf.yield %n : !i
      }
      tt.store %a1, %r : !p1"""
    x = torch.arange(1000, 1000 + 80, dtype=torch.int32)
    before, y = x.clone(), torch.zeros_like(x)
    run.all(kernel(text, ["i32", "i32"], grid=5), x, y, name="k")
    numbers = torch.arange(80, dtype=torch.int32)
    assert torch.equal(x, torch.where(numbers < 48, numbers, before))
    assert torch.equal(y, torch.where(numbers < 48, numbers, 2 * before))


def test_while(run: Runner) -> None:
    text = """
      %one = arith.constant 1 : i32
      %r = scf.while (%n = %pid) : (i32) -> i32 {
        %square = arith.muli %n, %n : i32
        %c = arith.cmpi slt, %square, %sixteen : i32
        scf.condition(%c) %n : i32
      } do {
      ^bb0(%n : i32):
        %m = arith.addi %n, %one : i32
        scf.yield %m : i32
      }
      %v = tt.splat %r : i32 -> !i
      tt.store %a0, %v : !p0"""
    x = torch.zeros(16 * 6, dtype=torch.int32)
    run.all(kernel(text, ["i32"], grid=6), x, name="k")
    assert x[::16].tolist() == [4, 4, 4, 4, 4, 5]


ATOMIC = """
  %five = arith.constant dense<5> : !i
  %bin = arith.remsi %at, %five : !i
  %sp = tt.splat %p1 : !tt.ptr<{e}> -> !p1
  %q = tt.addptr %sp, %bin : !p1, !i
  %v = tt.load %a0 : !p0
  %limit = arith.constant dense<40> : !i
  %mask = arith.cmpi slt, %at, %limit : !i
  %old = tt.atomic_rmw {kind}, relaxed, gpu, %q, %v, %mask : (!p1, !v0, !m) -> !v0
"""


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_atomic_sums_round_one_after_another(run: Runner, dtype: str, used: bool) -> None:
    kind: Any = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}[dtype]
    x, y = torch.randn(48).to(kind), torch.ones(5, dtype=kind)
    expected, before = y.clone(), torch.zeros(48, dtype=kind)
    for n in range(40):
        before[n] = expected[n % 5]
        expected[n % 5] += x[n]
    store, buffers, elements = "", [x, y], [dtype, dtype]
    if used:
        store, elements = "tt.store %a2, %old : !p2", [dtype] * 3
        buffers.append(torch.ones(48, dtype=kind))
    run.all(kernel(ATOMIC.format(e=dtype, kind="fadd") + store, elements, grid=3), *buffers, name="k")
    assert torch.equal(y, expected)
    if used:
        assert torch.equal(buffers[2], before)


@pytest.mark.parametrize(
    ("name", "how"),
    [("add", "sum"), ("max", "amax"), ("min", "amin")],
)
def test_atomic_integers(run: Runner, name: str, how: str) -> None:
    x, y = torch.randint(-50, 50, (48,), dtype=torch.int32), torch.zeros(5, dtype=torch.int32)
    expected = y.scatter_reduce(0, torch.arange(40) % 5, x[:40], how)
    run.all(kernel(ATOMIC.format(e="i32", kind=name), ["i32", "i32"], grid=3), x, y, name="k")
    assert torch.equal(y, expected)


def test_tickets_order_programs(run: Runner) -> None:
    """The last program to take a ticket reads what the others have stored before."""
    text = """
      tt.store %a0, %at : !p0
      %one = arith.constant 1 : i32
      %two = arith.constant 2 : i32
      %ticket = tt.atomic_rmw add, acq_rel, gpu, %p1, %one : (!tt.ptr<i32>, i32) -> i32
      %last = arith.cmpi eq, %ticket, %two : i32
      scf.if %last {
        %v = tt.load %s0 : !p0
        tt.store %p1, %two : !tt.ptr<i32>
        scf.yield
      }"""
    x, y = torch.zeros(48, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    run.all(kernel(text, ["i32", "i32"], grid=3), x, y, name="k")
    assert y.tolist() == [2]


def test_compare_and_swap(run: Runner) -> None:
    text = """
      %one = arith.constant 1 : i32
      %old = tt.atomic_cas acq_rel, gpu, %p0, %pid, %one : (!tt.ptr<i32>, i32, i32) -> i32
      %v = tt.splat %old : i32 -> !i
      tt.store %a1, %v : !p1"""
    x, y = torch.zeros(1, dtype=torch.int32), torch.zeros(48, dtype=torch.int32)
    run.all(kernel(text, ["i32", "i32"], grid=3), x, y, name="k")
    assert (x.tolist(), y[::16].tolist()) == ([1], [0, 1, 1])


def test_bools_are_bytes(run: Runner) -> None:
    text = """
      %v = tt.load %a0 : !p0
      %b = arith.trunci %v : !v0 to !m
      %true = arith.constant true
      %ts = tt.splat %true : i1 -> !m
      %n = arith.xori %b, %ts : !m
      %w = arith.extui %n : !m to !v0
      tt.store %a1, %w : !p1"""
    x, y = torch.rand(16) < 0.5, torch.zeros(16, dtype=torch.bool)
    run.all(kernel(text, ["i8", "i8"]), x, y, name="k")
    assert torch.equal(y, ~x)


def test_launch_by_a_host_program(run: Runner) -> None:
    text = (
        kernel(COPY, ["f32", "f32"], grid="n0 floordiv 16", symbols=["n0"])
        + """
    !t = memref<?xf32, #sym.layout<[s0], [1]>>
    func.func @forward(%x : !t) -> !t {
      %y = host.alloc : !t
      host.launch @k(%x, %y) symbols [s0] : !t, !t
      func.return %y : !t
    }"""
    )
    x = torch.randn(64)
    assert torch.equal(run(text, x[0:32]), x[:32])
    # Who launches has a variant for each alignment.
    assert torch.equal(
        run(text.replace("(%p0 : !tt.ptr<f32>", "(%p0 : !tt.ptr<f32> {tt.divisibility = 16 : i32}"), x[1:33]), x[1:33]
    )
