"""Runs a function or a kernel of a module, on any level, on torch tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from xdsl.dialects import func
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, NoneType
from xdsl.ir import Attribute, Block, SSAValue

from tilewright.backends.reference import access, control, cpu, host, loop, random, scalar, tt, tt_regions
from tilewright.backends.reference.aten import same_strides
from tilewright.backends.reference.buffers import Buffer
from tilewright.backends.reference.dtypes import memory_dtype, register_dtype
from tilewright.backends.reference.errors import ExecutionError
from tilewright.backends.reference.frame import Frame, execute, run_block
from tilewright.backends.reference.functions import constant
from tilewright.backends.reference.tt_launch import run_programs
from tilewright.dialects import tt as tt_dialect
from tilewright.dialects.cpu_errors import errors_of
from tilewright.dialects.loop import KernelOp, layout_of
from tilewright.dialects.sym_expr import Symbol, symbol
from tilewright.dialects.type_guards import is_integer, is_memref, is_tensor

EXECUTED = (access, control, cpu, host, loop, random, scalar, tt, tt_regions)
"""The modules that are imported for the operations they register with `execute`."""

Input = Tensor | int
Output = Tensor | int | None


def run_function(
    module: ModuleOp, inputs: Sequence[Input], name: str = "forward", symbols: Mapping[str, int] | None = None
) -> list[Output]:
    """Run the function called `name` and return its results; tensors that it mutates are written.

    Each result has the layout of its type, or is a view of an input. Size symbols are read from the arguments;
    `symbols` gives those that no argument has. A kernel is run likewise, on its buffers and then the values of its
    symbols. Raises `ExecutionError` if the inputs do not fit the types, or if the program does what it must not; it is
    an `IndexError` or `RuntimeError` too where a check of the program fails.
    """
    callee = find_callee(module, name)
    if isinstance(callee, tt_dialect.FuncOp):
        _run_programs(callee, inputs, Frame(module, {}))
        return []
    values = {symbol(n): v for n, v in (symbols or {}).items()}
    block = callee.body.block
    given = list(inputs)
    if isinstance(callee, KernelOp):
        buffers = len(callee.buffers)
        values |= {
            symbol(n): v for n, v in zip(callee.symbol_names, given[buffers:], strict=False) if isinstance(v, int)
        }
        given = given[:buffers]
    if len(given) != len(block.args):
        raise ExecutionError(f"`@{name}` takes {len(block.args)} arguments, found {len(given)}")
    for s, value in find_symbols(callee, given).items():
        values.setdefault(s, value)
    frame = Frame(module, values)
    with torch.no_grad():
        for number, (argument, value) in enumerate(zip(block.args, given, strict=True)):
            frame.set(argument, _input(number, argument.type, value, frame))
        run_block(block, frame)
        if isinstance(callee, func.FuncOp) and errors_of(callee):
            host.check_status(callee, frame)
            return []
        return [_output(number, value, frame) for number, value in enumerate(_returned(block))]


def _run_programs(kernel: tt_dialect.FuncOp, inputs: Sequence[Input], frame: Frame) -> None:
    """Run a kernel for a GPU, its sizes behind its buffers. Each buffer reaches from its first element to its last."""
    buffers = [Buffer(value.detach()) for value in inputs if isinstance(value, Tensor)]
    sizes = [value for value in inputs[len(buffers) :] if isinstance(value, int)]
    if len(buffers) + len(sizes) != len(inputs):
        raise ExecutionError("a kernel takes tensors, then integers")
    try:
        with torch.no_grad():
            run_programs(kernel, buffers, sizes, frame, aligned=True)
    except ExecutionError as error:
        error.kernel = kernel.sym_name.data
        raise


Callee: TypeAlias = func.FuncOp | KernelOp | tt_dialect.FuncOp


def find_callee(module: ModuleOp, name: str) -> Callee:
    """Return the function or kernel called `name`. Raises `ExecutionError` if the module has none with a body."""
    callees = {
        op.sym_name.data: op
        for op in module.ops
        if isinstance(op, (KernelOp, tt_dialect.FuncOp)) or (isinstance(op, func.FuncOp) and not op.is_declaration)
    }
    if name not in callees:
        known = ", ".join(f"`@{n}`" for n in callees)
        raise ExecutionError(f"the module has no function `@{name}`; it has {known or 'none'}")
    return callees[name]


def find_symbols(callee: func.FuncOp | KernelOp, inputs: Sequence[Input]) -> dict[Symbol, int]:
    """Return the values of the size symbols that the inputs give.

    A symbol has the value of the argument that holds it, or else of the first size or stride that it is alone.
    """
    values: dict[Symbol, int] = {}
    numbers = callee.attributes.get("aten.symbol_args")
    if isinstance(numbers, DictionaryAttr):
        for name, number in numbers.data.items():
            assert isinstance(number, IntegerAttr)
            value = inputs[number.value.data]
            if isinstance(value, int):
                values[symbol(name)] = value
    for argument, value in zip(callee.body.block.args, inputs, strict=True):
        if not (is_tensor(argument.type) or is_memref(argument.type)) or not isinstance(value, Tensor):
            continue
        layout = layout_of(argument.type)
        if value.ndim != len(layout.sizes):
            continue
        for expr, found in zip((*layout.sizes, *layout.strides), (*value.shape, *value.stride()), strict=True):
            if isinstance(expr, Symbol):
                values.setdefault(expr, int(found))
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
    layout, dtype = layout_of(kind), memory_dtype(kind.element_type)
    if value.dtype != dtype:
        raise ExecutionError(f"argument {number} has dtype {value.dtype}, expected {dtype}")
    if value.ndim != len(layout.sizes):
        raise ExecutionError(f"argument {number} has sizes {list(value.shape)}, expected {len(layout.sizes)} of them")
    sizes, strides = frame.sizes(layout.sizes), frame.sizes(layout.strides)
    if list(value.shape) != sizes:
        raise ExecutionError(f"argument {number} has sizes {list(value.shape)}, expected {sizes}")
    if not same_strides(value, strides):
        raise ExecutionError(f"argument {number} has strides {list(value.stride())}, expected {strides}")
    return Buffer(value.detach())


def _returned(block: Block) -> Sequence[SSAValue]:
    """Return what a body returns: a kernel's ends without a word."""
    terminator = block.last_op
    return terminator.arguments if isinstance(terminator, func.ReturnOp) else ()


def _output(number: int, value: SSAValue, frame: Frame) -> Output:
    """Return a result as the caller gets it."""
    content = frame.content(value)
    if content is None:
        assert isinstance(value.type, NoneType)
        return None
    if isinstance(content, Tensor):
        return int(content)
    assert isinstance(content, Buffer)
    missing = content.first_unwritten()
    if missing is not None:
        raise ExecutionError(f"element {list(missing)} of result {number} was never stored")
    return content.tensor


@execute.register
def _(op: func.ReturnOp, frame: Frame) -> None:
    pass  # Who runs the function takes the values.
