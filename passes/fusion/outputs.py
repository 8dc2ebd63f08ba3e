"""One result instead of several equal ones that a merged nest computes."""

from __future__ import annotations

from collections.abc import Hashable

from xdsl.ir import SSAValue

from tilewright.dialects.call_syntax import OperatorCall
from tilewright.dialects.loop import AfterOp, LoadOp, NestOp, StoreOp
from tilewright.dialects.loop_canonicalize import drop_unused_outputs
from tilewright.passes.analysis.aliasing import call_memory


def share_equal_outputs(nest: NestOp) -> NestOp:
    """Let the uses of a result that equals an earlier one read that, and drop it; return the nest that is left.

    A tensor that is returned, written or viewed has an identity of its own and stays.
    """
    first: dict[Hashable, SSAValue] = {}
    for result, destination in zip(nest.outputs, nest.destinations, strict=True):
        key = _stored(destination)
        if key is None:
            continue
        equal = first.setdefault((result.type, *key), result)
        if equal is not result and all(_only_reads(use.operation, use.index) for use in result.uses):
            result.replace_all_uses_with(equal)
    return drop_unused_outputs(nest)


def _stored(destination: SSAValue) -> tuple[Hashable, ...] | None:
    """Return what is stored to a destination and where, if a single store is all that uses it."""
    use = destination.get_unique_use()
    if use is None or not isinstance(use.operation, StoreOp):
        return None
    store = use.operation
    if store.mask is not None or store.combine is not None:
        return None
    return store.value, store.access, tuple(store.indices)


def _only_reads(user: object, index: int) -> bool:
    """Whether an operation reads the tensor that is its operand `index`, and no result shares its memory."""
    if isinstance(user, OperatorCall):
        memory = call_memory(user)
        return index not in memory.writes and all(index not in shared for shared in memory.shares)
    return isinstance(user, LoadOp) or (isinstance(user, AfterOp) and index > 0)
