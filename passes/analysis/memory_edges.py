"""Which operations on tensors must keep their order because one of them writes memory that the other reads or writes.

This is where the aliases of tensors are worked out; `order-writes` puts what comes of it into the program, as
`loop.after`, and whoever moves operations goes by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects.call_syntax import OperatorCall
from tilewright.dialects.loop import AfterOp, NestOp, ViewOp
from tilewright.passes.analysis.aliasing import call_memory, tensor_alias_sets
from tilewright.passes.analysis.order import statement_of


@dataclass
class Edges:
    """What an operation has to wait for, because of the tensors in one memory through which it accesses that."""

    op: Operation
    tensors: dict[SSAValue, None]
    before: dict[Operation, None] = field(default_factory=dict[Operation, None])


@dataclass
class _Access:
    """An operation that accesses some memory, as what tensors, and how."""

    op: Operation
    tensors: dict[SSAValue, None] = field(default_factory=dict[SSAValue, None])
    reads: bool = False
    writes: bool = False
    begins: bool = False
    """Whether a destination begins as one of the tensors: it may overwrite that, if it is no longer wanted."""


def check_ordered(block: Block) -> None:
    """Raise `PassFailedException` where a program does not say that an access of memory waits for an earlier one."""
    for edges in memory_edges(block, updates=False):
        first = next(iter(edges.before))
        raise PassFailedException(
            f"found `{edges.op.name}` and before it `{first.name}` that access one memory, which one of them writes, "
            "expected a `loop.after` between them; `order-writes` establishes it"
        )


def memory_edges(block: Block, *, updates: bool = True) -> list[Edges]:
    """Return what must wait for what, in the order of the program, without what the program says already.

    A write waits for the reads since the last write, or for that; a read waits for the last write. A nest whose
    destination begins as a tensor waits for the reads of that tensor, if none comes later: so it can overwrite it. Such
    `updates` are no matter of right or wrong.
    """
    calls = [op for op in block.ops if isinstance(op, OperatorCall)]
    written = [c.operands[i] for c in calls for i in call_memory(c).writes]
    begun = [v for op in block.ops if updates and isinstance(op, NestOp) for v in op.initial]
    if not written and not begun:
        return []
    sets = tensor_alias_sets(block)
    position = {op: i for i, op in enumerate(block.ops)}
    memories = {id(members): members for members in (sets.members(v) for v in written)}
    for members in (sets.members(v) for v in begun):
        # An argument that is not written is not overwritten.
        if not any(isinstance(m, BlockArgument) for m in members):
            memories.setdefault(id(members), members)
    accesses = (_accesses(members, block, position) for members in memories.values())
    found = [edges for group in accesses for edges in _edges_of(group, updates) if _prune(edges)]
    return sorted(found, key=lambda e: position[e.op])


def _accesses(members: Sequence[SSAValue], block: Block, position: dict[Operation, int]) -> list[_Access]:
    """Return what accesses the memory of `members`, in program order."""
    found: dict[Operation, _Access] = {}
    for value in members:
        for use in value.uses:
            op = statement_of(use.operation, block)
            memory = call_memory(op) if isinstance(op, OperatorCall) else None
            writes = memory is not None and use.index in memory.writes
            is_view = memory is not None and memory.is_view and not writes
            if isinstance(op, (AfterOp, ReturnOp, ViewOp)) or is_view:
                continue
            access = found.setdefault(op, _Access(op))
            access.tensors[value] = None
            access.writes |= writes
            begins = isinstance(op, NestOp) and op is use.operation
            access.begins |= begins
            access.reads |= not begins and not (writes and isinstance(op, OperatorCall) and _only_writes(op))
    return sorted(found.values(), key=lambda a: position[a.op])


def _only_writes(call: OperatorCall) -> bool:
    return call.operator == "aten.copy_.default"


def _edges_of(accesses: Sequence[_Access], updates: bool) -> list[Edges]:
    edges: list[Edges] = []
    last_read = max((i for i, a in enumerate(accesses) if a.reads), default=-1)
    writer: Operation | None = None
    readers: dict[Operation, None] = {}
    for number, access in enumerate(accesses):
        before = dict(readers) if access.writes or (updates and access.begins and number >= last_read) else {}
        if writer is not None and not before:
            before[writer] = None
        if before:
            edges.append(Edges(access.op, access.tensors, before))
        if access.writes:
            writer, readers = access.op, {}
        else:
            readers[access.op] = None
    return edges


def _prune(edges: Edges) -> bool:
    """Take out of `edges` what the program says; return whether something is left."""
    given: set[Operation] = set()
    operands = [*edges.op.operands, *(o for region in edges.op.regions for i in region.walk() for o in i.operands)]
    for operand in operands:
        owner = operand.owner
        while isinstance(owner, AfterOp):
            given.update(v.owner for v in owner.before if isinstance(v.owner, Operation))
            owner = owner.source.owner
        if isinstance(owner, Operation):
            given.add(owner)
    edges.before = {op: None for op in edges.before if op not in given}
    return bool(edges.before)
