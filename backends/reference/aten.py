"""Calls of ATen operators: arguments decoded from attributes, operators found by name, results as the types say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor
from xdsl.dialects.builtin import ArrayAttr, FloatAttr, IntegerAttr, IntegerType, NoneAttr, StringAttr
from xdsl.ir import Attribute, SSAValue

from tilewright.backends.reference.buffers import Buffer
from tilewright.backends.reference.dtypes import memory_dtype, memory_dtype_of
from tilewright.backends.reference.errors import failure
from tilewright.backends.reference.frame import Frame, execute
from tilewright.dialects import aten, aten_schema
from tilewright.dialects.call_syntax import (
    ComplexAttr,
    DeviceAttr,
    DtypeAttr,
    LayoutKindAttr,
    MemoryFormatAttr,
    OperandAttr,
    OperatorCall,
)
from tilewright.dialects.loop import layout_of
from tilewright.dialects.sym import ExprAttr, IntsAttr
from tilewright.dialects.type_guards import is_array


@execute.register
def _(op: aten.CallOp, frame: Frame) -> None:
    call(op, frame)


@execute.register
def _(op: aten.SizeOp, frame: Frame) -> None:
    frame.set(op.result, torch.tensor(frame.size(op.size.expr)))


def call(op: OperatorCall, frame: Frame) -> None:
    """Execute `aten.call` or `host.call`.

    Raises `ExecutionError` where PyTorch refuses, or where the results are not of their types.
    """
    operator = find_operator(op)
    _check_written(op, frame)
    arguments = {name: _argument(op, value, frame) for name, value in op.arguments.data.items()}
    try:
        returned = operator(**arguments)
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
        raise failure(op, f"PyTorch refuses: {str(error).partition(chr(10))[0]}") from error
    _mark_written(op, frame)
    outputs = [] if returned is None and not op.outputs else _flattened(returned)
    if len(outputs) != len(op.outputs):
        raise failure(op, f"PyTorch gives {len(outputs)} results, found {len(op.outputs)} result types")
    for result, output in zip(op.outputs, outputs, strict=True):
        if output is None:
            frame.set(result, None)
        elif isinstance(output, Tensor):
            frame.set(result, Buffer(_conforming(op, result, output, frame)))
        else:
            frame.set(result, torch.tensor(output))


def find_operator(op: OperatorCall) -> Callable[..., Any]:
    """Return the operator that a call names. Raises `ExecutionError` if this PyTorch has none such."""
    found: Any = torch.ops
    for part in op.operator.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise failure(op, f"PyTorch has no operator `{op.operator}`; a custom operator's library must be loaded")
    return found


_FORMATS = {
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}


def _argument(op: OperatorCall, value: Attribute, frame: Frame) -> Any:
    """Return the Python value of an argument."""
    match value:
        case OperandAttr():
            return _operand(op.operands[value.data], frame)
        case NoneAttr():
            return None
        case ArrayAttr():
            return [_argument(op, v, frame) for v in value.data]
        case IntegerAttr():
            number = value.value.data
            return bool(number) if value.type == IntegerType(1) else number
        case FloatAttr():
            return value.value.data
        case ComplexAttr():
            return complex(*value.data)
        case ExprAttr():
            return frame.size(value.expr)
        case IntsAttr():
            return frame.sizes(value.exprs)
        case StringAttr():
            return value.data
        case DtypeAttr():
            return memory_dtype(value.element_type)
        case DeviceAttr():
            return torch.device("cpu")  # all tensors of the interpreter are there
        case MemoryFormatAttr() if value.data in _FORMATS:
            return _FORMATS[value.data]
        case LayoutKindAttr() if value.data == "strided":
            return torch.strided
        case _:
            raise failure(op, f"expected an argument of a kind that the interpreter knows, found {value}")


def _operand(value: SSAValue, frame: Frame) -> Tensor | int | None:
    content = frame.content(value)
    if isinstance(content, Buffer):
        return content.tensor
    return None if content is None else frame.integer(value)


def _flattened(returned: Any) -> list[Any]:
    """Return an operator's results with lists of tensors taken apart."""
    return [] if returned is None else list(_parts(returned))


def _parts(value: Any) -> Iterator[Any]:
    if is_list(value):
        for part in value:
            yield from _parts(part)
    else:
        yield value


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether `value` is a list or a tuple."""
    return isinstance(value, (tuple, list))


def _conforming(op: OperatorCall, result: SSAValue, output: Tensor, frame: Frame) -> Tensor:
    """Return `output` with the strides of the result type; a new tensor is copied into them, a view must have them."""
    layout = layout_of(result.type)
    sizes, strides = frame.sizes(layout.sizes), frame.sizes(layout.strides)
    dtype = memory_dtype_of(result)
    if list(output.shape) != sizes or output.dtype != dtype:
        raise failure(op, f"PyTorch gives {output.dtype} of sizes {list(output.shape)}, expected {dtype} of {sizes}")
    if same_strides(output, strides):
        return output
    schema = aten_schema.lookup(op.operator)
    if schema is None or schema.is_view or schema.is_mutable:
        raise failure(op, f"PyTorch gives a view with strides {list(output.stride())}, expected {strides}")
    return torch.empty_strided(sizes, strides, dtype=output.dtype).copy_(output)


def same_strides(tensor: Tensor, strides: Sequence[int]) -> bool:
    """Whether `tensor` has `strides` where they matter: in dims with more than one element, if it has elements."""
    if tensor.numel() == 0:
        return True
    return all(s == t or n == 1 for n, s, t in zip(tensor.shape, tensor.stride(), strides, strict=True))


def _written_operands(op: OperatorCall) -> set[int]:
    """Return the operands that the operator writes to."""
    schema = aten_schema.lookup(op.operator)
    written: set[int] = set()
    for argument in schema.arguments if schema is not None else ():
        value = op.arguments.data.get(argument.name)
        if argument.is_write and value is not None:
            items = value.data if is_array(value) else (value,)
            written.update(i.data for i in items if isinstance(i, OperandAttr))
    return written


def _check_written(op: OperatorCall, frame: Frame) -> None:
    """Raise `ExecutionError` if an operator would read elements that were never stored."""
    writes = _written_operands(op)
    for number, operand in enumerate(op.operands):
        content = frame.content(operand)
        if isinstance(content, Buffer) and number not in writes and (missing := content.first_unwritten()) is not None:
            raise failure(op, f"reads element {list(missing)} of operand {number}, which was never stored")


def _mark_written(op: OperatorCall, frame: Frame) -> None:
    for number in _written_operands(op):
        content = frame.content(op.operands[number])
        if isinstance(content, Buffer) and content.written is not None:
            content.written.fill_(True)
