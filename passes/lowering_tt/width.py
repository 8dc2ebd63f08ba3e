"""How wide the integers are that hold the indices of a kernel."""

from __future__ import annotations

from collections import ChainMap

import sympy
from xdsl.dialects.builtin import IntegerType, i32, i64
from xdsl.ir import SSAValue

from tilewright.dialects.loop import ApplyOp, KernelOp, LoadOp, Loop, StoreOp, layout_of
from tilewright.dialects.sym_expr import Expr, Symbol, bounds
from tilewright.passes.analysis.index_space import IndexSpace

_LIMIT = 1 << 31


def index_type(kernel: KernelOp, space: IndexSpace) -> IntegerType:
    """Return i32 if all index arithmetic of a kernel provably stays below 2**31, else i64."""
    return i32 if _Widths(space).fit(kernel) else i64


class _Widths:
    def __init__(self, space: IndexSpace):
        self._space = space
        self._reach: dict[Symbol, tuple[Expr | None, Expr | None]] = {}
        """The ranges of the indices of loops, with the positions of a block beyond the end of its loop."""
        self._ranges = ChainMap(self._reach, space.ranges)

    def fit(self, kernel: KernelOp) -> bool:
        return all(self._fits(op) for op in kernel.walk())

    def _fits(self, op: object) -> bool:
        match op:
            case Loop():
                return self._fits_loop(op)
            case LoadOp() | StoreOp():
                buffer = op.source if isinstance(op, LoadOp) else op.target
                (size,) = layout_of(buffer.type).sizes
                return self._fits_access(self._space.access(op.access, op.indices)[0], size)
            case ApplyOp():
                return all(_is_place(u.operation) for u in op.result.uses) or self._fits_value(op.result)
            case _:
                return True

    def _fits_loop(self, op: Loop) -> bool:
        blocks = op.blocks or [1] * len(op.indices)
        for index, d, size in zip(op.indices, self._space.loops(op), blocks, strict=True):
            symbol = self._space.symbol(index)
            lower, upper = self._space.ranges[symbol]
            self._reach[symbol] = lower, None if upper is None else upper + max(size, d.step)
            if not all(self._fits_access(e, None) for e in (d.lower, d.upper)) or not self._fits_value(index):
                return False
        return all(self._is_known(v) for v in op.bound_operands)

    def _fits_value(self, value: SSAValue) -> bool:
        return self._fits_access(self._space.expr(value), None)

    def _fits_access(self, expr: Expr, size: Expr | None) -> bool:
        """Whether the terms of an expression are small, or as small as they must be for an element of a buffer.

        An access is to an element that is there, so an index that was loaded is as small as the buffer.
        """
        total, positive = 0, True
        for term in sympy.Add.make_args(sympy.expand(expr)):
            largest = self._largest(term)
            if largest is not None:
                total += largest
            elif size is not None and size.is_Integer and self._is_loaded(term):
                positive = positive and term.as_coeff_Mul()[0] > 0
                total += int(size)
            else:
                return False
        return bool(positive and total < _LIMIT)

    def _largest(self, term: Expr) -> int | None:
        ends = bounds(term, self._ranges)
        if any(e is None or not e.is_Integer for e in ends):
            return None
        return max(abs(int(e)) for e in ends if e is not None)

    def _is_loaded(self, term: Expr) -> bool:
        """Whether a term is a multiple of an index value that is not a loop's and is used in accesses alone."""
        rest = term.as_coeff_Mul()[1]
        value = self._space.value(rest) if isinstance(rest, sympy.Symbol) else None
        return value is not None and self._is_known(value)

    def _is_known(self, value: SSAValue) -> bool:
        """Whether all uses of an index value that is not a loop's are in places that an element limits."""
        if self._largest(self._space.expr(value)) is not None:
            return True
        return all(_is_place(use.operation) for use in value.uses)


def _is_place(op: object) -> bool:
    return isinstance(op, (LoadOp, StoreOp, ApplyOp))
