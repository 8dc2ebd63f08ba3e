"""Maps between the iteration spaces of two nests: which loops of a producer are which loops of a consumer.

A map gives each loop index of one space as an expression over the indices of the other. It is used only where it is one
to one: a renaming, a split `i -> (i floordiv n, i mod n)`, a merge `(i, j) -> i * n + j`, or any of these next to each
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import sympy

from tilewright.dialects.sym_expr import Expr, Ranges, integer, simplify

# Beyond this many indices that depend on each other nobody looks for their order.
_MAX_PERMUTED = 3


@dataclass(frozen=True)
class SpaceMap:
    """Some loop indices of a first space as expressions over some of a second, one to one."""

    exprs: dict[Expr, Expr]
    """The index of the first space to its expression."""
    covered: frozenset[Expr]
    """The indices of the second space that occur."""


def one_to_one(
    exprs: Mapping[Expr, Expr], first: Mapping[Expr, Expr], second: Mapping[Expr, Expr], ranges: Ranges
) -> SpaceMap:
    """Return the part of a map that is one to one.

    `exprs` maps indices of the first space to expressions over indices of the second; `first` and `second` give the
    extents. Indices that hang together, because one expression has them, are kept or left out together.
    """
    kept: dict[Expr, Expr] = {}
    covered: set[Expr] = set()
    for part in _components(exprs, second):
        used = [i for i in second if any(i in exprs[q].free_symbols for q in part)]
        if used and _is_bijection([(exprs[q], first[q]) for q in part], [(i, second[i]) for i in used], ranges):
            kept.update((q, exprs[q]) for q in part)
            covered.update(used)
    return SpaceMap({q: kept[q] for q in exprs if q in kept}, frozenset(covered))


def _components(exprs: Mapping[Expr, Expr], second: Mapping[Expr, Expr]) -> Iterator[list[Expr]]:
    """Yield the groups of indices whose expressions share indices of the second space."""
    left = dict(exprs)
    while left:
        start = next(iter(left))
        group, used = [start], left.pop(start).free_symbols & second.keys()
        grown = True
        while grown:
            joining = [q for q, e in left.items() if e.free_symbols & used]
            grown = bool(joining)
            for q in joining:
                group.append(q)
                used |= left.pop(q).free_symbols & second.keys()
        yield [q for q in exprs if q in group]


def _is_bijection(digits: Sequence[tuple[Expr, Expr]], indices: Sequence[tuple[Expr, Expr]], ranges: Ranges) -> bool:
    """Whether expressions with their extents count through all indices with theirs, each combination once.

    It is so if the expressions, as digits of one number, give the number that the indices are the digits of, in some
    order.
    """
    if len(digits) == len(indices) == 1:
        return digits[0][0] == indices[0][0] and _equal(digits[0][1], indices[0][1], ranges)
    if max(len(digits), len(indices)) > _MAX_PERMUTED or not _equal(_product(digits), _product(indices), ranges):
        return False
    numbers = {sympy.expand(_number(order)) for order in permutations(indices)}
    return any(
        sympy.expand(simplify(sympy.expand(_number(order)), ranges)) in numbers for order in permutations(digits)
    )


def _number(digits: Sequence[tuple[Expr, Expr]]) -> Expr:
    """Return the number with these digits, the last one the lowest; each digit comes with its base."""
    number = integer(0)
    for digit, base in digits:
        number = number * base + digit
    return number


def _product(digits: Sequence[tuple[Expr, Expr]]) -> Expr:
    return sympy.Mul(*(extent for _, extent in digits))


def _equal(a: Expr, b: Expr, ranges: Ranges) -> bool:
    return a == b or sympy.expand(simplify(sympy.expand(a - b), ranges)) == 0
