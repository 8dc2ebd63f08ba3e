"""What a kernel for a GPU must not do is an error that names the kernel, the program, the buffer and the element."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import pytest
import torch
from tests.reference.conftest import Runner
from tests.reference.kernels import kernel

from tilewright.backends.reference import ExecutionError

MASK = """
  %end = arith.constant dense<{end}> : !i
  %m = arith.cmpi slt, %at, %end : !i
"""


def masked(end: int, body: str) -> str:
    return MASK.format(end=end) + body


LOAD = "%v = tt.load %a0, %m : !p0"
STORE = "tt.store %a1, %at, %m : !p1"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (masked(21, LOAD), r"`tt.load`: for program 1 element 20 of `%p0` is out of bounds, expected elements 0 to 19"),
        (masked(21, STORE), r"`tt.store`: for program 1 element 20 of `%p1` is out of bounds"),
        (
            masked(21, "%r = tt.atomic_rmw add, relaxed, gpu, %a1, %at, %m : (!p1, !i, !m) -> !i"),
            r"`tt.atomic_rmw`: for program 1 element 20 of `%p1` is out of bounds",
        ),
        ("%v = tt.load %a0 : !p0", r"element 20 of `%p0` is out of bounds"),
        (
            "%n = arith.subi %range, %at : !i\n%q = tt.addptr %s0, %n : !p0, !i\n%v = tt.load %q : !p0",
            r"for program 1 element -16 of `%p0` is out of bounds",
        ),
        (
            """%o = tt.splat %pid : i32 -> !i
            %p = tt.splat %p1 : !tt.ptr<i32> -> !p1
            %q = tt.addptr %p, %range : !p1, !i
            tt.store %q, %o : !p1""",
            r"`tt.store`: program 0 stores element 0 of `%p1`, to which another value is stored as well",
        ),
        (
            """%p = tt.splat %p1 : !tt.ptr<i32> -> !p1
            tt.store %p, %at : !p1""",
            r"`tt.store`: program 0 stores element 0 of `%p1`, to which another value",
        ),
        (
            """%p = tt.splat %p1 : !tt.ptr<i32> -> !p1
            %q = tt.addptr %p, %range : !p1, !i
            %v = tt.load %q : !p1
            """
            + masked(20, STORE),
            r"`tt.store`: program 0 stores element 0 of `%p1`, which another program reads",
        ),
        (
            masked(20, STORE)
            + """%p = tt.splat %p1 : !tt.ptr<i32> -> !p1
            %q = tt.addptr %p, %range : !p1, !i
            %v = tt.load %q : !p1""",
            r"`tt.load`: program 1 reads element 0 of `%p1`, which another program stores",
        ),
        (
            """%p = tt.splat %p1 : !tt.ptr<i32> -> !p1
            %q = tt.addptr %p, %range : !p1, !i
            %r = tt.atomic_rmw add, relaxed, gpu, %q, %range : (!p1, !i) -> !i
            """
            + masked(20, STORE),
            r"`tt.store`: program 0 stores element 0 of `%p1`, which another program updates",
        ),
        (
            "%c = arith.constant true\n%cs = tt.splat %c : i1 -> !m\n%q = arith.select %cs, %a0, %a1 : !m, !p0",
            r"pointers into `%p0` and `%p1` meet, expected one buffer",
        ),
        (
            masked(20, 'tt.assert %m, "IndexError: index out of range" : !m'),
            r"index out of range",
        ),
        (
            """%zero = arith.constant 0 : i32
            scf.for %k = %zero to %pid step %zero : i32 {
              scf.yield
            }""",
            r"`scf.for`: has a step of 0, expected at least one",
        ),
        (
            """%z = arith.constant dense<0.0> : tensor<16xf32>
            %r = tt.extern_elementwise %z {libname = "libdevice", libpath = "", pure = true, symbol = "__nv_what"} : (tensor<16xf32>) -> tensor<16xf32>""",  # noqa: E501
            r"the interpreter does not know the function `__nv_what` of torch.float32",
        ),
    ],
)
def test_error(run: Runner, body: str, message: str) -> None:
    x, y = (torch.arange(100, 120, dtype=torch.int32) for _ in range(2))
    with pytest.raises(ExecutionError, match=message) as caught:
        run.all(kernel(body, ["i32", "i32"], grid=2), x, y, name="k")
    assert caught.value.kernel == "k"


def test_a_failed_assertion_is_the_exception_that_it_names(run: Runner) -> None:
    text = kernel(masked(20, 'tt.assert %m, "IndexError: no such index" : !m'), ["i32"], grid=2)
    with pytest.raises(IndexError, match="no such index"):
        run.all(text, torch.zeros(20, dtype=torch.int32), name="k")
    with pytest.raises(RuntimeError, match="just text"):
        run.all(text.replace("IndexError: no such index", "just text"), torch.zeros(20, dtype=torch.int32), name="k")


def test_addresses_are_anything_where_the_mask_is_false(run: Runner) -> None:
    """Nothing outside of the buffer is touched, and what is there stays."""
    whole = torch.full((48,), 7, dtype=torch.int32)
    body = masked(10, LOAD.replace("%m :", "%m, %at :") + "\ntt.store %a1, %v, %m : !p1")
    run.all(kernel(body, ["i32", "i32"], grid=3), whole[16:26], whole[32:42], name="k")
    assert whole.tolist() == [7] * 48
    nothing = kernel(body.replace("dense<10>", "dense<0>"), ["i32", "i32"], grid=3)
    run.all(nothing, whole[:0], whole[:0], name="k")


OTHER_THREADS = """
  %one = arith.constant dense<15> : !i
  %other = arith.xori %at, %one : !i
  %b0 = tt.addptr %s0, %other : !p0, !i
