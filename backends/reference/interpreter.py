"""Runs a function of a module, on any level, on torch tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from xdsl.dialects import func
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, NoneType
from xdsl.ir import Attribute, SSAValue

from tilewright.backends.reference import access, cpu, host, loop, scalar
from tilewright.backends.reference.aten import same_strides
from tilewright.backends.reference.buffers import Buffer
from tilewright.backends.reference.dtypes import memory_dtype, register_dtype
from tilewright.backends.reference.errors import ExecutionError
from tilewright.backends.reference.frame import Frame, execute, run_block
from tilewright.backends.reference.functions import constant
from tilewright.dialects.loop import layout_of
from tilewright.dialects.sym_expr import Symbol, symbol
from tilewright.dialects.type_guards import is_integer, is_memref, is_tensor

EXECUTED = (access, cpu, host, loop, scalar)
"""The modules that are imported for the operations they register with `execute`."""

Input = Tensor | int
Output = Tensor | int | None


def run_function(
    module: ModuleOp, inputs: Sequence[Input], name: str = "forward", symbols: Mapping[str, int] | None = None
) -> list[Output]:
    """Run the function called `name` and return its results; tensors that it mutates are written.

    Each result has the layout of its type, or is a view of an input. Size symbols are read from the arguments;
    `symbols` gives those that no argument has. Raises `ExecutionError` if the inputs do not fit the types, or if the
    program does what it must not.
    """
    function = find_function(module, name)
    frame = Frame(module, bind_symbols(function, inputs, symbols or {}))
    with torch.no_grad():
        for number, (argument, given) in enumerate(zip(function.body.block.args, inputs, strict=True)):
            frame.set(argument, _input(number, argument.type, given, frame))
        run_block(function.body.block, frame)
        terminator = function.body.block.last_op
        assert isinstance(terminator, func.ReturnOp)
        return [_output(number, value, frame) for number, value in enumerate(terminator.arguments)]


def find_function(module: ModuleOp, name: str) -> func.FuncOp:
    """Return the function called `name`. Raises `ExecutionError` if the module has none such with a body."""
    functions = {op.sym_name.data: op for op in module.ops if isinstance(op, func.FuncOp) and not op.is_declaration}
    if name not in functions:
        known = ", ".join(f"`@{n}`" for n in functions)
        raise ExecutionError(f"the module has no function `@{name}`; it has {known or 'none'}")
    return functions[name]


def bind_symbols(function: func.FuncOp, inputs: Sequence[Input], given: Mapping[str, int]) -> dict[Symbol, int]:
    """Return the values of the size symbols.

    A symbol is as given, or has the value of the argument that holds it, or of the first size or stride that it is
    alone. Raises `ExecutionError` if the number of inputs is wrong.
    """
    kinds = function.function_type.inputs.data
    if len(kinds) != len(inputs):
        raise ExecutionError(f"`@{function.sym_name.data}` takes {len(kinds)} arguments, found {len(inputs)}")
    values = {symbol(n): v for n, v in given.items()}
    numbers = function.attributes.get("aten.symbol_args")
    if isinstance(numbers, DictionaryAttr):
        for name, number in numbers.data.items():
            assert isinstance(number, IntegerAttr)
            value = inputs[number.value.data]
            if isinstance(value, int):
                values.setdefault(symbol(name), value)
    for kind, value in zip(kinds, inputs, strict=True):
        if (is_tensor(kind) or is_memref(kind)) and isinstance(value, Tensor):
            layout = layout_of(kind)
            if value.ndim != len(layout.sizes):
                continue  # `_input` says so.
            found = (*value.shape, *value.stride())
            for expr, number in zip((*layout.sizes, *layout.strides), found, strict=True):
                if isinstance(expr, Symbol):
                    values.setdefault(expr, int(number))
    return values


def _input(number: int, kind: Attribute, value: Input, frame: Frame) -> Tensor | Buffer:
    """Return an argument as the interpreter holds it, after a check that it has its type."""
    if is_integer(kind):
        if isinstance(value, Tensor):
            raise ExecutionError(f"argument {number} is a tensor, expected an integer")
        return constant(value, register_dtype(kind))
    if not (is_tensor(kind) or is_memref(kind)):
        raise ExecutionError(f"argument {number} has type {kind}, expected a tensor, a memref or an integer")
    if not isinstance(value, Tensor):
        raise ExecutionError(f"argument {number} is {value}, expected a tensor")
    layout = layout_of(kind)
    found = (
        f"argument {number} is {value.dtype} of sizes {list(value.shape)} and strides {list(value.stride())}, expected "
    )
    if value.dtype != memory_dtype(kind.element_type):
        raise ExecutionError(found + str(memory_dtype(kind.element_type)))
    sizes, strides = frame.sizes(layout.sizes), frame.sizes(layout.strides)
    if list(value.shape) != sizes:
        raise ExecutionError(found + f"sizes {sizes}")
    if not same_strides(value, strides):
        raise ExecutionError(found + f"strides {strides}")
    return Buffer(value.detach())


def _output(number: int, value: SSAValue, frame: Frame) -> Output:
    """Return a result as the caller gets it."""
    content = frame.content(value)
    if content is None:
        assert isinstance(value.type, NoneType)
        return None
    if isinstance(content, Tensor):
        return int(content)
    missing = content.first_unwritten()
    if missing is not None:
        raise ExecutionError(f"element {list(missing)} of result {number} was never stored")
    return content.tensor


@execute.register
def _(op: func.ReturnOp, frame: Frame) -> None:
    pass  # Who runs the function takes the values.
