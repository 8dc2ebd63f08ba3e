"""How wide the integers are that hold the indices of a kernel."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable

import sympy
from xdsl.ir import SSAValue

from tilewright.dialects.loop import ApplyOp, KernelOp, LoadOp, Loop, StoreOp, layout_of
from tilewright.dialects.sym_expr import Expr, Max, Symbol, bounds, integer, provably_at_most, symbol
from tilewright.passes.analysis.index_space import IndexSpace

_MOST_KEPT = 4
"""How many bounds that cannot be compared are kept apart; more are added up."""


def index_reach(kernel: KernelOp, space: IndexSpace) -> Expr | None:
    """Return what no index in a kernel is above, nor any part of its arithmetic, over the kernel's symbols.

    None if that cannot be told.
    """
    widths = _Widths(space)
    if not widths.visit(kernel):
        return None
    largest = _largest_of([*widths.found, *(symbol(name) for name in kernel.symbol_names)])
    return bounds(largest, space.sizes)[1]


def _largest_of(exprs: Iterable[Expr]) -> Expr:
    """Return the largest of expressions that are at least zero, or something above it."""
    kept: list[Expr] = [integer(0)]
    for expr in exprs:
        if any(provably_at_most(expr, other, {}) for other in kept):
            continue
        kept = [*(other for other in kept if not provably_at_most(other, expr, {})), expr]
        if len(kept) > _MOST_KEPT:
            kept = [sympy.Add(*kept)]
    largest = kept[0]
    for other in kept[1:]:
        largest = Max(largest, other)
    return largest


class _Widths:
    """Finds bounds of all index arithmetic in a kernel."""

    def __init__(self, space: IndexSpace):
        self._space = space
        self._reach: dict[Symbol, tuple[Expr | None, Expr | None]] = {}
        """The ranges of the indices of loops, with the positions of a block beyond the end of its loop."""
        self._ranges = ChainMap(self._reach, space.ranges)
        self.found: dict[Expr, None] = {}

    def visit(self, kernel: KernelOp) -> bool:
        """Find the bounds; return whether everything has one."""
        return all(self._visit(op) for op in kernel.walk())

    def _visit(self, op: object) -> bool:
        match op:
            case Loop():
                return self._visit_loop(op)
            case LoadOp() | StoreOp():
                buffer = op.source if isinstance(op, LoadOp) else op.target
                (size,) = layout_of(buffer.type).sizes
                return self._has_bound(self._space.access(op.access, op.indices)[0], size)
            case ApplyOp():
                return all(_is_place(u.operation) for u in op.result.uses) or self._visit_value(op.result)
            case _:
                return True

    def _visit_loop(self, op: Loop) -> bool:
        blocks = op.blocks or [1] * len(op.indices)
        for index, d, size in zip(op.indices, self._space.loops(op), blocks, strict=True):
            symbol = self._space.symbol(index)
            lower, upper = self._space.ranges[symbol]
            self._reach[symbol] = lower, None if upper is None else upper + max(size, d.step)
            if not all(self._has_bound(e, None) for e in (d.lower, d.upper)) or not self._visit_value(index):
                return False
        return all(self._is_known(v) for v in op.bound_operands)

    def _visit_value(self, value: SSAValue) -> bool:
        return self._has_bound(self._space.expr(value), None)

    def _has_bound(self, expr: Expr, size: Expr | None) -> bool:
        """Note what an expression is at most in magnitude, term by term; return whether each term has a bound.

        An access is to an element that is there, so an index that was loaded is as small as the buffer.
        """
        total, positive = integer(0), True
        for term in sympy.Add.make_args(sympy.expand(expr)):
            largest = self._largest(term)
            if largest is not None:
                total = total + largest
            elif size is not None and self._is_loaded(term):
                positive = positive and term.as_coeff_Mul()[0] > 0
                total = total + size
            else:
                return False
        self.found[total] = None
        return bool(positive)

    def _largest(self, term: Expr) -> Expr | None:
        """Return what the magnitude of a term is at most."""
        low, high = bounds(term, self._ranges)
        if low is None or high is None:
            return None
        if low.is_Integer and high.is_Integer:
            return integer(max(abs(int(low)), abs(int(high))))
        if provably_at_most(integer(0), low, {}):
            return sympy.expand(high)
        return sympy.expand(-low) if provably_at_most(high, integer(0), {}) else None

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