"""


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("tt.store %a0, %at : !p0", "%w = tt.load %b0 : !p0", "program 0 reads element 15 of `%p0`, which .* stores"),
        ("%w = tt.load %b0 : !p0", "tt.store %a0, %at : !p0", "program 0 stores element 0 of `%p0`, which .* reads"),
        (
            "tt.store %a0, %at : !p0",
            "%w = tt.atomic_rmw add, relaxed, gpu, %b0, %at : (!p0, !i) -> !i",
            "program 0 updates element 15 of `%p0`, which .* stores",
        ),
        (
            "tt.store %p0, %pid : !tt.ptr<i32>",
            "%w = tt.load %p0 : !tt.ptr<i32>",
            "program 0 reads element 0 of `%p0`, which .* stores",
        ),
    ],
)
def test_threads_of_a_program_need_a_barrier(run: Runner, first: str, second: str, message: str) -> None:
    x = torch.full((16,), -1, dtype=torch.int32)
    with pytest.raises(ExecutionError, match=message.replace(".*", "another thread, without a barrier between,")):
        run.all(kernel(f"{OTHER_THREADS}{first}\n{second}", ["i32"]), x.clone(), name="k")
    run.all(kernel(f'{OTHER_THREADS}{first}\n"gpu.barrier"() : () -> ()\n{second}', ["i32"]), x, name="k")


def test_a_thread_sees_what_it_stored_itself(run: Runner) -> None:
    body = """
      %v = tt.load %a0 : !p0
      %r = arith.addi %v, %at : !i
      tt.store %a0, %r : !p0
      %w = tt.load %a0 : !p0
      %q = arith.addi %w, %at : !i
      tt.store %a0, %q : !p0"""
    x = torch.zeros(16, dtype=torch.int32)
    run.all(kernel(body, ["i32"]), x, name="k")
    assert x.tolist() == list(range(0, 32, 2))


def test_programs_may_store_the_same(run: Runner) -> None:
    body = """
      %p = tt.splat %p0 : !tt.ptr<i32> -> !p0
      %q = tt.addptr %p, %range : !p0, !i
      tt.store %q, %range : !p0"""
    x = torch.zeros(16, dtype=torch.int32)
    run.all(kernel(body, ["i32"], grid=3), x, name="k")
    assert x.tolist() == list(range(16))


def test_what_was_never_stored_is_not_read(run: Runner) -> None:
    text = (
        kernel(LOAD.replace(", %m", ""), ["f32"])
        + """
    !t = memref<16xf32, #sym.layout<[16], [1]>>
    func.func @forward() {
      %y = host.alloc : !t
      host.launch @k(%y) symbols [] : !t
      func.return
    }"""
    )
    with pytest.raises(ExecutionError, match=r"for program 0 element 0 of `%p0` was never stored, in kernel `@k`"):
        run.all(text)


def test_a_bool_is_0_or_1(run: Runner) -> None:
    text = kernel("%v = arith.constant dense<3> : !v0\ntt.store %a0, %v : !p0", ["i8"])
    with pytest.raises(ExecutionError, match=r"element 0 of `%p0` is 3 afterwards, expected 0 or 1 for a bool"):
        run.all(text, torch.zeros(16, dtype=torch.bool), name="k")


def test_arguments(run: Runner) -> None:
    text = kernel("", ["f32"], grid="n0", symbols=["n0"])
    x = torch.zeros(64)
    with pytest.raises(ExecutionError, match=r"the kernel takes 2 arguments, found 1 buffers and 0 sizes"):
        run.all(text, x, name="k")
    with pytest.raises(ExecutionError, match=r"torch.float64 is passed for `%p0`, which has type !tt.ptr<f32>"):
        run.all(text, x.double(), 1, name="k")
    with pytest.raises(ExecutionError, match=r"the kernel is run by -1 programs"):
        run.all(text, x, -1, name="k")
    aligned = text.replace("(%p0 : !tt.ptr<f32>", "(%p0 : !tt.ptr<f32> {tt.divisibility = 16 : i32}")
    run.all(aligned, x, 1, name="k")
    with pytest.raises(ExecutionError, match=r"`%p0` is the address 0x[0-9a-f]+, expected a multiple of 16"):
        run.all(aligned, x[1:33], 1, name="k")
    divided = text.replace("%n0 : i64", "%n0 : i64 {tt.divisibility = 16 : i32}")
    with pytest.raises(ExecutionError, match=r"`%n0` is 3, expected a multiple of 16"):
        run.all(divided, x, 3, name="k")
    with pytest.raises(ExecutionError, match=r"the kernel does not say how many programs run it"):
        run.all(text.replace("grid = #sym.expr<n0>, ", ""), x, 3, name="k")


UNDEFINED = r"`{}`: for program 1 element \[4\] of `%{}` is undefined, as a load whose mask was false"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%r = arith.addi %v, %at : !i\ntt.store %a1, %r : !p1", UNDEFINED.format("tt.store", "r")),
        ("%q = tt.addptr %a1, %v : !p1, !i\n%w = tt.load %q : !p1", UNDEFINED.format("tt.load", "q")),
        ("%c = arith.cmpi sge, %v, %v : !i\ntt.store %a1, %at, %c : !p1", UNDEFINED.format("tt.store", "c")),
        ('%c = arith.cmpi sge, %v, %v : !i\ntt.assert %c, "wrong" : !m', UNDEFINED.format("tt.assert", "c")),
        (
            """%s = "tt.reduce"(%v) <{axis = 0 : i32}> ({
            ^bb0(%a : i32, %b : i32):
              %c = arith.addi %a, %b : i32
              tt.reduce.return %c : i32
            }) : (!i) -> i32
            tt.store %p1, %s : !tt.ptr<i32>""",
            r"`tt.store`: for program 1 element \[\] of `%s` is undefined",
        ),
    ],
)
def test_what_a_masked_load_leaves_undefined(run: Runner, body: str, message: str) -> None:
    x, y = (torch.zeros(32, dtype=torch.int32) for _ in range(2))
    with pytest.raises(ExecutionError, match=message):
        run.all(kernel(masked(20, LOAD + "\n" + body), ["i32", "i32"], grid=2), x, y, name="k")


def test_what_is_undefined_may_be_computed_with(run: Runner) -> None:
    body = """
      %r = arith.addi %v, %at : !i
      tt.store %a1, %r, %m : !p1
      %zero = arith.constant dense<0> : !i
      %c = arith.cmpi slt, %v, %zero : !i
      %d = arith.andi %c, %m : !m
      %s = arith.select %m, %r, %zero : !m, !i
      tt.store %a1, %s, %d : !p1
      %q = tt.addptr %a1, %v : !p1, !i
      %w = tt.load %q, %m : !p1
      tt.store %a1, %s : !p1"""
    x, y = (torch.zeros(32, dtype=torch.int32) for _ in range(2))
    run.all(kernel(masked(20, LOAD + body), ["i32", "i32"], grid=2), x, y, name="k")
    assert y.tolist() == [*range(20), *[0] * 12]
