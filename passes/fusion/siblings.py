"""Loops next to each other inside a nest, with equal bounds, become one: each row is then read once.

Two reductions become one with both combiners; a `loop.for` joins a reduction, which then stores as it goes. What the
second loop reads of what the first stored must be the element of the same iteration: it is the value itself afterwards.

On a GPU, a loop also joins a running sum or the like. On a CPU, that one takes one element after the other, and what is
apart from it many at a time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects.combiners import COMBINERS
from tilewright.dialects.loop import (
    Bounds,
    ForOp,
    LoadOp,
    Loop,
    NestOp,
    ReduceOp,
    ScanOp,
    StoreOp,
    YieldOp,
    layout_of,
)
from tilewright.dialects.sym_expr import Expr
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.analysis.legality import has_prefixes_only, is_leaf
from tilewright.passes.rewriting.loops import move_ops
from tilewright.passes.rewriting.origins import fuse_locations


@dataclass
class _Statement:
    """What one operation of a block takes from outside of itself."""

    values: set[SSAValue]
    loaded: set[SSAValue]
    stored: set[SSAValue]
    combined: set[SSAValue]
    """Tensors among those stored whose elements are combined with what is there."""

    @staticmethod
    def of(op: Operation) -> _Statement:
        statement = _Statement(set(), set(), set(), set())
        for inner in op.walk():
            statement.values.update(inner.operands)
            if isinstance(inner, LoadOp):
                statement.loaded.add(inner.source)
            elif isinstance(inner, StoreOp):
                statement.stored.add(inner.target)
                if inner.combine is not None:
                    statement.combined.add(inner.target)
        return statement


def merge_sibling_loops(nest: NestOp, names: IndexNames) -> bool:
    """Merge what can be merged at every depth of `nest`; return whether anything was."""
    on_gpu = any(layout_of(output.type).device_kind == "cuda" for output in nest.outputs)
    return _merge_in(nest.block, names, (ForOp, ReduceOp, ScanOp) if on_gpu else (ForOp, ReduceOp))


def _merge_in(block: Block, names: IndexNames, kinds: tuple[type[Loop], ...]) -> bool:
    latest: dict[Hashable, Loop] = {}
    changed = False
    for loop in [op for op in block.ops if isinstance(op, kinds)]:
        merged = loop
        key = _key(loop)
        earlier = latest.get(key)
        if earlier is not None and _are_alike(earlier, loop):
            behind = _movers(earlier, loop, names)
            if behind is not None:
                merged = _merge(earlier, loop)
                for op in reversed(behind):
                    op.detach()
                    block.insert_op_after(op, merged)
                changed = True
        latest[key] = merged
    for op in block.ops:
        if isinstance(op, Loop):
            changed |= _merge_in(op.block, names, kinds)
    return changed


def _are_alike(first: Loop, second: Loop) -> bool:
    """Whether one loop can be both: a running sum has no results, and stays one with straight-line code alone."""
    parts = (first, second)
    if not any(isinstance(p, ScanOp) for p in parts):
        return True
    return all(has_prefixes_only(p) if isinstance(p, ScanOp) else isinstance(p, ForOp) and is_leaf(p) for p in parts)


def _key(loop: Loop) -> Hashable:
    ordered = isinstance(loop, ReduceOp) and loop.ordered is not None
    return loop.bounds, tuple(loop.bound_operands), loop.steps, loop.lanes, loop.masked, ordered


def _movers(first: Loop, second: Loop, names: IndexNames) -> list[Operation] | None:
    """Return what has to move behind `second` for `first` to join it there; None if they cannot, or need not."""
    one, other = _Statement.of(first), _Statement.of(second)
    if not (one.loaded | one.stored) & other.loaded:
        return None
    if one.stored & other.combined or one.combined & (other.stored | other.loaded):
        return None
    results, stored = set(first.results), set[SSAValue]()
    moved: list[Operation] = []
    op = first.next_op
    while op is not second:
        assert op is not None, "`first` stands before `second`"
        between = _Statement.of(op)
        touched = one.stored | stored
        if between.values & results or between.loaded & touched or between.combined & touched:
            moved.append(op)
            results.update(op.results)
            stored |= between.stored
        op = op.next_op
    if other.values & results or other.loaded & stored or other.combined & stored:
        return None
    return moved if _reads_same_iteration(first, second, one.stored & other.loaded, names) else None


def _reads_same_iteration(first: Loop, second: Loop, tensors: set[SSAValue], names: IndexNames) -> bool:
    """Whether `second` reads of `tensors`, which `first` stores, only the elements of its own iteration."""
    stored = {_element(op.target, op, names) for op in first.block.ops if isinstance(op, StoreOp) and op.mask is None}
    rename: dict[Expr, Expr] = {
        names.symbol(b): names.symbol(a) for a, b in zip(first.indices, second.indices, strict=True)
    }
    for op in second.body.walk():
        if isinstance(op, LoadOp) and op.source in tensors:
            tensor, exprs = _element(op.source, op, names)
            if op.mask is not None or (tensor, tuple(e.xreplace(rename) for e in exprs)) not in stored:
                return False
    return True


def _element(tensor: SSAValue, op: LoadOp | StoreOp, names: IndexNames) -> tuple[SSAValue, tuple[Expr, ...]]:
    return tensor, names.exprs(op.access, op.indices)


def _merge(first: Loop, second: Loop) -> Loop:
    """Make one loop of two in the place of `second`, the body of `first` in front."""
    block = second.parent
    assert block is not None
    parts = (first, second)
    reductions = [p for p in parts if isinstance(p, ReduceOp)]
    merged: Loop
    if reductions:
        merged = _reduction(first.loops, reductions, second, block)
    else:
        merged = (ScanOp if any(isinstance(p, ScanOp) for p in parts) else ForOp).get(first.loops)
    merged.location = fuse_locations(first.location, second.location)
    block.insert_op_before(merged, second)
    values: list[SSAValue] = []
    for part in parts:
        for old, new in zip(part.indices, merged.indices, strict=True):
            new.name_hint = old.name_hint
            old.replace_all_uses_with(new)
        if isinstance(part, ReduceOp):
            end = part.yielded
            values += end.values
            end.detach()
            end.erase()
        move_ops(part.block.ops, merged.block)
    if reductions:
        merged.block.add_op(YieldOp.get(*values))
    old_results = [r for p in reductions for r in p.results_]
    for old, new in zip(old_results, merged.results, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    for part in parts:
        part.detach()
        part.erase()
    return merged


def _reduction(bounds: Bounds, parts: list[ReduceOp], at: Loop, block: Block) -> ReduceOp:
    """Return an empty reduction with the combiners of all `parts`; constants to start from go in front of `at`."""
    init: list[SSAValue] = []
    if any(p.init for p in parts):
        for part in parts:
            init += part.init or _identities(part, at, block)
    return ReduceOp.get(
        [name for p in parts for name in p.names],
        bounds,
        [r.type for p in parts for r in p.results_],
        init=init,
        ordered=any(p.ordered is not None for p in parts),
    )


def _identities(part: ReduceOp, at: Loop, block: Block) -> list[SSAValue]:
    values: list[SSAValue] = []
    for name in part.names:
        combiner = COMBINERS[name]
        kinds = [r.type for r in part.results_[len(values) : len(values) + combiner.arity]]
        for constant in combiner.identity(kinds):
            op = arith.ConstantOp(constant)
            block.insert_op_before(op, at)
            values.append(op.result)
    return values
