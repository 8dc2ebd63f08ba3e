"""Expressions are what Python computes, read back as they are printed, and bounded and simplified rightly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser

from tilewright.dialects.sym import Sym, format_expr, parse_expr
from tilewright.dialects.sym_expr import (
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Ranges,
    Symbol,
    bounds,
    integer,
    provably_at_most,
    provably_less,
    simplify,
    symbol,
)

relaxed = settings(deadline=None, derandomize=True, max_examples=200)  # a busy machine is no failure
SIZES = [symbol("s0"), symbol("s1")]
DIMS = [symbol("d0"), symbol("d1"), symbol("d2"), symbol("d10")]
OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
}
BUILDERS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "floordiv": FloorDiv,
    "mod": Mod,
    "min": Min,
    "max": Max,
}
Values = Mapping[Symbol, int]


@dataclass(frozen=True)
class Tree:
    """An expression before SymPy has seen it."""

    operator: str
    lhs: Tree | Symbol | int
    rhs: Tree | Symbol | int


Term = Tree | Symbol | int


class OutsideContract(Exception):
    """A divisor is zero, or is not a constant and negative: nothing is promised."""


def build(term: Term) -> Expr:
    match term:
        case Tree():
            return BUILDERS[term.operator](build(term.lhs), build(term.rhs))
        case int():
            return integer(term)
        case _:
            return term


def python_value(term: Term, values: Values) -> int:
    """Return what Python makes of a tree."""
    match term:
        case Tree():
            lhs, rhs = python_value(term.lhs, values), python_value(term.rhs, values)
            if term.operator in ("floordiv", "mod") and (rhs == 0 or (rhs < 0 and not isinstance(term.rhs, int))):
                raise OutsideContract
            return OPERATORS[term.operator](lhs, rhs)
        case int():
            return term
        case _:
            return values[term]


def value(expr: Expr, values: Values) -> int:
    """Return the value of an expression by the definition of each function, without SymPy's evaluation."""
    if isinstance(expr, sympy.Symbol):
        return values[expr]
    if expr.is_Integer:
        return int(expr)
    args = [value(a, values) for a in expr.args]
    if expr.is_Add:
        return sum(args)
    if expr.is_Pow:
        return args[0] ** args[1]
    if expr.is_Mul:
        product = 1
        for a in args:
            product *= a
        return product
    names: dict[type[sympy.Function], str] = {FloorDiv: "floordiv", Mod: "mod", Min: "min", Max: "max"}
    return next(OPERATORS[name](*args) for kind, name in names.items() if isinstance(expr, kind))


def product(*factors: Term) -> Term:
    result = factors[0]
    for factor in factors[1:]:
        result = Tree("*", result, factor)
    return result


constants = st.sampled_from([0, 1, 2, 3, 4, 7, 8, 12, 16, -1, -2, -3, -4, -16])
leaves: st.SearchStrategy[Term] = st.one_of(st.sampled_from([*SIZES, *DIMS]), constants)
# Constants of both signs, sizes, products and sums of sizes, and a divisor that is a division itself.
divisors: st.SearchStrategy[Term] = st.one_of(
    st.sampled_from([1, 2, 3, 4, 8, 12, 16, -1, -2, -3, -4]),
    st.sampled_from(
        [
            *SIZES,
            product(4, SIZES[0]),
            product(*SIZES),
            Tree("+", SIZES[0], 1),
            Tree("*", Tree("+", SIZES[1], 1), 2),
            Tree("max", SIZES[0], 3),
            Tree("mod", DIMS[0], 4),
        ]
    ),
)


