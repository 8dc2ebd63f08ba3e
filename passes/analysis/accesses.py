"""The index expressions of an operation, wherever it keeps them: in an access, in loop bounds, as an index value."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from tilewright.dialects.loop import ApplyOp, ForOp, LoadOp, NestOp, ReduceOp, ScanOp, StoreOp
from tilewright.dialects.sym import MapAttr
from tilewright.dialects.sym_expr import Expr, Symbol, symbol

# The property, and the number of the first operand, which is also the number of the operand segment.
_PLACES: dict[type[Operation], tuple[str, int]] = {
    ApplyOp: ("access", 0),
    ForOp: ("bounds", 0),
    LoadOp: ("access", 1),
    NestOp: ("bounds", 0),
    ReduceOp: ("bounds", 0),
    ScanOp: ("bounds", 0),
    StoreOp: ("access", 2),
}


def index_place(op: Operation) -> tuple[str, int] | None:
    """Return the property with the index map of `op`, and the number of the map's first operand; None without one."""
    return _PLACES.get(type(op))


def index_map(op: Operation) -> tuple[MapAttr, Sequence[SSAValue]] | None:
    """Return the index map of `op` and the values of its dims, or None if it has none."""
    place = _PLACES.get(type(op))
    if place is None:
        return None
    name, first = place
    access = op.properties[name]
    assert isinstance(access, MapAttr)
    return access, op.operands[first : first + access.num_dims]


class IndexNames:
    """Gives each index value a symbol of its own, so that the expressions of different operations can be compared."""

    def __init__(self) -> None:
        self._symbols: dict[SSAValue, Symbol] = {}
        self._values: dict[Expr, SSAValue] = {}

    def symbol(self, value: SSAValue) -> Symbol:
        """Return the symbol of `value`; its name is no name of a size."""
        found = self._symbols.get(value)
        if found is None:
            found = self._symbols[value] = symbol(f"%{len(self._symbols)}")
            self._values[found] = value
        return found

    def exprs(self, access: MapAttr, operands: Sequence[SSAValue]) -> tuple[Expr, ...]:
        """Return the results of an access as expressions over the symbols of its operands."""
        return access.apply([self.symbol(v) for v in operands])

    def values(self, exprs: Sequence[Expr]) -> list[SSAValue]:
        """Return the index values that occur in `exprs`, in the order in which they were named."""
        return [self._values[s] for s in self.symbols(*exprs)]

    def symbols(self, *exprs: Expr) -> list[Symbol]:
        """Return the symbols of the index values that occur in `exprs`, in the order in which they were named."""
        return sorted({s for e in exprs for s in e.free_symbols if s in self._values}, key=_number)

    def is_index(self, found: Expr) -> bool:
        """Whether `found` stands for an index value, not for a size."""
        return found in self._values


def _number(named: Symbol) -> int:
    return int(named.name[1:])
