"""The attributes of a program's function that say what its arguments and results are; see `dialects/aten.py`."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, StringAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.type_guards import is_array

PREFIX = "aten."


def verify_program(function: FuncOp) -> None:
    """Raise `VerifyException` where an attribute of `function` is not what `dialects/aten.py` says."""
    for name, value in function.attributes.items():
        if name in _VERIFIERS:
            _VERIFIERS[name](function, name, value)
        elif name.startswith(PREFIX):
            known = ", ".join(f"`{n}`" for n in _VERIFIERS)
            raise VerifyException(f"a function has no attribute `{name}`; there are {known}")


def _entries(name: str, value: Attribute, what: str) -> dict[str, Attribute]:
    if not isinstance(value, DictionaryAttr):
        raise VerifyException(f"`{name}` is {value}, expected a dictionary from symbols to {what}")
    return dict(value.data)


def _numbers(name: str, value: Attribute, low: int, high: int) -> list[int]:
    """Return the integers of an array attribute, each from `low` to `high` inclusive."""
    items = value.data if is_array(value) else None
    if items is None or not all(isinstance(i, IntegerAttr) for i in items):
        raise VerifyException(f"`{name}` is {value}, expected a list of integers")
    numbers = [i.value.data for i in items if isinstance(i, IntegerAttr)]
    wrong = [n for n in numbers if not low <= n <= high]
    if wrong:
        raise VerifyException(f"`{name}` has the number {wrong[0]}, expected {low} to {high}")
    return numbers


def _verify_symbols(function: FuncOp, name: str, value: Attribute) -> None:
    # SymPy takes a quarter of a second to import, which a file without symbols need not cost.
    from tilewright.dialects.sym import SymbolAttr

    for symbol, fact in _entries(name, value, "`#sym.symbol`").items():
        if not isinstance(fact, SymbolAttr):
            raise VerifyException(f"`{name}` has {fact} for `{symbol}`, expected a `#sym.symbol`")


def _verify_symbol_args(function: FuncOp, name: str, value: Attribute) -> None:
    inputs = function.function_type.inputs.data
    for symbol, number in _entries(name, value, "argument numbers").items():
        if not isinstance(number, IntegerAttr) or not 0 <= number.value.data < len(inputs):
            raise VerifyException(f"`{name}` has {number} for `{symbol}`, expected the number of an argument")
        kind = inputs[number.value.data]
        if kind != i64:
            raise VerifyException(f"`{name}` gives `{symbol}` an argument of type {kind}, expected i64")


def _verify_mutates(function: FuncOp, name: str, value: Attribute) -> None:
    _numbers(name, value, 0, len(function.function_type.inputs) - 1)


def _verify_output_alias(function: FuncOp, name: str, value: Attribute) -> None:
    found = len(_numbers(name, value, -1, len(function.function_type.inputs) - 1))
    results = len(function.function_type.outputs)
    if found != results:
        raise VerifyException(f"`{name}` has {found} numbers, the function has {results} results")


def _verify_constants(function: FuncOp, name: str, value: Attribute) -> None:
    if not is_array(value) or not all(isinstance(v, StringAttr) for v in value.data):
        raise VerifyException(f"`{name}` is {value}, expected a list of names")
    inputs = len(function.function_type.inputs)
    if len(value.data) > inputs:
        raise VerifyException(f"`{name}` has {len(value.data)} names, the function has {inputs} arguments")


def _verify_none_outputs(function: FuncOp, name: str, value: Attribute) -> None:
    # The caller's list holds the results and these.
    count = len(value.data) if is_array(value) else 0
    _numbers(name, value, 0, len(function.function_type.outputs) + count - 1)


def _verify_free_results(function: FuncOp, name: str, value: Attribute) -> None:
    _numbers(name, value, 0, len(function.function_type.outputs) - 1)


_VERIFIERS: dict[str, Callable[[FuncOp, str, Attribute], None]] = {
    "aten.symbols": _verify_symbols,
    "aten.symbol_args": _verify_symbol_args,
    "aten.mutates": _verify_mutates,
    "aten.output_alias": _verify_output_alias,
    "aten.constants": _verify_constants,
    "aten.none_outputs": _verify_none_outputs,
    "aten.free_results": _verify_free_results,
}
