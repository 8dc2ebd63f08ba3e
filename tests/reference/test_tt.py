"""Kernels for a GPU: each operation against PyTorch's own."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.conftest import Runner
from tests.reference.kernels import NAMES, elementwise, kernel
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
EXTREMES = (0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -7.25, float("inf"), float("-inf"), float("nan"), 1e-5, 6e4)

RUN = Runner()


def numbers(dtype: torch.dtype, seed: int) -> Tensor:
    """Return 32 elements, among them those where functions are special."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        values = torch.randn(32, generator=generator, dtype=torch.float64) * 4
        values[torch.randperm(32, generator=generator)[: len(EXTREMES)]] = torch.tensor(EXTREMES, dtype=torch.float64)
        return values.to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, (32,), generator=generator).bool()
    limits = torch.iinfo(dtype)
    values = torch.randint(-20, 20, (32,), generator=generator)
    values[:3] = torch.tensor([limits.min, limits.max, 0])
    return values[torch.randperm(32, generator=generator)].to(dtype)


def check(operation: str, operands: Sequence[Tensor], result: torch.dtype, expected: Tensor) -> None:
    """Assert that an operation gives exactly what is expected: NaN counts as equal, zeros of different sign do not."""

    def name(dtype: torch.dtype) -> str:
        return "i1" if dtype == torch.bool else NAMES[dtype]

    found = torch.full((32,), 1, dtype=result)
    text = elementwise(operation, [name(x.dtype) for x in operands], name(result))
    RUN.all(text, *operands, found, name="k")
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    if result.is_floating_point:
        zeros = (found == 0) & (expected == 0)
        assert torch.equal(found.signbit()[zeros], expected.signbit()[zeros])


FLOAT_OPERATIONS: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "arith.addf": (2, torch.add),
    "arith.subf": (2, torch.sub),
    "arith.mulf": (2, torch.mul),
    "arith.divf": (2, torch.div),
    "arith.maximumf": (2, torch.maximum),
    "arith.minimumf": (2, torch.minimum),
    "arith.maxnumf": (2, torch.fmax),
    "arith.minnumf": (2, torch.fmin),
    "arith.negf": (1, torch.neg),
    "math.absf": (1, torch.abs),
    "math.floor": (1, torch.floor),
    "math.ceil": (1, torch.ceil),
    "math.sqrt": (1, torch.sqrt),
    "math.exp": (1, torch.exp),
    "tt.precise_sqrt": (1, torch.sqrt),
    "tt.precise_divf": (2, torch.div),
}


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(sorted(FLOAT_OPERATIONS)), st.sampled_from(FLOATS), st.integers(0, 1000))
def test_floats_round_in_their_own_type(name: str, dtype: torch.dtype, seed: int) -> None:
    count, function = FLOAT_OPERATIONS[name]
    operands = [numbers(dtype, seed + n) for n in range(count)]
    check(f"{name} {', '.join(f'%x{n}' for n in range(count))} : !v0", operands, dtype, function(*operands))


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """Return the quotient rounded towards zero; by zero, zero."""
    limits = torch.iinfo(a.dtype)
    exact = [0 if y == 0 else int(abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1) for x, y in _pairs(a, b)]
    return torch.tensor([x - (1 << limits.bits) if x > limits.max else x for x in exact], dtype=a.dtype)


def _pairs(a: Tensor, b: Tensor) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for x, y in zip(a, b, strict=True)]


