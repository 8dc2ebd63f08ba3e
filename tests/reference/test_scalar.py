"""Each scalar operation against PyTorch's own function, and integers against Python's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.conftest import Runner
from torch import Tensor

ELEMENTS = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.uint8: "ui8",
    torch.bool: "i1",
}


def kind(element: str, size: int) -> str:
    return f"tensor<{size}x{element}, #sym.layout<[{size}], [1]>>"


def elementwise(body: str, inputs: Sequence[Tensor], result: torch.dtype) -> str:
    """Return a function that applies `body`, which computes `%r` from `%a`, `%b`, .., to each element of its inputs."""
    size = len(inputs[0])
    names = "abc"[: len(inputs)]
    elements = [ELEMENTS[t.dtype] for t in inputs]
    arguments = ", ".join(f"%{n.upper()} : {kind(e, size)}" for n, e in zip(names, elements, strict=True))
    loads = "\n".join(
        f"%{n} = loop.load %{n.upper()}[%i] : {kind(e, size)} -> {e.removeprefix('u')}"
        for n, e in zip(names, elements, strict=True)
    )
    out = ELEMENTS[result]
    return f"""
    func.func @forward({arguments}) -> {kind(out, size)} {{
      %y = loop.nest (%i : {size}) outs(%o : {kind(out, size)}) {{
        {loads}
        {body}
        loop.store %r, %o[%i] : {out.removeprefix("u")}, {kind(out, size)}
      }}
      func.return %y : {kind(out, size)}
    }}"""


def check(run: Runner, body: str, expected: Tensor, *inputs: Tensor) -> None:
    """Check that `body` computes exactly `expected`."""
    torch.testing.assert_close(
        run(elementwise(body, inputs, expected.dtype), *inputs), expected, rtol=0, atol=0, equal_nan=True
    )


FLOATS = torch.tensor([0.0, -0.0, 0.3, -0.7, 1.0, -1.0, 2.5, -3.5, 0.49999997, 88.0, inf, -inf, nan])
OTHERS = FLOATS.roll(4)

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "arith.negf": torch.neg,
    "math.absf": torch.abs,
    "math.acos": torch.acos,
    "math.acosh": torch.acosh,
    "math.asin": torch.asin,
    "math.asinh": torch.asinh,
    "math.atan": torch.atan,
    "math.atanh": torch.atanh,
    "math.ceil": torch.ceil,
    "math.cos": torch.cos,
    "math.cosh": torch.cosh,
    "math.erf": torch.erf,
    "math.exp": torch.exp,
    "math.exp2": torch.exp2,
    "math.expm1": torch.expm1,
    "math.floor": torch.floor,
    "math.log": torch.log,
    "math.log10": torch.log10,
    "math.log1p": torch.log1p,
    "math.log2": torch.log2,
    "math.roundeven": torch.round,
    "math.rsqrt": torch.rsqrt,
    "math.sin": torch.sin,
    "math.sinh": torch.sinh,
    "math.sqrt": torch.sqrt,
    "math.tan": torch.tan,
    "math.tanh": torch.tanh,
    "math.trunc": torch.trunc,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", UNARY)
def test_unary(run: Runner, name: str, dtype: torch.dtype) -> None:
    x = FLOATS.to(dtype)
    check(run, f"%r = {name} %a : {ELEMENTS[dtype]}", UNARY[name](x), x)


BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "arith.addf": torch.add,
    "arith.subf": torch.sub,
    "arith.mulf": torch.mul,
    "arith.divf": torch.div,
    "arith.maximumf": torch.maximum,
    "arith.minimumf": torch.minimum,
    "arith.maxnumf": torch.fmax,
    "arith.minnumf": torch.fmin,
    "math.atan2": torch.atan2,
    "math.copysign": torch.copysign,
    "math.powf": torch.pow,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", BINARY)
def test_binary(run: Runner, name: str, dtype: torch.dtype) -> None:
    x, y = FLOATS.to(dtype), OTHERS.to(dtype)
    check(run, f"%r = {name} %a, %b : {ELEMENTS[dtype]}", BINARY[name](x, y), x, y)


INTRINSICS: dict[str, Callable[..., Tensor]] = {
    "acosh": torch.acosh,
    "asinh": torch.asinh,
    "erfc": torch.erfc,
    "isfinite": torch.isfinite,
    "isinf": torch.isinf,
    "isnan": torch.isnan,
    "lgamma": torch.lgamma,
    "sign": torch.sign,
    "signbit": torch.signbit,
    "floordiv": torch.floor_divide,
    "fmod": torch.fmod,
    "hypot": torch.hypot,
    "nextafter": torch.nextafter,
    "remainder": torch.remainder,
}


@pytest.mark.parametrize("name", INTRINSICS)
def test_intrinsic(run: Runner, name: str) -> None:
    function = INTRINSICS[name]
    binary = name in ("floordiv", "fmod", "hypot", "nextafter", "remainder")
    inputs = (FLOATS, OTHERS) if binary else (FLOATS,)
    operands = "%a, %b" if binary else "%a"
    check(run, f'%r = loop.intrinsic "{name}"({operands}) : f32', function(*inputs), *inputs)


def test_round_goes_away_from_zero_at_halves(run: Runner) -> None:
    x = torch.tensor([0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 1e10, nan])
    check(run, "%r = math.round %a : f32", torch.tensor([1.0, -1.0, 2.0, 3.0, -3.0, 0.0, 1e10, nan]), x)


def test_fma_rounds_once(run: Runner) -> None:
    a = torch.tensor([1 + 2**-12, 3.0])
    c = torch.tensor([-1.0, 4.0])
    check(run, "%r = math.fma %a, %a, %b : f32", torch.tensor([2**-11 + 2**-24, 13.0]), a, c)


@pytest.mark.parametrize("predicate", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_compare_floats(run: Runner, predicate: str) -> None:
    expected: Tensor = getattr(torch, predicate)(FLOATS, OTHERS)
    check(run, f'%r = loop.cmp "{predicate}" %a, %b : f32', expected, FLOATS, OTHERS)
    unordered = FLOATS.isnan() | OTHERS.isnan()
    check(run, f"%r = arith.cmpf o{predicate}, %a, %b : f32", expected & ~unordered, FLOATS, OTHERS)
    check(run, f"%r = arith.cmpf u{predicate}, %a, %b : f32", expected | unordered, FLOATS, OTHERS)


def test_select_and_logic(run: Runner) -> None:
    body = """%p = loop.cmp "lt" %a, %b : f32
              %q = loop.intrinsic "isnan"(%a) : f32
              %t = arith.constant true
              %n = arith.xori %q, %t : i1
              %c = arith.andi %p, %n : i1
              %r = loop.select %c, %a, %b : f32"""
    check(run, body, torch.where(FLOATS.lt(OTHERS), FLOATS, OTHERS), FLOATS, OTHERS)


@pytest.mark.parametrize("target", [torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.int64, torch.int8])
def test_cast_from_float(run: Runner, target: torch.dtype) -> None:
    x = torch.tensor([0.0, 0.3, -0.7, 1.00390625, 2.5, -3.5, 127.0])
    check(run, f"%r = loop.cast %a : f32 to {ELEMENTS[target]}", x.to(target), x)


@pytest.mark.parametrize("target", [torch.float32, torch.bool, torch.int64, torch.int8, torch.int32])
@pytest.mark.parametrize("source", [torch.int8, torch.uint8, torch.int32, torch.bool])
def test_cast_from_integer(run: Runner, source: torch.dtype, target: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2, 100, 127, -1, -128, 200]).to(source)
    element = ELEMENTS[source].removeprefix("u")
    unsigned = "unsigned " if source == torch.uint8 else ""
    check(run, f"%r = loop.cast {unsigned}%a : {element} to {ELEMENTS[target]}", x.to(target), x)


def test_cast_to_uint8(run: Runner) -> None:
    x = torch.tensor([0.0, 3.9, 200.0, 255.0])
    check(run, "%r = loop.cast unsigned %a : f32 to i8", x.to(torch.uint8), x)


def test_arith_conversions(run: Runner) -> None:
    flags = torch.tensor([True, False])
    check(run, "%r = arith.extsi %a : i1 to i32", torch.tensor([-1, 0], dtype=torch.int32), flags)
    check(run, "%r = arith.extui %a : i1 to i32", torch.tensor([1, 0], dtype=torch.int32), flags)
    check(run, "%r = arith.uitofp %a : i1 to f32", torch.tensor([1.0, 0.0]), flags)
    numbers = torch.tensor([258, -1], dtype=torch.int32)
    check(run, "%r = arith.trunci %a : i32 to i8", torch.tensor([2, -1], dtype=torch.int8), numbers)
    check(run, "%r = arith.trunci %a : i32 to i1", torch.tensor([False, True]), numbers)
    check(run, "%r = arith.uitofp %a : i32 to f64", torch.tensor([258, 2**32 - 1], dtype=torch.float64), numbers)
    check(run, "%r = arith.bitcast %a : i32 to f32", numbers.view(torch.float32), numbers)


def wrapped(value: int, bits: int) -> int:
    """Return the signed integer with the low bits of `value`."""
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def quotient(a: int, b: int) -> int:
    """Divide as C does."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGER: dict[str, Callable[[int, int, int], int]] = {
    "arith.addi": lambda a, b, bits: a + b,
    "arith.subi": lambda a, b, bits: a - b,
    "arith.muli": lambda a, b, bits: a * b,
    "arith.divsi": lambda a, b, bits: quotient(a, b) if b else 0,
    "arith.remsi": lambda a, b, bits: a - quotient(a, b) * b if b else a,
    "arith.divui": lambda a, b, bits: (a % 2**bits) // (b % 2**bits) if b else 0,
    "arith.remui": lambda a, b, bits: (a % 2**bits) % (b % 2**bits) if b else a,
    "arith.floordivsi": lambda a, b, bits: a // b if b else 0,
    "arith.ceildivsi": lambda a, b, bits: -(-a // b) if b else 0,
    "arith.maxsi": lambda a, b, bits: max(a, b),
    "arith.minsi": lambda a, b, bits: min(a, b),
    "arith.maxui": lambda a, b, bits: max(a % 2**bits, b % 2**bits),
    "arith.minui": lambda a, b, bits: min(a % 2**bits, b % 2**bits),
    "arith.andi": lambda a, b, bits: a & b,
    "arith.ori": lambda a, b, bits: a | b,
    "arith.xori": lambda a, b, bits: a ^ b,
    "arith.shli": lambda a, b, bits: a << (b % bits),
    "arith.shrsi": lambda a, b, bits: a >> (b % bits),
    "arith.shrui": lambda a, b, bits: (a % 2**bits) >> (b % bits),
}
SHIFTS = ("arith.shli", "arith.shrsi", "arith.shrui")
UNSIGNED_DIVISIONS = ("arith.divui", "arith.remui")
WIDTHS = {8: torch.int8, 32: torch.int32, 64: torch.int64}


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("name", INTEGER)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_integers_are_pythons_wrapped_around(name: str, bits: int, data: st.DataObject) -> None:
    low = 0 if bits == 64 and name in UNSIGNED_DIVISIONS else -(1 << bits - 1)
    number = st.one_of(st.integers(max(low, -4), 4), st.integers(low, (1 << bits - 1) - 1), st.just(low))
    a, b = data.draw(
        st.lists(st.tuples(number, number), min_size=8, max_size=8).map(lambda p: tuple(zip(*p, strict=True)))
    )
    b = [n % bits for n in b] if name in SHIFTS else b
    x, y = torch.tensor(a, dtype=WIDTHS[bits]), torch.tensor(b, dtype=WIDTHS[bits])
    expected = [wrapped(INTEGER[name](p, q, bits), bits) for p, q in zip(a, b, strict=True)]
    check(Runner(), f"%r = {name} %a, %b : i{bits}", torch.tensor(expected, dtype=WIDTHS[bits]), x, y)


