"""What kernels compute is the same before and after each pass, as machine code, and by eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from tests.passes.lowering_cpu.conftest import Kernel

MakeKernel = Callable[..., "Kernel"]

SOFTMAX = """
  loop.nest (%i : n0) {
    %m = loop.reduce "max" (%k : n1) {
      %v = loop.load %x[%i * n1 + %k] : $x -> f32
      loop.yield %v : f32
    } : f32
    %s = loop.reduce "sum" (%k : n1) {
      %v = loop.load %x[%i * n1 + %k] : $x -> f32
      %d = arith.subf %v, %m : f32
      %e = math.exp %d : f32
      loop.store %e, %y[%i * n1 + %k] : f32, $y
      loop.yield %e : f32
    } : f32
    loop.for (%k : n1) {
      %e = loop.load %y[%i * n1 + %k] : $y -> f32
      %d = arith.divf %e, %s : f32
      loop.store %d, %y[%i * n1 + %k] : f32, $y
    }
  }
"""


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 3), (0, 5), (2, 16), (3, 100), (2, 777)])
def test_softmax(kernel: MakeKernel, rows: int, columns: int, symbolic: bool) -> None:
    x = torch.randn(rows, columns)
    body = SOFTMAX if symbolic else SOFTMAX.replace("n1", str(columns))
    sizes = {"n0": rows, "n1": columns}
    kernel(body, {"x": x.flatten(), "y": torch.zeros(x.numel())}, ["y"], sizes).check([torch.softmax(x, 1)])


@pytest.mark.parametrize("in_place", [True, False])
def test_softmax_with_an_exponential_for_each_use(kernel: MakeKernel, in_place: bool) -> None:
    body = """
      loop.nest (%i : n0) {
        %m = loop.reduce "max" (%k : 100) {
          %v = loop.load %x[%i * 100 + %k] : $x -> f32
          loop.yield %v : f32
        } : f32
        %s = loop.reduce "sum" (%k : 100) {
          %v = loop.load %x[%i * 100 + %k] : $x -> f32
          %d = arith.subf %v, %m : f32
          %e = math.exp %d : f32
          loop.yield %e : f32
        } : f32
        loop.for (%k : 100) {
          %v = loop.load %x[%i * 100 + %k] : $x -> f32
          %d = arith.subf %v, %m : f32
          %e = math.exp %d : f32
          %q = arith.divf %e, %s : f32
          loop.store %q, %y[%i * 100 + %k] : f32, $y
        }
      }
    """
    x = torch.randn(5, 100)
    buffers = {"x": x.flatten(), "y": torch.zeros(500)}
    if in_place:
        body, buffers = body.replace("%y", "%x").replace("$y", "$x"), {"x": x.flatten()}
    made = kernel(body, buffers, list(buffers)[-1:], {"n0": 5})
    assert str(made.lowered(2)).count("math.exp") == 1
    made.check([torch.softmax(x, 1)])


def test_softmax_of_nothing(kernel: MakeKernel) -> None:
    kernel(SOFTMAX, {"x": torch.zeros(0), "y": torch.zeros(0)}, ["y"], {"n0": 4, "n1": 0}).check()


LAYER_NORM = """
  loop.nest (%i : n0) {
    %mean, %m2, %count = loop.reduce "welford" (%k : n1) {
      %v = loop.load %x[%i * n1 + %k] : $x -> f32
      %zero = arith.constant 0.0 : f32
      %one = arith.constant 1.0 : f32
      loop.yield %v, %zero, %one : f32, f32, f32
    } : f32, f32, f32
    %variance = arith.divf %m2, %count : f32
    %eps = arith.constant 1.0e-05 : f32
    %shifted = arith.addf %variance, %eps : f32
    %rstd = math.rsqrt %shifted : f32
    loop.store %mean, %means[%i] : f32, $means
    loop.store %rstd, %rstds[%i] : f32, $rstds
    loop.for (%k : n1) {
      %v = loop.load %x[%i * n1 + %k] : $x -> f32
      %w = loop.load %weight[%k] : $weight -> f32
      %b = loop.load %bias[%k] : $bias -> f32
      %c = arith.subf %v, %mean : f32
      %n = arith.mulf %c, %rstd : f32
      %p = arith.mulf %n, %w : f32
      %q = arith.addf %p, %b : f32
      loop.store %q, %y[%i * n1 + %k] : f32, $y
    }
  }
