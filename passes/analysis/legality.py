"""Which loops may run several iterations at a time: as the lanes of vectors, or as the points of a block.

The question is the same for all targets but for what a target's instructions can do (`Abilities`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from xdsl.dialects.builtin import AnyFloat, IndexType, IntegerType
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tilewright.dialects.combiners import COMBINERS, element_type
from tilewright.dialects.loop import ApplyOp, LoadOp, Loop, NestOp, RandomOp, ReduceOp, ScanOp, StoreOp


@dataclass(frozen=True)
class Abilities:
    """What a target can do for several iterations at a time."""

    combine: bool
    """Store to memory what is combined with what is there, atomically."""
    mask_one: bool
    """Load one element for all iterations for which a mask is true."""
    prefix: bool
    """Combine the values of iterations with those before them: a scan."""


LANES = Abilities(combine=False, mask_one=False, prefix=False)
"""The vector instructions of a CPU."""

BLOCKS = Abilities(combine=True, mask_one=True, prefix=True)
"""The threads of a GPU that work on one block."""

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


def why_not(loop: Loop, position: int, found: set[SSAValue], target: Abilities = LANES) -> str | None:
    """Return why a target cannot take iterations of a loop together, None if it can. `found` are its `dependents`."""
    this = loop.loops.dims[position]
    if loop.lanes is not None or this.step != 1:
        return "the loop has a step already"
    if isinstance(loop, NestOp) and loop.results:
        return "the nest is not on buffers yet"
    if isinstance(loop, ReduceOp) and loop.ordered is not None:
        return "an ordered reduction combines one element after the other"
    if isinstance(loop, ScanOp) and not (target.prefix and has_prefixes_only(loop)):
        return "the iterations of a scan run in order"
    for op in loop.block.walk():
        reason = _why_not_op(op, found, target)
        if reason is not None:
            return reason
    return None


def _why_not_op(op: Operation, found: set[SSAValue], target: Abilities) -> str | None:
    if isinstance(op, Loop):
        if op.lanes is not None:
            return "an inner loop has lanes already"
        if any(v in found for v in op.bound_operands):
            return "the bounds of an inner loop differ between lanes"
    elif isinstance(op, StoreOp):
        if op.combine is not None and not target.combine and not is_in_scan(op):
            return "a store that combines takes one element at a time"
        if not any(v in found for v in op.indices):
            return "a store does not move with the loop"
    elif isinstance(op, LoadOp) and op.mask in found and not (target.mask_one or any(v in found for v in op.indices)):
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


def has_prefixes_only(loop: ScanOp) -> bool:
    """Whether the iterations of a scan have nothing of each other but by `loop.prefix`.

    Where positions are data, two iterations may store to the same one, and the later one counts.
    """
    if not is_leaf(loop) or len(loop.steps) != 1:
        return False
    loaded = {op.source for op in loop.block.ops if isinstance(op, LoadOp)}
    stores = [op for op in loop.block.ops if isinstance(op, StoreOp)]
    return all(op.combine is None and op.target not in loaded and _is_of_loops(op.indices) for op in stores)


def _is_of_loops(values: Iterable[SSAValue]) -> bool:
    """Whether index values are those of loops, or computed from these alone."""
    return all(
        isinstance(v, BlockArgument) or (isinstance(v.owner, ApplyOp) and _is_of_loops(v.owner.indices)) for v in values
    )


def is_leaf(loop: Loop) -> bool:
    """Whether no loop is inside `loop`."""
    return not any(isinstance(op, Loop) for op in loop.block.ops)
