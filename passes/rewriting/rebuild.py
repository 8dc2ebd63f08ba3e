"""Give an operation other index expressions or loops, in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from xdsl.dialects.builtin import DenseArrayBase, i32
from xdsl.ir import SSAValue

from tilewright.dialects.access import normalize_access
from tilewright.dialects.loop import ApplyOp, Bounds, LoadOp, Loop, NestOp, ReduceOp, StoreOp
from tilewright.dialects.sym_expr import Expr

Access: TypeAlias = LoadOp | StoreOp | ApplyOp
"""The operations that hold index expressions, beside loops in their bounds."""


def set_access(op: Access, exprs: Iterable[Expr], indices: Sequence[SSAValue]) -> None:
    """Make `op` use the index expressions `exprs`, in which `d<i>` stands for `indices[i]`."""
    access, indices = normalize_access(exprs, indices)
    op.properties["access"] = access
    if isinstance(op, ApplyOp):
        op.operands = indices
    elif isinstance(op, LoadOp):
        _set_operands(op, [op.source], indices, _optional(op.mask), _optional(op.otherwise))
    else:
        _set_operands(op, [op.value], [op.target], indices, _optional(op.mask))


def set_loops(op: Loop, loops: Bounds) -> None:
    """Make `op` run `loops`. Its block arguments are the caller's to adapt."""
    operands, properties = loops.properties()
    op.properties.update(properties)
    if isinstance(op, ReduceOp):
        _set_operands(op, operands, op.init)
    elif isinstance(op, NestOp):
        _set_operands(op, operands, op.initial)
    else:
        op.operands = operands


def _optional(value: SSAValue | None) -> list[SSAValue]:
    return [] if value is None else [value]


def _set_operands(op: LoadOp | StoreOp | ReduceOp | NestOp, *segments: Sequence[SSAValue]) -> None:
    segments = tuple(tuple(s) for s in segments)
    op.operands = [v for s in segments for v in s]
    op.properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, [len(s) for s in segments])
