"""The `host` dialect, and kernels: in the form of the `loop` dialect, as functions of CPU operations, or for a GPU."""

from __future__ import annotations

import torch
from xdsl.dialects import func
from xdsl.traits import SymbolTable

from tilewright.backends.reference.access import view_by_layout
from tilewright.backends.reference.aten import call
from tilewright.backends.reference.buffers import Buffer
from tilewright.backends.reference.dtypes import memory_dtype_of
from tilewright.backends.reference.errors import ExecutionError, check_failure, failure
from tilewright.backends.reference.frame import Frame, execute, run_block
from tilewright.backends.reference.tt_launch import for_sizes, run_programs
from tilewright.dialects import host, loop, tt
from tilewright.dialects.cpu_errors import errors_of
from tilewright.dialects.loop import layout_of
from tilewright.dialects.sym_expr import symbol


@execute.register
def _(op: host.AllocOp, frame: Frame) -> None:
    layout = layout_of(op.result.type)
    sizes, strides = frame.sizes(layout.sizes), frame.sizes(layout.strides)
    frame.set(op.result, Buffer.allocate(memory_dtype_of(op.result), sizes, strides))


@execute.register
def _(op: host.FreeOp, frame: Frame) -> None:
    frame.content(op.buffer)
    frame.free(op.buffer)


@execute.register
def _(op: host.ViewOp, frame: Frame) -> None:
    frame.set(op.result, view_by_layout(op, op.source, op.result, frame))


@execute.register
def _(op: host.CallOp, frame: Frame) -> None:
    call(op, frame)


@execute.register
def _(op: host.SizeOp, frame: Frame) -> None:
    frame.set(op.result, torch.tensor(frame.size(op.size.expr)))


@execute.register
def _(op: host.LaunchOp, frame: Frame) -> None:
    kernel = SymbolTable.lookup_symbol(op, op.kernel)
    buffers = [frame.buffer(b) for b in op.buffers]
    sizes = frame.sizes(op.symbols.exprs)
    try:
        if isinstance(kernel, loop.KernelOp):
            run_kernel(kernel, buffers, sizes, frame)
        elif isinstance(kernel, func.FuncOp):
            _run_kernel_function(kernel, buffers, sizes, frame)
        elif isinstance(kernel, tt.FuncOp):
            run_programs(for_sizes(kernel, sizes, frame), buffers, sizes, frame, aligned=False)
        else:
            raise failure(op, "expected the name of a kernel")
    except ExecutionError as error:
        error.kernel = op.kernel_name
        error.op = error.op or op
        raise


def run_kernel(kernel: loop.KernelOp, buffers: list[Buffer], sizes: list[int], caller: Frame) -> None:
    """Run a kernel on `buffers`, each seen through the layout of the kernel's argument from its first element on."""
    symbols = {symbol(name): size for name, size in zip(kernel.symbol_names, sizes, strict=True)}
    for size, (low, high) in kernel.ranges.items():
        if (low is not None and symbols[size] < low) or (high is not None and symbols[size] > high):
            raise ExecutionError(f"the symbol `{size}` is {symbols[size]}, expected {low} to {high}")
    frame = Frame(caller.module, symbols)
    for argument, buffer in zip(kernel.buffers, buffers, strict=True):
        layout, dtype = layout_of(argument.type), memory_dtype_of(argument)
        if buffer.tensor.dtype != dtype:
            raise ExecutionError(f"a buffer of {buffer.tensor.dtype} is passed for {argument.type}")
        view = buffer.view(dtype, frame.sizes(layout.sizes), frame.sizes(layout.strides), buffer.first_byte())
        frame.set(argument, view)
    run_block(kernel.block, frame)


def _run_kernel_function(kernel: func.FuncOp, buffers: list[Buffer], sizes: list[int], caller: Frame) -> None:
    """Run a kernel that takes buffers, of which it addresses elements from the first on, and then i64 sizes."""
    frame = Frame(caller.module, {})
    contents = [*(b.flat() for b in buffers), *(torch.tensor(n) for n in sizes)]
    if len(contents) != len(kernel.body.block.args):
        raise ExecutionError(f"the kernel takes {len(kernel.body.block.args)} arguments, found {len(contents)}")
    for argument, content in zip(kernel.body.block.args, contents, strict=True):
        frame.set(argument, content)
    run_block(kernel.body.block, frame)
    check_status(kernel, frame)


def check_status(kernel: func.FuncOp, frame: Frame) -> None:
    """Raise the error that the status of a kernel stands for, if it returns one that is not 0."""
    errors, terminator = errors_of(kernel), kernel.body.block.last_op
    if errors and isinstance(terminator, func.ReturnOp):
        status = frame.integer(terminator.arguments[0])
        if status:
            raise check_failure(terminator, errors[status - 1])
