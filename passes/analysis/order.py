"""Which operations of a program must keep their order, and what has to move so that two of them can become one."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import aten_schema
from tilewright.dialects.call_syntax import OperatorCall
from tilewright.dialects.loop import ViewOp
from tilewright.passes.analysis.aliasing import AliasSets, call_memory

# Stands for the state that random operators move on, and for whatever else operators without a schema touch.
_WORLD = "world"

_Place = SSAValue | str


def statement_of(op: Operation, block: Block) -> Operation | None:
    """Return the operation of `block` that is or contains `op`; None if there is none."""
    found: Operation | None = op
    while found is not None and found.parent is not block:
        found = found.parent_op()
    return found


class ProgramOrder:
    """The operations of one block in order, with what makes a later one depend on an earlier one: values, writes to memory
    that another reads or writes, and random numbers.

    On tensors only calls write, so all else is free to move as far as its values allow.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self._position = {op: i for i, op in enumerate(block.ops)}
        self._after: dict[Operation, list[Operation]] = {}
        self._became: dict[Operation, Operation] = {}
        self._order_effects()

    def is_before(self, first: Operation, second: Operation) -> bool:
        """Whether `first` stands before `second`."""
        return self._position[first] < self._position[second]

    def distance(self, first: Operation, second: Operation) -> int:
        """Return how far `second` stands behind `first`, counted when the block was first seen."""
        return self._position[second] - self._position[first]

    def movers(self, first: Operation, second: Operation) -> list[Operation] | None:
        """Return what depends on `first` and stands before `second`, in order: it has to move behind `second` if the two
        become one there. None if `second` depends on some of it."""
        limit = self._position[second]
        found: set[Operation] = set()
        pending = [first]
        while pending:
            op = pending.pop()
            for user in self._successors(op):
                if user is second:
                    if op is not first:
                        return None
                elif user not in found and self._position[user] < limit:
                    found.add(user)
                    pending.append(user)
        return sorted(found, key=self._position.__getitem__)

    def join(self, first: Operation, second: Operation, joined: Operation, movers: list[Operation]) -> None:
        """Record that `first` and `second` have become `joined`, which stands where `second` stood, and move `movers` behind it.

        `first` may be gone already, or be erased after this.
        """
        start, end = self._position.pop(first), self._position.pop(second)
        places = sorted([start, end, *(self._position[m] for m in movers)])
        # What does not move keeps its place; the places of what moves, and the two that were, are given out again.
        self._position[joined] = end
        if movers:
            places = self._compact(joined, movers, end)
        self._became[first] = self._became[second] = joined
        self._after[joined] = self._after.pop(first, []) + self._after.pop(second, [])
"""draft"""
