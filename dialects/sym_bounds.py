"""Bounds of index expressions, given the ranges of their symbols."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias

import sympy

from tilewright.dialects.sym_function import (
    DIM_NAME,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Symbol,
    factors,
    integer,
    is_positive,
)

Ranges: TypeAlias = Mapping[Symbol, tuple[Expr | None, Expr | None]]
"""For each symbol its inclusive bounds, None where there is none. Every symbol has a value in its range: nothing is
asked of the index of a loop without iterations."""

# Ranges that refer to each other in a cycle would be followed for ever.
_MAX_ROUNDS = 32


def bounds(expr: Expr, ranges: Ranges) -> tuple[Expr | None, Expr | None]:
    """Return inclusive bounds of `expr`; None where there is none. Symbols without a range stand for themselves."""
    found = _Bounds(ranges)
    return found.of(expr, upper=False), found.of(expr, upper=True)


def provably_less(a: Expr, b: Expr, ranges: Ranges) -> bool:
    """Whether `a < b` follows from `ranges`."""
    return is_non_negative(b - a - 1, ranges)


def provably_at_most(a: Expr, b: Expr, ranges: Ranges) -> bool:
    """Whether `a <= b` follows from `ranges`."""
    return is_non_negative(b - a, ranges)


def is_non_negative(expr: Expr, ranges: Ranges) -> bool:
    """Whether `expr >= 0` follows from `ranges`, taking a size without a range as at least zero; a dim may be anything.

    A symbol whose range is given in terms of others is bounded before those, so that `s0 - i` is seen to be positive
    where `i` is at most `s0 - 1`, whatever the range of `s0`.
    """
    for _ in range(_MAX_ROUNDS):
        expr = sympy.expand(expr)
        if expr.is_Integer:
            return bool(expr >= 0)
        inner = _innermost(expr, ranges)
        if not inner:
            break
        low = _Bounds(ranges, only=inner).of(expr, upper=False)
        if low is None:
            return False
        expr = low
    low = _Bounds(ranges, sizes=True).of(expr, upper=False)
    return low is not None and low.is_Integer and bool(low >= 0)


def _innermost(expr: Expr, ranges: Ranges) -> set[Symbol]:
    """Return the symbols of `expr` with a symbolic range to which the range of no other of them refers."""
    mentions = {
        s: {t for end in ranges[s] if end is not None for t in end.free_symbols}
        for s in expr.free_symbols
        if s in ranges
    }
    mentioned = {t for s, others in mentions.items() for t in others if t != s}
    return {s for s, others in mentions.items() if others and s not in mentioned}


@dataclass(frozen=True)
class _Bounds:
    """Bounds from `ranges`.

    With `only`, the other symbols stand for themselves. With `sizes`, so does none: a size without a range is at least
    zero, a dim without a range has no bounds.
    """

    ranges: Ranges
    only: AbstractSet[Symbol] | None = None
    sizes: bool = False

    def of(self, expr: Expr, *, upper: bool) -> Expr | None:
        """Return the upper or the lower bound of `expr`."""
        if expr.is_Integer:
            return expr
        if isinstance(expr, sympy.Symbol):
            return self._of_symbol(expr, upper)
        if expr.is_Add:
            parts = self._of_each(expr.args, upper)
            return None if None in parts else sympy.Add(*(p for p in parts if p is not None))
        if expr.is_Mul or expr.is_Pow:
            return self._of_product(expr, upper)
        if isinstance(expr, Mod):
            return self._of_remainder(expr.args[1], upper)
        if isinstance(expr, FloorDiv):
            return self._of_quotient(expr.args[0], expr.args[1], upper)
        if isinstance(expr, (Min, Max)):
            known = [p for p in self._of_each(expr.args, upper) if p is not None]
            if len(known) == 2:
                return expr.func(*known)
            one_is_enough = isinstance(expr, Min) == upper
            return known[0] if known and one_is_enough else None
        return None

    def _of_each(self, exprs: tuple[Expr, ...], upper: bool) -> list[Expr | None]:
        return [self.of(e, upper=upper) for e in exprs]

    def _of_symbol(self, expr: Symbol, upper: bool) -> Expr | None:
        if expr in self.ranges and (self.only is None or expr in self.only):
            return self.ranges[expr][upper]
        if not self.sizes:
            return expr
        return None if upper or DIM_NAME.fullmatch(expr.name) else integer(0)

    def _of_product(self, expr: Expr, upper: bool) -> Expr | None:
        coefficient, powers = factors(expr)
        if coefficient < 0:
            upper = not upper
        alone = list(powers.values()) == [1]
        product = integer(coefficient)
        for base, exponent in powers.items():
            low = self.of(base, upper=False)
            if not alone and (low is None or not is_non_negative(low, self.ranges)):
                return None
            bound = self.of(base, upper=True) if upper else low
            if bound is None:
                return None
            product = product * bound**exponent
        return product

    def _of_remainder(self, divisor: Expr, upper: bool) -> Expr | None:
        if not is_positive(divisor):
            return None
        if not upper:
            return integer(0)
        largest = self.of(divisor, upper=True)
        return None if largest is None else largest - 1

    def _of_quotient(self, dividend: Expr, divisor: Expr, upper: bool) -> Expr | None:
        bound = self.of(dividend, upper=upper)
        if bound is None or not is_positive(divisor):
            return None
        smallest, largest = self.of(divisor, upper=False), self.of(divisor, upper=True)
        if smallest is not None and smallest == largest:
            return FloorDiv(bound, smallest)
        # A larger divisor takes the quotient towards zero, or towards -1 from below.
        if not is_non_negative(bound, self.ranges):
            return Max(bound, integer(-1)) if upper else Min(bound, integer(0))
        extreme = smallest if upper else largest
        if extreme is None or not is_non_negative(extreme - 1, self.ranges):
            return bound if upper else integer(0)
        return FloorDiv(bound, extreme)
