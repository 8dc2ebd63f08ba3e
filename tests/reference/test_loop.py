"""The loops of the `loop` dialect on tensors, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.conftest import Runner
from torch import Tensor

TYPES = """
!x = tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
!r = tensor<?xf32, #sym.layout<[s0], [1]>>
!ri = tensor<?xi64, #sym.layout<[s0], [1]>>
"""


def assert_same(found: Tensor | int | None, expected: Tensor, tolerance: float = 0) -> None:
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert found.stride() == expected.stride()


SOFTMAX = (
    TYPES
    + """
func.func @forward(%x : !x) -> !x {
  %y = loop.nest (%i : s0) outs(%o : !x) {
    %m = loop.reduce "max" (%k : 8) {
      %v = loop.load %x[%i, %k] : !x -> f32
      loop.yield %v : f32
    } : f32
    %s = loop.reduce "sum" (%k : 8) {
      %v = loop.load %x[%i, %k] : !x -> f32
      %d = arith.subf %v, %m : f32
      %e = math.exp %d : f32
      loop.yield %e : f32
    } : f32
    loop.for (%k : 8) {
      %v = loop.load %x[%i, %k] : !x -> f32
      %d = arith.subf %v, %m : f32
      %e = math.exp %d : f32
      %q = arith.divf %e, %s : f32
      loop.store %q, %o[%i, %k] : f32, !x
    }
  }
  func.return %y : !x
}
"""
)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_softmax(run: Runner, rows: int) -> None:
    x = torch.randn(rows, 8)
    assert_same(run(SOFTMAX, x), x.softmax(-1), 1e-6)


def test_softmax_with_nan_and_infinity(run: Runner) -> None:
    x = torch.randn(3, 8)
    x[0, 3], x[1, 2] = torch.nan, -torch.inf
    assert_same(run(SOFTMAX, x), x.softmax(-1), 1e-6)


def reduce(combiners: str, slots: str, body: str, results: int, init: str = "") -> str:
    """Return a reduction over the columns of a matrix, all its slots as results."""
    kinds = slots.split(", ")
    names = [f"%r{i}" for i in range(results)]
    outs = ["!ri" if k == "i64" else "!r" for k in kinds]
    stores = "\n".join(f"loop.store {n}, {n}o[%i] : {k}, {o}" for n, k, o in zip(names, kinds, outs, strict=True))
    returned = ", ".join(f"%y#{i}" for i in range(results)) if results > 1 else "%y"
    count = f":{results}" if results > 1 else ""
    return f"""{TYPES}
    func.func @forward(%x : !x) -> ({", ".join(outs)}) {{
      %y{count} = loop.nest (%i : s0) outs({", ".join(f"{n}o : {o}" for n, o in zip(names, outs, strict=True))}) {{
        %half = arith.constant 0.5 : f32
        {", ".join(names)} = loop.reduce {combiners} (%k : 8) {init} {{
          %v = loop.load %x[%i, %k] : !x -> f32
          {body}
        }} : {slots}
        {stores}
      }}
      func.return {returned} : {", ".join(outs)}
    }}"""


@pytest.mark.parametrize(
    ("combiner", "function"),
    [("sum", torch.sum), ("prod", torch.prod), ("max", torch.amax), ("min", torch.amin)],
)
def test_reductions(run: Runner, combiner: str, function: Callable[..., Any]) -> None:
    x = torch.randn(5, 8)
    x[2, 4] = torch.nan
    text = reduce(f'"{combiner}"', "f32", "loop.yield %v : f32", 1)
    assert_same(run(text, x), function(x, dim=1), 1e-6)


@pytest.mark.parametrize("ordered", [False, True])
def test_init_replaces_the_identity(run: Runner, ordered: bool) -> None:
    x = torch.randn(5, 8)
    combiner = 'ordered "sum"' if ordered else '"sum"'
    assert_same(run(reduce(combiner, "f32", "loop.yield %v : f32", 1, "init(%half)"), x), x.sum(1) + 0.5, 1e-6)


def test_ordered_sum_rounds_in_order(run: Runner) -> None:
    x = torch.tensor([[2.0**24, 1, 1, 1, 1, 1, 1, 1]])
    assert_same(run(reduce('ordered "sum"', "f32", "loop.yield %v : f32", 1), x), torch.tensor([2.0**24]))
    assert_same(run(reduce('"sum"', "f32", "loop.yield %v : f32", 1), x), torch.tensor([2.0**24 + 6]))


@pytest.mark.parametrize(("combiner", "function"), [("argmax", torch.max), ("argmin", torch.min)])
def test_arg_reductions_take_the_first_and_nan(run: Runner, combiner: str, function: Callable[..., Any]) -> None:
    x = torch.randint(0, 3, (64, 8)).float()
    x[3, 5], x[3, 6], x[4] = torch.nan, torch.nan, torch.nan
    body = """%n = loop.apply (%k) : index
              %j = arith.index_cast %n : index to i64
              loop.yield %v, %j : f32, i64"""
    values, indices = run.all(reduce(f'"{combiner}"', "f32, i64", body, 2), x)
    expected = function(x, dim=1)
    assert_same(values, expected.values)
    assert_same(indices, expected.indices)


def test_welford(run: Runner) -> None:
    x = torch.randn(5, 8) + 100
    body = """%zero = arith.constant 0.0 : f32
              %one = arith.constant 1.0 : f32
              loop.yield %v, %zero, %one : f32, f32, f32"""
    mean, m2, count = run.all(reduce('"welford"', "f32, f32, f32", body, 3), x)
    assert_same(mean, x.mean(1), 1e-4)
    assert_same(m2, x.var(1, correction=0) * 8, 1e-3)
    assert_same(count, torch.full((5,), 8.0))


def test_several_combiners_at_once(run: Runner) -> None:
    x = torch.randn(5, 8)
    total, largest = run.all(reduce('"sum", "max"', "f32, f32", "loop.yield %v, %v : f32, f32", 2), x)
    assert_same(total, x.sum(1), 1e-6)
    assert_same(largest, x.amax(1))


def test_any_and_all(run: Runner) -> None:
    text = """
    !x = tensor<3x4xi1, #sym.layout<[3, 4], [4, 1]>>
    !r = tensor<3xi1, #sym.layout<[3], [1]>>
    func.func @forward(%x : !x) -> (!r, !r) {
      %y:2 = loop.nest (%i : 3) outs(%p : !r, %q : !r) {
        %a, %b = loop.reduce "any", "all" (%k : 4) {
          %v = loop.load %x[%i, %k] : !x -> i1
          loop.yield %v, %v : i1, i1
        } : i1, i1
        loop.store %a, %p[%i] : i1, !r
        loop.store %b, %q[%i] : i1, !r
      }
      func.return %y#0, %y#1 : !r, !r
    }"""
    x = torch.tensor([[True, False, True, True], [True] * 4, [False] * 4])
    some, every = run.all(text, x)
    assert_same(some, x.any(1))
    assert_same(every, x.all(1))


@pytest.mark.parametrize("step", [3, 4, 16])
def test_tiles_whose_last_is_partial(run: Runner, step: int) -> None:
    text = f"""{TYPES}
    func.func @forward(%x : !x) -> (!x, !r) {{
      %y:2 = loop.nest (%t = 0 to s0 step {step}) outs(%o : !x, %p : !r) {{
        loop.for (%i = %t to min(%t + {step}, s0)) {{
          %s = loop.reduce "sum" (%k = %i - %i to min(%i + 1, 8)) {{
            %v = loop.load %x[%i, %k] : !x -> f32
            loop.yield %v : f32
          }} : f32
          loop.store %s, %p[%i] : f32, !r
          loop.for (%u = 0 to 8 step {step}) {{
            loop.for (%k = %u to min(%u + {step}, 8)) {{
              %v = loop.load %x[%i, %k] : !x -> f32
              loop.store %v, %o[%i, %k] : f32, !x
            }}
          }}
        }}
      }}
      func.return %y#0, %y#1 : !x, !r
    }}"""
    x = torch.randn(7, 8)
    copy, triangle = run.all(text, x)
    assert_same(copy, x)
    assert_same(triangle, x[:, :7].tril().sum(1), 1e-6)


def test_masked_loads_touch_no_memory(run: Runner) -> None:
    text = f"""{TYPES}
    !p = tensor<?x10xf32, #sym.layout<[s0, 10], [10, 1]>>
    func.func @forward(%x : !x) -> !p {{
      %y = loop.nest (%i : s0, %k : 10) outs(%o : !p) {{
        %one = arith.constant 1 : index
        %nine = arith.constant 9 : index
        %a = loop.cmp "ge" %k, %one : index
        %b = loop.cmp "lt" %k, %nine : index
        %m = arith.andi %a, %b : i1
        %z = arith.constant 7.0 : f32
        %v = loop.load %x[%i, %k - 1] mask %m else %z : !x -> f32
        loop.store %v, %o[%i, %k] : f32, !p
      }}
      func.return %y : !p
    }}"""
    x = torch.randn(3, 8)
    assert_same(run(text, x), torch.nn.functional.pad(x, (1, 1), value=7.0))
    assert_same(run(text, x[:0]), torch.empty(0, 10))


def test_cat_by_masked_stores_into_one_destination(run: Runner) -> None:
    text = """
    !a = tensor<?xf32, #sym.layout<[s0], [1]>>
    !b = tensor<?xf32, #sym.layout<[s1], [1]>>
    !c = tensor<?xf32, #sym.layout<[s0 + s1], [1]>>
    func.func @forward(%a : !a, %b : !b) -> !c {
      %y = loop.nest () outs(%o : !c) {
        loop.for (%i : s0) {
          %v = loop.load %a[%i] : !a -> f32
          loop.store %v, %o[%i] : f32, !c
        }
        loop.for (%i : s1) {
          %v = loop.load %b[%i] : !b -> f32
          loop.store %v, %o[%i + s0] : f32, !c
        }
      }
      func.return %y : !c
    }"""
    a, b = torch.randn(3), torch.randn(4)
    assert_same(run(text, a, b), torch.cat([a, b]))


def test_gather_and_scatter(run: Runner) -> None:
    text = """
    !x = tensor<5xf32, #sym.layout<[5], [1]>>
    !n = tensor<?xi64, #sym.layout<[s0], [1]>>
    !v = tensor<?xf32, #sym.layout<[s0], [1]>>
    func.func @forward(%x : !x, %n : !n) -> (!v, !x) {
      %g = loop.nest (%i : s0) outs(%o : !v) {
        %j = loop.load %n[%i] : !n -> i64
        %k = arith.index_cast %j : i64 to index
        %v = loop.load %x[%k] : !x -> f32
        loop.store %v, %o[%i] : f32, !v
      }
      %s = loop.nest () outs(%o : !x) {
        loop.for (%i : 5) {
          %v = loop.load %x[%i] : !x -> f32
          loop.store %v, %o[%i] : f32, !x
        }
        loop.for (%i : s0) {
          %j = loop.load %n[%i] : !n -> i64
          %k = arith.index_cast %j : i64 to index
          %v = loop.load %g[%i] : !v -> f32
          loop.store %v, %o[%k] combine "sum" : f32, !x
        }
      }
      func.return %g, %s : !v, !x
    }"""
    x, n = torch.randn(5), torch.tensor([4, 0, 4, 4, 2])
    gathered, summed = run.all(text, x, n)
    assert_same(gathered, x[n])
    assert_same(summed, x.index_add(0, n, x[n]), 1e-6)


@pytest.mark.parametrize(("combine", "reduce"), [("prod", "prod"), ("max", "amax"), ("min", "amin"), ("sum", "sum")])
def test_scatter_combines(run: Runner, combine: str, reduce: str) -> None:
    text = f"""
    !x = tensor<3xi32, #sym.layout<[3], [1]>>
    !v = tensor<6xi32, #sym.layout<[6], [1]>>
    func.func @forward(%x : !x, %v : !v) -> !x {{
      %s = loop.nest () outs(%o : !x) {{
        loop.for (%i : 3) {{
          %e = loop.load %x[%i] : !x -> i32
          loop.store %e, %o[%i] : i32, !x
        }}
        loop.for (%i : 6) {{
          %e = loop.load %v[%i] : !v -> i32
          loop.store %e, %o[%i floordiv 2] combine "{combine}" : i32, !x
        }}
      }}
      func.return %s : !x
    }}"""
    x, v = torch.tensor([5, -2, 3], dtype=torch.int32), torch.randint(-9, 9, (6,), dtype=torch.int32)
    expected = x.scatter_reduce(0, torch.arange(6) // 2, v, reduce)
    assert_same(run(text, x, v), expected)


def test_a_nest_reads_what_it_stored(run: Runner) -> None:
    text = f"""{TYPES}
    func.func @forward(%x : !x) -> !x {{
      %y = loop.nest (%i : s0) outs(%o : !x) {{
        loop.for (%k : 8) {{
          %v = loop.load %x[%i, %k] : !x -> f32
          %e = math.exp %v : f32
          loop.store %e, %o[%i, %k] : f32, !x
        }}
        %s = loop.reduce "sum" (%k : 8) {{
          %v = loop.load %o[%i, 7 - %k] : !x -> f32
          loop.yield %v : f32
        }} : f32
      }}
      func.return %y : !x
    }}"""
    x = torch.randn(3, 8)
    assert_same(run(text, x), x.exp())


def test_results_have_the_strides_of_their_types(run: Runner) -> None:
    text = f"""{TYPES}
    !t = tensor<?x8xf32, #sym.layout<[s0, 8], [1, s0]>>
    func.func @forward(%x : !x) -> !t {{
      %y = loop.nest (%i : s0, %k : 8) outs(%o : !t) {{
        %v = loop.load %x[%i, %k] : !x -> f32
        loop.store %v, %o[%i, %k] : f32, !t
      }}
      func.return %y : !t
    }}"""
    x = torch.randn(5, 8)
    assert_same(run(text, x), x.t().contiguous().t())


def test_views_share_memory(run: Runner) -> None:
    text = """
    !x = tensor<6x4xf32, #sym.layout<[6, 4], [4, 1]>>
    !v = tensor<4x3xf32, #sym.layout<[4, 3], [1, 8], offset 4>>
    !s = tensor<4xf32, #sym.layout<[4], [1]>>
    func.func @forward(%x : !x) -> (!v, !s) {
      %v = loop.view %x <(d0, d1) -> (2 * d1 + 1, d0)> : !x to !v
      %y = loop.nest (%i : 4) outs(%o : !s) {
        %r = loop.reduce "sum" (%k : 3) {
          %e = loop.load %v[%i, %k] : !v -> f32
          loop.yield %e : f32
        } : f32
        loop.store %r, %o[%i] : f32, !s
      }
      func.return %v, %y : !v, !s
    }"""
    x = torch.randn(6, 4)
    view, total = run.all(text, x)
    assert_same(view, x[1::2].t())
    assert isinstance(view, Tensor)
    assert view.data_ptr() == x[1:].data_ptr()
    assert_same(total, x[1::2].sum(0), 1e-6)


LANES = """
!x = tensor<?x?xf32, #sym.layout<[s0, s1], [s1, 1]>>
!r = tensor<?xf32, #sym.layout<[s0], [1]>>
func.func @forward(%x : !x) -> (!x, !r) {
  %y:2 = loop.nest (%i : s0) outs(%o : !x, %p : !r) {
    %low = arith.constant -1.0e+30 : f32
    %z = vector.broadcast %low : f32 to vector<4xf32>
    %a = loop.reduce "max" (%k = 0 to s1 - s1 mod 4 step 4 lanes) {
      %v = loop.load %x[%i, %k] : !x -> vector<4xf32>
      loop.yield %v : vector<4xf32>
    } : vector<4xf32>
    %b = loop.reduce "max" (%k = s1 - s1 mod 4 to s1 step 4 lanes) mask(%m) init(%a) {
      %v = loop.load %x[%i, %k] mask %m else %z : !x -> vector<4xf32>
      loop.yield %v : vector<4xf32>
    } : vector<4xf32>
    %c = loop.combine "max" %b : vector<4xf32> to f32
    loop.store %c, %p[%i] : f32, !r
    %w = vector.broadcast %c : f32 to vector<4xf32>
    loop.for (%k = 0 to s1 - s1 mod 4 step 4 lanes) {
      %v = loop.load %x[%i, %k] : !x -> vector<4xf32>
      %d = arith.subf %v, %w : vector<4xf32>
      loop.store %d, %o[%i, %k] : vector<4xf32>, !x
    }
    loop.for (%k = s1 - s1 mod 4 to s1 step 4 lanes) mask(%m) {
      %v = loop.load %x[%i, %k] mask %m else %z : !x -> vector<4xf32>
      %d = arith.subf %v, %w : vector<4xf32>
      loop.store %d, %o[%i, %k] mask %m : vector<4xf32>, !x
    }
  }
  func.return %y#0, %y#1 : !x, !r
}"""


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 3), columns=st.integers(1, 11))
def test_lanes_with_a_masked_tail(rows: int, columns: int) -> None:
    x = torch.randn(rows, columns)
    difference, largest = Runner().all(LANES, x)
    assert_same(largest, x.amax(1))
    assert_same(difference, x - x.amax(1, keepdim=True))


def test_lanes_of_an_outer_loop(run: Runner) -> None:
    text = """
    !x = tensor<5x8xf32, #sym.layout<[5, 8], [8, 1]>>
    !r = tensor<8xf32, #sym.layout<[8], [1]>>
    func.func @forward(%x : !x) -> !r {
      %y = loop.nest (%k = 0 to 8 step 4 lanes) outs(%o : !r) {
        %s = loop.reduce "sum" (%i : 5) {
          %v = loop.load %x[%i, %k] : !x -> vector<4xf32>
          loop.yield %v : vector<4xf32>
        } : vector<4xf32>
        loop.store %s, %o[%k] : vector<4xf32>, !r
      }
      func.return %y : !r
    }"""
    x = torch.randn(5, 8)
    assert_same(run(text, x), x.sum(0), 1e-6)
