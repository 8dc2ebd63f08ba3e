"""Size expressions as numbers and as Python text."""

from collections.abc import Callable, Mapping

import sympy

from tilewright.dialects.sym_expr import Expr, FloorDiv, Max, Min, Mod, Symbol

_FUNCTIONS: dict[type, Callable[[int, int], int]] = {
    FloorDiv: lambda a, b: a // b,
    Mod: lambda a, b: a % b,
    Min: min,
    Max: max,
}


def evaluate(expr: Expr, values: Mapping[Symbol, int]) -> int:
    """Return the value of `expr`. Raises KeyError for a symbol that is not in `values`."""
    if expr.is_Integer:
        return int(expr)
    if isinstance(expr, sympy.Symbol):
        return values[expr]
    arguments = [evaluate(a, values) for a in expr.args]
    if expr.is_Add:
        return sum(arguments)
    if expr.is_Mul:
        result = 1
        for argument in arguments:
            result *= argument
        return result
    if expr.is_Pow:
        return int(arguments[0] ** arguments[1])
    return _FUNCTIONS[type(expr)](*arguments)


_SUM, _PRODUCT, _OPERAND = range(3)


def python_text(expr: Expr, names: Mapping[Symbol, str]) -> str:
    """Return `expr` as a Python expression over `names`."""
    return _python_text(expr, names, _SUM)


def _python_text(expr: Expr, names: Mapping[Symbol, str], context: int) -> str:
    if expr.is_Integer:
        return str(int(expr)) if expr >= 0 or context == _SUM else f"({int(expr)})"
    if isinstance(expr, sympy.Symbol):
        return names[expr]
    if isinstance(expr, (Min, Max)):
        arguments = ", ".join(_python_text(a, names, _SUM) for a in ordered_args(expr))
        return f"{'min' if isinstance(expr, Min) else 'max'}({arguments})"
    if isinstance(expr, (FloorDiv, Mod)):
        left, right = (_python_text(a, names, _OPERAND) for a in expr.args)
        text, level = f"{left} {'//' if isinstance(expr, FloorDiv) else '%'} {right}", _PRODUCT
    elif expr.is_Add:
        text, level = " + ".join(_python_text(a, names, _PRODUCT) for a in ordered_args(expr)), _SUM
    elif expr.is_Mul:
        text, level = " * ".join(_python_text(a, names, _OPERAND) for a in ordered_args(expr)), _PRODUCT
    else:
        assert expr.is_Pow
        text, level = f"{_python_text(expr.args[0], names, _OPERAND)} ** {int(expr.args[1])}", _PRODUCT
    # Products are not associative here: `a * (b // c)` is not `a * b // c`.
    return f"({text})" if context > level or (context == _PRODUCT == level and not expr.is_Mul) else text


def ordered_args(expr: Expr) -> list[Expr]:
    """Return the operands of a commutative expression in an order that does not depend on hashes."""
    return sorted(expr.args, key=sympy.default_sort_key)
