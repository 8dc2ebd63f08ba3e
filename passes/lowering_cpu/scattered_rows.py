"""A scan that writes to rows whose numbers are data: threads can share it by rows, each skipping those of the others.

Every thread goes through the whole scan, which costs little beside the rows that it writes itself. Each row is written
by one thread in the order of the scan, so the result does not depend on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from tilewright.dialects.loop import ForOp, Loop, NestOp, PrefixOp, ScanOp, StoreOp, layout_of
from tilewright.dialects.sym_expr import Expr, FloorDiv, Symbol, integer, provably_at_most
from tilewright.passes.analysis.index_space import IndexSpace, stride
from tilewright.passes.analysis.legality import is_leaf


@dataclass(frozen=True)
class ScatteredRows:
    """What a nest that is one scan writes to."""

    scan: ScanOp
    row: SSAValue
    """The number of the row that an iteration writes to."""
    count: Expr
    """How many rows there are."""


@dataclass(frozen=True)
class OwnRows:
    """The rows, from a begin to an end, that one thread writes."""

    rows: ScatteredRows
    begin: SSAValue
    end: SSAValue


def scattered_rows(space: IndexSpace, nest: NestOp) -> ScatteredRows | None:
    """Return the rows that all stores of `nest` go to; None if it is not a scan whose iterations write one row each."""
    loops = [op for op in nest.block.ops if isinstance(op, (Loop, StoreOp))]
    if len(loops) != 1 or not isinstance(loops[0], ScanOp):
        return None
    scan = loops[0]
    inside = [op for op in scan.block.ops if isinstance(op, Loop)]
    if not all(isinstance(op, ForOp) and is_leaf(op) for op in inside):
        return None
    if any(isinstance(op, PrefixOp) for op in scan.block.ops):
        return None
    found = {_row(space, scan, op) for op in scan.walk() if isinstance(op, StoreOp)}
    if len(found) != 1:
        return None
    (only,) = found
    return None if only is None else ScatteredRows(scan, *only)


def _row(space: IndexSpace, scan: ScanOp, store: StoreOp) -> tuple[SSAValue, Expr] | None:
    """Return the row that a store goes to, and how many there are."""
    (expr,) = space.access(store.access, store.indices)
    rows = [(s, value) for s, value in _values(space, expr) if _is_computed_in(value, scan)]
    if len(rows) != 1:
        return None
    symbol, value = rows[0]
    width = stride(expr, symbol)
    if width is None:
        return None
    ranges = {**space.ranges, **_ranges(space, store.parent_op())}
    place = space.simplify(expr - width * symbol)
    if not provably_at_most(integer(0), place, ranges) or not provably_at_most(place, width - 1, ranges):
        return None
    (size,) = layout_of(store.target.type).sizes
    return value, space.simplify(FloorDiv(size + width - 1, width))


def _values(space: IndexSpace, expr: Expr) -> Sequence[tuple[Symbol, SSAValue]]:
    values = ((s, space.value(s)) for s in sorted(expr.free_symbols, key=lambda s: s.name))
    return [(s, value) for s, value in values if value is not None]


def _is_computed_in(value: SSAValue, scan: ScanOp) -> bool:
    return isinstance(value.owner, Operation) and value.owner.parent is scan.block


def _ranges(space: IndexSpace, loop: Operation | None) -> dict[Symbol, tuple[Expr | None, Expr | None]]:
    """Return the ranges of the indices of a loop, without the lanes that a mask turns off."""
    if not isinstance(loop, ForOp):
        return {}
    dims = zip(loop.indices, space.loops(loop), strict=True)
    return {space.symbol(index): (d.lower, d.upper - 1) for index, d in dims}