def _unsigned(function: Callable[[int, int], int]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function of unsigned integers, in exact arithmetic, on signed ones of the same bits."""

    def on_bits(a: Tensor, b: Tensor) -> Tensor:
        bits = torch.iinfo(a.dtype).bits
        mask = (1 << bits) - 1
        results = [function(x & mask, y & mask) & mask for x, y in _pairs(a, b)]
        return torch.tensor([r - (1 << bits) if r >> (bits - 1) else r for r in results], dtype=a.dtype)

    return on_bits


INTEGER_OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "arith.addi": torch.add,
    "arith.subi": torch.sub,
    "arith.muli": torch.mul,
    "arith.andi": torch.bitwise_and,
    "arith.ori": torch.bitwise_or,
    "arith.xori": torch.bitwise_xor,
    "arith.maxsi": torch.maximum,
    "arith.minsi": torch.minimum,
    "arith.divsi": _quotient,
    "arith.remsi": lambda a, b: torch.where(b == 0, a, a - _quotient(a, b) * b),
    "arith.maxui": _unsigned(max),
    "arith.minui": _unsigned(min),
    "tt.mulhiui": lambda a, b: _unsigned(lambda x, y: x * y >> torch.iinfo(a.dtype).bits)(a, b),
}


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(sorted(INTEGER_OPERATIONS)), st.sampled_from(INTEGERS), st.integers(0, 1000))
def test_integers_wrap_around(name: str, dtype: torch.dtype, seed: int) -> None:
    operands = [numbers(dtype, seed), numbers(dtype, seed + 1)]
    check(f"{name} %x0, %x1 : !v0", operands, dtype, INTEGER_OPERATIONS[name](*operands))


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(["arith.divui", "arith.remui"]), st.sampled_from(INTEGERS[1:]), st.integers(0, 1000))
def test_unsigned_division(name: str, dtype: torch.dtype, seed: int) -> None:
    operands = [numbers(dtype, seed), numbers(dtype, seed + 1)]

    def exact(x: int, y: int) -> int:
        if name == "arith.divui":
            return x // y if y else 0
        return x % y if y else x

    check(f"{name} %x0, %x1 : !v0", operands, dtype, _unsigned(exact)(*operands))


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(["shli", "shrsi", "shrui"]), st.sampled_from(INTEGERS), st.integers(0, 1000))
def test_shifts(name: str, dtype: torch.dtype, seed: int) -> None:
    bits = torch.iinfo(dtype).bits
    a, amount = numbers(dtype, seed), torch.arange(32).remainder(bits).to(dtype)
    exact = {
        "shli": _unsigned(lambda x, n: x << n),
        "shrui": _unsigned(lambda x, n: x >> n),
        "shrsi": torch.bitwise_right_shift,
    }
    check(f"arith.{name} %x0, %x1 : !v0", [a, amount], dtype, exact[name](a, amount))


COMPARISONS = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(sorted(COMPARISONS)), st.sampled_from((*FLOATS, *INTEGERS)), st.integers(0, 1000))
def test_comparisons(name: str, dtype: torch.dtype, seed: int) -> None:
    a, b = numbers(dtype, seed), numbers(dtype, seed + 1)
    if dtype.is_floating_point:
        operation = f"arith.cmpf {'une' if name == 'ne' else 'o' + name}"
    else:
        operation = f"arith.cmpi {name if name in ('eq', 'ne') else 's' + name}"
    check(f"{operation}, %x0, %x1 : !v0", [a, b], torch.bool, COMPARISONS[name](a, b))


@settings(deadline=None, derandomize=True)
@given(st.sampled_from((*FLOATS, *INTEGERS)), st.integers(0, 1000))
def test_select(dtype: torch.dtype, seed: int) -> None:
    where, a, b = numbers(torch.bool, seed), numbers(dtype, seed), numbers(dtype, seed + 1)
    check("arith.select %x0, %x1, %x2 : !m, !v1", [where, a, b], dtype, torch.where(where, a, b))


CONVERSIONS = [
    *(("arith.extf %x0 : !v0 to !v1", s, t) for s in FLOATS for t in FLOATS if s.itemsize < t.itemsize),
    *(("arith.truncf %x0 : !v0 to !v1", s, t) for s in FLOATS for t in FLOATS if s.itemsize > t.itemsize),
    *(("arith.sitofp %x0 : !v0 to !v1", s, t) for s in INTEGERS for t in FLOATS),
    *(("arith.extsi %x0 : !v0 to !v1", s, t) for s in INTEGERS for t in INTEGERS if s.itemsize < t.itemsize),
    *(("arith.trunci %x0 : !v0 to !v1", s, t) for s in INTEGERS for t in INTEGERS if s.itemsize > t.itemsize),
    *(("arith.extui %x0 : !m to !v1", torch.bool, t) for t in INTEGERS),
    *(("arith.uitofp %x0 : !m to !v1", torch.bool, t) for t in FLOATS),
]


@pytest.mark.parametrize(("operation", "source", "target"), CONVERSIONS)
def test_conversions(operation: str, source: torch.dtype, target: torch.dtype) -> None:
    x = numbers(source, 3)
    check(operation, [x], target, x.to(target))


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", FLOATS)
def test_floats_to_integers(source: torch.dtype, target: torch.dtype) -> None:
    x = torch.linspace(-100, 100, 32).to(source)
    check("arith.fptosi %x0 : !v0 to !v1", [x], target, x.to(target))


LIBDEVICE: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "exp": (1, torch.exp),
    "erf": (1, torch.erf),
    "tanh": (1, torch.tanh),
    "log1p": (1, torch.log1p),
    "pow": (2, torch.pow),
    "fmod": (2, torch.fmod),
    "rsqrt": (1, torch.rsqrt),
    "rint": (1, torch.round),
}


@pytest.mark.parametrize("name", LIBDEVICE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_libdevice(name: str, dtype: torch.dtype) -> None:
    count, function = LIBDEVICE[name]
    operands = [numbers(dtype, n) for n in range(count)]
    symbol = f"__nv_{name}{'f' if dtype == torch.float32 else ''}"
    given = ", ".join(f"%x{n}" for n in range(count))
    call = f'{{libname = "libdevice", libpath = "", pure = true, symbol = "{symbol}"}}'
    types = ", ".join(["!v0"] * count)
    check(f"tt.extern_elementwise {given} {call} : ({types}) -> !v0", operands, dtype, function(*operands))


def test_isnan_of_libdevice_gives_an_integer() -> None:
    x = numbers(torch.float32, 0)
    call = '{libname = "libdevice", libpath = "", pure = true, symbol = "__nv_isnanf"}'
    check(f"tt.extern_elementwise %x0 {call} : (!v0) -> !v1", [x], torch.int32, x.isnan().to(torch.int32))


@pytest.mark.parametrize("rule", ["all", "none"])
def test_clamp(rule: str) -> None:
    x, low, high = numbers(torch.float32, 1), torch.full((32,), -1.0), torch.full((32,), 2.0)
    expected = x.clamp(-1.0, 2.0) if rule == "all" else torch.where(x.isnan(), -1.0, x.clamp(-1.0, 2.0))
    check(f"tt.clampf %x0, %x1, %x2, propagateNan = {rule} : !v0", [x, low, high], torch.float32, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_conversion_with_rounding(dtype: torch.dtype) -> None:
    x = numbers(torch.float32, 5)
    check("tt.fp_to_fp %x0, rounding = rtne : !v0 -> !v1", [x], dtype, x.to(dtype))


def test_bitcast() -> None:
    x = numbers(torch.float32, 5)
    check("tt.bitcast %x0 : !v0 -> !v1", [x], torch.int32, x.view(torch.int32))


def moved(body: str, source: Sequence[int], target: Sequence[int], x: Tensor) -> Tensor:
    """Return what a kernel of one program makes of `x`: of `%x`, of shape `source`, `%r`, of shape `target`."""
    shapes = ["x".join(map(str, s)) for s in (source, target)]
    element = NAMES[x.dtype]
    counts = [torch.Size(s).numel() for s in (source, target)]

    def addresses(number: int) -> str:
        shape, count = shapes[number], counts[number]
        flat, kind = f"tensor<{count}xi32>", f"tensor<{shape}x!tt.ptr<{element}>>"
        return f"""
        %f{number} = tt.make_range {{end = {count} : i32, start = 0 : i32}} : {flat}
        %i{number} = tt.reshape %f{number} : {flat} -> tensor<{shape}xi32>
        %q{number} = tt.splat %p{number} : !tt.ptr<{element}> -> {kind}
        %b{number} = tt.addptr %q{number}, %i{number} : {kind}, tensor<{shape}xi32>"""

    text = f"""
      {addresses(0)}
      %x = tt.load %b0 : tensor<{shapes[0]}x!tt.ptr<{element}>>
      {body}
      {addresses(1)}
      tt.store %b1, %r : tensor<{shapes[1]}x!tt.ptr<{element}>>"""
    found = torch.empty(tuple(target), dtype=x.dtype)
    RUN.all(kernel(text, [element, element]), x, found, name="k")
    return found


def test_shapes() -> None:
    x = torch.randn(4, 8)
    assert torch.equal(
        moved("%r = tt.trans %x {order = array<i32: 1, 0>} : tensor<4x8xf32> -> tensor<8x4xf32>", (4, 8), (8, 4), x),
        x.T.contiguous(),
    )
    expanded = """
      %e = tt.expand_dims %x {axis = 1 : i32} : tensor<4x8xf32> -> tensor<4x1x8xf32>
      %r = tt.broadcast %e : tensor<4x1x8xf32> -> tensor<4x2x8xf32>"""
    assert torch.equal(moved(expanded, (4, 8), (4, 2, 8), x), x[:, None].expand(4, 2, 8))
    joined = "%r = tt.join %x, %x : tensor<4x8xf32> -> tensor<4x8x2xf32>"
    assert torch.equal(moved(joined, (4, 8), (4, 8, 2), x), torch.stack([x, x], -1))
    cat = "%r = tt.cat %x, %x : tensor<4x8xf32> -> tensor<8x8xf32>"
    assert torch.equal(moved(cat, (4, 8), (8, 8), x), torch.cat([x, x]))
    split = """
      %s = tt.reshape %x : tensor<4x8xf32> -> tensor<4x4x2xf32>
      %a, %b = tt.split %s : tensor<4x4x2xf32> -> tensor<4x4xf32>
      %r = arith.subf %a, %b : tensor<4x4xf32>"""
    assert torch.equal(moved(split, (4, 8), (4, 4), x), x[:, ::2] - x[:, 1::2])
    gathered = """
      %k = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
      %t = arith.constant dense<3> : tensor<4xi32>
      %u = arith.subi %t, %k : tensor<4xi32>
      %e = tt.expand_dims %u {axis = 1 : i32} : tensor<4xi32> -> tensor<4x1xi32>
      %r = tt.gather %x[%e] {axis = 1 : i32} : (tensor<4x8xf32>, tensor<4x1xi32>) -> tensor<4x1xf32>"""
    assert torch.equal(moved(gathered, (4, 8), (4, 1), x), x.gather(1, torch.tensor([[3], [2], [1], [0]])))


def test_histogram() -> None:
    x = torch.randint(0, 8, (32,), dtype=torch.int32)
    counts = "%r = tt.histogram %x : tensor<32xi32> -> tensor<8xi32>"
    assert torch.equal(moved(counts, (32,), (8,), x), torch.bincount(x, minlength=8).int())


REDUCE = """
  %r = "tt.{kind}"(%x) <{{axis = {axis} : i32{reverse}}}> ({{
  ^bb0(%a : {e}, %b : {e}):
    %c = arith.{function} %a, %b : {e}
    tt.{kind}.return %c : {e}
  }}) : (tensor<4x8x{e}>) -> {result}"""


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
@pytest.mark.parametrize("axis", [0, 1])
def test_sums(axis: int, dtype: torch.dtype) -> None:
    x = (torch.randn(4, 8) * 10).to(dtype)
    e, function = NAMES[dtype], "addf" if dtype.is_floating_point else "addi"
    rest = (8,) if axis == 0 else (4,)
    text = REDUCE.format(kind="reduce", axis=axis, reverse="", e=e, function=function, result=f"tensor<{rest[0]}x{e}>")
    torch.testing.assert_close(moved(text, (4, 8), rest, x), x.sum(axis).to(dtype))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_running_sums(axis: int, reverse: bool) -> None:
    x = torch.randn(4, 8, dtype=torch.float64)
    text = REDUCE.format(
        kind="scan",
        axis=axis,
        reverse=f", reverse = {str(reverse).lower()}",
        e="f64",
        function="addf",
        result="tensor<4x8xf64>",
    )
    expected = x.flip(axis).cumsum(axis).flip(axis) if reverse else x.cumsum(axis)
    torch.testing.assert_close(moved(text, (4, 8), (4, 8), x), expected)


def test_reduction_of_several_values() -> None:
    text = """
      %k = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
      %e = tt.expand_dims %k {axis = 0 : i32} : tensor<8xi32> -> tensor<1x8xi32>
      %n = tt.broadcast %e : tensor<1x8xi32> -> tensor<4x8xi32>
      %v, %r = "tt.reduce"(%x, %n) <{axis = 1 : i32}> ({
      ^bb0(%a : i32, %i : i32, %b : i32, %j : i32):
        %gt = arith.cmpi sgt, %a, %b : i32
        %eq = arith.cmpi eq, %a, %b : i32
        %lt = arith.cmpi slt, %i, %j : i32
        %tie = arith.andi %eq, %lt : i1
        %left = arith.ori %gt, %tie : i1
        %c = arith.select %left, %a, %b : i32
        %l = arith.select %left, %i, %j : i32
        tt.reduce.return %c, %l : i32, i32
      }) : (tensor<4x8xi32>, tensor<4x8xi32>) -> (tensor<4xi32>, tensor<4xi32>)"""
    x = torch.randint(0, 3, (4, 8), dtype=torch.int32)
    assert torch.equal(moved(text, (4, 8), (4,), x), x.argmax(1).int())


@pytest.mark.parametrize("precision", ["", ", inputPrecision = tf32"])
def test_matrix_product(precision: str) -> None:
    x = torch.randn(16, 16)
    text = f"""
      %z = arith.constant dense<0.5> : tensor<16x16xf32>
      %r = tt.dot %x, %x, %z{precision} : tensor<16x16xf32> * tensor<16x16xf32> -> tensor<16x16xf32>"""
    found, exact = moved(text, (16, 16), (16, 16), x), (x.double() @ x.double() + 0.5).float()
    if precision:
        assert 1e-5 < (found - exact).abs().max() < 2e-2
    else:
        torch.testing.assert_close(found, exact)
