"""Integers that are computed from indices, as index expressions."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, i64
from xdsl.ir import SSAValue

from tilewright.dialects.arith_canonicalize import int_of
from tilewright.dialects.loop import ApplyOp, CastOp, CmpOp
from tilewright.dialects.sym_expr import Expr, dim, integer, provably_at_most, provably_less
from tilewright.passes.analysis.ranges import NamedRanges


def index_expr(value: SSAValue, ranges: NamedRanges) -> Expr | None:
    """Return `value`, an index or an i64 that was made from indices, as an expression over named index values.

    Indices are far from the limits of 64 bits, so sums of them do not wrap.
    """
    number = int_of(value)
    if number is not None and (isinstance(value.type, IndexType) or value.type == i64):
        return integer(number)
    owner = value.owner
    if isinstance(owner, ApplyOp):
        operands = [index_expr(v, ranges) for v in owner.indices]
        replaced = {dim(i): e for i, e in enumerate(operands) if e is not None}
        return owner.expr.xreplace(replaced) if len(replaced) == len(operands) else None
    if isinstance(owner, CastOp) and _is_wide(owner.input) and _is_wide(owner.result):
        return index_expr(owner.input, ranges)
    if isinstance(owner, (arith.AddiOp, arith.SubiOp)) and _is_wide(value):
        lhs, rhs = index_expr(owner.lhs, ranges), index_expr(owner.rhs, ranges)
        if lhs is None or rhs is None:
            return None
        return lhs + rhs if isinstance(owner, arith.AddiOp) else lhs - rhs
    return ranges.name(value) if ranges.is_bounded(value) else None


def _is_wide(value: SSAValue) -> bool:
    return isinstance(value.type, IndexType) or value.type == i64


def decide(op: CmpOp, ranges: NamedRanges) -> bool | None:
    """Return the outcome of a comparison of values made from indices, where the bounds of the loops decide it."""
    if not _is_wide(op.lhs):
        return None
    a, b = index_expr(op.lhs, ranges), index_expr(op.rhs, ranges)
    if a is None or b is None:
        return None
    # Of numbers that are not negative both kinds of comparison say the same.
    if op.unsigned is not None and not all(provably_at_most(integer(0), e, ranges.ranges) for e in (a, b)):
        return None
    predicate = op.predicate.data
    if predicate in ("gt", "ge"):
        a, b, predicate = b, a, {"gt": "lt", "ge": "le"}[predicate]
    known = ranges.ranges
    less, greater = provably_less(a, b, known), provably_less(b, a, known)
    match predicate:
        case "lt":
            return True if less else False if provably_at_most(b, a, known) else None
        case "le":
            return True if provably_at_most(a, b, known) else False if greater else None
        case _:
            equal = False if less or greater else True if a == b else None
            return equal if equal is None or predicate == "eq" else not equal
