"""Kernels of the `loop` dialect with tensors, and what torch computes of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# ruff: noqa: E501 (lines of IR)


@dataclass(frozen=True)
class Case:
    """A kernel named `k`, its tensors and sizes, and the last tensor as it is to be, up to `tolerance`."""

    text: str
    tensors: Callable[[], list[Tensor]]
    expected: Callable[[list[Tensor]], Tensor]
    tolerance: float = 0.0
    sizes: tuple[int, ...] = ()


def buffer(size: int | str, element: str = "f32") -> str:
    return f"memref<{'?' if isinstance(size, str) else size}x{element}, #sym.layout<[{size}], [1]>>"


def random(size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size))


M, N, H, P = buffer(4000), buffer("n"), buffer(4000, "f16"), buffer(64, "i64")

SOFTMAX = f"""
loop.kernel @k(%x : {M}, %y : {M}) symbols [] attributes {{device = "cuda"}} {{
  loop.nest (%t = 0 to 40 step 4) {{
    loop.for (%i = %t to %t + 4) attributes {{blocks = array<i64: 4>}} {{
      %max = loop.reduce "max" (%k : 100) attributes {{blocks = array<i64: 128>}} {{
        %v = loop.load %x[100 * %i + %k] : {M} -> f32
        loop.yield %v : f32
      }} : f32
      %sum = loop.reduce "sum" (%k : 100) attributes {{blocks = array<i64: 128>}} {{
        %v = loop.load %x[100 * %i + %k] : {M} -> f32
        %d = arith.subf %v, %max : f32
        %e = math.exp %d : f32
        loop.yield %e : f32
      }} : f32
      loop.for (%k : 100) attributes {{blocks = array<i64: 128>}} {{
        %v = loop.load %x[100 * %i + %k] : {M} -> f32
        %d = arith.subf %v, %max : f32
        %e = math.exp %d : f32
        %q = arith.divf %e, %sum : f32
        loop.store %q, %y[100 * %i + %k] : f32, {M}
      }}
    }}
  }}
}}
"""

TANH = f"""
loop.kernel @k(%x : {H}, %y : {H}) symbols [] attributes {{device = "cuda"}} {{
  loop.nest (%t = 0 to 4000 step 1024) {{
    loop.for (%i = %t to min(%t + 1024, 4000)) attributes {{blocks = array<i64: 1024>}} {{
      %v = loop.load %x[%i] : {H} -> f16
      %w = loop.cast %v : f16 to f32
      %a = math.tanh %w : f32
      %h = arith.constant 0.1 : f32
      %b = arith.mulf %a, %h : f32
      %r = loop.cast %b : f32 to f16
      %two = arith.constant 2.0 : f16
      %s = arith.mulf %r, %two : f16
      loop.store %s, %y[%i] : f16, {H}
    }}
  }}
}}
"""

TRANSPOSE = f"""
loop.kernel @k(%x : {M}, %y : {M}) symbols [] attributes {{device = "cuda"}} {{
  loop.nest (%a = 0 to 40 step 16, %b = 0 to 100 step 32) {{
    loop.for (%i = %a to min(%a + 16, 40), %j = %b to min(%b + 32, 100)) attributes {{blocks = array<i64: 16, 32>}} {{
      %v = loop.load %x[40 * %j + %i] : {M} -> f32
      loop.store %v, %y[100 * %i + %j] : f32, {M}
    }}
  }}
}}
"""

GATHER = f"""
loop.kernel @k(%n : {P}, %x : {M}, %y : {M}) symbols [] attributes {{device = "cuda"}} {{
  loop.nest (%t = 0 to 30 step 4) {{
    loop.for (%i = %t to min(%t + 4, 30)) attributes {{blocks = array<i64: 4>}} {{
      %p = loop.load %n[%i] : {P} -> i64
      %end = arith.constant 40 : i64
      %ok = loop.cmp unsigned "lt" %p, %end : i64
      %q = loop.check %ok, %p else "IndexError: index out of range in self" : i64
      %r = loop.cast %q : i64 to index
      loop.for (%k : 100) attributes {{blocks = array<i64: 128>}} {{
        %v = loop.load %x[100 * %r + %k] : {M} -> f32
        loop.store %v, %y[100 * %i + %k] : f32, {M}
      }}
    }}
  }}
}}
"""

NEGATIVE = f"""
loop.kernel @k(%x : {M}, %y : {M}) symbols [] attributes {{device = "cuda"}} {{
  loop.nest () {{
    loop.for (%i : 512) attributes {{blocks = array<i64: 512>}} {{
      %v = loop.load %x[(7 - %i) floordiv 3 + 200 + (7 - %i) mod 5] : {M} -> f32
      loop.store %v, %y[%i] : f32, {M}
    }}
  }}
}}
"""

COLUMNS = f"""
loop.kernel @k(%x : {N}, %y : {N}) symbols [n] attributes {{device = "cuda"}} {{
  loop.nest (%t = 0 to n step 64) {{
    loop.for (%k = %t to min(%t + 64, n)) attributes {{blocks = array<i64: 64>}} {{
      %s = loop.reduce "sum" (%i : 10) {{
        %v = loop.load %x[n * %i + %k] : {N} -> f32
        loop.yield %v : f32
      }} : f32
      loop.store %s, %y[%k] : f32, {N}
    }}
  }}
}}
"""

LOOPED = f"""
loop.kernel @k(%x : {M}, %y : {M}) symbols [] attributes {{device = "cuda"}} {{
  loop.nest (%i : 4) {{
    %s = loop.reduce "sum" (%t = 0 to 1000 step 128) {{
      %n = loop.reduce "sum" (%k = %t to min(%t + 128, 1000)) attributes {{blocks = array<i64: 128>}} {{
        %v = loop.load %x[1000 * %i + %k] : {M} -> f32
        loop.yield %v : f32
      }} : f32
      loop.yield %n : f32
    }} : f32
    loop.store %s, %y[%i] : f32, {M}
  }}
}}
"""

ARGMAX = f"""
loop.kernel @k(%x : {M}, %y : {P}) symbols [] attributes {{device = "cuda"}} {{
  loop.nest (%i : 40) {{
    %m, %j = loop.reduce "argmax" (%k : 100) attributes {{blocks = array<i64: 128>}} {{
      %v = loop.load %x[100 * %i + %k] : {M} -> f32
      %p = loop.cast %k : index to i64
      loop.yield %v, %p : f32, i64
    }} : f32, i64
    loop.store %j, %y[%i] : i64, {P}
  }}
}}
"""

RUNNING_SUM = f"""
loop.kernel @k(%x : {M}, %y : {M}) symbols [] attributes {{device = "cuda"}} {{
  loop.nest (%i : 4) {{
    loop.scan (%k : 1000) attributes {{blocks = array<i64: 256>}} {{
      %v = loop.load %x[1000 * %i + %k] : {M} -> f32
      %s = loop.prefix "sum" %v : f32
      loop.store %s, %y[1000 * %i + %k] : f32, {M}
    }}
  }}
}}
"""

TURNS = f"""
loop.kernel @k(%n : {P}, %x : {M}, %y : {M}) symbols [] attributes {{device = "cuda"}} {{
  loop.nest () {{
    loop.scan (%i : 30) {{
      %p = loop.load %n[%i] : {P} -> i64
      %r = loop.cast %p : i64 to index
      loop.for (%k : 100) attributes {{blocks = array<i64: 128>}} {{
        %v = loop.load %x[100 * %i + %k] : {M} -> f32
        loop.store %v, %y[100 * %r + %k] combine "sum" : f32, {M}
      }}
    }}
  }}
}}
"""

BOOL = f"""
loop.kernel @k(%c : {buffer(4000, "i1")}, %x : {M}, %y : {buffer(4000, "i1")}) symbols [] attributes {{device = "cuda"}} {{
  loop.nest (%t = 0 to 4000 step 1024) {{
    loop.for (%i = %t to min(%t + 1024, 4000)) attributes {{blocks = array<i64: 1024>}} {{
      %v = loop.load %c[%i] : {buffer(4000, "i1")} -> i1
      %w = loop.load %x[%i] : {M} -> f32
      %zero = arith.constant 0.0 : f32
      %p = loop.cmp "gt" %w, %zero : f32
      %q = arith.xori %v, %p : i1
      loop.store %q, %y[%i] : i1, {buffer(4000, "i1")}
    }}
  }}
}}
"""


def _positions() -> Tensor:
    return torch.arange(64).mul(7).remainder(40)


def _buffers() -> list[Tensor]:
    return [random(4000), torch.zeros(4000)]


def _softmax(t: list[Tensor]) -> Tensor:
    return t[0].view(40, 100).softmax(1).view(-1)


def _halves(t: list[Tensor]) -> Tensor:
    return (t[0].float().tanh() * 0.1).half() * 2.0


def _transposed(t: list[Tensor]) -> Tensor:
    return t[0].view(100, 40).t().reshape(-1)


def _gathered(t: list[Tensor]) -> Tensor:
    return torch.cat([t[1].view(40, 100)[t[0][:30]].view(-1), t[2][3000:]])


def _negative(t: list[Tensor]) -> Tensor:
    i = 7 - torch.arange(512)
    return torch.cat([t[0][torch.div(i, 3, rounding_mode="floor") + 200 + i.remainder(5)], t[1][512:]])


def _column_sums(t: list[Tensor]) -> Tensor:
    return t[0].view(10, 100).sum(0)


def _row_sums(t: list[Tensor]) -> Tensor:
    return torch.cat([t[0].view(4, 1000).sum(1), t[1][4:]])


def _argmax(t: list[Tensor]) -> Tensor:
    return torch.cat([t[0].view(40, 100).argmax(1), t[1][40:]])


def _running_sums(t: list[Tensor]) -> Tensor:
    return torch.cumsum(t[0].view(4, 1000), 1).view(-1)


def _scattered(t: list[Tensor]) -> Tensor:
    n, x, y = t
    result = y.clone().view(40, 100)
    for i in range(30):
        result[n[i]] += x.view(40, 100)[i]
    return result.view(-1)


def _xor(t: list[Tensor]) -> Tensor:
    return t[0] ^ (t[1] > 0)


CASES = {
    "softmax": Case(SOFTMAX, _buffers, _softmax, 1e-6),
    "tanh": Case(TANH, lambda: [t.half() for t in _buffers()], _halves),
    "transpose": Case(TRANSPOSE, _buffers, _transposed),
    "gather": Case(GATHER, lambda: [_positions(), *_buffers()], _gathered),
    "negative": Case(NEGATIVE, _buffers, _negative),
    "columns": Case(COLUMNS, lambda: [random(1000), torch.zeros(100)], _column_sums, 1e-5, (100,)),
    "looped": Case(LOOPED, _buffers, _row_sums, 1e-5),
    "argmax": Case(ARGMAX, lambda: [random(4000), torch.zeros(64, dtype=torch.int64)], _argmax),
    "running_sum": Case(RUNNING_SUM, _buffers, _running_sums, 1e-4),
    "turns": Case(TURNS, lambda: [_positions(), *_buffers()], _scattered, 1e-6),
    "bools": Case(BOOL, lambda: [random(4000) > 1, random(4000), torch.zeros(4000, dtype=torch.bool)], _xor),
}
