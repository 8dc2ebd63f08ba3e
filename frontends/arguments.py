"""The arguments of one call: FX values to attributes and operands, as the operator's schema says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import fx
from xdsl.dialects.builtin import ArrayAttr, FloatAttr, IntegerAttr, NoneAttr, StringAttr, f64, i64
from xdsl.ir import Attribute, SSAValue

from tilewright.dialects.aten_schema import Argument, Element, Kind, Schema
from tilewright.dialects.call_syntax import (
    ComplexAttr,
    DeviceAttr,
    DtypeAttr,
    LayoutKindAttr,
    MemoryFormatAttr,
    OperandAttr,
)
from tilewright.dialects.sym import ExprAttr, IntsAttr
from tilewright.frontends.symbols import SymbolTable
from tilewright.frontends.types import device_name, element_type
from tilewright.frontends.unsupported import Unsupported

Environment: TypeAlias = Mapping[fx.Node, Any]
"""What each node stands for: an SSA value for a tensor, a number (perhaps symbolic), None, or a tuple of these."""

Call: TypeAlias = tuple[dict[str, Attribute], list[SSAValue]]
"""Arguments by name in the schema's order, and the operands that `#aten.operand<i>` among them counts."""

_NONE = NoneAttr()
_TRUE, _FALSE = IntegerAttr.from_bool(True), IntegerAttr.from_bool(False)


def is_ssa_value(value: Any) -> TypeGuard[SSAValue]:
    """Whether `value` is a tensor of the graph, for the type checker too."""
    return isinstance(value, SSAValue)


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether `value` is a list of arguments, for the type checker too."""
    return isinstance(value, (list, tuple))


class ArgumentConverter:
    """Converts the arguments of the calls of one graph, and shares equal attributes: making one is what costs."""

    def __init__(self, symbols: SymbolTable, environment: Environment) -> None:
        self._symbols = symbols
        self._environment = environment
        self._operands: list[OperandAttr] = []
        self._integers: dict[int, IntegerAttr] = {}
        self._lists: dict[tuple[Any, ...], IntsAttr] = {}
        self._makers: dict[Element, Callable[[Any], Attribute]] = {
            Element.INT: self._integer,
            Element.SYM_INT: self._integer,
            Element.SCALAR: self._number,
            Element.FLOAT: _float,
            Element.BOOL: _bool,
            Element.SYM_BOOL: _bool,
            Element.STR: _string,
            Element.SCALAR_TYPE: _dtype,
            Element.DEVICE: _device,
            Element.LAYOUT: _layout,
            Element.MEMORY_FORMAT: _memory_format,
            Element.GENERATOR: _generator,
            Element.OTHER: self._other,
        }

    def convert(self, schema: Schema, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Convert the arguments of a call, but for those equal to their default: equal calls have equal text.

        Raises `Unsupported` for a value that the IR lacks.
        """
        arguments: dict[str, Attribute] = {}
        operands: list[SSAValue] = []
        for position, argument in enumerate(schema.arguments):
            if position < len(args):
                value = args[position]
            elif argument.name in kwargs:
                value = kwargs[argument.name]
            else:
                continue
            if isinstance(value, fx.Node):
                value = self._environment[value]
            if argument.has_default and _is_default(value, argument):
                continue
            arguments[argument.name] = self._value(argument, value, operands)
        return arguments, operands

    def _value(self, argument: Argument, value: Any, operands: list[SSAValue]) -> Attribute:
        kind = argument.kind
        if value is None:
            return _NONE
        if kind.is_list:
            return self._list(kind, value, operands)
        if kind.element is Element.TENSOR:
            return self._tensor(value, operands)
        return self._makers[kind.element](value)

    def _list(self, kind: Kind, value: Any, operands: list[SSAValue]) -> Attribute:
        given = value if is_list(value) else [value] * (kind.length or 1)
        items = [self._environment[item] if isinstance(item, fx.Node) else item for item in given]
        match kind.element:
            case Element.INT | Element.SYM_INT:
                return self._integer_list(items)
            case Element.TENSOR:
                return ArrayAttr([_NONE if item is None else self._tensor(item, operands) for item in items])
            case element:
                make = self._makers[element]
                return ArrayAttr([_NONE if item is None else make(item) for item in items])

    def _tensor(self, value: Any, operands: list[SSAValue]) -> Attribute:
        if not is_ssa_value(value):
            # A number in a tensor's place takes part in type promotion as a number, so it stays one.
            return self._number(value)
        number = len(operands)
        operands.append(value)
        while len(self._operands) <= number:
            self._operands.append(OperandAttr(len(self._operands)))
        return self._operands[number]

    def _integer_list(self, items: Sequence[Any]) -> IntsAttr:
        key = tuple(map(self._symbols.key, items))
        found = self._lists.get(key)
        if found is None:
            found = self._lists[key] = IntsAttr(tuple(map(self._symbols.expr, items)))
        return found

    def _integer(self, value: Any) -> Attribute:
        if isinstance(value, torch.SymInt):
            expr = self._symbols.expr(value)
            if not expr.is_Integer:
                return ExprAttr(expr)
            value = int(expr)
        if not isinstance(value, int):
            raise _unexpected(value, "an integer")
        found = self._integers.get(value)
        if found is None:
            if not -(2**63) <= value < 2**63:
                raise Unsupported(f"integer {value} does not fit in 64 bits")
            found = self._integers[int(value)] = IntegerAttr(int(value), i64)
        return found

    def _number(self, value: Any) -> Attribute:
        match value:
            case bool():
                return _bool(value)
            case float():
                return _float(value)
            case complex():
                return ComplexAttr((value.real, value.imag))
            case _:
                return self._integer(value)

    def _other(self, value: Any) -> Attribute:
        return _string(value) if isinstance(value, str) else self._number(value)


def _is_default(value: Any, argument: Argument) -> bool:
    default = argument.default
    if is_list(value):
        if not isinstance(default, tuple):
            if argument.kind.length is None:
                return False  # for some operators an empty list is not the same as none
            # `int[2] padding=0` means [0, 0].
            default = (default,) * argument.kind.length
        return all(type(item) is int for item in value) and tuple(value) == default
    if isinstance(value, float) and math.copysign(1.0, value) < 0:
        return False  # -0.0 equals 0.0; no default is negative zero, and a negative one is merely written out
    return type(value) is type(default) and value == default


def _float(value: Any) -> Attribute:
    if not isinstance(value, (int, float)):
        raise _unexpected(value, "a number known before the graph runs")
    return FloatAttr(float(value), f64)


def _bool(value: Any) -> Attribute:
    if not isinstance(value, (bool, int)):
        raise _unexpected(value, "a truth value known before the graph runs")
    return _TRUE if value else _FALSE


def _string(value: Any) -> Attribute:
    return StringAttr(value)


def _dtype(value: Any) -> Attribute:
    return DtypeAttr(element_type(value))


def _device(value: Any) -> Attribute:
    return DeviceAttr(device_name(torch.device(value)))


def _layout(value: Any) -> Attribute:
    if value is not torch.strided:
        raise Unsupported(f"layout {value}, expected torch.strided")
    return LayoutKindAttr("strided")


def _memory_format(value: Any) -> Attribute:
    return MemoryFormatAttr(str(value).removeprefix("torch."))


def _generator(value: Any) -> Attribute:
    raise _unexpected(value, "torch's default generator")


def _unexpected(value: Any, expected: str) -> Unsupported:
    return Unsupported(f"argument `{value}` of type {type(value).__name__}, expected {expected}")
