"""Bounds of index values and of size symbols."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DictionaryAttr
from xdsl.ir import Operation, SSAValue

from tilewright.dialects.loop import Loop, LoopDim
from tilewright.dialects.sym import SymbolAttr
from tilewright.dialects.sym_expr import (
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Ranges,
    Symbol,
    bounds,
    dim,
    integer,
    simplify,
    symbol,
)
from tilewright.passes.analysis.accesses import IndexNames

Range = tuple[Expr | None, Expr | None]

# An index that no loop gives, such as one that was loaded, may have any value, negative ones too.
_ANYTHING: Range = (None, None)


def symbol_ranges(function: Operation) -> dict[Symbol, Range]:
    """Return the inclusive ranges of the size symbols that `function` declares in `aten.symbols`."""
    declared = function.attributes.get("aten.symbols")
    if not isinstance(declared, DictionaryAttr):
        return {}
    return {
        symbol(name): (integer(info.data.lower), integer(info.data.upper))
        for name, info in declared.data.items()
        if isinstance(info, SymbolAttr)
    }


class IndexRanges:
    """The inclusive ranges of index values in terms of size symbols, given the ranges of these."""

    def __init__(self, sizes: Ranges) -> None:
        self._sizes = sizes
        self._ranges: dict[SSAValue, Range] = {}

    def of(self, value: SSAValue) -> Range:
        """Return the range of an index value; one that no known loop gives has none."""
        return self._ranges.get(value, _ANYTHING)

    def __contains__(self, value: SSAValue) -> bool:
        return value in self._ranges

    def dims(self, operands: Sequence[SSAValue]) -> dict[Symbol, Range]:
        """Return the ranges of the sizes, and of the dims that stand for `operands`."""
        return {**self._sizes, **{dim(i): self.of(v) for i, v in enumerate(operands)}}

    def enter(self, loop: Loop) -> None:
        """Record the ranges of the indices of `loop`, whose enclosing loops were entered before."""
        loops = loop.loops
        # Sizes stay symbolic in the bounds: `s0 - 1` says more than the largest value of `s0`.
        known = {dim(i): self.of(v) for i, v in enumerate(loops.operands)}
        for index, d in zip(loop.indices, loops.dims, strict=True):
            self._ranges[index] = _index_range(d, known)


def _index_range(loop: LoopDim, known: Ranges) -> Range:
    return bounds(loop.lower, known)[0], bounds(loop.upper - 1, known)[1]


class NamedRanges:
    """Simplifies expressions over named index values (`IndexNames`) by the ranges of these."""

    def __init__(self, names: IndexNames, sizes: Ranges) -> None:
        self._names = names
        self.indices = IndexRanges(sizes)
        self.ranges: dict[Symbol, Range] = dict(sizes)

    def enter(self, loop: Loop) -> None:
        """Take in the indices of `loop`, whose enclosing loops were entered before."""
        self.indices.enter(loop)
        self.ranges.update((self._names.symbol(v), self.indices.of(v)) for v in loop.indices)

    def name(self, value: SSAValue) -> Symbol:
        """Return the symbol of an index value."""
        return self._names.symbol(value)

    def is_bounded(self, value: SSAValue) -> bool:
        """Whether `value` is an index of a loop that was entered."""
        return value in self.indices

    def simplify(self, expr: Expr) -> Expr:
        """Return an equal, simpler expression."""
        if not expr.has(FloorDiv, Mod, Min, Max):
            return expr
        for s in expr.free_symbols:
            if self._names.is_index(s):
                self.ranges.setdefault(s, _ANYTHING)
        return simplify(expr, self.ranges)
