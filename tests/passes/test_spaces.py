"""The maps between iteration spaces that fusion accepts are one to one, counted out on small sizes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.dialects.sym_expr import Expr, FloorDiv, Mod, Symbol, dim, integer, symbol
from tilewright.passes.analysis.spaces import SpaceMap, one_to_one

N, M = symbol("n"), symbol("m")
VALUES: dict[Expr, Expr] = {N: integer(3), M: integer(2)}
FIRST = [symbol(f"p{i}") for i in range(3)]
D0, D1, D2 = (dim(i) for i in range(3))


def match(exprs: Sequence[Expr], first: Sequence[Expr], second: Sequence[Expr]) -> SpaceMap:
    """Match loops `p0`, `p1`, .. of extents `first`, given as `exprs` over loops `d0`, `d1`, .. of extents `second`."""
    maps = dict[Expr, Expr](zip(FIRST, exprs, strict=False))
    one = dict[Expr, Expr](zip(FIRST, first, strict=False))
    other: dict[Expr, Expr] = {dim(i): extent for i, extent in enumerate(second)}
    ranges: dict[Symbol, tuple[Expr, Expr]] = {dim(i): (integer(0), extent - 1) for i, extent in enumerate(second)}
    return one_to_one(maps, one, other, ranges)


@pytest.mark.parametrize(
    ("exprs", "first", "second"),
    [
        ([D0, D1], [N, M], [N, M]),
        ([D1, D0], [M, N], [N, M]),
        ([FloorDiv(D0, M), Mod(D0, M)], [N, M], [N * M]),
        ([Mod(D0, M), FloorDiv(D0, M)], [M, N], [N * M]),
        ([M * D0 + D1], [N * M], [N, M]),
        ([N * D1 + D0], [N * M], [N, M]),
        ([8 * D0 + 2 * D1 + D2], [8 * N], [N, integer(4), integer(2)]),
        ([FloorDiv(4 * D0 + D1, 2), Mod(D1, 2)], [2 * N, integer(2)], [N, integer(4)]),
    ],
)
def test_renamings_splits_and_merges_match(
    exprs: Sequence[Expr], first: Sequence[Expr], second: Sequence[Expr]
) -> None:
    found = match(exprs, first, second)
    assert list(found.exprs.values()) == list(exprs)
    assert found.covered == {dim(i) for i in range(len(second))}


@pytest.mark.parametrize(
    ("exprs", "first", "second"),
    [
        ([D0 + 1], [N], [N]),
        ([N - 1 - D0], [N], [N]),
        ([D0], [N], [M]),
        ([integer(0)], [N], [N]),
        ([D0 + D1], [N + M - 1], [N, M]),
        ([FloorDiv(D0, 2), FloorDiv(D0, 2)], [N, N], [2 * N]),
        ([2 * D0], [2 * N], [N]),
        ([Mod(D0, 3), Mod(D0, 2)], [integer(3), integer(2)], [integer(6)]),
    ],
)
def test_other_maps_do_not(exprs: Sequence[Expr], first: Sequence[Expr], second: Sequence[Expr]) -> None:
    found = match(exprs, first, second)
    assert found.exprs == {}
    assert found.covered == frozenset()


def test_a_part_that_does_not_match_is_left_out() -> None:
    found = match([D0, D1 + 1], [N, M + 1], [N, M])
    assert found.exprs == {FIRST[0]: D0}
    assert found.covered == {D0}


SIZES = st.sampled_from([integer(2), integer(3), integer(4), N, M, 2 * N])
TERMS = [D0, D1, D2, 2 * D0 + D1, N * D1 + D0, 3 * D0 + D1, FloorDiv(D0, 2), Mod(D0, 2), FloorDiv(D0, N), Mod(D0, N)]


@settings(deadline=None, max_examples=300, derandomize=True)
@given(
    st.lists(st.sampled_from(TERMS), min_size=1, max_size=3),
    st.lists(SIZES, min_size=3, max_size=3),
    st.lists(SIZES, min_size=3, max_size=3),
)
def test_what_is_accepted_counts_each_combination_once(
    exprs: list[Expr], first: list[Expr], second: list[Expr]
) -> None:
    # Out of bounds, an expression would not index the producer's loop: such accesses do not occur.
    reached = [_values(e, second) for e in exprs]
    sizes = [int(e.xreplace(VALUES)) for e in first]
    if any(not 0 <= value < size for values, size in zip(reached, sizes, strict=False) for value in values):
        return
    found = match(exprs, first, second)
    kept = [i for i, p in enumerate(FIRST[: len(exprs)]) if p in found.exprs]
    used = [i for i in range(3) if dim(i) in found.covered]
    pairs = {
        (tuple(where[i] for i in used), tuple(reached[i][number] for i in kept))
        for number, where in enumerate(_points(second))
    }
    combinations = len({image for _, image in pairs})
    assert len({point for point, _ in pairs}) == combinations == len(pairs)
    assert combinations == len(list(product(*(range(sizes[i]) for i in kept))))


def _points(sizes: Sequence[Expr]) -> list[tuple[int, ...]]:
    return list(product(*(range(int(s.xreplace(VALUES))) for s in sizes)))


def _values(expr: Expr, sizes: Sequence[Expr]) -> list[int]:
    points = _points(sizes)
    return [int(expr.xreplace({**VALUES, **{dim(i): integer(x) for i, x in enumerate(p)}})) for p in points]