"""


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (7, 24), (3, 768), (2, 1000)])
def test_layer_norm(kernel: MakeKernel, rows: int, columns: int, symbolic: bool) -> None:
    x, weight, bias = torch.randn(rows, columns), torch.randn(columns), torch.randn(columns)
    expected = torch.native_layer_norm(x, [columns], weight, bias, 1e-5)
    buffers = {"x": x.flatten(), "weight": weight, "bias": bias, "y": torch.zeros(x.numel())}
    buffers |= {"means": torch.zeros(rows), "rstds": torch.zeros(rows)}
    body = LAYER_NORM if symbolic else LAYER_NORM.replace("n1", str(columns))
    kernel(body, buffers, ["y", "means", "rstds"], {"n0": rows, "n1": columns}).check(expected)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (40, 3), (9, 300), (2, 5000)])
def test_broadcast(kernel: MakeKernel, rows: int, columns: int) -> None:
    body = (
        """
      loop.nest (%i : n0, %k : n1) {
        %v = loop.load %x[%i * n1 + %k] : $x -> f32
        %r = loop.load %r[%i] : $r -> f32
        %c = loop.load %c[%k] : $c -> f32
        %a = arith.addf %v, %r : f32
        %b = arith.mulf %a, %c : f32
        loop.store %b, %y[%i * n1 + %k] : f32, $y
      }
    """.replace("%r =", "%rv =")
        .replace("%c =", "%cv =")
        .replace("%v, %r :", "%v, %rv :")
        .replace("%a, %c", "%a, %cv")
    )
    x, r, c = torch.randn(rows, columns), torch.randn(rows, 1), torch.randn(columns)
    buffers = {"x": x.flatten(), "r": r.flatten(), "c": c, "y": torch.zeros(x.numel())}
    kernel(body, buffers, ["y"], {"n0": rows, "n1": columns}).check([(x + r) * c])


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (700, 20), (600, 100), (0, 7)])
def test_column_sums(kernel: MakeKernel, rows: int, columns: int) -> None:
    body = """
      loop.nest (%k : n1) {
        %s, %m = loop.reduce "sum", "max" (%i : n0) {
          %v = loop.load %x[%i * n1 + %k] : $x -> f32
          loop.yield %v, %v : f32, f32
        } : f32, f32
        loop.store %s, %y[%k] : f32, $y
        loop.store %m, %z[%k] : f32, $z
      }
    """
    x = torch.randn(rows, columns)
    largest = x.max(0).values if rows else torch.full((columns,), -torch.inf)
    buffers = {"x": x.flatten(), "y": torch.zeros(columns), "z": torch.zeros(columns)}
    kernel(body, buffers, ["y", "z"], {"n0": rows, "n1": columns}).check([x.sum(0), largest], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 20), (64, 24), (70, 45)])
def test_transpose(kernel: MakeKernel, rows: int, columns: int, symbolic: bool) -> None:
    body = """
      loop.nest (%i : n0, %k : n1) {
        %v = loop.load %x[%k * n0 + %i] : $x -> f32
        loop.store %v, %y[%i * n1 + %k] : f32, $y
      }
    """
    if not symbolic:
        body = body.replace("n0", str(rows)).replace("n1", str(columns))
    x = torch.randn(columns, rows)
    buffers = {"x": x.flatten(), "y": torch.zeros(x.numel())}
    kernel(body, buffers, ["y"], {"n0": rows, "n1": columns}).check([x.T.contiguous()])


def test_split_heads(kernel: MakeKernel) -> None:
    body = """
      loop.nest (%t : n0, %j : 768) {
        %v = loop.load %x[(%j floordiv 64) * (64 * n0) + %t * 64 + %j mod 64] : $x -> f32
        loop.store %v, %y[%t * 768 + %j] : f32, $y
      }
    """
    x = torch.randn(12, 5, 64)
    expected = x.permute(1, 0, 2).contiguous()
    kernel(body, {"x": x.flatten(), "y": torch.zeros(x.numel())}, ["y"], {"n0": 5}).check([expected])


@pytest.mark.parametrize("columns", [5, 33, 100])
def test_masked_loads(kernel: MakeKernel, columns: int) -> None:
    body = (
        """
      loop.nest (%i : n0, %k : 2 * n1) {
        %w = loop.apply (%k) : index
        %n = loop.apply (n1) : index
        %left = loop.cmp "lt" %w, %n : index
        %true = arith.constant true
        %right = arith.xori %left, %true : i1
        %zero = arith.constant 0.0 : f32
        %a = loop.load %a[%i * n1 + %k] mask %left else %zero : $a -> f32
        %b = loop.load %b[%i * n1 + %k - n1] mask %right else %a : $b -> f32
        loop.store %b, %y[%i * (2 * n1) + %k] : f32, $y
      }
    """.replace("%a =", "%av =")
        .replace("%b =", "%bv =")
        .replace("else %a", "else %av")
        .replace("store %b", "store %bv")
    )
    a, b = torch.randn(3, columns), torch.randn(3, columns)
    buffers = {"a": a.flatten(), "b": b.flatten(), "y": torch.zeros(6 * columns)}
    kernel(body, buffers, ["y"], {"n0": 3, "n1": columns}).check([torch.cat([a, b], 1)])


@pytest.mark.parametrize("columns", [1, 24, 768])
def test_embedding(kernel: MakeKernel, columns: int) -> None:
    body = """
      loop.nest (%i : n0, %k : n1) {
        %n = loop.load %index[%i] : $index -> i64
        %r = loop.cast %n : i64 to index
        %v = loop.load %x[%r * n1 + %k] : $x -> f32
        loop.store %v, %y[%i * n1 + %k] : f32, $y
      }
    """
    x, index = torch.randn(50, columns), torch.randint(0, 50, (7,))
    buffers = {"x": x.flatten(), "index": index, "y": torch.zeros(7 * columns)}
    kernel(body, buffers, ["y"], {"n0": 7, "n1": columns}).check([x[index]])


def test_gather_along_the_lanes(kernel: MakeKernel) -> None:
    body = """
      loop.nest (%i : n0) {
        %n = loop.load %index[%i] : $index -> i64
        %r = loop.cast %n : i64 to index
        %v = loop.load %x[%r] : $x -> f32
        %e = math.exp %v : f32
        loop.store %e, %y[%i] : f32, $y
      }
    """
    x, index = torch.randn(50), torch.randint(0, 50, (77,))
    kernel(body, {"x": x, "index": index, "y": torch.zeros(77)}, ["y"], {"n0": 77}).check([x[index].exp()])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(kernel: MakeKernel, dtype: torch.dtype) -> None:
    kind = "bf16" if dtype == torch.bfloat16 else "f16"
    body = """
      loop.nest (%i : n0) {
        %v = loop.load %x[%i] : $x -> KIND
        %w = loop.cast %v : KIND to f32
        %t = math.tanh %w : f32
        %r = loop.cast %t : f32 to KIND
        %s = loop.cast %r : KIND to f32
        %u = arith.mulf %s, %w : f32
        %o = loop.cast %u : f32 to KIND
        loop.store %o, %y[%i] : KIND, $y
      }
    """.replace("KIND", kind)
    x = torch.randn(1000).to(dtype)
    buffers = {"x": x, "y": torch.zeros(1000, dtype=dtype)}
    kernel(body, buffers, ["y"], {"n0": 1000}).check([x.tanh() * x], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_that_is_only_moved(kernel: MakeKernel, dtype: torch.dtype) -> None:
    kind = "bf16" if dtype == torch.bfloat16 else "f16"
    body = """
      loop.nest (%i : 5) {
        loop.for (%j : 3) {
          %zero = arith.constant 0.0 : KIND
          %one = arith.constant 1 : index
          %two = arith.constant 2 : index
          %last = loop.cmp "ge" %j, %two : index
          %u = loop.load %x[%i] mask %last else %zero : $x -> KIND
          %first = loop.cmp "lt" %j, %one : index
          %v = loop.load %x[%i] mask %first else %u : $x -> KIND
          loop.store %v, %y[3 * %i + %j] : KIND, $y
        }
      }
    """.replace("KIND", kind)
    x = torch.randn(5).to(dtype)
    buffers = {"x": x, "y": torch.zeros(15, dtype=dtype)}
    kernel(body, buffers, ["y"], {}).check([torch.stack([x, x * 0, x], 1).view(-1)], rtol=0, atol=0)


@pytest.mark.parametrize("combiner", ["argmax", "argmin"])
@pytest.mark.parametrize("columns", [1, 5, 16, 333])
def test_arg_reductions(kernel: MakeKernel, combiner: str, columns: int) -> None:
    body = f"""
      loop.nest (%i : n0) {{
        %m, %n = loop.reduce "{combiner}" (%k : n1) {{
          %v = loop.load %x[%i * n1 + %k] : $x -> f32
          %w = loop.apply (%k) : index
          %c = loop.cast %w : index to i64
          loop.yield %v, %c : f32, i64
        }} : f32, i64
        loop.store %n, %y[%i] : i64, $y
      }}
    """
    x = torch.randint(-4, 4, (6, columns)).float()
    x[2, columns // 2] = torch.nan
    x[3, columns // 3 :] = torch.nan
    expected = getattr(torch, combiner)(x, 1)
    buffers = {"x": x.flatten(), "y": torch.zeros(6, dtype=torch.int64)}
    kernel(body, buffers, ["y"], {"n0": 6, "n1": columns}).check([expected])


FULL_SUM = """
  loop.nest () {
    %s = loop.reduce "sum" (%k : n0) {
      %v = loop.load %x[%k] : $x -> f32
      loop.yield %v : f32
    } : f32
    loop.store %s, %y[0] : f32, $y
  }
