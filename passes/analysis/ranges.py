"""Bounds of index values and of size symbols."""

from __future__ import annotations

from xdsl.dialects.builtin import DictionaryAttr
from xdsl.ir import Operation, SSAValue

from tilewright.dialects.loop import Loop, LoopDim
from tilewright.dialects.sym import SymbolAttr
from tilewright.dialects.sym_expr import Expr, Ranges, Symbol, bounds, dim, integer, symbol

Range = tuple[Expr, Expr]

# An index that no loop gives, such as one that was loaded, may have any value, negative ones too.
_ANYTHING: Range = (integer(-(1 << 63)), integer((1 << 63) - 1))


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
        self.sizes = sizes
        self._ranges: dict[SSAValue, Range] = {}

    def of(self, value: SSAValue) -> Range:
        """Return the range of an index value; of one that no known loop gives it is unbounded."""
        return self._ranges.get(value, _ANYTHING)

    def dims(self, operands: tuple[SSAValue, ...]) -> dict[Symbol, Range]:
        """Return the ranges of the sizes and of the dims that stand for `operands`."""
        return {**self.sizes, **{dim(i): self.of(v) for i, v in enumerate(operands)}}

    def enter(self, loop: Loop) -> None:
        """Record the ranges of the indices of `loop`, whose enclosing loops were entered before."""
        loops = loop.loops
        known = self.dims(loops.operands)
        for index, d in zip(loop.indices, loops.dims, strict=True):
            self._ranges[index] = _index_range(d, known)


def _index_range(loop: LoopDim, known: Ranges) -> Range:
    # Sizes stay symbolic in the bounds: `s0 - 1` says more than the largest value of `s0`.
    dims_only = {s: r for s, r in known.items() if s.name[0] == "d" and s.name[1:].isdigit()}
    low, high = bounds(loop.lower, dims_only)[0], bounds(loop.upper - 1, dims_only)[1]
    return (_ANYTHING[0] if low is None else low, _ANYTHING[1] if high is None else high)
