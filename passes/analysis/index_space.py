"""The index expressions of a kernel over one set of symbols, so that those of different operations can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache

import sympy
from xdsl.ir import BlockArgument, SSAValue

from tilewright.dialects.loop import ApplyOp, Bounds, Loop, LoopDim
from tilewright.dialects.sym import MapAttr
from tilewright.dialects.sym_expr import Expr, FloorDiv, Max, Min, Mod, Ranges, Symbol, bounds, dim, simplify


@cache
def _placeholder(number: int) -> Symbol:
    # Not a name that the parser accepts, so no size of a kernel is called this.
    return sympy.Symbol(f"%{number}", integer=True)


class IndexSpace:
    """A symbol for each index value of a kernel, and the range of each as far as the loops tell.

    The result of a `loop.apply` has no symbol: it is the expression that it computes.
    """

    def __init__(self, sizes: Ranges | None = None) -> None:
        """`sizes` are the ranges of the kernel's symbols, as far as they are known."""
        self.sizes = sizes or {}
        self._exprs: dict[SSAValue, Expr] = {}
        self._values: dict[Symbol, SSAValue] = {}
        self._accesses: dict[tuple[MapAttr, tuple[SSAValue, ...]], tuple[Expr, ...]] = {}
        self.ranges: dict[Symbol, tuple[Expr | None, Expr | None]] = {}

    def expr(self, value: SSAValue) -> Expr:
        """Return what `value` is: a symbol of its own, or for the result of a `loop.apply` an expression of others."""
        known = self._exprs.get(value)
        if known is not None:
            return known
        if not isinstance(value.owner, ApplyOp):
            return self.declare(value, *self._range(value))
        found = self.over_operands(value.owner.expr, value.owner.indices)
        self._exprs[value] = found
        return found

    def symbol(self, value: SSAValue) -> Symbol:
        """Return the symbol of an index value that is not the result of a `loop.apply`."""
        found = self.expr(value)
        assert isinstance(found, sympy.Symbol)
        return found

    def declare(self, value: SSAValue, lower: Expr | None = None, upper: Expr | None = None) -> Symbol:
        """Return a new symbol for `value`, with inclusive bounds as far as they are known."""
        found = _placeholder(len(self._values))
        self._exprs[value] = found
        self._values[found] = value
        self.ranges[found] = (lower, upper)
        return found

    def value(self, symbol: Symbol) -> SSAValue | None:
        """Return the index value that `symbol` stands for, None for the symbol of a size."""
        return self._values.get(symbol)

    def over_operands(self, expr: Expr, operands: Sequence[SSAValue]) -> Expr:
        """Return `expr`, in which `d<i>` stands for `operands[i]`, over this space."""
        if not operands:
            return expr
        return expr.xreplace({dim(i): self.expr(o) for i, o in enumerate(operands)})

    def access(self, access: MapAttr, operands: Sequence[SSAValue]) -> tuple[Expr, ...]:
        """Return the expressions of an access over this space."""
        key = (access, tuple(operands))
        found = self._accesses.get(key)
        if found is None:
            found = self._accesses[key] = tuple(self.over_operands(e, operands) for e in access.exprs)
        return found

    def to_operands(self, exprs: Iterable[Expr]) -> tuple[tuple[Expr, ...], list[SSAValue]]:
        """Return `exprs` over dims `d0`, `d1`, .. and the values that the dims stand for: the inverse of `access`."""
        exprs = tuple(exprs)
        used = sorted({s for e in exprs for s in e.free_symbols if s in self._values}, key=lambda s: int(s.name[1:]))
        order = {s: dim(i) for i, s in enumerate(used)}
        return tuple(e.xreplace(order) for e in exprs), [self._values[s] for s in used]

    def loops(self, op: Loop) -> list[LoopDim]:
        """Return the loops of `op` with their bounds over this space."""
        bounds = self.access(op.bounds, op.bound_operands)
        return [
            LoopDim(lower, upper, d.step, d.lanes)
            for lower, upper, d in zip(bounds[::2], bounds[1::2], op.loops.dims, strict=True)
        ]

    def largest_extent(self, this: LoopDim) -> int | None:
        """Return the most elements that a loop, given over this space, may run over; None if that is not known."""
        uppers = this.upper.args if isinstance(this.upper, Min) else (this.upper,)
        lowers = this.lower.args if isinstance(this.lower, Min) else (this.lower,)
        most = 0
        for lower in lowers:
            extents = [self._at_most(self.simplify(upper - lower)) for upper in uppers]
            known = [int(e) for e in extents if e is not None and e.is_Integer]
            if not known:
                return None
            most = max(most, min(known))
        return most

    def _at_most(self, expr: Expr) -> Expr | None:
        """Return an upper bound of an expression, a number if the ranges of sizes allow it."""
        found = self.bounds(expr)[1]
        return None if found is None else bounds(found, self.sizes)[1]

    def bounds_over_operands(self, dims: Iterable[LoopDim]) -> Bounds:
        """Return loops given over this space as an operation holds them: the inverse of `loops`."""
        dims = tuple(dims)
        exprs, operands = self.to_operands(e for d in dims for e in (d.lower, d.upper))
        pairs = zip(exprs[::2], exprs[1::2], dims, strict=True)
        return Bounds(tuple(LoopDim(low, high, d.step, d.lanes) for low, high, d in pairs), tuple(operands))

    def simplify(self, expr: Expr) -> Expr:
        """Return an equal expression, using the ranges of the loops."""
        return simplify(expr, self.ranges)

    def bounds(self, expr: Expr) -> tuple[Expr | None, Expr | None]:
        """Return inclusive bounds of `expr`; None where there is none."""
        return bounds(expr, self.ranges)

    def _range(self, value: SSAValue) -> tuple[Expr | None, Expr | None]:
        if not isinstance(value, BlockArgument):
            return None, None
        loop = value.block.parent_op()
        if not isinstance(loop, Loop):
            return None, None
        loops = loop.loops
        this = loops.dims[value.index]
        lower = self.bounds(self.over_operands(this.lower, loops.operands))[0]
        upper = self.bounds(self.over_operands(this.upper, loops.operands))[1]
        # The last vector of a masked loop reaches beyond the bound.
        beyond = this.step - 2 if this.lanes and loop.masked is not None else -1
        return lower, None if upper is None else upper + beyond

    def is_multiple(self, expr: Expr, of: int) -> bool:
        """Whether `expr` is a multiple of `of` by its coefficients and by the steps of the loops."""
        return all(self._is_multiple_term(t, of) for t in sympy.Add.make_args(expr))

    def _is_multiple_term(self, term: Expr, of: int) -> bool:
        coefficient, rest = term.as_coeff_Mul()
        if coefficient % of == 0:
            return True
        value = self._values.get(rest) if isinstance(rest, sympy.Symbol) else None
        if not isinstance(value, BlockArgument):
            return False
        loop = value.block.parent_op()
        if not isinstance(loop, Loop):
            return False
        loops = loop.loops
        this = loops.dims[value.index]
        return this.step % of == 0 and self.is_multiple(self.over_operands(this.lower, loops.operands), of)

    def round_down(self, expr: Expr, lower: Expr, step: int) -> Expr:
        """Return the largest `lower + k * step` that is at most `expr`, where `expr >= lower`."""
        if not self.is_multiple(lower, step):
            return self.simplify(expr - Mod(expr - lower, step))
        return self._round_down(expr, step)

    def _round_down(self, expr: Expr, step: int) -> Expr:
        if self.is_multiple(expr, step):
            return expr
        if isinstance(expr, (Min, Max)):
            return expr.func(*(self._round_down(a, step) for a in expr.args))
        return expr - Mod(expr, step)


@lru_cache(maxsize=8192)
def stride(expr: Expr, symbol: Symbol) -> Expr | None:
    """Return `c` where `expr` is `c * symbol` plus terms without `symbol`; None where it has no such form."""
    if symbol not in expr.free_symbols:
        return sympy.Integer(0)
    total: Expr = sympy.Integer(0)
    for term in sympy.Add.make_args(sympy.expand_mul(expr)):
        if symbol not in term.free_symbols:
            continue
        factors = sympy.Mul.make_args(term)
        rest = [f for f in factors if f != symbol]
        if len(rest) != len(factors) - 1 or any(symbol in f.free_symbols for f in rest):
            return None
        total = total + sympy.Mul(*rest)
    return total


def divisions(expr: Expr) -> list[Expr]:
    """Return the floor divisions and modulos in `expr`, each once, outer ones first."""
    found: list[Expr] = [expr] if isinstance(expr, (FloorDiv, Mod)) else []
    for argument in expr.args:
        found += (d for d in divisions(argument) if d not in found)
    return found
