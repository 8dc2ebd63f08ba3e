"""Positions along dimensions that are loaded from tensors: checked, counted from the end, made indices.

A position that is out of range is an error, as in eager: it is checked where it is used, and stands for element 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from tilewright.dialects.loop import CmpOp
from tilewright.dialects.sym_expr import Expr, integer, provably_at_most
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import element_of, sizes_of
from tilewright.passes.lowering.dtypes import Category, category, ui8
from tilewright.passes.lowering.errors import NotLoweredError

OUT_OF_RANGE = "IndexError: index out of range in self"


@dataclass(frozen=True)
class Position:
    """A position along a dimension that was loaded: one of the dimension's, or else 0, and the program fails."""

    index: Expr
    inside: Value | None
    """Whether it is one of the dimension's, where the dimension may have no element at all and so no element 0."""


def load_position(
    b: Body, positions: SSAValue, index: Index, size: Expr, error: str, *, wraps: bool = False
) -> Position:
    """Load a position along a dimension of `size`; if it `wraps`, it counts from the end where it is negative."""
    place = b.cast(b.load(positions, index), element_of(positions), i64)
    length = b.constant(size if not size.is_Integer else int(size), i64)
    if wraps:
        place = b.select(b.compare("lt", place, 0), b.add(place, length), place)
    # A negative number is a large one.
    inside = b.emit(CmpOp.get("lt", place, length, unsigned=True))
    may_be_empty = not provably_at_most(integer(1), size, b.call.ranges)
    return Position(b.as_index(b.check(inside, place, error)), inside if may_be_empty else None)


def at_places(index: Index, places: Mapping[int, Position], rank: int) -> Index:
    """Return a full index of a tensor: the positions along some dimensions, what `index` gives along the others."""
    others = iter(index)
    return [places[d].index if d in places else next(others) for d in range(rank)]


def all_inside(b: Body, places: Mapping[int, Position]) -> Value | None:
    """Return whether all positions are of their dimensions, where one of these may be empty; else None."""
    tests = [p.inside for p in places.values() if p.inside is not None]
    return reduce(b.both, tests) if tests else None


def load_at(b: Body, source: SSAValue, index: Index, places: Mapping[int, Position]) -> Value:
    """Load an element at positions along some dimensions, and at the indices that `index` gives along the others."""
    full, inside = at_places(index, places, len(sizes_of(source))), all_inside(b, places)
    if inside is None:
        return b.load(source, full)
    return b.load(source, full, mask=inside, otherwise=b.constant(0, element_of(source)))


def out_of_bounds(error: str, d: int, size: Expr) -> str:
    """Return the text of the exception of type `error` for a position that a dimension does not have."""
    return f"{error}: index out of bounds for dimension {d}" + (f" with size {size}" if size.is_Integer else "")


def check_positions(positions: SSAValue) -> None:
    element = element_of(positions)
    if category(element) is not Category.INTEGER or element == ui8:
        raise NotLoweredError(f"positions of type {element}")