def larger(smaller: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    return st.one_of(
        st.builds(Tree, st.sampled_from(["+", "-", "*", "min", "max"]), smaller, smaller),
        st.builds(Tree, st.sampled_from(["floordiv", "mod"]), smaller, divisors),
    )


terms: st.SearchStrategy[Term] = st.recursive(leaves, larger, max_leaves=12)
points = st.fixed_dictionaries({**{s: st.integers(1, 9) for s in SIZES}, **{d: st.integers(-20, 20) for d in DIMS}})


def parse(text: str) -> Expr:
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(Sym)
    return parse_expr(Parser(context, text))


@relaxed
@given(terms)
def test_parsing_gives_back_what_was_printed(term: Term) -> None:
    expr = build(term)
    text = format_expr(expr)
    assert parse(text) == expr
    assert format_expr(parse(text)) == text


@relaxed
@given(terms, points)
def test_building_keeps_the_value(term: Term, values: Values) -> None:
    try:
        expected = python_value(term, values)
    except OutsideContract:
        assume(False)
        return
    assert value(build(term), values) == expected


# Ranges as loops give them: constant, to a size, from an index further out, of a tile's points.
S0, S1, D0, D1, D2, D10 = *SIZES, *DIMS
RANGES: list[Ranges] = [
    {},
    {D0: (integer(0), integer(15)), D1: (integer(0), S0 - 1)},
    {
        S0: (integer(1), integer(9)),
        D0: (integer(0), S0 - 1),
        D1: (integer(0), S1 - 1),
        D2: (D1, Min(D1 + 4, S1) - 1),
        D10: (integer(-3), integer(7)),
    },
    {D0: (integer(-4), None), D1: (None, integer(3)), D2: (D0, D0 + 3)},
]


@st.composite
def values_within(draw: st.DrawFn, ranges: Ranges) -> dict[Symbol, int]:
    """Draw a point in `ranges`, whose symbols are listed after those that their ranges mention."""
    values: dict[Symbol, int] = {s: draw(st.integers(1, 9)) for s in SIZES}
    for d in DIMS:
        low, high = ranges.get(d, (None, None))
        first = -20 if low is None else value(low, values)
        last = 20 if high is None else value(high, values)
        assume(first <= last)
        values[d] = draw(st.integers(first, last))
    return values


@st.composite
def terms_in_ranges(draw: st.DrawFn) -> tuple[Term, Ranges, dict[Symbol, int]]:
    ranges = draw(st.sampled_from(RANGES))
    return draw(terms), ranges, draw(values_within(ranges))


@relaxed
@given(terms_in_ranges())
def test_simplifying_keeps_the_value_and_bounds_hold(case: tuple[Term, Ranges, dict[Symbol, int]]) -> None:
    term, ranges, values = case
    try:
        expected = python_value(term, values)
    except OutsideContract:
        assume(False)
        return
    expr = build(term)
    assert value(simplify(expr, ranges), values) == expected
    low, high = bounds(expr, ranges)
    assert low is None or value(low, values) <= expected
    assert high is None or value(high, values) >= expected


@relaxed
@given(terms_in_ranges(), terms)
def test_what_is_proved_is_true(case: tuple[Term, Ranges, dict[Symbol, int]], other: Term) -> None:
    term, ranges, values = case
    try:
        a, b = python_value(term, values), python_value(other, values)
    except OutsideContract:
        assume(False)
        return
    lhs, rhs = build(term), build(other)
    assert a < b or not provably_less(lhs, rhs, ranges)
    assert a <= b or not provably_at_most(lhs, rhs, ranges)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d0 floordiv s0", "0"),
        ("d0 mod s0", "d0"),
        ("(s0 * d1 + d0) floordiv s0", "d1"),
        ("(s0 * d1 + d0) mod s0", "d0"),
        ("(8 * d1 + d2) floordiv 4", "2 * d1 + (d2 floordiv 4)"),
        ("(8 * d1 + d2) floordiv 8", "d1"),
        ("(12 * d1 + d2) mod 24", "12 * (d1 mod 2) + d2"),
        ("4 * (d1 floordiv 4) + d1 mod 4", "d1"),
        ("4 * ((d1 floordiv 4) mod 3) + d1 mod 4", "d1 mod 12"),
        ("(d1 mod 12) floordiv 4", "(d1 floordiv 4) mod 3"),
        ("min(d0, s0)", "d0"),
        ("max(d0 + 1, 1)", "d0 + 1"),
        ("min(d2, s1)", "min(d2, s1)"),
        # Nothing is known of d3 and d4, a negative divisor may not be divided out, nor a small term dropped before one.
        ("d3 floordiv 4", "d3 floordiv 4"),
        ("(4 * d3 + d2) floordiv (-8)", "(4 * d3 + d2) floordiv (-8)"),
        ("(d3 mod (-8)) floordiv 4", "(d3 mod (-8)) floordiv 4"),
    ],
)
def test_simplifying(text: str, expected: str) -> None:
    ranges: Ranges = {D0: (integer(0), S0 - 1), D1: (integer(0), integer(95)), D2: (integer(0), integer(7))}
    assert format_expr(simplify(parse(text), ranges)) == expected


@pytest.mark.parametrize("s0", [(None, None), (integer(2), integer(100))])
def test_a_range_of_a_size_does_not_hide_what_follows_from_its_name(s0: tuple[Expr | None, Expr | None]) -> None:
    ranges: Ranges = {S0: s0, D0: (integer(0), S0 - 1), D1: (D0, D0 + 3)}
    assert provably_less(D0, S0, ranges)
    assert provably_less(D1, S0 + 3, ranges)
    assert not provably_less(D1, S0, ranges)


def test_a_dim_without_a_range_may_be_negative_and_a_size_not() -> None:
    assert provably_at_most(integer(0), S0, {})
    assert not provably_at_most(integer(0), D0, {})
    assert simplify(Max(D0, integer(0)), {}) == Max(D0, integer(0))


def test_ranges_in_a_cycle_end() -> None:
    ranges: Ranges = {D0: (integer(0), D1), D1: (integer(0), D0)}
    assert not provably_less(D0, integer(5), ranges)


def test_division_by_zero_is_left_as_it_is() -> None:
    # It cannot be written, but a pass may put a zero in the place of a symbol.
    assert FloorDiv(D0, S0).xreplace({S0: integer(0)}) == FloorDiv(D0, integer(0))
    assert Mod(Mod(D0, S0), integer(4)).xreplace({S0: integer(0)}).has(Mod)


def test_symbols_are_interned() -> None:
    assert symbol("s0") is symbol("s0")
    assert parse("s0") is symbol("s0")


def test_equal_minima_are_equal_objects_in_any_order() -> None:
    assert Min(S0, S1) == Min(S1, S0)
    assert Max(D0 + 1, S0) == Max(S0, D0 + 1)
