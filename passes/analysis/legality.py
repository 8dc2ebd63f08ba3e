"""Which loops may run several iterations at a time, as the lanes of vectors."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import AnyFloat, IndexType, IntegerType
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects.combiners import COMBINERS, element_type
from tilewright.dialects.loop import LoadOp, Loop, NestOp, RandomOp, ReduceOp, ScanOp, StoreOp

MIN_LANES = 4
"""Fewer lanes than this are not worth a vector."""


def slot_groups(op: ReduceOp) -> Iterator[tuple[str, slice]]:
    """Yield each combiner of a reduction with the positions of its slots."""
    at = 0
    for name in op.names:
        arity = COMBINERS[name].arity
        yield name, slice(at, at + arity)
        at += arity


def dependents(loop: Loop, position: int) -> set[SSAValue]:
    """Return the values in the body of `loop` that differ between iterations of one of its loops, its index value
    included.

    The results of `loop` itself are not among them.
    """
    found: set[SSAValue] = {loop.indices[position]}
    _add_dependents(loop.block, found)
    return found


def _add_dependents(block: Block, found: set[SSAValue]) -> None:
    for op in block.ops:
        if isinstance(op, Loop):
            _add_dependents(op.block, found)
        if isinstance(op, ReduceOp):
            yielded = op.yielded.values
            for _, slots in slot_groups(op):
                if any(v in found for v in (*yielded[slots], *op.init[slots])):
                    found.update(op.results_[slots])
        elif any(v in found for v in op.operands):
            found.update(op.results)


def why_not(loop: Loop, position: int, found: set[SSAValue]) -> str | None:
    """Return why the iterations of a loop cannot be lanes, None if they can. `found` are its `dependents`."""
    this = loop.loops.dims[position]
    if loop.lanes is not None or this.step != 1:
        return "the loop has a step already"
    if isinstance(loop, NestOp) and loop.results:
        return "the nest is not on buffers yet"
    if isinstance(loop, ReduceOp) and loop.ordered is not None:
        return "an ordered reduction combines one element after the other"
    if isinstance(loop, ScanOp):
        return "the iterations of a scan run in order"
    for op in loop.block.walk():
        reason = _why_not_op(op, found)
        if reason is not None:
            return reason
    return None


def _why_not_op(op: Operation, found: set[SSAValue]) -> str | None:
    if isinstance(op, Loop):
        if op.lanes is not None:
            return "an inner loop has lanes already"
        if any(v in found for v in op.bound_operands):
            return "the bounds of an inner loop differ between lanes"
    elif isinstance(op, StoreOp):
        if op.combine is not None and not is_in_scan(op):
            return "a store that combines takes one element at a time"
        if not any(v in found for v in op.indices):
            return "a store does not move with the loop"
    elif isinstance(op, LoadOp) and op.mask in found and not any(v in found for v in op.indices):
        return "the mask of a load differs between lanes but its element does not"
    elif isinstance(op, RandomOp) and (op.seed in found or op.stream in found):
        return "the seed of a random number differs between lanes"
    for result in op.results:
        if result in found and not isinstance(element_type(result.type), (AnyFloat, IntegerType, IndexType)):
            return f"there are no vectors of {result.type}"
    return None


def is_in_scan(op: Operation) -> bool:
    """Whether `op` is inside a `loop.scan`: there no two parallel iterations store to the same element."""
    around = op.parent_op()
    while isinstance(around, Loop):
        if isinstance(around, ScanOp):
            return True
        around = around.parent_op()
    return False


def is_leaf(loop: Loop) -> bool:
    """Whether no loop is inside `loop`."""
    return not any(isinstance(op, Loop) for op in loop.block.ops)
