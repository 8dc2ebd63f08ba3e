"""Sizes as numbers, to weigh one choice against another: symbols count as the value that tracing saw."""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import DictionaryAttr
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from tilewright.dialects.loop import LoadOp, Loop, layout_of
from tilewright.dialects.sym import MapAttr, SymbolAttr, free_symbols
from tilewright.dialects.sym_expr import Expr, integer, symbol
from tilewright.dialects.type_guards import is_memref, is_tensor
from tilewright.passes.analysis.layouts import element_bytes

# A symbol without a hint: large enough to make loops count, within its range.
_TYPICAL = 4096


class SizeHints:
    """Evaluates size expressions with the hints that `function` declares for its symbols."""

    def __init__(self, function: Operation) -> None:
        self._values: dict[Expr, Expr] = {}
        self._known: dict[Expr, int] = {}
        self._lengths: dict[MapAttr, tuple[int, ...]] = {}
        declared = function.attributes.get("aten.symbols")
        if isinstance(declared, DictionaryAttr):
            for name, info in declared.data.items():
                if isinstance(info, SymbolAttr):
                    guess = min(max(_TYPICAL, info.data.lower), info.data.upper)
                    self._values[symbol(name)] = integer(guess if info.data.hint is None else info.data.hint)

    def value(self, expr: Expr) -> int:
        """Return `expr` as a number; an index value in it counts as zero."""
        if expr.is_Integer:
            return int(expr)
        known = self._known.get(expr)
        if known is None:
            others = {s: integer(_TYPICAL) for s in free_symbols([expr]) if s not in self._values}
            known = self._known[expr] = int(expr.xreplace({**self._values, **others}))
        return known

    def elements(self, kind: Attribute) -> int:
        """Return the number of elements of a tensor or memref."""
        return prod(self.value(size) for size in layout_of(kind).sizes)

    def bytes_of(self, kind: Attribute) -> int:
        """Return the bytes that the elements of a tensor or memref take."""
        assert is_tensor(kind) or is_memref(kind)
        return self.elements(kind) * element_bytes(kind.element_type)

    def iterations(self, op: Operation) -> int:
        """Return how often `op` runs: the product of the loops around it."""
        count = 1
        parent = op.parent_op()
        while isinstance(parent, Loop):
            count *= prod(self._extents(parent))
            parent = parent.parent_op()
        return count

    def bytes_read(self, load: LoadOp) -> int:
        """Return the bytes of the distinct elements that `load` may read, over all iterations."""
        count = 1
        for index in load.indices:
            owner = index.owner.parent_op() if isinstance(index, BlockArgument) else None
            if not isinstance(owner, Loop):
                return self.bytes_of(load.source.type)
            count *= self._extents(owner)[_position(index)]
        kind = load.source.type
        assert is_tensor(kind) or is_memref(kind)
        return min(count, self.elements(kind)) * element_bytes(kind.element_type)

    def _extents(self, loop: Loop) -> tuple[int, ...]:
        key = loop.bounds
        known = self._lengths.get(key)
        if known is None:
            ends = key.exprs
            known = tuple(max(self.value(ends[i + 1] - ends[i]), 1) for i in range(0, len(ends), 2))
            self._lengths[key] = known
        return known


def _position(index: SSAValue) -> int:
    assert isinstance(index, BlockArgument)
    return index.index