"""


@pytest.mark.parametrize("size", [0, 1, 15, 9000])
def test_full_sum(kernel: MakeKernel, size: int) -> None:
    x = torch.randn(size)
    buffers = {"x": x, "y": torch.zeros(1)}
    kernel(FULL_SUM, buffers, ["y"], {"n0": size}).check([x.sum()], rtol=1e-4, atol=1e-4)


def test_a_long_sum_is_as_accurate_as_eager(kernel: MakeKernel) -> None:
    x = torch.rand(1 << 21)
    exact = x.double().sum()
    (ours,) = kernel(FULL_SUM, {"x": x, "y": torch.zeros(1)}, ["y"], {"n0": x.numel()}).run()
    assert abs(ours.double() - exact) <= 2 * abs(x.sum().double() - exact) + exact * 2**-24


NORMALIZE_ALL = """
  loop.nest () {
    %m, %n = loop.reduce "argmax" (%k : n0) {
      %v = loop.load %x[%k] : $x -> f32
      %j = loop.apply (%k) : index
      %c = loop.cast %j : index to i64
      loop.yield %v, %c : f32, i64
    } : f32, i64
    %s = loop.reduce "sum" (%k : n0) {
      %v = loop.load %x[%k] : $x -> f32
      %d = arith.subf %v, %m : f32
      loop.yield %d : f32
    } : f32
    loop.store %n, %where[0] : i64, $where
    loop.for (%k : n0) {
      %v = loop.load %x[%k] : $x -> f32
      %w = arith.divf %v, %s : f32
      loop.store %w, %y[%k] : f32, $y
    }
  }
