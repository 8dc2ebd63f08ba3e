"""The `tt` dialect: what programs compute on tensors, and on addresses in memory.

Registers have the programs as their first dim, of size one where the value is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from xdsl.dialects import gpu
from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException

from tilewright.backends.reference import functions as f
from tilewright.backends.reference import libdevice, tt_memory
from tilewright.backends.reference.dtypes import register_dtype
from tilewright.backends.reference.errors import check_failure, failure
from tilewright.backends.reference.frame import Frame, execute
from tilewright.backends.reference.pointers import Pointers, Programs
from tilewright.dialects import tt
from tilewright.dialects.arith_tensor import element_of
from tilewright.dialects.loop_check import split_error


def _programs(frame: Frame) -> Programs:
    assert frame.programs is not None
    return frame.programs


def _shape(op: Operation) -> tuple[int, ...]:
    return tt.shape_of(op.results[0].type)


def _splat(op: Operation, x: Tensor) -> Tensor:
    shape = _shape(op)
    return x.reshape(-1, *(1,) * len(shape)).expand(-1, *shape)


def _transposed(op: Operation, x: Tensor) -> Tensor:
    assert isinstance(op, tt.TransOp)
    return x.permute(0, *(n + 1 for n in op.order.get_values()))


MOVES: dict[type[Operation], Callable[[Operation, Tensor], Tensor]] = {
    tt.BroadcastOp: lambda op, x: x.expand(-1, *_shape(op)),
    tt.ExpandDimsOp: lambda op, x: x.reshape(-1, *_shape(op)),
    tt.ReshapeOp: lambda op, x: x.reshape(-1, *_shape(op)),
    tt.SplatOp: _splat,
    tt.TransOp: _transposed,
    tt.UnsplatOp: lambda op, x: x.reshape(-1),
}
"""The operations that put elements elsewhere: numbers, or addresses by their offsets."""


def _move(op: Operation, frame: Frame) -> None:
    function, value = MOVES[type(op)], frame.operand(op.operands[0])
    moved = function(op, value) if isinstance(value, Tensor) else value.map(lambda offsets: function(op, offsets))
    frame.set(op.results[0], moved)


for _kind in MOVES:
    execute.register(_kind)(_move)


@execute.register
def _(op: tt.GetProgramIdOp, frame: Frame) -> None:
    programs = _programs(frame)
    if op.axis.data == "x":
        frame.set(op.result, torch.arange(programs.first, programs.first + programs.count, dtype=torch.int32))
    else:
        frame.set(op.result, torch.zeros((), dtype=torch.int32))


@execute.register
def _(op: tt.GetNumProgramsOp, frame: Frame) -> None:
    count = _programs(frame).total if op.axis.data == "x" else 1
    frame.set(op.result, torch.tensor(count, dtype=torch.int32))


@execute.register
def _(op: tt.MakeRangeOp, frame: Frame) -> None:
    frame.set(op.result, torch.arange(op.start.value.data, op.end.value.data, dtype=torch.int32))


@execute.register
def _(op: tt.CatOp | tt.JoinOp, frame: Frame) -> None:
    parts = f.broadcast(frame.register(op.lhs), frame.register(op.rhs))
    frame.set(op.result, torch.cat(parts, 1) if isinstance(op, tt.CatOp) else torch.stack(parts, -1))


@execute.register
def _(op: tt.SplitOp, frame: Frame) -> None:
    for result, half in zip(op.results, frame.register(op.src).unbind(-1), strict=True):
        frame.set(result, half)


@execute.register
def _(op: tt.GatherOp, frame: Frame) -> None:
    dim = op.axis.value.data + 1
    source, indices = frame.register(op.src), frame.register(op.indices).to(torch.int64)
    count = max(source.shape[0], indices.shape[0])
    if ((indices < 0) | (indices >= source.shape[dim])).any():
        raise failure(op, f"has an index out of bounds, expected 0 to {source.shape[dim] - 1}")
    expanded = [t.expand(count, *t.shape[1:]) for t in (source, indices)]
    frame.set(op.result, torch.gather(expanded[0], dim, expanded[1]))


@execute.register
def _(op: tt.HistogramOp, frame: Frame) -> None:
    (bins,) = tt.shape_of(op.result.type)
    counts = frame.register(op.src)[..., None] == torch.arange(bins)
    frame.set(op.result, counts.sum(1).to(torch.int32))


@execute.register
def _(op: tt.PreciseDivFOp | tt.PreciseSqrtOp | tt.MulhiUIOp, frame: Frame) -> None:
    functions = {tt.PreciseDivFOp: torch.div, tt.PreciseSqrtOp: torch.sqrt, tt.MulhiUIOp: f.multiply_high}
    frame.set(op.result, functions[type(op)](*(frame.register(v) for v in op.arguments)))


@execute.register
def _(op: tt.ClampfOp, frame: Frame) -> None:
    x, low, high = (frame.register(v) for v in (op.x, op.min, op.max))
    maximum, minimum = (torch.maximum, torch.minimum) if op.propagateNan.data == "all" else (torch.fmax, torch.fmin)
    frame.set(op.result, minimum(maximum(x, low), high))


@execute.register
def _(op: tt.FpToFpOp, frame: Frame) -> None:
    value, dtype = frame.register(op.src), register_dtype(op.result.type)
    if op.rounding is not None and op.rounding.data != "rtne":
        raise failure(op, f"the interpreter does not know the rounding `{op.rounding.data}`, only `rtne`")
    frame.set(op.result, value.to(dtype))


@execute.register
def _(op: tt.BitcastOp, frame: Frame) -> None:
    value, element = frame.operand(op.src), element_of(op.result.type)
    if isinstance(value, Pointers):
        raise failure(op, "the interpreter does not know addresses of anything but the buffer's own elements")
    frame.set(op.result, value.contiguous().view(register_dtype(element)))


@execute.register
def _(op: tt.DotOp, frame: Frame) -> None:
    a, b, c = (frame.register(v) for v in (op.a, op.b, op.c))
    if op.inputPrecision.data == "tf32" and a.dtype == torch.float32:
        a, b = f.rounded_to_tf32(a), f.rounded_to_tf32(b)
    wide = c.dtype if c.dtype.is_floating_point and c.dtype.itemsize > 2 else torch.float32
    if not c.dtype.is_floating_point:
        # Sums of products of 8 bits are exact as doubles.
        wide = torch.float64
    product = torch.matmul(a.to(wide), b.to(wide))
    frame.set(op.result, product.to(c.dtype) + c if wide == torch.float64 else (product + c).to(c.dtype))


@execute.register
def _(op: tt.ExternElementwiseOp, frame: Frame) -> None:
    operands = [frame.register(v) for v in op.srcs]
    function = libdevice.find(op.symbol.data, operands[0].dtype)
    if function is None:
        raise failure(op, f"the interpreter does not know the function `{op.symbol.data}` of {operands[0].dtype}")
    frame.set(op.result, function(*operands).to(register_dtype(op.result.type)))


@execute.register
def _(op: tt.AssertOp, frame: Frame) -> None:
    failed = ~frame.register(op.condition)
    active = frame.space.active
    if active is not None:
        failed = failed & active.reshape(-1, *(1,) * (failed.ndim - 1))
    if not failed.any():
        return
    try:
        split_error(op.message.data)
    except VerifyException:
        raise check_failure(op, f"RuntimeError: {op.message.data}") from None
    raise check_failure(op, op.message.data)


@execute.register
def _(op: tt.ReturnOp, frame: Frame) -> None:
    pass  # A kernel returns nothing.


@execute.register
def _(op: gpu.BarrierOp, frame: Frame) -> None:
    # Each operation is executed for the whole program before the next one.
    _programs(frame).traffic.barrier()


@execute.register
def _(op: tt.AddPtrOp, frame: Frame) -> None:
    steps = frame.register(op.offset).to(torch.int64)
    frame.set(op.result, frame.pointers(op.ptr).map(lambda offsets: offsets + steps))


@execute.register
def _(op: tt.PtrToIntOp, frame: Frame) -> None:
    pointers = frame.pointers(op.src)
    memory = pointers.buffer.tensor
    frame.set(op.result, memory.data_ptr() + memory.itemsize * pointers.offsets)


@execute.register
def _(op: tt.LoadOp, frame: Frame) -> None:
    mask, other = (None if v is None else frame.register(v) for v in (op.mask, op.other))
    frame.set(op.result, tt_memory.load(op, frame.pointers(op.ptr), mask, other, frame))


@execute.register
def _(op: tt.StoreOp, frame: Frame) -> None:
    mask = None if op.mask is None else frame.register(op.mask)
    tt_memory.store(op, frame.pointers(op.ptr), frame.register(op.value), mask, frame)


def _exchanged(before: Tensor, value: Tensor) -> Tensor:
    return value


_UPDATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "and": torch.bitwise_and,
    "exch": _exchanged,
    "fadd": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "or": torch.bitwise_or,
    "umax": f.unsigned(torch.maximum),
    "umin": f.unsigned(torch.minimum),
    "xor": torch.bitwise_xor,
}


@execute.register
def _(op: tt.AtomicRMWOp, frame: Frame) -> None:
    mask = None if op.mask is None else frame.register(op.mask)
    pointers, value = frame.pointers(op.ptr), frame.register(op.val)
    function = _UPDATES[op.atomic_rmw_op.data]
    frame.set(op.result, tt_memory.update(op, pointers, [value], function, mask, frame))
    _synchronize(op, frame)


def _compared(before: Tensor, expected: Tensor, value: Tensor) -> Tensor:
    return torch.where(before == expected, value, before)


@execute.register
def _(op: tt.AtomicCASOp, frame: Frame) -> None:
    operands = [frame.register(op.cmp), frame.register(op.val)]
    frame.set(op.result, tt_memory.update(op, frame.pointers(op.ptr), operands, _compared, None, frame))
    _synchronize(op, frame)


def _synchronize(op: tt.AtomicRMWOp | tt.AtomicCASOp, frame: Frame) -> None:
    """Let programs see what others did before, where they look at the result: they may have waited for it."""
    if op.result.first_use is not None and op.sem.data != "relaxed":
        _programs(frame).traffic.forget()
