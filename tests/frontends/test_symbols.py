"""Torch's expressions for sizes against ours: translated, they have the same value."""

# torch annotates little of this.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from tilewright.dialects.sym import format_expr
from tilewright.dialects.sym_expr import integer, symbol
from tilewright.frontends.symbols import LARGEST_SIZE, SymbolTable
from tilewright.frontends.torch_internals import symint_expr, torch_functions
from tilewright.frontends.unsupported import Unsupported

HINTS = (24, 7, 10)


def sizes() -> tuple[Any, ...]:
    """Return symbolic sizes whose values are `HINTS`, in an environment of their own."""
    env = ShapeEnv()
    return tuple(
        env.create_symintnode(
            env.create_symbol(hint, ConstantSource(f"n{i}"), dynamic_dim=DimDynamic.DYNAMIC),
            hint=hint,
            source=ConstantSource(f"n{i}"),
        )
        for i, hint in enumerate(HINTS)
    )


def value_of(table: SymbolTable, size: Any) -> int:
    """Translate `size` and put the hints into the result."""
    expr = table.expr(size)
    hints = {name: integer(fact.data.hint or 0) for name, fact in table.facts.items()}
    return int(expr.xreplace(hints))


OPERATIONS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a // (b * b + 1),
    lambda a, b: a % (b * b + 1),
    lambda a, _: a // 3,
    lambda a, _: a % 4,
    lambda a, _: -a,
    lambda a, _: a**2,
    torch.sym_max,
    torch.sym_min,
]


@st.composite
def expressions(draw: st.DrawFn, depth: int) -> Callable[[tuple[Any, ...]], Any]:
    """Draw a function of the sizes, built `depth` high from what programs do with sizes."""
    if depth == 0:
        number = draw(st.integers(0, 9))
        return (lambda n: n[number]) if number < len(HINTS) else (lambda _: number)
    operation = draw(st.sampled_from(OPERATIONS))
    left, right = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    return lambda n: operation(left(n), right(n))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2).flatmap(expressions))
def test_translation_keeps_the_value(expression: Callable[[tuple[Any, ...]], Any]) -> None:
    assert value_of(SymbolTable(), expression(sizes())) == expression(HINTS)


FORMS: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda a, b: a * 2 + b, "2 * n0 + n1"),
    (lambda a, b: a // 2 + b % 3, "(n0 floordiv 2) + (n1 mod 3)"),
    (lambda a, b: torch.sym_max(a, torch.sym_min(b, 5)), "max(min(n1, 5), n0)"),
    (lambda a, _: math.ceil(a / 2), "-((-n0) floordiv 2)"),
    (lambda a, b: math.floor(a / b), "n0 floordiv n1"),
    (lambda a, _: torch.sym_int(a / 4), "n0 floordiv 4"),
]


@pytest.mark.parametrize(("program", "text"), FORMS, ids=[text for _, text in FORMS])
def test_the_form_of_expressions(program: Callable[[Any, Any], Any], text: str) -> None:
    a, b, _ = sizes()
    table = SymbolTable()
    size = program(a, b)
    found = table.expr(size)
    names = {table.expr(a): symbol("n0"), table.expr(b): symbol("n1")}
    assert format_expr(found.xreplace(names)) == text
    assert value_of(table, size) == program(HINTS[0], HINTS[1])


def test_numbers_are_themselves() -> None:
    table = SymbolTable()
    assert table.expr(7) == integer(7)
    assert table.facts == {}


def test_facts_are_kept_in_the_order_of_meeting() -> None:
    a, b, c = sizes()
    table = SymbolTable()
    table.expr(c)
    table.expr(a + b)
    assert [fact.data.hint for fact in table.facts.values()] == [HINTS[2], HINTS[0], HINTS[1]]
    assert {(fact.data.lower, fact.data.upper) for fact in table.facts.values()} == {(2, LARGEST_SIZE)}


NOT_INTEGER: list[Callable[[Any], Any]] = [
    lambda n: n / 2,
    torch_functions.ToFloat,
    lambda n: torch_functions.RoundToInt(torch_functions.IntTrueDiv(n, sympy.Integer(2))),
    lambda n: torch_functions.TruncToInt(torch_functions.IntTrueDiv(n - 30, sympy.Integer(4))),
]


class TestUnsupported:
    def test_a_size_computed_from_data(self) -> None:
        env = ShapeEnv()
        with pytest.raises(Unsupported, match="size u0 is computed from data"):
            SymbolTable().expr(env.create_unbacked_symint())

    @pytest.mark.parametrize("make", NOT_INTEGER)
    def test_functions_that_are_not_integer_arithmetic(self, make: Callable[[Any], Any]) -> None:
        a, *_ = sizes()
        with pytest.raises(Unsupported, match="has no form in the IR, which knows integer arithmetic"):
            SymbolTable().translate(make(symint_expr(a)), a.node.shape_env)

    def test_a_divisor_that_may_be_negative(self) -> None:
        a, b, _ = sizes()
        assert value_of(SymbolTable(), a // (b - 1)) == HINTS[0] // (HINTS[1] - 1)
        with pytest.raises(Unsupported, match="has a divisor that may not be positive"):
            SymbolTable().expr(a // (b - 5))
