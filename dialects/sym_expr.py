"""The functions of index expressions and what is known about them: floor division, modulo, bounds and simplification.

SymPy's own `floor` and `Mod` are general and slow, and `sympify` executes its input. These classes keep to integers, fold what
always holds when they are built, and leave what depends on ranges to `simplify`. A divisor is taken to be non-zero, and a
divisor that is not a constant to be positive: divisors are sizes, and a loop over an empty size has no iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Any, TypeAlias

import sympy

Expr: TypeAlias = Any
"""An integer expression: a `sympy.Expr` over integers, `Symbol` and the functions below. (SymPy carries no types.)"""

Symbol: TypeAlias = sympy.Symbol
Ranges: TypeAlias = Mapping[Symbol, tuple[Expr, Expr]]
"""For each symbol its inclusive bounds."""


@lru_cache(maxsize=None)
def symbol(name: str) -> Symbol:
    """Return the one symbol called `name`. Nothing is assumed of it but that it is an integer."""
    return sympy.Symbol(name, integer=True)


@lru_cache(maxsize=None)
def dim(i: int) -> Symbol:
    """Return the symbol of dimension `i` of an index map."""
    return symbol(f"d{i}")


@lru_cache(maxsize=4096)
def integer(value: int) -> Expr:
    """Return `value` as an expression."""
    return sympy.Integer(value)


def _factors(expr: Expr) -> tuple[int, dict[Expr, int]]:
    """Split a product into its integer coefficient and the powers of its other factors."""
    coefficient, rest = expr.as_coeff_Mul()
    powers: dict[Expr, int] = {}
    if rest != 1:
        for factor in sympy.Mul.make_args(rest):
            base, exponent = factor.as_base_exp()
            powers[base] = int(exponent)
    return int(coefficient), powers


def exact_quotient(expr: Expr, divisor: Expr) -> Expr | None:
    """Return `expr / divisor` where the quotient is an integer expression by the look of its factors, otherwise None."""
    if expr == 0 or divisor == 1:
        return expr
    if expr.is_Add:
        quotients = [exact_quotient(term, divisor) for term in expr.args]
        return None if any(q is None for q in quotients) else sympy.Add(*quotients)
    coefficient, powers = _factors(expr)
    by, divisor_powers = _factors(divisor)
    if by == 0 or coefficient % by:
        return None
    for base, exponent in divisor_powers.items():
        left = powers.get(base, 0) - exponent
        if left < 0:
            return None
        powers[base] = left
    return sympy.Mul(integer(coefficient // by), *(base**e for base, e in powers.items() if e))


def _common_factor(a: Expr, b: Expr) -> Expr:
    """Return a positive factor that all terms of `a` and `b` share: an integer times symbols that stand for sizes."""
    terms = [_factors(t) for t in (*sympy.Add.make_args(a), *sympy.Add.make_args(b))]
    coefficient = reduce(lambda x, y: int(sympy.igcd(x, y)), (c for c, _ in terms))
    shared = dict(terms[-1][1])
    for _, powers in terms[:-1]:
        shared = {base: min(e, powers[base]) for base, e in shared.items() if base in powers}
    return sympy.Mul(integer(abs(coefficient) or 1), *(base**e for base, e in shared.items()))


def _split_multiples(expr: Expr, divisor: Expr) -> tuple[Expr, Expr]:
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
        if b == 1 or a == 0:
            return a
        if a.is_Integer and b.is_Integer:
            return a // b
        whole, rest = _split_multiples(a, b)
        if rest == 0:
            return whole
        if whole != 0:
            return whole + FloorDiv(rest, b)
        factor = _common_factor(a, b)
        if factor != 1:
            return FloorDiv(exact_quotient(a, factor), exact_quotient(b, factor))
        if isinstance(a, FloorDiv) and _is_positive(a.args[1]) and _is_positive(b):
            return FloorDiv(a.args[0], a.args[1] * b)
        return None


class Mod(sympy.Function):
    """`mod(a, b)`: `a - b * floordiv(a, b)`, with the sign of `b`."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b == 1 or a == 0:
            return integer(0)
        if a.is_Integer and b.is_Integer:
            return a % b
        whole, rest = _split_multiples(a, b)
        if whole != 0:
            return Mod(rest, b)
        factor = _common_factor(a, b)
        if factor != 1:
            return factor * Mod(exact_quotient(a, factor), exact_quotient(b, factor))
        if isinstance(a, Mod) and exact_quotient(a.args[1], b) is not None:
            return Mod(a.args[0], b)
        return None


