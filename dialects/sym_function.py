"""The functions of index expressions: floor division, modulo, minimum and maximum.

SymPy's own `floor` and `Mod` are general and slow, and `sympify` executes its input. These classes keep to integers,
fold what always holds when they are built, and leave what depends on ranges to `sym_expr.simplify`. A divisor is taken
to be non-zero, and one that is not a constant to have positive factors, its coefficient apart: divisors are sizes, and
a loop over an empty size has no iterations. Division by the constant zero stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache, reduce
from typing import TypeAlias

import sympy

Expr: TypeAlias = sympy.Expr
"""An integer expression: over integers, `Symbol`, sums, products and the functions below."""

Symbol: TypeAlias = sympy.Symbol

DIM_NAME = re.compile(r"d[0-9]+")
"""The names of dims, which no size has."""


@cache
def symbol(name: str) -> Symbol:
    """Return the one symbol called `name`. Nothing is assumed of it but that it is an integer."""
    return sympy.Symbol(name, integer=True)


@cache
def dim(i: int) -> Symbol:
    """Return the symbol of dimension `i` of an index map."""
    return symbol(f"d{i}")


@lru_cache(maxsize=4096)
def integer(value: int) -> Expr:
    """Return `value` as an expression."""
    return sympy.Integer(value)


def factors(expr: Expr) -> tuple[int, dict[Expr, int]]:
    """Split a product into its integer coefficient and the powers of its other factors."""
    coefficient, rest = expr.as_coeff_Mul()
    powers: dict[Expr, int] = {}
    if rest != 1:
        for factor in sympy.Mul.make_args(rest):
            base, exponent = factor.as_base_exp()
            powers[base] = int(exponent)
    return int(coefficient), powers


def _product(coefficient: int, powers: Mapping[Expr, int]) -> Expr:
    return sympy.Mul(integer(coefficient), *(base**e for base, e in powers.items() if e))


def exact_quotient(expr: Expr, divisor: Expr) -> Expr | None:
    """Return `expr / divisor` where its factors show the quotient to be an integer expression, otherwise None."""
    if expr == 0 or divisor == 1:
        return expr
    if expr == divisor:
        return integer(1)
    if expr.is_Add:
        quotients: list[Expr] = []
        for term in expr.args:
            quotient = exact_quotient(term, divisor)
            if quotient is None:
                return None
            quotients.append(quotient)
        return sympy.Add(*quotients)
    coefficient, powers = factors(expr)
    by, divisor_powers = factors(divisor)
    if by == 0 or coefficient % by:
        return None
    for base, exponent in divisor_powers.items():
        left = powers.get(base, 0) - exponent
        if left < 0:
            return None
        powers[base] = left
    return _product(coefficient // by, powers)


def divide(expr: Expr, factor: Expr) -> Expr:
    """Return the quotient of `expr` by a factor that it is known to have."""
    quotient = exact_quotient(expr, factor)
    assert quotient is not None
    return quotient


def common_factor(a: Expr, b: Expr) -> Expr:
    """Return a positive factor that all terms of `a` and `b` share; `b` is a divisor."""
    terms = [factors(t) for t in (*sympy.Add.make_args(a), *sympy.Add.make_args(b))]
    coefficient = reduce(lambda x, y: int(sympy.igcd(x, y)), (c for c, _ in terms))
    shared = dict(terms[-1][1])
    for _, powers in terms[:-1]:
        shared = {base: min(e, powers[base]) for base, e in shared.items() if base in powers}
    return _product(abs(coefficient) or 1, shared)


def split_multiples(expr: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """Return `(q, r)` with `expr == q * divisor + r`, moving whole terms into `q`."""
    quotient: list[Expr] = []
    rest: list[Expr] = []
    for term in sympy.Add.make_args(expr):
        q = exact_quotient(term, divisor)
        if q is None and term.is_Integer and divisor.is_Integer:
            quotient.append(term // divisor)
            rest.append(term % divisor)
        elif q is None:
            rest.append(term)
        else:
            quotient.append(q)
    return sympy.Add(*quotient), sympy.Add(*rest)


class FloorDiv(sympy.Function):
    """`floordiv(a, b)`: the largest integer not above `a / b`."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b == 0:
            return None
        if b == 1 or a == 0:
            return a
        if a.is_Integer and b.is_Integer:
            return a // b
        whole, rest = split_multiples(a, b)
        if rest == 0:
            return whole
        if whole != 0:
            return whole + FloorDiv(rest, b)
        factor = common_factor(a, b)
        if factor != 1:
            return FloorDiv(divide(a, factor), divide(b, factor))
        if isinstance(a, FloorDiv) and is_positive(a.args[1]) and is_positive(b):
            return FloorDiv(a.args[0], a.args[1] * b)
        return None


class Mod(sympy.Function):
    """`mod(a, b)`: `a - b * floordiv(a, b)`, with the sign of `b`."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b == 0:
            return None
        if b == 1 or a == 0:
            return integer(0)
        if a.is_Integer and b.is_Integer:
            return a % b
        whole, rest = split_multiples(a, b)
        if whole != 0:
            return Mod(rest, b)
        factor = common_factor(a, b)
        if factor != 1:
            return factor * Mod(divide(a, factor), divide(b, factor))
        if isinstance(a, Mod) and a.args[1] != 0 and exact_quotient(a.args[1], b) is not None:
            return Mod(a.args[0], b)
        return None


class Min(sympy.Function):
    """`min(a, b)`; the arguments are kept in one order."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        difference = a - b
        if difference.is_Integer:
            return a if difference <= 0 else b
        return Min(b, a) if b.sort_key() < a.sort_key() else None


class Max(sympy.Function):
    """`max(a, b)`; the arguments are kept in one order."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        difference = a - b
        if difference.is_Integer:
            return a if difference >= 0 else b
        return Max(b, a) if b.sort_key() < a.sort_key() else None


def is_positive(divisor: Expr) -> bool:
    """Whether a divisor is positive: a constant is or is not, a size is, a sum of negative multiples is not."""
    return any(term.as_coeff_Mul()[0] > 0 for term in sympy.Add.make_args(divisor))