@pytest.mark.parametrize("predicate", ["lt", "le", "gt", "ge"])
def test_false_is_below_true(run: Runner, predicate: str) -> None:
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    check(run, f'%r = loop.cmp "{predicate}" %a, %b : i1', getattr(torch, predicate)(a, b), a, b)
    # To `arith`, true is -1.
    check(run, f"%r = arith.cmpi s{predicate}, %a, %b : i1", getattr(torch, predicate)(b, a), a, b)


@pytest.mark.parametrize("predicate", ["lt", "le", "gt", "ge"])
def test_unsigned_comparisons(run: Runner, predicate: str) -> None:
    a, b = torch.tensor([0, 1, 200, 255, 3]).to(torch.uint8), torch.tensor([1, 200, 1, 255, 200]).to(torch.uint8)
    expected: Tensor = getattr(torch, predicate)(a, b)
    check(run, f'%r = loop.cmp unsigned "{predicate}" %a, %b : i8', expected, a, b)
    check(run, f"%r = arith.cmpi u{predicate}, %a, %b : i8", expected, a, b)


def test_uint8_division_and_remainder(run: Runner) -> None:
    a, b = torch.tensor([200, 255, 7]).to(torch.uint8), torch.tensor([3, 16, 200]).to(torch.uint8)
    check(run, '%r = loop.intrinsic unsigned "floordiv"(%a, %b) : i8', a // b, a, b)
    check(run, '%r = loop.intrinsic unsigned "remainder"(%a, %b) : i8', a % b, a, b)


def test_integer_power(run: Runner) -> None:
    a, b = torch.tensor([2, -3, 1, -1, 5, 0]), torch.tensor([10, 3, -4, -3, -1, 0])
    check(run, '%r = loop.intrinsic "powi"(%a, %b) : i64', torch.tensor([1024, -27, 1, -1, 0, 1]), a, b)


def test_bf16_rounds_where_the_text_says(run: Runner) -> None:
    x = torch.randn(64).bfloat16()
    body = """%f = loop.cast %a : bf16 to f32
              %s = arith.mulf %f, %f : f32
              %t = arith.addf %s, %f : f32
              %r = loop.cast %t : f32 to bf16"""
    check(run, body, (x.float() * x.float() + x.float()).bfloat16(), x)


def test_constants(run: Runner) -> None:
    x = torch.zeros(3)
    check(run, "%r = arith.constant 0xff800000 : f32", torch.full((3,), -inf), x)
    check(run, "%r = arith.constant 0.1 : f32", torch.full((3,), 0.1), x)
    check(run, "%r = arith.constant -1 : i64", torch.full((3,), -1), x)
    check(run, "%r = arith.constant false", torch.zeros(3, dtype=torch.bool), x)
