"""When the buffers of a host program are made and used last, and how many bytes they take."""

from __future__ import annotations

from dataclasses import dataclass

import sympy
from xdsl.dialects import func
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import aten_schema, host
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.sym_expr import Expr, integer
from tilewright.dialects.type_guards import is_memref
from tilewright.passes.analysis.aliasing import AliasSets, alias_sets, call_memory
from tilewright.passes.analysis.layouts import element_bytes, span
from tilewright.passes.analysis.sizes import SizeHints


@dataclass(frozen=True)
class Lifetimes:
    """For each buffer of a host program the number of the operation that uses it last, counted from the start.

    Uses by loads and stores inside a nest are uses by the nest. A buffer's views, and what a call made of it, use it
    too; a `host.free` does not.
    """

    ops: tuple[Operation, ...]
    last_use: dict[SSAValue, int]
    escaping: frozenset[SSAValue]
    """The buffers that are returned, or whose memory may be that of a returned one."""
    frees: dict[SSAValue, host.FreeOp]
    """Where a buffer is given up."""


def lifetimes(program: Block, sets: AliasSets | None = None) -> Lifetimes:
    """Find the last uses in a host program; `sets` is its `alias_sets`, if at hand."""
    sets = alias_sets(program) if sets is None else sets
    ops = tuple(program.ops)
    last_use: dict[SSAValue, int] = {}
    frees: dict[SSAValue, host.FreeOp] = {}
    for number, op in enumerate(ops):
        if isinstance(op, host.FreeOp):
            frees[op.buffer] = op
            continue
        for value in (*op.results, *buffers_used(op)):
            if value in sets:
                last_use[value] = number
    ends: dict[int, int] = {}
    for value, number in last_use.items():
        key = id(sets.members(value))
        ends[key] = max(ends.get(key, number), number)
    returned = ops[-1].operands if ops and isinstance(ops[-1], func.ReturnOp) else ()
    escaping = frozenset(m for value in returned if value in sets for m in sets.members(value))
    return Lifetimes(ops, {v: ends[id(sets.members(v))] for v in last_use}, escaping, frees)


def handle_ends(program: Block) -> dict[SSAValue, int]:
    """Return, for each buffer that a program allocates or a call returns, the operation after which it can end.

    That is its last use, itself or through views, those by calls included; without any use, where it is made. A buffer
    that is returned, or has a view that is, has no entry.
    """
    ops = list(program.ops)
    last: dict[SSAValue, int] = {}
    kept: set[SSAValue] = set()
    for number in reversed(range(len(ops))):
        op = ops[number]
        for value in buffers_used(op):
            last.setdefault(value, number)
        if isinstance(op, func.ReturnOp):
            kept.update(op.operands)
        for result, sources in _sources(op):
            for source in sources:
                last[source] = max(last[source], last.get(result, number))
                if result in kept:
                    kept.add(source)
    return {
        result: last.get(result, number)
        for number, op in enumerate(ops)
        if isinstance(op, (host.AllocOp, host.CallOp))
        for result in op.results
        if is_memref(result.type) and result not in kept
    }


def _sources(op: Operation) -> list[tuple[SSAValue, list[SSAValue]]]:
    """Return each result of `op` that is known to be a view, with what it is a view of."""
    if isinstance(op, host.ViewOp):
        return [(op.result, [op.source])]
    if isinstance(op, host.CallOp) and aten_schema.lookup(op.operator) is not None:
        shares = call_memory(op).shares
        return [(result, [op.operands[i] for i in s]) for result, s in zip(op.results, shares, strict=True)]
    return []


def buffers_used(op: Operation) -> list[SSAValue]:
    """Return the buffers that an operation uses, in the order of the text, each as often as it does."""
    used = [o for o in op.operands if is_memref(o.type)]
    for region in op.regions:
        used += (o for inner in region.walk() for o in inner.operands if is_memref(o.type))
    return used


def byte_size(value: SSAValue) -> Expr:
    """Return how many bytes the storage of an allocated buffer has."""
    assert is_memref(value.type)
    return sympy.expand(span(layout_of(value.type)) * integer(element_bytes(value.type.element_type)))


@dataclass(frozen=True)
class PlannedBytes:
    """The bytes that a host program allocates: all together, and at most at a time."""

    total: int
    peak: int


def planned_bytes(function: func.FuncOp) -> PlannedBytes:
    """Add up the allocations of a host program, for the sizes seen when it was traced.

    What ATen calls allocate is not known here.
    """
    hints = SizeHints(function)
    total = live = peak = 0
    sizes: dict[SSAValue, int] = {}
    for op in function.body.block.ops:
        if isinstance(op, host.AllocOp):
            size = sizes[op.result] = hints.value(byte_size(op.result))
            total += size
            live += size
            peak = max(peak, live)
        elif isinstance(op, host.FreeOp):
            live -= sizes.pop(op.buffer, 0)
    return PlannedBytes(total, peak)
