"""Means and squared deviations in one pass over memory: those of groups of elements, and of all from these.

A group is read once: with `k`, the mean of its first elements, in place of a mean that is not known yet, its sums of
`x - k` and `(x - k)^2` give its mean and its squared deviations (Chan, Golub and LeVeque, Algorithms for computing the
sample variance, 1983: shifted data). As the first elements are a share `f` of those of the group, `k` is no more than
`f^-1/2` deviations from the mean, whatever the data, so the difference that is taken loses at most a factor `1/f`.

But `x - k` has an error of as much as `x` or `k` has, and one that is the same for all `x` that are alike, as half
precision ones are: it does not average out, and is large beside a mean near 0. So if the mean of the first elements is
at most half of that of their magnitudes, `k` is 0, and the mean is that of a plain sum. The first elements are then on
average at least as far from their mean as that is from 0, so the mean of the group is no more than `2 f^-1/2`
deviations from 0, and the loss at most `4/f`; that of a normal distribution is a factor of 1.2.

From the mean `m = k + r` of a group of `n` elements, and their squared deviations `q`, the sums over all elements
follow without a difference of large numbers: `x` sums up to `n * m`, `x - c` to `n * d`, `(x - c)^2` to `q + n * d^2`,
where `d` is the distance of `m` from `c`. That is `(k - c) + r`: a mean far from 0 is rounded by an amount that counts
beside `d`, so `k` and `r` are kept apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, FloatAttr, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tilewright.dialects.loop import ApplyOp, Bounds, CastOp, CmpOp, IntrinsicOp, NestOp, ReduceOp, SelectOp, YieldOp
from tilewright.dialects.sym_expr import Expr, Max, Min, integer
from tilewright.passes.analysis.deviations import Deviations
from tilewright.passes.analysis.sizes import SizeHints
from tilewright.passes.rewriting.partial_results import PartialNest, Split

_SHARE = 64
"""One element of so many of a group goes into the mean of its first elements."""

_LEAST_ALONG, _LEAST_ACROSS = 1024, 16
"""How many these are at least: a block along memory, rows across it."""


def split_moments(
    nest: NestOp, found: Deviations, before: Sequence[Operation], split: Split, hints: SizeHints
) -> list[ReduceOp]:
    """Compute what `found` says in one pass over groups; return the reductions that put it together from them.

    `before` is what the body of the first reduction needs of `nest`, which stands behind the new nest.
    """
    total = found.total
    kind = total.results_[0].type
    assert isinstance(kind, AnyFloat)
    partial = PartialNest(nest, total, [kind, kind, kind], split)
    partial.copy(before)
    lengths = _first_elements(total, split, hints)
    near = _near_mean(partial, total, lengths, kind)
    partial.store([near, *_moments(partial, total, near, kind)])
    Rewriter.insert_op(partial.op, InsertPoint.before(nest))
    return [_combine(nest, partial, total, None), _combine(nest, partial, found.sums, found)]


def _first_elements(total: ReduceOp, split: Split, hints: SizeHints) -> list[Expr]:
    """Return how many first iterations of each loop go into what takes the place of the mean."""
    extents = [split.length if i == split.position else d.upper for i, d in enumerate(total.loops.dims)]
    extents[: len(split.outer)] = [integer(1)] * len(split.outer)
    left = max(_LEAST_ACROSS if split.across else _LEAST_ALONG, prod(hints.value(e) for e in extents) // _SHARE)
    lengths: list[Expr] = []
    for extent in reversed(extents):
        lengths.insert(0, Min(integer(left), extent))
        left = max(1, left // max(1, hints.value(extent)))
    return lengths


@dataclass(frozen=True)
class _Emitter:
    """Adds operations to the end of a block."""

    block: Block
    kind: AnyFloat

    def emit(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]

    def constant(self, value: float) -> SSAValue:
        return self.emit(arith.ConstantOp(FloatAttr(value, self.kind)))

    def number(self, expr: Expr, group: SSAValue) -> SSAValue:
        """Emit an expression over the group `d0` as a float."""
        if expr.is_Integer:
            return self.constant(float(int(expr)))
        index = self.emit(ApplyOp.get(expr, [group]))
        return self.emit(CastOp.get(self.emit(CastOp.get(index, i64)), self.kind))

    def is_finite(self, value: SSAValue) -> SSAValue:
        """Emit whether a value is a number, and not infinite: the difference of others to themselves is NaN."""
        return self.emit(CmpOp.get("eq", self.emit(arith.SubfOp(value, value)), self.constant(0.0)))


def _count(total: ReduceOp, split: Split, lengths: Sequence[Expr] | None = None) -> Expr:
    """Return how many elements a group has, or how many of the first iterations of each loop; `d0` is the group."""
    count = integer(1)
    for i, this in enumerate(total.loops.dims):
        most = None if lengths is None else lengths[i]
        if i < len(split.outer):
            continue
        if i != split.position:
            count = count * (this.upper if most is None else most)
        elif split.whole:
            count = count * (split.length if most is None else most)
        else:
            count = count * Max(split.end(this.upper, most) - split.start, integer(0))
    return count


def _near_mean(partial: PartialNest, total: ReduceOp, lengths: Sequence[Expr], kind: AnyFloat) -> SSAValue:
    """Emit the mean of the first elements of a group, or 0: if it is far smaller than these, or is not finite.

    An infinity of the first elements is no reason for the others to be NaN.
    """
    reduce, values = partial.reduction(total, [*total.names, *total.names], [kind, kind], lengths)
    reduce.block.add_ops([op.clone(values) for op in total.block.ops if op is not total.yielded])
    inner = _Emitter(reduce.block, kind)
    element = total.yielded.values[0]
    element = values.get(element, element)
    reduce.block.add_op(YieldOp.get(element, inner.emit(math.AbsFOp(element))))
    partial.shift_index(reduce)
    e = _Emitter(partial.op.block, kind)
    first, magnitudes = reduce.results
    count = Max(_count(total, partial.split, lengths), integer(1))
    mean = e.emit(arith.DivfOp(first, e.number(count, partial.group)))
    twice = e.emit(math.AbsFOp(e.emit(arith.AddfOp(first, first))))
    is_far = e.emit(CmpOp.get("gt", twice, magnitudes))  # not if the sums are infinite or NaN
    near = e.emit(SelectOp.get(is_far, mean, e.constant(0.0)))
    near.name_hint = "near"
    return near


def _moments(partial: PartialNest, total: ReduceOp, near: SSAValue, kind: AnyFloat) -> list[SSAValue]:
    """Emit how far the mean of a group is from `near`, and the sum of its squared deviations."""
    kinds: list[Attribute] = [kind, kind]
    reduce, values = partial.reduction(total, [*total.names, *total.names], kinds)
    reduce.block.add_ops([op.clone(values) for op in total.block.ops if op is not total.yielded])
    inner = _Emitter(reduce.block, kind)
    element = total.yielded.values[0]
    distance = inner.emit(arith.SubfOp(values.get(element, element), near))
    reduce.block.add_op(YieldOp.get(distance, inner.emit(arith.MulfOp(distance, distance))))
    partial.shift_index(reduce)
    e = _Emitter(partial.op.block, kind)
    rest, squares = reduce.results
    count = Max(_count(total, partial.split), integer(1))
    offset = e.emit(arith.DivfOp(rest, e.number(count, partial.group)))
    around = e.emit(arith.SubfOp(squares, e.emit(arith.MulfOp(rest, offset))))
    zero = e.constant(0.0)
    # Where the squares of finite numbers are too large, so is their sum; the difference may be of two infinities.
    around = e.emit(SelectOp.get(e.emit(CmpOp.get("lt", around, zero)), zero, around))
    is_large = e.emit(arith.AndIOp(e.emit(IntrinsicOp.get("isinf", squares)), e.is_finite(rest)))
    around = e.emit(SelectOp.get(is_large, squares, around))
    offset.name_hint, around.name_hint = "offset", "around"
    return [offset, around]


def _combine(nest: NestOp, partial: PartialNest, old: ReduceOp, found: Deviations | None) -> ReduceOp:
    """Replace a reduction by one of what its groups contribute: the sum of all elements, or `found`'s sums."""
    split = partial.split
    combine = ReduceOp.get(old.names, Bounds.extents([split.groups]), [r.type for r in old.results_])
    combine.location = old.location
    (group,) = combine.indices
    group.name_hint = "g"
    kind = old.results_[0].type
    assert isinstance(kind, AnyFloat)
    e = _Emitter(combine.block, kind)
    near, offset = (e.emit(partial.load(i, nest.indices, group)) for i in range(2))
    count = e.number(_count(old, split), group)
    if found is None:
        yielded = [e.emit(arith.MulfOp(count, e.emit(arith.AddfOp(near, offset))))]
    else:
        distance = e.emit(arith.AddfOp(e.emit(arith.SubfOp(near, found.center)), offset))
        along = e.emit(arith.MulfOp(count, distance))
        around = e.emit(partial.load(2, nest.indices, group))
        square = e.emit(arith.AddfOp(around, e.emit(arith.MulfOp(along, distance))))
        yielded = [square if is_square else along for is_square in found.squared]
    combine.block.add_op(YieldOp.get(*yielded))
    for before, after in zip(old.results, combine.results, strict=True):
        after.name_hint = before.name_hint
    Rewriter.replace_op(old, combine)
    return combine
