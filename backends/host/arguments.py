"""The arguments of a call to an operator as Python values, in which sizes and tensors are still to be filled in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from xdsl.dialects.builtin import ArrayAttr, FloatAttr, IntegerAttr, NoneAttr, StringAttr, i1
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from tilewright.backends.host.abi import dtype_of
from tilewright.backends.host.expressions import evaluate
from tilewright.backends.host.torch_internals import Overload, find_overload
from tilewright.dialects.call_syntax import (
    ComplexAttr,
    DeviceAttr,
    DtypeAttr,
    LayoutKindAttr,
    MemoryFormatAttr,
    OperandAttr,
)
from tilewright.dialects.sym import ExprAttr, IntsAttr
from tilewright.dialects.sym_expr import Expr, Symbol


@dataclass(frozen=True)
class Size:
    """Stands for the value of a size expression with symbols in it."""

    expr: Expr


@dataclass(frozen=True)
class TensorOperand:
    """Stands for the tensor that is operand `index` of the call."""

    index: int


Value = (
    None
    | bool
    | int
    | float
    | complex
    | str
    | Size
    | TensorOperand
    | torch.dtype
    | torch.device
    | torch.layout
    | torch.memory_format
    | tuple["Value", ...]
)
"""An argument, or an element of one that is a list."""


def argument_value(attribute: Attribute) -> Value:
    """Return what an argument of `aten.call` or `host.call` stands for."""
    match attribute:
        case OperandAttr():
            return TensorOperand(attribute.data)
        case NoneAttr():
            return None
        case IntegerAttr():
            return bool(attribute.value.data) if attribute.type == i1 else attribute.value.data
        case FloatAttr():
            return attribute.value.data
        case StringAttr():
            return attribute.data
        case ExprAttr():
            return _number(attribute.expr)
        case IntsAttr():
            return tuple(_number(e) for e in attribute.exprs)
        case ArrayAttr():
            return tuple(argument_value(a) for a in attribute.data)
        case ComplexAttr():
            return complex(*attribute.data)
        case DtypeAttr():
            return dtype_of(attribute.element_type)
        case DeviceAttr():
            return torch.device(attribute.data)
        case LayoutKindAttr():
            return _named(attribute.data, torch.layout)
        case MemoryFormatAttr():
            return _named(attribute.data, torch.memory_format)
        case _:
            raise VerifyException(f"expected an argument of an operator, found {attribute}")


def argument_values(arguments: Mapping[str, Attribute]) -> dict[str, Value]:
    """Return what the arguments stand for, by name."""
    return {name: argument_value(attribute) for name, attribute in arguments.items()}


def fill_in(value: Value, tensors: Sequence[torch.Tensor], sizes: Mapping[Symbol, int]) -> object:
    """Return the argument to call an operator with."""
    match value:
        case TensorOperand(index):
            return tensors[index]
        case Size(expr):
            return evaluate(expr, sizes)
        case tuple():
            return [fill_in(v, tensors, sizes) for v in value]
        case _:
            return value


def find_operator(name: str) -> Overload:
    """Return the operator called `aten.mm.default` or the like.

    Raises `VerifyException` if the installed torch has none of that name.
    """
    operator = find_overload(name)
    if operator is None:
        raise VerifyException(f"PyTorch {torch.__version__} has no operator `{name}`")
    return operator


def _number(expr: Expr) -> Size | int:
    return int(expr) if expr.is_Integer else Size(expr)


def _named(name: str, kind: type[torch.layout] | type[torch.memory_format]) -> Value:
    value = getattr(torch, name, None)
    if not isinstance(value, kind):
        raise VerifyException(f"`{name}` is not a {kind.__name__}")
    return value
