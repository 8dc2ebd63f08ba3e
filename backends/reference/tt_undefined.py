"""Finds elements that a masked load left undefined where they reach memory, an address or an assertion.

A load without other values gives anything where its mask is false. A program may compute with that, as long as nothing
comes of it. What is carried from one iteration of a loop to the next, or passed out of a branch, is taken for defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from xdsl.dialects import arith
from xdsl.ir import Operation, SSAValue

from tilewright.backends.reference.buffers import first_true
from tilewright.backends.reference.errors import failure
from tilewright.backends.reference.frame import Frame, aligned, lanes_of
from tilewright.backends.reference.tt import MOVES
from tilewright.dialects import tt


@dataclass(frozen=True)
class Undefined:
    """Which elements of which values are undefined, in the programs that run at once."""

    where: dict[SSAValue, Tensor] = field(default_factory=dict[SSAValue, Tensor])
    """For a value that has any, those that are."""

    def before(self, op: Operation, frame: Frame) -> None:
        """See what an operation, which is about to be executed, makes of undefined elements.

        Raises `ExecutionError` if it stores one, or uses one in an address, a mask or an assertion.
        """
        for result in op.results if self.where else ():
            self.where.pop(result, None)
        if isinstance(op, tt.LoadOp) and op.mask is not None and op.other is None:
            self._mark(op.result, ~frame.register(op.mask))
        if not self.where or not any(v in self.where for v in op.operands):
            return
        match op:
            case tt.LoadOp():
                self._refuse(op, [op.ptr], op.mask, frame)
                if op.mask is not None and op.other is not None:
                    self._mark(op.result, self._of(op.other, frame) & ~frame.register(op.mask))
            case tt.StoreOp():
                self._refuse(op, [op.ptr, op.value], op.mask, frame)
            case tt.AtomicRMWOp():
                self._refuse(op, [op.ptr, op.val], op.mask, frame)
            case tt.AtomicCASOp() | tt.AssertOp():
                self._refuse(op, op.operands, None, frame)
            case arith.SelectOp():
                self._select(op, frame)
            case arith.AndIOp() | arith.OrIOp():
                self._decide(op, frame)
            case _ if not op.regions or isinstance(op, (tt.ReduceOp, tt.ScanOp)):
                self._spread(op, frame)
            case _:
                pass

    def _of(self, value: SSAValue, frame: Frame) -> Tensor:
        """Return where a value is undefined."""
        shape = lanes_of(value)
        found = self.where.get(value, torch.zeros((1,) * len(shape), dtype=torch.bool))
        return aligned(found, frame.space.depth, len(shape)).expand(-1, *shape)

    def _mark(self, value: SSAValue, where: Tensor) -> None:
        if where.any():
            self.where[value] = where

    def _refuse(self, op: Operation, values: Sequence[SSAValue], mask: SSAValue | None, frame: Frame) -> None:
        """Raise `ExecutionError` if one of `values` is undefined where `mask` is true, or the mask itself is."""
        happens = torch.ones((), dtype=torch.bool) if mask is None else frame.register(mask)
        checks = [(v, self._of(v, frame) & happens) for v in values]
        if mask is not None:
            checks.append((mask, self._of(mask, frame)))
        for value, wrong in checks:
            if frame.space.active is not None:
                wrong = wrong & frame.space.active.reshape(-1, *(1,) * (wrong.ndim - 1))
            if wrong.any():
                place = list(first_true(wrong))
                assert frame.programs is not None
                name = f"`%{value.name_hint}`" if value.name_hint else "an operand"
                raise failure(
                    op,
                    f"for program {frame.programs.first + place[0]} element {place[1:]} of {name} is undefined, "
                    "as a load whose mask was false has no other value",
                )

    def _select(self, op: arith.SelectOp, frame: Frame) -> None:
        rank = len(lanes_of(op.result))
        condition = (frame.register(op.cond), self._of(op.cond, frame))
        chosen, unknown = (t.reshape(*t.shape, *(1,) * (rank + 1 - t.ndim)) for t in condition)
        self._mark(op.result, unknown | torch.where(chosen, self._of(op.lhs, frame), self._of(op.rhs, frame)))

    def _decide(self, op: arith.AndIOp | arith.OrIOp, frame: Frame) -> None:
        """Of bits: what is false and anything is false, what is true or anything is true."""
        operands = [frame.register(v) for v in op.operands]
        unknown = [self._of(v, frame) for v in op.operands]
        result = unknown[0] | unknown[1]
        if operands[0].dtype == torch.bool:
            for bits, where in zip(operands, unknown, strict=True):
                result = result & (where | (bits if isinstance(op, arith.AndIOp) else ~bits))
        self._mark(op.result, result)

    def _spread(self, op: Operation, frame: Frame) -> None:
        """Mark the results where an operand is undefined."""
        for result in op.results:
            self._mark(result, self._result(op, result, frame))

    def _result(self, op: Operation, result: SSAValue, frame: Frame) -> Tensor:
        """Return where a result is undefined: everywhere, if it is not known which element goes where."""
        where = self._of(op.operands[0], frame)
        if type(op) in MOVES:
            return MOVES[type(op)](op, where)
        shape = lanes_of(op.operands[0])
        reduces = isinstance(op, tt.ReduceOp)
        if any(lanes_of(v) != shape for v in op.operands) or (lanes_of(result) != shape and not reduces):
            return torch.ones((1,) * (len(lanes_of(result)) + 1), dtype=torch.bool)
        for operand in op.operands[1:]:
            where = where | self._of(operand, frame)
        if isinstance(op, (tt.ReduceOp, tt.ScanOp)):
            return where.any(op.axis.value.data + 1, keepdim=not reduces)
        return where
