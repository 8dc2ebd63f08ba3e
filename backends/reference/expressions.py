"""Index expressions on integers and on tensors of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import sympy
import torch
from torch import Tensor

from tilewright.backends.reference.errors import ExecutionError
from tilewright.dialects.sym_expr import Expr, FloorDiv, Max, Min, Mod, Symbol

Number = int | Tensor


def evaluate(expr: Expr, values: Mapping[Symbol, Number]) -> Number:
    """Return the value of `expr`, an int64 tensor where it uses one.

    Raises `ExecutionError` for a symbol without a value.
    """
    if expr.is_Integer:
        return int(expr)
    if isinstance(expr, sympy.Symbol):
        value = values.get(expr)
        if value is None:
            raise ExecutionError(f"the symbol `{expr}` has no value: no argument gives it")
        return value
    if expr.is_Pow:
        base, exponent = expr.args
        return reduce(_multiply, [evaluate(base, values)] * int(exponent))
    return reduce(_FUNCTIONS[expr.func], [evaluate(arg, values) for arg in expr.args])


def evaluate_int(expr: Expr, values: Mapping[Symbol, Number]) -> int:
    """Return the value of an expression over sizes."""
    value = evaluate(expr, values)
    assert isinstance(value, int)
    return value


def _add(a: Number, b: Number) -> Number:
    return a + b


def _multiply(a: Number, b: Number) -> Number:
    return a * b


def _floordiv(a: Number, b: Number) -> Number:
    return a // _divisor(b)


def _mod(a: Number, b: Number) -> Number:
    return a % _divisor(b)


def _divisor(value: Number) -> Number:
    zero = value == 0 if isinstance(value, int) else bool((value == 0).any())
    if zero:
        raise ExecutionError("an index expression divides by zero")
    return value


def _tensor(value: Number) -> Tensor:
    return torch.as_tensor(value, dtype=torch.int64)


def _min(a: Number, b: Number) -> Number:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else torch.minimum(_tensor(a), _tensor(b))


def _max(a: Number, b: Number) -> Number:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else torch.maximum(_tensor(a), _tensor(b))


_FUNCTIONS: dict[object, Callable[[Number, Number], Number]] = {
    sympy.Add: _add,
    sympy.Mul: _multiply,
    FloorDiv: _floordiv,
    Mod: _mod,
    Min: _min,
    Max: _max,
}
