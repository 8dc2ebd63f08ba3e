"""Which sizes of a kernel had better be multiples of 16: with those, several elements are moved at a time."""

from __future__ import annotations

import sympy

from tilewright.dialects.loop import KernelOp, LoadOp, Loop, StoreOp
from tilewright.dialects.sym_expr import Expr, Max, Min, Symbol
from tilewright.passes.analysis.index_space import IndexSpace, stride

DIVISOR = 16
"""What Triton asks of a size: elements of one byte are moved 16 at a time."""


def sizes_to_divide(kernel: KernelOp, space: IndexSpace) -> set[str]:
    """Return the symbols that say where a row begins, or where a loop along memory ends."""
    wanted: set[Symbol] = set()
    along: set[Symbol] = set()
    for op in kernel.walk():
        if isinstance(op, (LoadOp, StoreOp)):
            (expr,) = space.access(op.access, op.indices)
            wanted |= _in_uneven_terms(expr)
            along |= {s for s in expr.free_symbols if stride(expr, s) in (1, -1)}
    for op in kernel.walk():
        if isinstance(op, Loop):
            for index, dim in zip(op.indices, space.loops(op), strict=True):
                if space.symbol(index) in along:
                    wanted |= _in_uneven_terms(dim.upper) | _in_uneven_terms(dim.lower)
    return {s.name for s in wanted} & set(kernel.symbol_names)


def _in_uneven_terms(expr: Expr) -> set[Symbol]:
    """Return the symbols of the terms that their coefficients do not make multiples of 16."""
    found: set[Symbol] = set()
    for term in sympy.Add.make_args(sympy.expand(expr)):
        if isinstance(term, (Min, Max)):
            found.update(s for part in term.args for s in _in_uneven_terms(part))
        elif term.as_coeff_Mul()[0] % DIVISOR:
            found |= term.free_symbols
    return found
