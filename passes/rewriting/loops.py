"""Take loops apart: a loop of one iteration becomes its body, and one loop of a nest two."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects.combiners import COMBINERS
from tilewright.dialects.loop import Bounds, ForOp, LoopDim, NestOp, PrefixOp, ReduceOp, ScanOp, StoreOp
from tilewright.dialects.sym_expr import Expr
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.rewriting.indices import IndexRewriter
from tilewright.passes.rewriting.rebuild import set_loops


def move_ops(ops: Iterable[Operation], block: Block, before: Operation | None = None) -> None:
    """Move operations to the end of `block`, or in front of one of its operations."""
    for op in list(ops):
        op.detach()
        if before is None:
            block.add_op(op)
        else:
            block.insert_op_before(op, before)


def inline_for(loop: ForOp | ScanOp) -> Operation | None:
    """Put the body of a `loop.for` without loops in its place; return the first operation there."""
    parent = loop.parent
    assert parent is not None
    first = loop.block.first_op
    move_ops(loop.block.ops, parent, before=loop)
    after = loop.next_op
    loop.detach()
    loop.erase()
    return after if first is None else first


def inline_scan(loop: ScanOp) -> Operation | None:
    """Put the body of a `loop.scan` without loops in its place: one iteration, with none before it.

    A scan with a store that combines stays, since outside of one such a store is atomic.
    """
    if any(isinstance(op, StoreOp) and op.combine is not None for op in loop.body.walk()):
        return loop
    for op in [op for op in loop.block.ops if isinstance(op, PrefixOp)]:
        for result, value in zip(op.outputs, op.inputs, strict=True):
            result.replace_all_uses_with(value)
        op.detach()
        op.erase()
    return inline_for(loop)


def inline_reduce(loop: ReduceOp) -> Operation | None:
    """Put the body of a `loop.reduce` without loops in its place: one iteration, combined with the start values."""
    parent = loop.parent
    assert parent is not None
    first = loop.block.first_op
    values = list(loop.yielded.values)
    last = loop.yielded
    last.detach()
    last.erase()
    move_ops(loop.block.ops, parent, before=loop)

    def emit(op: Operation) -> SSAValue:
        op.location = loop.location
        parent.insert_op_before(op, loop)
        return op.results[0]

    combined: list[SSAValue] = []
    for name in loop.names:
        combiner = COMBINERS[name]
        slots = slice(len(combined), len(combined) + combiner.arity)
        kinds = [v.type for v in values[slots]]
        init = list(loop.init[slots]) or [emit(arith.ConstantOp(c)) for c in combiner.identity(kinds)]
        combined += combiner.combine(emit, init, values[slots])
    for result, value in zip(loop.results_, combined, strict=True):
        result.replace_all_uses_with(value)
    after = loop.next_op
    loop.detach()
    loop.erase()
    return after if first is None or first is last else first


def split_outer_loop(nest: NestOp, position: int, groups: Expr, size: Expr, names: IndexNames) -> None:
    """Make two loops of one of `nest`, which counts from 0 to `groups * size` by one: over groups, and inside them."""
    bounds, old = nest.loops, nest.indices[position]
    group, inner = (nest.block.insert_arg(IndexType(), position + i) for i in range(2))
    group.name_hint = inner.name_hint = old.name_hint
    rule = size * names.symbol(group) + names.symbol(inner)
    IndexRewriter(names, {names.symbol(old): rule}, nest.block).replace(old)
    nest.block.erase_arg(nest.block.args[position + 2])
    dims = list(bounds.dims)
    dims[position : position + 1] = [LoopDim.extent(groups), LoopDim.extent(size)]
    set_loops(nest, Bounds(tuple(dims), bounds.operands))