class Min(sympy.Function):
    """`min(a, b)`."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        difference = a - b
        if difference.is_Integer:
            return a if difference <= 0 else b
        return None


class Max(sympy.Function):
    """`max(a, b)`."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        difference = a - b
        if difference.is_Integer:
            return a if difference >= 0 else b
        return None


def _is_positive(divisor: Expr) -> bool:
    return not divisor.is_Integer or divisor > 0


def _is_non_negative(expr: Expr, ranges: Ranges) -> bool:
    """Whether `expr >= 0` follows from `ranges`, taking a size symbol without a range as at least zero."""
    expr = sympy.expand(expr)
    if expr.is_Integer:
        return bool(expr >= 0)
    low = _bound(expr, ranges, upper=False, sizes=True)
    return low is not None and low.is_Integer and bool(low >= 0)


def bounds(expr: Expr, ranges: Ranges) -> tuple[Expr | None, Expr | None]:
    """Return inclusive bounds of `expr`; None where there is none. Symbols without a range stand for themselves."""
    return _bound(expr, ranges, False, False), _bound(expr, ranges, True, False)


def _bound(expr: Expr, ranges: Ranges, upper: bool, sizes: bool) -> Expr | None:
    if expr.is_Integer:
        return expr
    if isinstance(expr, sympy.Symbol):
        if expr in ranges:
            return ranges[expr][upper]
        if sizes:
            return None if upper else integer(0)
        return expr
    if expr.is_Add:
        parts = [_bound(term, ranges, upper, sizes) for term in expr.args]
        return None if any(p is None for p in parts) else sympy.Add(*parts)
    if expr.is_Mul or expr.is_Pow:
        return _bound_product(expr, ranges, upper, sizes)
    if isinstance(expr, Mod):
        if not _is_positive(expr.args[1]):
            return None
        return expr.args[1] - 1 if upper else integer(0)
    if isinstance(expr, FloorDiv):
        inner = _bound(expr.args[0], ranges, upper, sizes)
        return None if inner is None or not _is_positive(expr.args[1]) else FloorDiv(inner, expr.args[1])
    if isinstance(expr, (Min, Max)):
        parts = [_bound(arg, ranges, upper, sizes) for arg in expr.args]
        known = [p for p in parts if p is not None]
        if len(known) == 2:
            return type(expr)(*known)
        helps = isinstance(expr, Min) == upper
        return known[0] if known and helps else None
    return None


def _bound_product(expr: Expr, ranges: Ranges, upper: bool, sizes: bool) -> Expr | None:
    coefficient, powers = _factors(expr)
    if coefficient < 0:
        upper = not upper
    product = integer(coefficient)
    for base, exponent in powers.items():
        low = _bound(base, ranges, False, True)
        if low is None or not _is_non_negative(low, ranges):
            return None
        bound = _bound(base, ranges, upper, sizes)
        if bound is None:
            return None
        product = product * bound**exponent
    return product


def provably_less(a: Expr, b: Expr, ranges: Ranges) -> bool:
    """Whether `a < b` follows from `ranges`."""
    return provably_at_most(a + 1, b, ranges)


def provably_at_most(a: Expr, b: Expr, ranges: Ranges) -> bool:
    """Whether `a <= b` follows from `ranges`."""
    high = _bound(a, ranges, True, False)
    low = _bound(b, ranges, False, False)
    if high is None or low is None:
        return False
    return _is_non_negative(low - high, ranges)


def simplify(expr: Expr, ranges: Ranges) -> Expr:
    """Return an equal expression that is no longer, using the bounds of its symbols.

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
        if outer is not None:
            return simplify(Mod(FloorDiv(a.args[0], b), outer), ranges)
    return _drop_small_terms(expr, ranges)


def _drop_small_terms(expr: Expr, ranges: Ranges) -> Expr:
    """Use `floordiv(g * a + r, g * b) == floordiv(a, b)` and `mod(g * a + r, g * b) == g * mod(a, b) + r` for `0 <= r < g`."""
    a, b = expr.args
    terms = sympy.Add.make_args(a)
    if len(terms) < 2:
        return expr
    for term in terms:
        factor = _common_factor(term, b)
        if factor == 1:
            continue
        multiples, rest = _split_multiples(a, factor)
        if multiples != 0 and rest != 0 and provably_at_most(integer(0), rest, ranges) and provably_less(rest, factor, ranges):
            divisor = exact_quotient(b, factor)
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
            if outer.args[0] == FloorDiv(x, q) and exact_quotient(other, outer) == scale * q:
                return total - term - other + scale * Mod(x, q * outer.args[1])
    return None
