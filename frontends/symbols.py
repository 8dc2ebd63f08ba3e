"""Symbolic integers: torch's SymPy expressions to ours, and what torch's shape environment knows of the symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import sympy
import torch

from tilewright.dialects.sym import SymbolAttr, SymbolInfo
from tilewright.dialects.sym_expr import Expr, FloorDiv, Max, Min, Mod, Symbol, integer, symbol
from tilewright.frontends import torch_internals as internals
from tilewright.frontends.torch_internals import ShapeEnv, torch_functions
from tilewright.frontends.unsupported import Unsupported

LARGEST_SIZE = 2**62 - 1
"""The bound of a size that torch leaves unbounded: beyond any memory, and the sum of two still fits in 64 bits."""


class SymbolTable:
    """Translates the symbolic integers of one graph and keeps the facts about each symbol that it meets."""

    def __init__(self, ranges: Mapping[sympy.Symbol, Any] | None = None) -> None:
        """`ranges` has the bounds of torch's symbols, where they are not those of the shape environment."""
        self._ranges = ranges or {}
        self.facts: dict[Symbol, SymbolAttr] = {}
        """What is known of each symbol, in the order in which they were met."""
        self._translated: dict[Any, Expr] = {}

    @staticmethod
    def key(value: int | torch.SymInt) -> Any:
        """Return something hashable that is equal for equal integers, much cheaper to get than `expr`."""
        return value if type(value) is int else internals.symint_expr(value)  # type: ignore[arg-type]

    def expr(self, value: int | torch.SymInt) -> Expr:
        """Return `value` as an expression of the IR.

        Raises `Unsupported` if it holds a function that the IR lacks, or a symbol that stands for data.
        """
        if not isinstance(value, torch.SymInt):
            return integer(value)
        return self.translate(internals.symint_expr(value), internals.shape_env_of(value))

    def translate(self, expr: sympy.Basic, env: ShapeEnv) -> Expr:
        """Return torch's `expr`, whose symbols live in `env`, as an expression of the IR."""
        found = self._translated.get(expr)
        if found is None:
            found = self._translated[expr] = self._translate(expr, env)
        return found

    def _translate(self, expr: Any, env: ShapeEnv) -> Expr:
        if expr.is_Integer:
            return integer(int(expr))
        if expr.is_Symbol:
            return self._symbol(expr, env)
        function, args = _rounded_quotient(expr) or (_FUNCTIONS.get(type(expr)), expr.args)
        if function in _DIVISIONS and not args[1].is_number and not internals.is_positive(env, args[1]):
            raise Unsupported(f"size expression `{expr}` has a divisor that may not be positive")
        result = None if function is None else function(*(self.translate(arg, env) for arg in args))
        if result is None:
            raise Unsupported(f"size expression `{expr}` has no form in the IR, which knows integer arithmetic")
        return result

    def _symbol(self, torch_symbol: sympy.Symbol, env: ShapeEnv) -> Symbol:
        if internals.is_unbacked_symbol(torch_symbol):
            raise Unsupported(f"size {torch_symbol} is computed from data")
        if not internals.is_size_symbol(torch_symbol):
            raise Unsupported(f"symbol {torch_symbol} is not an integer")
        ours = symbol(torch_symbol.name)
        if ours not in self.facts:
            lower, upper = internals.symbol_range(env, torch_symbol, self._ranges)
            info = SymbolInfo(internals.symbol_hint(env, torch_symbol), _bounded(lower), _bounded(upper))
            self.facts[ours] = SymbolAttr(info)
        return ours


def _bounded(bound: Any) -> int:
    """Return a bound as an int; torch's infinities become the largest size, with their sign."""
    return int(max(-LARGEST_SIZE, min(LARGEST_SIZE, bound)))


def _identity(value: Expr) -> Expr:
    return value


def _maximum(*values: Expr) -> Expr:
    return reduce(Max, values)


def _minimum(*values: Expr) -> Expr:
    return reduce(Min, values)


def _power(base: Expr, exponent: Expr) -> Expr | None:
    return base**exponent if exponent.is_Integer and exponent >= 0 else None


def _shift_left(value: Expr, amount: Expr) -> Expr | None:
    return value * 2 ** int(amount) if amount.is_Integer else None


def _shift_right(value: Expr, amount: Expr) -> Expr | None:
    return FloorDiv(value, integer(2 ** int(amount))) if amount.is_Integer else None


def _ceiling_quotient(value: Expr, divisor: Expr) -> Expr:
    return -FloorDiv(-value, divisor)


def _rounded_quotient(expr: Any) -> tuple[Callable[..., Expr], tuple[Any, Any]] | None:
    """Return what `math.ceil(n / m)` and the like compute of torch's n and m: exact below 2**53, where floats are."""
    if not expr.args or not isinstance(expr.args[0], torch_functions.IntTrueDiv):
        return None
    value, divisor = expr.args[0].args
    if isinstance(expr, torch_functions.CeilToInt):
        return _ceiling_quotient, (value, divisor)
    truncates = isinstance(expr, torch_functions.TruncToInt) and value.is_nonnegative and divisor.is_positive
    if truncates or isinstance(expr, torch_functions.FloorToInt):
        return FloorDiv, (value, divisor)
    return None


_FUNCTIONS: dict[Any, Callable[..., Expr | None]] = {
    sympy.Add: sympy.Add,
    sympy.Mul: sympy.Mul,
    sympy.Pow: _power,
    torch_functions.PowByNatural: _power,
    torch_functions.FloorDiv: FloorDiv,
    torch_functions.CleanDiv: FloorDiv,
    torch_functions.Mod: Mod,
    torch_functions.PythonMod: Mod,
    torch_functions.Max: _maximum,
    torch_functions.Min: _minimum,
    torch_functions.Identity: _identity,
    torch_functions.LShift: _shift_left,
    torch_functions.RShift: _shift_right,
}
"""What makes our expression from the translated arguments of torch's, or None where the arguments don't allow it."""

_DIVISIONS = (FloorDiv, Mod, _ceiling_quotient)
"""Functions whose second argument the IR takes to be positive where it is not a constant."""