"""


@pytest.mark.parametrize("size", [1, 100, 9000])
def test_reductions_of_everything(kernel: MakeKernel, size: int) -> None:
    x = torch.randn(size)
    buffers = {"x": x, "y": torch.zeros(size), "where": torch.zeros(1, dtype=torch.int64)}
    expected = [x / (x - x.max()).sum(), x.argmax()]
    if size == 1:
        expected[0] = x / 0
    kernel(NORMALIZE_ALL, buffers, ["y", "where"], {"n0": size}).check(expected, rtol=1e-4, atol=1e-4)


def test_a_sum_does_not_depend_on_the_number_of_threads(kernel: MakeKernel) -> None:
    x = torch.rand(5_000_000)
    run = kernel(FULL_SUM, {"x": x, "y": torch.zeros(1)}, ["y"], {"n0": x.numel()}).run
    threads = torch.get_num_threads()
    try:
        sums: list[Tensor] = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            sums += run()
    finally:
        torch.set_num_threads(threads)
    assert sums[0] == sums[1] == sums[2]


def test_sums_of_few_long_columns(kernel: MakeKernel) -> None:
    body = """
      loop.nest (%k : 24) {
        %s = loop.reduce "sum" (%i : n0) {
          %v = loop.load %x[%i * 24 + %k] : $x -> f32
          loop.yield %v : f32
        } : f32
        loop.store %s, %y[%k] : f32, $y
      }
    """
    x = torch.randn(1200, 24)
    kernel(body, {"x": x.flatten(), "y": torch.zeros(24)}, ["y"], {"n0": 1200}).check([x.sum(0)], rtol=1e-4, atol=1e-3)


def test_batch_norm_statistics(kernel: MakeKernel) -> None:
    body = """
      loop.nest (%c : n1) {
        %s = loop.reduce "sum" (%n : n0, %p : n2) {
          %v = loop.load %x[%n * (n1 * n2) + %c * n2 + %p] : $x -> f32
          loop.yield %v : f32
        } : f32
        loop.store %s, %y[%c] : f32, $y
      }
    """
    x = torch.randn(6, 5, 77)
    buffers = {"x": x.flatten(), "y": torch.zeros(5)}
    kernel(body, buffers, ["y"], {"n0": 6, "n1": 5, "n2": 77}).check([x.sum((0, 2))], rtol=1e-4, atol=1e-4)


def test_layer_norm_backward_of_weight_and_bias(kernel: MakeKernel) -> None:
    body = (
        """
      loop.nest (%k : n1) {
        %w, %b = loop.reduce "sum", "sum" (%i : n0) {
          %g = loop.load %g[%i * n1 + %k] : $g -> f32
          %v = loop.load %x[%i * n1 + %k] : $x -> f32
          %m = loop.load %means[%i] : $means -> f32
          %r = loop.load %rstds[%i] : $rstds -> f32
          %c = arith.subf %v, %m : f32
          %n = arith.mulf %c, %r : f32
          %p = arith.mulf %n, %g : f32
          loop.yield %p, %g : f32, f32
        } : f32, f32
        loop.store %w, %dw[%k] : f32, $dw
        loop.store %b, %db[%k] : f32, $db
      }
    """.replace("%g = loop", "%gv = loop")
        .replace("%n, %g", "%n, %gv")
        .replace("%p, %g", "%p, %gv")
    )
    x, g = torch.randn(100, 40), torch.randn(100, 40)
    means, rstds = torch.randn(100), torch.rand(100)
    expected = [((x - means[:, None]) * rstds[:, None] * g).sum(0), g.sum(0)]
    buffers = {"g": g.flatten(), "x": x.flatten(), "means": means, "rstds": rstds}
    buffers |= {"dw": torch.zeros(40), "db": torch.zeros(40)}
    kernel(body, buffers, ["dw", "db"], {"n0": 100, "n1": 40}).check(expected, rtol=1e-4, atol=1e-3)


INTEGERS = {
    torch.int64: ("i64", "i64"),
    torch.int32: ("i32", "i32"),
    torch.int8: ("i8", "i8"),
    torch.uint8: ("i8", "i8"),
}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("size", [3, 16, 70])
def test_integers(kernel: MakeKernel, dtype: torch.dtype, size: int) -> None:
    kind, _ = INTEGERS[dtype]
    unsigned = "unsigned " if dtype == torch.uint8 else ""
    body = f"""
      loop.nest (%i : n0) {{
        %v = loop.load %x[%i] : $x -> {kind}
        %w = loop.load %d[%i] : $d -> {kind}
        %q = loop.intrinsic {unsigned}"floordiv"(%v, %w) : {kind}
        %s = arith.addi %q, %v : {kind}
        loop.store %s, %y[%i] : {kind}, $y
        %f = loop.cast {unsigned}%v : {kind} to f32
        loop.store %f, %z[%i] : f32, $z
      }}
    """
    x = torch.randint(-100, 100, (size,)).to(dtype)
    d = torch.randint(1, 9, (size,)).to(dtype)
    buffers = {"x": x, "d": d, "y": torch.zeros(size, dtype=dtype), "z": torch.zeros(size)}
    kernel(body, buffers, ["y", "z"], {"n0": size}).check([torch.floor_divide(x, d) + x, x.float()])


@pytest.mark.parametrize("size", [1, 8, 9, 100])
def test_f64(kernel: MakeKernel, size: int) -> None:
    body = """
      loop.nest (%i : n0) {
        %v = loop.load %x[%i] : $x -> f64
        %e = math.exp %v : f64
        %s = arith.addf %e, %v : f64
        loop.store %s, %y[%i] : f64, $y
      }
    """
    x = torch.randn(size, dtype=torch.float64)
    kernel(body, {"x": x, "y": torch.zeros_like(x)}, ["y"], {"n0": size}).check([x.exp() + x])


@pytest.mark.parametrize("size", [1, 4, 40, 200])
def test_booleans(kernel: MakeKernel, size: int) -> None:
    body = """
      loop.nest (%i : n0) {
        %p, %q = loop.reduce "any", "all" (%k : n1) {
          %v = loop.load %x[%i * n1 + %k] : $x -> f32
          %z = arith.constant 0.0 : f32
          %c = loop.cmp "gt" %v, %z : f32
          loop.store %c, %c[%i * n1 + %k] : i1, $c
          loop.yield %c, %c : i1, i1
        } : i1, i1
        loop.store %p, %p[%i] : i1, $p
        loop.store %q, %q[%i] : i1, $q
      }
    """
    for name in "cpq":
        body = body.replace(f"%{name}[", f"%{name}s[").replace(f"${name}", f"${name}s")
    x = torch.randn(3, size)
    x[1], x[2] = -1, 1
    buffers = {"x": x.flatten(), "cs": torch.zeros(3 * size, dtype=torch.bool)}
    buffers |= {"ps": torch.zeros(3, dtype=torch.bool), "qs": torch.zeros(3, dtype=torch.bool)}
    c = x > 0
    kernel(body, buffers, ["cs", "ps", "qs"], {"n0": 3, "n1": size}).check([c, c.any(1), c.all(1)])


def test_a_scalar_kernel(kernel: MakeKernel) -> None:
    body = """
      loop.nest () {
        %v = loop.load %x[0] : $x -> f32
        %w = math.sqrt %v : f32
        loop.store %w, %y[0] : f32, $y
      }
    """
    x = torch.rand(1)
    kernel(body, {"x": x, "y": torch.zeros(1)}, ["y"]).check([x.sqrt()])


def test_index_expressions(kernel: MakeKernel) -> None:
    body = """
      loop.nest (%i : n0) {
        %a = loop.load %x[(%i - 3) mod n0] : $x -> f32
        %b = loop.load %x[n0 - 1 - %i] : $x -> f32
        %c = loop.load %x[%i floordiv 2] : $x -> f32
        %d = loop.load %x[max(%i - 5, 0)] : $x -> f32
        %e = loop.load %x[(%i - 7) floordiv 3 - (-7) floordiv 3] : $x -> f32
        %p = arith.addf %a, %b : f32
        %q = arith.mulf %p, %c : f32
        %r = arith.addf %q, %d : f32
        %s = arith.mulf %r, %e : f32
        %t = math.exp %s : f32
        loop.store %t, %y[%i] : f32, $y
      }
    """
    x, i = torch.rand(75), torch.arange(75)
    parts = [x[(i - 3) % 75], x.flip(0), x[i // 2], x[(i - 5).clamp(min=0)], x[(i - 7) // 3 + 3]]
    expected = (((parts[0] + parts[1]) * parts[2] + parts[3]) * parts[4]).exp()
    kernel(body, {"x": x, "y": torch.zeros(75)}, ["y"], {"n0": 75}).check([expected])


def test_scatter_add(kernel: MakeKernel) -> None:
    body = """
      loop.nest (%i : n0, %k : n1) {
        %n = loop.load %index[%i] : $index -> i64
        %r = loop.cast %n : i64 to index
        %v = loop.load %x[%i * n1 + %k] : $x -> f32
        loop.store %v, %y[%r * n1 + %k] combine "sum" : f32, $y
      }
    """
    x, index = torch.randn(30, 20), torch.randint(0, 6, (30,))
    expected = torch.zeros(6, 20).index_add(0, index, x)
    buffers = {"x": x.flatten(), "index": index, "y": torch.zeros(120)}
    kernel(body, buffers, ["y"], {"n0": 30, "n1": 20}).check([expected])


def test_an_ordered_reduction(kernel: MakeKernel) -> None:
    body = """
      loop.nest (%i : n0) {
        %s = loop.reduce ordered "sum" (%k : n1) {
          %v = loop.load %x[%i * n1 + %k] : $x -> f32
          loop.yield %v : f32
        } : f32
        loop.store %s, %y[%i] : f32, $y
      }
    """
    x = torch.randn(3, 70)
    kernel(body, {"x": x.flatten(), "y": torch.zeros(3)}, ["y"], {"n0": 3, "n1": 70}).check([x.sum(1)])


def test_loops_side_by_side(kernel: MakeKernel) -> None:
    body = """
      loop.nest (%i : n0) {
        loop.for (%k : 20) {
          %v = loop.load %x[%i * 20 + %k] : $x -> f32
          loop.store %v, %y[%i * 53 + %k] : f32, $y
        }
        loop.for (%k : n1, %j : 3) {
          %v = loop.load %x[%i * 20 + %j] : $x -> f32
          %w = arith.negf %v : f32
          loop.store %w, %y[%i * 53 + 20 + %j * n1 + %k] : f32, $y
        }
      }
    """
    x = torch.randn(4, 20)
    expected = torch.cat([x, -x[:, :3].repeat_interleave(11, 1)], 1)
    kernel(body, {"x": x.flatten(), "y": torch.zeros(4 * 53)}, ["y"], {"n0": 4, "n1": 11}).check([expected])


@pytest.mark.parametrize("size", [1, 15, 16, 17, 63, 64, 65, 4095, 4096, 4097, 9000])
def test_tails(kernel: MakeKernel, size: int) -> None:
    body = """
      loop.nest (%i : n0) {
        %v = loop.load %x[%i] : $x -> f32
        %w = arith.mulf %v, %v : f32
        loop.store %w, %y[%i] : f32, $y
      }
    """
    x = torch.randn(size)
    # What lies beyond the last element must stay as it is.
    y = torch.full((size + 64,), 7.0)
    expected = torch.cat([x * x, torch.full((64,), 7.0)])
    for text in (body, body.replace("n0", str(size))):
        kernel(text, {"x": x, "y": y}, ["y"], {"n0": size}).check([expected])


def gelu(x: Tensor) -> Tensor:
    return functional.gelu(x)


def test_gelu(kernel: MakeKernel) -> None:
    body = """
      loop.nest (%i : n0) {
        %v = loop.load %x[%i] : $x -> f32
        %c = arith.constant 0.70710678118654757 : f32
        %h = arith.constant 0.5 : f32
        %one = arith.constant 1.0 : f32
        %s = arith.mulf %v, %c : f32
        %e = math.erf %s : f32
        %p = arith.addf %e, %one : f32
        %q = arith.mulf %v, %h : f32
        %r = arith.mulf %q, %p : f32
        loop.store %r, %y[%i] : f32, $y
      }
    """
    x = torch.randn(1000)
    kernel(body, {"x": x, "y": torch.zeros(1000)}, ["y"], {"n0": 1000}).check([gelu(x)])
