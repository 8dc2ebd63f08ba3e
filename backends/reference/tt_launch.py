"""Launches of kernels for a GPU: all programs of the grid, many of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor
from xdsl.dialects import scf
from xdsl.ir import Block, BlockArgument, SSAValue

from tilewright.backends.reference.buffers import Buffer, first_true
from tilewright.backends.reference.dtypes import register_dtype
from tilewright.backends.reference.errors import ExecutionError
from tilewright.backends.reference.frame import Frame, Space, lanes_of, run_block
from tilewright.backends.reference.functions import constant
from tilewright.backends.reference.pointers import Pointers, Programs
from tilewright.backends.reference.traffic import Traffic
from tilewright.backends.reference.tt_undefined import Undefined
from tilewright.dialects import tt
from tilewright.dialects.arith_tensor import element_of
from tilewright.dialects.sym_expr import symbol

_ELEMENTS = 1 << 20
"""How many elements a tensor may have together in all programs that run at once."""


def run_programs(
    kernel: tt.FuncOp, buffers: Sequence[Buffer], sizes: Sequence[int], caller: Frame, *, aligned: bool
) -> None:
    """Run all programs of a kernel on `buffers` and the values of its symbols.

    With `aligned` a buffer must lie where the kernel says, and a size be such a multiple; without, who launches it has
    a variant that does not care.
    Raises `ExecutionError` if the arguments do not fit, or a program does what it must not.
    """
    arguments = kernel.args
    if len(arguments) != len(buffers) + len(sizes):
        found = f"{len(buffers)} buffers and {len(sizes)} sizes"
        raise ExecutionError(f"the kernel takes {len(arguments)} arguments, found {found}")
    pointers = [
        _pointer(kernel, argument, buffer.flat(), aligned) for argument, buffer in zip(arguments, buffers, strict=False)
    ]
    numbers = [_number(kernel, a, n, aligned) for a, n in zip(arguments[len(buffers) :], sizes, strict=True)]
    symbols = {symbol(name): size for name, size in zip(kernel.symbol_names, sizes, strict=False)}
    launch = Frame(caller.module, symbols)
    if kernel.reach is not None and launch.size(kernel.reach.expr) >= tt.NARROW_LIMIT:
        raise ExecutionError(f"indices of the kernel reach {launch.size(kernel.reach.expr)}, expected less than 2**31")
    total = _grid(kernel, launch)
    traffic = Traffic([p.buffer for p in pointers], [pointers[n].buffer for n in _written(kernel)])
    at_once = _programs_at_once(kernel)
    for first, count in _batches(kernel.parts or (total,), at_once):
        programs = Programs(first, count, total, traffic)
        space, before = Space((programs.count,), (kernel,)), Undefined().before
        frame = Frame(caller.module, symbols, space=space, programs=programs, before=before)
        for argument, content in zip(arguments, (*pointers, *numbers), strict=True):
            frame.set(argument, content)
        run_block(kernel.block, frame)
    for pointer, buffer in zip(pointers, buffers, strict=True):
        if buffer.tensor.dtype == torch.bool:
            _check_booleans(pointer)


def _grid(kernel: tt.FuncOp, frame: Frame) -> int:
    """Return the number of programs."""
    if kernel.grid is None:
        raise ExecutionError("the kernel does not say how many programs run it, expected an attribute `grid`")
    total = frame.size(kernel.grid.expr)
    if total < 0:
        raise ExecutionError(f"the kernel is run by {total} programs, expected at least none")
    return total


def _pointer(kernel: tt.FuncOp, argument: BlockArgument, buffer: Buffer, aligned: bool) -> Pointers:
    """Return the pointer to the first element of a buffer."""
    name, kind = _name(argument), argument.type
    if buffer.tensor.dtype == torch.bool:
        # A bool is a byte in memory, and kernels say so.
        buffer = Buffer(buffer.tensor.view(torch.int8), buffer.written)
    if not isinstance(kind, tt.PointerType) or buffer.elements.dtype != register_dtype(kind.pointee):
        raise ExecutionError(f"a buffer of {buffer.tensor.dtype} is passed for `{name}`, which has type {kind}")
    address, divisor = buffer.tensor.data_ptr(), kernel.divisor(argument.index)
    if aligned and address % divisor:
        raise ExecutionError(f"`{name}` is the address {address:#x}, expected a multiple of {divisor}")
    return Pointers(buffer, name, torch.zeros((), dtype=torch.int64))


def for_sizes(kernel: tt.FuncOp, sizes: Sequence[int], caller: Frame) -> tt.FuncOp:
    """Return the kernel that does for these values of the symbols what `kernel` is asked for: itself or `wide`."""
    symbols = {symbol(name): size for name, size in zip(kernel.symbol_names, sizes, strict=False)}
    reach, wide = kernel.reach, kernel.wide
    if reach is None or wide is None or Frame(caller.module, symbols).size(reach.expr) < tt.NARROW_LIMIT:
        return kernel
    return wide


def _number(kernel: tt.FuncOp, argument: BlockArgument, size: int, aligned: bool) -> Tensor:
    """Return the value of a symbol."""
    divisor = kernel.divisor(argument.index)
    if aligned and size % divisor:
        raise ExecutionError(f"`{_name(argument)}` is {size}, expected a multiple of {divisor}")
    return constant(size, register_dtype(argument.type))


def _name(argument: BlockArgument) -> str:
    return f"%{argument.name_hint or argument.index}"


def _check_booleans(pointer: Pointers) -> None:
    """Raise `ExecutionError` if a kernel stored to a buffer of bools what is none."""
    wrong = (pointer.buffer.tensor & ~1) != 0
    if pointer.buffer.written is not None:
        wrong &= pointer.buffer.written.all(dim=-1)
    if wrong.any():
        (place,) = first_true(wrong)
        found = int(pointer.buffer.tensor[place])
        raise ExecutionError(f"element {place} of `{pointer.name}` is {found} afterwards, expected 0 or 1 for a bool")


def _batches(parts: Sequence[int], at_once: int) -> Iterator[tuple[int, int]]:
    """Yield the first one and the number of programs that run at once, which have the same buffers."""
    begin = 0
    for part in parts:
        for first in range(0, part, at_once):
            yield begin + first, min(at_once, part - first)
        begin += part


def _programs_at_once(kernel: tt.FuncOp) -> int:
    """Return how many programs may run at once: one, where a program waits for others or asks who came first."""
    largest = 1
    for op in kernel.walk():
        if isinstance(op, (scf.WhileOp, tt.AtomicCASOp)):
            return 1
        if isinstance(op, tt.AtomicRMWOp) and op.result.first_use is not None:
            return 1
        largest = max(largest, *(prod(lanes_of(r)) for r in op.results), 1)
    return max(1, _ELEMENTS // largest)


def _written(kernel: tt.FuncOp) -> list[int]:
    """Return the numbers of the buffers that a kernel may write."""
    targets = [op.ptr for op in kernel.walk() if isinstance(op, (tt.StoreOp, tt.AtomicRMWOp, tt.AtomicCASOp))]
    return sorted(set(_roots(targets, kernel.block)))


def _roots(values: Sequence[SSAValue], entry: Block) -> Iterator[int]:
    """Yield the numbers of the arguments of `entry` that pointers may come from, through all that they are made of."""
    seen, waiting = set(values), list(values)
    while waiting:
        current = waiting.pop()
        if isinstance(current, BlockArgument) and current.owner is entry:
            yield current.index
            continue
        for source in _sources(current):
            if source not in seen and isinstance(element_of(source.type), tt.PointerType):
                seen.add(source)
                waiting.append(source)


def _sources(value: SSAValue) -> Iterator[SSAValue]:
    """Yield the operands of the operation that makes a value, and what its regions pass on."""
    owner = value.owner
    op = owner.parent_op() if isinstance(owner, Block) else owner
    if op is None:
        return
    yield from op.operands
    for block in (block for region in op.regions for block in region.blocks):
        if block.last_op is not None:
            yield from block.last_op.operands
