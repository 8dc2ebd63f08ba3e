"""Structured control flow, one iteration after another.

The programs of a kernel for a GPU run at once and may differ in what they do next. Then those that take part are
`active`, and what the others hold stays as it is: a branch is run for some programs and the other one for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from xdsl.dialects import scf
from xdsl.ir import Block, SSAValue

from tilewright.backends.reference.errors import failure
from tilewright.backends.reference.frame import Frame, Value, aligned, execute, lanes_of, run_block
from tilewright.backends.reference.pointers import Pointers


def _run(block: Block, arguments: Sequence[Value], frame: Frame) -> list[Value]:
    """Execute a block that ends with `scf.yield` or `scf.condition`; return the values that it passes on."""
    for argument, value in zip(block.args, arguments, strict=True):
        frame.set(argument, value)
    run_block(block, frame)
    match block.last_op:
        case scf.YieldOp(arguments=passed) | scf.ConditionOp(args=passed):
            return [frame.content(v) for v in passed]
        case _:
            raise AssertionError("a block of structured control flow without a terminator")


def _among(chosen: Tensor, frame: Frame) -> Frame:
    """Return `frame` for the chosen programs alone: itself, if all that are active are."""
    active = frame.space.active
    if (chosen if active is None else chosen | ~active).all():
        return frame
    return frame.inside(replace(frame.space, active=chosen if active is None else chosen & active))


def _merged(
    chosen: Tensor, values: Sequence[Value], others: Sequence[Value], names: Sequence[SSAValue], frame: Frame
) -> list[Value]:
    """Return `values` for the chosen programs and `others` for the rest; `names` have their types."""
    pairs = zip(values, others, names, strict=True)
    return [_chosen(chosen, value, other, len(lanes_of(name)), frame) for value, other, name in pairs]


def _chosen(chosen: Tensor, value: Value, other: Value, rank: int, frame: Frame) -> Value:
    depth = frame.space.depth

    def select(a: Tensor, b: Tensor) -> Tensor:
        where = chosen.reshape(*chosen.shape, *(1,) * rank)
        return torch.where(where, aligned(a, depth, rank), aligned(b, depth, rank))

    match value, other:
        case Tensor(), Tensor():
            return select(value, other)
        case Pointers(), Pointers():
            return value.joined(other, select)
        case _:
            raise AssertionError("only registers and pointers are carried")


def _set_all(results: Sequence[SSAValue], values: Sequence[Value], frame: Frame) -> None:
    for result, value in zip(results, values, strict=True):
        frame.set(result, value)


@execute.register
def _(op: scf.ForOp, frame: Frame) -> None:
    lower, upper, step = (frame.register(v) for v in (op.lb, op.ub, op.step))
    if (step < 1).any():
        raise failure(op, f"has a step of {int(step.min())}, expected at least one")
    trips = -((lower.to(torch.int64) - upper) // step)
    if frame.space.active is not None:
        trips = torch.where(frame.space.active, trips, 0)
    carried = [frame.content(v) for v in op.iter_args]
    for number in range(int(trips.max())):
        left = number < trips
        inner = _among(left, frame)
        after = _run(op.body.block, [lower + number * step, *carried], inner)
        carried = after if inner is frame else _merged(left, after, carried, op.iter_args, frame)
    _set_all(op.results, carried, frame)


@execute.register
def _(op: scf.IfOp, frame: Frame) -> None:
    condition, active = frame.register(op.cond), frame.space.active
    results: list[Value] = []
    for where, region in ((condition, op.true_region), (~condition, op.false_region)):
        if region.blocks and (where if active is None else where & active).any():
            values = _run(region.block, [], _among(where, frame))
            results = _merged(where, values, results, op.results, frame) if results else values
    _set_all(op.results, results, frame)


@execute.register
def _(op: scf.WhileOp, frame: Frame) -> None:
    carried = [frame.content(v) for v in op.arguments]
    before, after = op.before_region.block, op.after_region.block
    inner, results = frame, list[Value]()
    while True:
        passed = _run(before, carried, inner)
        decision = before.last_op
        assert isinstance(decision, scf.ConditionOp)
        active, running = inner.space.active, inner.register(decision.condition)
        if active is not None:
            running = running & active
        results = _merged(active, passed, results, op.res, frame) if active is not None and results else passed
        if not running.any():
            break
        inner = _among(running, inner)
        carried = _run(after, passed, inner)
    _set_all(op.results, results, frame)


@execute.register
def _(op: scf.YieldOp | scf.ConditionOp, frame: Frame) -> None:
    pass  # The operation around it takes the values.
