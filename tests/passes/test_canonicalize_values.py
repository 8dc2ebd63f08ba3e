"""What folds gives the same bits: constants, neutral elements and casts, on every special value."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.arith import Arith, ConstantOp
from xdsl.dialects.builtin import Builtin, FloatAttr, ModuleOp, bf16, f16, f32, f64
from xdsl.dialects.func import Func
from xdsl.dialects.math import Math
from xdsl.parser import Parser

from tilewright.backends.reference import run_function
from tilewright.dialects.loop import LoadOp, LoopDialect, StoreOp
from tilewright.dialects.sym import Sym
from tilewright.dialects.verifier import verify_module
from tilewright.passes.canonicalize import CanonicalizePass

INF, NAN = float("inf"), float("nan")
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.1, 3.0, 1e-40, 3e38, 65504.0, 1.00390625, 2.5, 1e300, INF, -INF, NAN]
INTEGERS = [0, 1, -1, 2, 7, 100, -128, 127]
FLOAT_TYPES = {"f64": f64, "f32": f32, "bf16": bf16, "f16": f16}
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i8": torch.int8,
    "i1": torch.bool,
}


def context() -> Context:
    ctx = Context()
    for dialect in (Builtin, Func, Arith, Math, LoopDialect, Sym):
        ctx.load_dialect(dialect)
    return ctx


def literal(value: float, kind: str) -> str:
    """Return the text of a constant."""
    if kind in FLOAT_TYPES:
        return str(ConstantOp(FloatAttr(value, FLOAT_TYPES[kind]))).partition("= ")[2]
    if kind == "i1":
        return f"arith.constant {'true' if value else 'false'}"
    return f"arith.constant {int(value)} : {kind}"


def module_of(cases: Sequence[list[str]], source: str, result: str, count: int) -> ModuleOp:
    """Make a function whose nest computes, for each case, `%r@` from the elements `%v` of a tensor.

    An `@` in the text of a case stands for its number.
    """
    x, y = (f"tensor<{count}x{kind}, #sym.layout<[{count}], [1]>>" for kind in (source, result))
    numbers = range(len(cases))
    results = ", ".join(f"%y{n}" for n in numbers)
    kinds = ", ".join(y for _ in numbers)
    lines = [
        f"func.func @forward(%x : {x}) -> ({kinds}) {{",
        f"{results} = loop.nest (%i : {count}) outs({', '.join(f'%o{n} : {y}' for n in numbers)}) {{",
        f"%v = loop.load %x[%i] : {x} -> {source}",
    ]
    for number, case in enumerate(cases):
        lines += [line.replace("@", str(number)) for line in case]
        lines.append(f"loop.store %r{number}, %o{number}[%i] : {result}, {y}")
    lines.append(f"}} func.return {results} : {kinds} }}")
    return Parser(context(), "\n".join(lines)).parse_module()


def bits(tensor: Tensor) -> bytes:
    """Return the bits of a tensor, with one kind of NaN."""
    if tensor.is_floating_point():
        tensor = torch.where(tensor.isnan(), torch.tensor(NAN, dtype=tensor.dtype), tensor)
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def check(module: ModuleOp, given: Tensor, *, folds: bool = False) -> None:
    """Check that canonicalization changes no bit of the result; `folds` says whether it leaves nothing to compute."""
    before = run_function(module, [given])
    CanonicalizePass().apply(context(), module)
    verify_module(module)
    after = run_function(module, [given])
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        assert isinstance(old, Tensor)
        assert isinstance(new, Tensor)
        assert bits(old) == bits(new), f"case {number} of {module}"
    if folds:
        stores = [op for op in module.walk() if isinstance(op, StoreOp)]
        assert all(isinstance(s.value.owner, (ConstantOp, LoadOp)) for s in stores), module


def specials(kind: str) -> Tensor:
    values = FLOATS if kind in FLOAT_TYPES else INTEGERS
    return torch.tensor(values, dtype=torch.float64 if kind in FLOAT_TYPES else torch.int64).to(DTYPES[kind])


def two_constants(kind: str, operation: str) -> list[list[str]]:
    """Return a case for each pair of special values: `operation` computes `%r@` from `%a@` and `%b@`."""
    values = FLOATS if kind in FLOAT_TYPES else INTEGERS
    return [
        [f"%a@ = {literal(a, kind)}", f"%b@ = {literal(b, kind)}", *operation.splitlines()]
        for a, b in product(values, values)
    ]


@pytest.mark.parametrize("op", ["addf", "subf", "mulf", "divf", "maximumf", "minimumf"])
@pytest.mark.parametrize("kind", ["f64", "f32"])
def test_floats_and_a_constant(op: str, kind: str) -> None:
    constants = [f"%a@ = {literal(a, kind)}" for a in FLOATS]
    left = [[c, f"%r@ = arith.{op} %a@, %v : {kind}"] for c in constants]
    right = [[c, f"%r@ = arith.{op} %v, %a@ : {kind}"] for c in constants]
    check(module_of([*left, *right], kind, kind, len(FLOATS)), specials(kind))


@pytest.mark.parametrize("op", ["addf", "subf", "mulf", "divf"])
@pytest.mark.parametrize("kind", ["f64", "f32"])
def test_constant_floats_fold(op: str, kind: str) -> None:
    cases = two_constants(kind, f"%r@ = arith.{op} %a@, %b@ : {kind}")
    check(module_of(cases, kind, kind, 1), specials(kind)[:1], folds=True)


@pytest.mark.parametrize("op", ["addi", "subi", "muli", "andi", "ori", "xori", "maxsi", "minsi"])
@pytest.mark.parametrize("kind", ["i8", "i32", "i64"])
def test_integers(op: str, kind: str) -> None:
    cases = two_constants(kind, f"%r@ = arith.{op} %a@, %b@ : {kind}")
    check(module_of(cases, kind, kind, 1), specials(kind)[:1], folds=True)
    cases = [[f"%a@ = {literal(a, kind)}", f"%r@ = arith.{op} %v, %a@ : {kind}"] for a in INTEGERS]
    check(module_of(cases, kind, kind, len(INTEGERS)), specials(kind))


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_casts(source: str, target: str) -> None:
    if source == target:
        return
    to_integer = target[0] == "i" and target != "i1" and source in FLOAT_TYPES
    # Out of range, the conversion of a float to an integer is the machine's affair.
    values = [v for v in (FLOATS if source in FLOAT_TYPES else INTEGERS) if not to_integer or abs(v) < 100]
    constants = [[f"%a@ = {literal(v, source)}", f"%r@ = loop.cast %a@ : {source} to {target}"] for v in values]
    check(module_of(constants, source, target, 1), specials(source)[:1], folds=True)
    there_and_back = [f"%w@ = loop.cast %v : {source} to {target}", f"%r@ = loop.cast %w@ : {target} to {source}"]
    given = torch.tensor(values, dtype=torch.float64 if source in FLOAT_TYPES else torch.int64).to(DTYPES[source])
    check(module_of([there_and_back], source, source, len(values)), given)


@pytest.mark.parametrize("predicate", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("kind", ["f32", "i8", "i1"])
def test_comparisons_and_selects(predicate: str, kind: str) -> None:
    count = len(specials(kind))
    chosen = f'%c@ = loop.cmp "{predicate}" %a@, %b@ : {kind}\n%r@ = loop.select %c@, %v, %a@ : {kind}'
    check(module_of(two_constants(kind, chosen), kind, kind, count), specials(kind), folds=kind != "i1")
    same = [f'%c@ = loop.cmp "{predicate}" %v, %v : {kind}', "%r@ = loop.select %c@, %c@, %c@ : i1"]
    check(module_of([same], kind, "i1", count), specials(kind))
