"""Which operations of a program must keep their order, and what has to move so that two of them can become one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from xdsl.ir import Block, Operation

from tilewright.dialects import aten_schema
from tilewright.dialects.call_syntax import OperatorCall
from tilewright.dialects.loop_order import waiting


def statement_of(op: Operation, block: Block) -> Operation:
    """Return the operation of `block` that is or contains `op`."""
    found = op
    while found.parent is not block:
        parent = found.parent_op()
        assert parent is not None, "the operation is outside the block"
        found = parent
    return found


class ProgramOrder:
    """The operations of one block in order, with what makes a later one depend on an earlier one.

    That is: values, among them those of `loop.after`, which puts reads and writes of one memory in order, and the state
    of the world, which calls change. All else is free to move as far as its values allow.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self._position = {op: i for i, op in enumerate(block.ops)}
        calls: list[Operation] = [op for op in block.ops if isinstance(op, OperatorCall) and _touches_the_world(op)]
        self._next_call = dict(pairwise(calls))

    def position(self, op: Operation) -> int:
        """Return a number that is smaller for what stands earlier."""
        return self._position[op]

    def distance(self, first: Operation, second: Operation) -> int:
        """Return how far behind `first` stands `second`."""
        return self._position[second] - self._position[first]

    def movers(self, first: Operation, second: Operation) -> list[Operation] | None:
        """Return what has to move behind `second`, in order, if `first` and `second` become one operation there.

        It is what depends on `first` and stands before `second`. None if `second` depends on some of it.
        """
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

    def move_behind(self, movers: list[Operation], first: Operation, second: Operation) -> None:
        """Move what stands between `first` and `second` and is in `movers` behind `second`, in order."""
        if not movers:
            return
        moved = set(movers)
        between: list[Operation] = []
        op = first.next_op
        while op is not second:
            assert op is not None, "`first` stands before `second`"
            between.append(op)
            op = op.next_op
        # The places stay, what stands there changes.
        places = [self._position[op] for op in (*between, second)]
        staying = [op for op in between if op not in moved]
        self._position.update(zip((*staying, second, *movers), places, strict=True))
        last = second
        for op in movers:
            op.detach()
            self.block.insert_op_after(op, last)
            last = op

    def join(self, first: Operation, second: Operation, joined: Operation) -> None:
        """Record that `joined` does what `first` and `second` did, in the place of `second`."""
        del self._position[first]
        self._position[joined] = self._position.pop(second)

    def may_run_at(self, first: Operation, second: Operation) -> bool:
        """Whether `first` could as well run at `second`: nothing in between waits for it, to change what it reads."""
        return all(self.distance(second, after) > 0 for after in waiting(first.results))

    def absorb(self, first: Operation, second: Operation) -> None:
        """Record that `second` does for itself what `first` did: what waits for one waits for the other too."""
        for after in waiting(first.results):
            after.set_before([*after.before, *second.results[:1]])

    def forget(self, op: Operation) -> None:
        """Record that `op`, which had no effects, is about to go: nothing waits for it."""
        del self._position[op]
        for after in waiting(op.results):
            after.set_before(v for v in after.before if v.owner is not op)

    def _successors(self, op: Operation) -> Iterator[Operation]:
        for result in op.results:
            for use in result.uses:
                yield statement_of(use.operation, self.block)
        following = self._next_call.get(op)
        if following is not None:
            yield following


def _touches_the_world(call: OperatorCall) -> bool:
    """Whether a call changes more than its operands: it has an effect, or nobody knows what it does."""
    schema = aten_schema.lookup(call.operator)
    return schema is None or schema.has_effect
