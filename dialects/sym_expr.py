"""Index expressions: their functions, their bounds, and simplification by the ranges of their symbols."""

from __future__ import annotations

import sympy

from tilewright.dialects.sym_bounds import Ranges, bounds, provably_at_most, provably_less
from tilewright.dialects.sym_function import (
    DIM_NAME,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Symbol,
    common_factor,
    dim,
    divide,
    exact_quotient,
    integer,
    is_positive,
    split_multiples,
    symbol,
)

__all__ = [
    "DIM_NAME",
    "Expr",
    "FloorDiv",
    "Max",
    "Min",
    "Mod",
    "Ranges",
    "Symbol",
    "bounds",
    "dim",
    "exact_quotient",
    "integer",
    "provably_at_most",
    "provably_less",
    "simplify",
    "symbol",
]


def simplify(expr: Expr, ranges: Ranges) -> Expr:
    """Return an equal expression, by the bounds of its symbols; products of sums with quotients are multiplied out.

    `x floordiv q` and `x mod q` vanish where `0 <= x < q`; `q * (x floordiv q) + x mod q` becomes `x`.
    """
    if not expr.args or not expr.has(FloorDiv, Mod, Min, Max):
        return expr
    args = [simplify(arg, ranges) for arg in expr.args]
    expr = expr.func(*args)
    if isinstance(expr, (FloorDiv, Mod)):
        return _simplify_division(expr, ranges)
    if isinstance(expr, (Min, Max)):
        a, b = expr.args
        if provably_at_most(a, b, ranges):
            return a if isinstance(expr, Min) else b
        if provably_at_most(b, a, ranges):
            return b if isinstance(expr, Min) else a
        return expr
    if expr.is_Mul:
        expr = sympy.expand_mul(expr)
    return _merge_quotients(expr) if expr.is_Add else expr


def _simplify_division(expr: Expr, ranges: Ranges) -> Expr:
    a, b = expr.args
    if provably_at_most(integer(0), a, ranges) and provably_less(a, b, ranges):
        return integer(0) if isinstance(expr, FloorDiv) else a
    if isinstance(expr, FloorDiv) and isinstance(a, Mod):
        outer = exact_quotient(a.args[1], b)
        if outer is not None and is_positive(outer):
            return simplify(Mod(FloorDiv(a.args[0], b), outer), ranges)
    return _drop_small_terms(expr, ranges) if is_positive(b) else expr


def _drop_small_terms(expr: Expr, ranges: Ranges) -> Expr:
    """Use `floordiv(g * a + r, g * b) == floordiv(a, b)` and `mod(g * a + r, g * b) == g * mod(a, b) + r`.

    Both hold for `0 <= r < g` and a positive `b`.
    """
    a, b = expr.args
    terms = sympy.Add.make_args(a)
    if len(terms) < 2:
        return expr
    for term in terms:
        factor = common_factor(term, b)
        if factor == 1:
            continue
        multiples, rest = split_multiples(a, factor)
        if multiples == 0 or rest == 0:
            continue
        if provably_at_most(integer(0), rest, ranges) and provably_less(rest, factor, ranges):
            divisor = divide(b, factor)
            if isinstance(expr, FloorDiv):
                return simplify(FloorDiv(multiples, divisor), ranges)
            return factor * simplify(Mod(multiples, divisor), ranges) + rest
    return expr


def _merge_quotients(total: Expr) -> Expr:
    """Join `c * q * floordiv(x, q) + c * mod(x, q)` into `c * x`, and the same under an outer modulo."""
    changed = True
    while changed and total.is_Add:
        changed = False
        for term in total.args:
            for remainder in (f for f in sympy.Mul.make_args(term) if isinstance(f, Mod)):
                merged = _merge_one(total, term, remainder)
                if merged is not None:
                    total, changed = merged, True
                    break
            if changed:
                break
    return total


def _merge_one(total: Expr, term: Expr, remainder: Expr) -> Expr | None:
    x, q = remainder.args
    scale = exact_quotient(term, remainder)
    if scale is None or scale.has(Mod):
        return None
    whole = scale * q * FloorDiv(x, q)
    if whole in total.args:
        return total - term - whole + scale * x
    for other in total.args:
        for outer in (f for f in sympy.Mul.make_args(other) if isinstance(f, Mod)):
            joins = outer.args[0] == FloorDiv(x, q) and is_positive(outer.args[1])
            if joins and exact_quotient(other, outer) == scale * q:
                return total - term - other + scale * Mod(x, q * outer.args[1])
    return None
