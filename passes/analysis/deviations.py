"""Reductions of how far elements are from a value that a sum of the same elements gives, such as their mean."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Operation, SSAValue

from tilewright.dialects.loop import CheckOp, ReduceOp, StoreOp

_SUM = "sum"


@dataclass(frozen=True)
class Deviations:
    """`sum(x)`, and behind it sums of `x - c` and of its square, where `c` comes of the first."""

    total: ReduceOp
    sums: ReduceOp
    center: SSAValue
    """The value c."""
    squared: tuple[bool, ...]
    """For each result of `sums`, whether it is of squares."""


def deviations_of(total: ReduceOp) -> Deviations | None:
    """Return the reduction of deviations that belongs to the sum `total`; None if there is not just one."""
    if total.names != [_SUM] or total.init or not isinstance(total.results_[0].type, AnyFloat):
        return None
    found: list[Deviations] = []
    op = total.next_op
    while op is not None:
        if isinstance(op, ReduceOp):
            one = _match(total, op)
            if one is not None:
                found.append(one)
        op = op.next_op
    return found[0] if len(found) == 1 else None


def _match(total: ReduceOp, sums: ReduceOp) -> Deviations | None:
    if set(sums.names) != {_SUM} or sums.init or sums.bounds != total.bounds or sums.steps != total.steps:
        return None
    if tuple(sums.bound_operands) != tuple(total.bound_operands):
        return None
    if any(op.regions or isinstance(op, (StoreOp, CheckOp)) for op in sums.block.ops):
        return None
    squared: list[bool] = []
    center: SSAValue | None = None
    same = _Sameness(total, sums)
    for value in sums.yielded.values:
        factor = value.owner
        is_square = isinstance(factor, arith.MulfOp) and factor.lhs is factor.rhs
        distance = (factor.lhs if isinstance(factor, arith.MulfOp) and is_square else value).owner
        if not isinstance(distance, arith.SubfOp) or not same.holds(total.yielded.values[0], distance.lhs):
            return None
        owner = distance.rhs.owner
        if distance.rhs is not (distance.rhs if center is None else center) or not isinstance(owner, Operation):
            return None
        if owner.parent is not total.parent:
            return None
        center = distance.rhs
        squared.append(is_square)
    if center is None or not any(squared):
        return None
    return Deviations(total, sums, center, tuple(squared))


class _Sameness:
    """Tells whether values in the bodies of two reductions over equal loops are the same in each iteration."""

    def __init__(self, first: ReduceOp, second: ReduceOp) -> None:
        self._bodies = first.block, second.block
        self._known: dict[tuple[SSAValue, SSAValue], bool] = dict.fromkeys(
            zip(first.indices, second.indices, strict=True), True
        )

    def holds(self, a: SSAValue, b: SSAValue) -> bool:
        """Whether `a`, in the body of the first, is what `b` is in that of the second."""
        known = self._known.get((a, b))
        if known is None:
            known = self._known[a, b] = self._are_alike(a, b)
        return known

    def _are_alike(self, a: SSAValue, b: SSAValue) -> bool:
        one, other = a.owner, b.owner
        if not isinstance(one, Operation) or not isinstance(other, Operation):
            return a is b
        if (one.parent, other.parent) != self._bodies:
            return a is b
        return (
            one.name == other.name
            and not one.regions
            and a.type == b.type
            and one.properties == other.properties
            and one.attributes == other.attributes
            and len(one.operands) == len(other.operands)
            and one.results.index(a) == other.results.index(b)
            and all(self.holds(x, y) for x, y in zip(one.operands, other.operands, strict=True))
        )
