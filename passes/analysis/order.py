"""Which operations of a program must keep their order, and what has to move so that two of them can become one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from xdsl.ir import Block, Operation

from tilewright.dialects import aten_schema
from tilewright.dialects.call_syntax import OperatorCall
from tilewright.passes.analysis.aliasing import call_memory, tensor_alias_sets


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

    That is: values, writes to memory that another reads or writes, and the state of random generators. On tensors only
    calls write, so all else is free to move as far as its values allow.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self._position = {op: i for i, op in enumerate(block.ops)}
        self._became: dict[Operation, list[Operation]] = {}
        self._after = _effect_edges(block)

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
        self._became[first] = self._became[second] = [joined]
        self._after[joined] = self._after.pop(first, []) + self._after.pop(second, [])

    def may_run_at(self, first: Operation, second: Operation) -> bool:
        """Whether `first` could as well run at `second`: nothing in between changes what it reads."""
        return all(self.distance(second, other) >= 0 for other in self._ordered_behind(first))

    def absorb(self, first: Operation, second: Operation) -> None:
        """Record that `second` does for itself what `first` did, which is about to go."""
        self._became.setdefault(first, []).append(second)
        self._after.setdefault(second, []).extend(self._after.get(first, ()))

    def forget(self, op: Operation) -> None:
        """Record that `op`, which had no effects, is gone."""
        del self._position[op]

    def _successors(self, op: Operation) -> Iterator[Operation]:
        for result in op.results:
            for use in result.uses:
                yield statement_of(use.operation, self.block)
        yield from self._ordered_behind(op)

    def _ordered_behind(self, op: Operation) -> Iterator[Operation]:
        pending = list(self._after.get(op, ()))
        while pending:
            other = pending.pop()
            if other in self._became:
                pending += self._became[other]
            elif other is not op:
                yield other


def _effect_edges(block: Block) -> dict[Operation, list[Operation]]:
    """Return for each operation those later ones that an effect orders behind it."""
    edges: dict[Operation, list[Operation]] = {}
    calls = [op for op in block.ops if isinstance(op, OperatorCall)]
    _order([(c, True) for c in calls if _touches_the_world(c)], edges)
    written = [c.operands[i] for c in calls for i in call_memory(c).writes]
    if not written:
        return edges
    sets = tensor_alias_sets(block)
    positions = {op: i for i, op in enumerate(block.ops)}
    memory = {id(members): members for members in (sets.members(v) for v in written)}
    for members in memory.values():
        users: dict[Operation, bool] = {}
        for use in (use for value in members for use in value.uses):
            user = statement_of(use.operation, block)
            writes = isinstance(user, OperatorCall) and use.index in call_memory(user).writes
            users[user] = users.get(user, False) or writes
        _order(sorted(users.items(), key=lambda item: positions[item[0]]), edges)
    return edges


def _touches_the_world(call: OperatorCall) -> bool:
    """Whether a call changes more than its operands: it has an effect, or nobody knows what it does."""
    schema = aten_schema.lookup(call.operator)
    return schema is None or schema.has_effect


def _order(accesses: Iterable[tuple[Operation, bool]], edges: dict[Operation, list[Operation]]) -> None:
    """Add the edges between accesses of one memory, given in program order with whether they write."""
    writer: Operation | None = None
    readers: list[Operation] = []
    for op, writes in accesses:
        if writes:
            for earlier in readers or ([] if writer is None else [writer]):
                edges.setdefault(earlier, []).append(op)
            writer, readers = op, []
            continue
        if writer is not None:
            edges.setdefault(writer, []).append(op)
        readers.append(op)
