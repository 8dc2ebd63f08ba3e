"""The scalar operations: `arith`, `math`, `vector.broadcast` and those of `loop`, on registers over an iteration space.

Each is PyTorch's own function of the same dtype, so float operations round as eager's do and integers wrap around.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from xdsl.dialects import arith, math, vector
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr
from xdsl.ir import Operation

from tilewright.backends.reference import functions as f
from tilewright.backends.reference.dtypes import register_dtype
from tilewright.backends.reference.errors import check_failure, failure
from tilewright.backends.reference.frame import Frame, execute, lanes_of
from tilewright.backends.reference.pointers import Pointers
from tilewright.dialects import loop
from tilewright.dialects.arith_tensor import REPLACED
from tilewright.dialects.type_guards import is_vector

Function = Callable[..., Tensor]

_ELEMENTWISE: dict[type[Operation], Function] = {
    arith.AddfOp: torch.add,
    arith.SubfOp: torch.sub,
    arith.MulfOp: torch.mul,
    arith.DivfOp: torch.div,
    arith.NegfOp: torch.neg,
    arith.MaximumfOp: torch.maximum,
    arith.MinimumfOp: torch.minimum,
    arith.MaxnumfOp: torch.fmax,
    arith.MinnumfOp: torch.fmin,
    arith.AddiOp: f.add,
    arith.SubiOp: f.sub,
    arith.MuliOp: torch.mul,
    arith.DivSIOp: f.truncdiv,
    arith.DivUIOp: f.unsigned(f.truncdiv),
    arith.FloorDivSIOp: f.floordiv,
    arith.CeilDivSIOp: f.ceildiv,
    arith.CeilDivUIOp: f.unsigned(f.ceildiv),
    arith.RemSIOp: f.fmod,
    arith.RemUIOp: f.unsigned(f.fmod),
    arith.MaxSIOp: f.signed(torch.maximum),
    arith.MinSIOp: f.signed(torch.minimum),
    arith.MaxUIOp: f.unsigned(torch.maximum),
    arith.MinUIOp: f.unsigned(torch.minimum),
    arith.AndIOp: torch.bitwise_and,
    arith.OrIOp: torch.bitwise_or,
    arith.XOrIOp: torch.bitwise_xor,
    arith.ShLIOp: f.shift_left,
    arith.ShRSIOp: f.shift_right,
    arith.ShRUIOp: f.shift_right_unsigned,
    loop.SelectOp: torch.where,
    math.AbsFOp: torch.abs,
    math.AbsIOp: torch.abs,
    math.AcosOp: torch.acos,
    math.AcoshOp: torch.acosh,
    math.AsinOp: torch.asin,
    math.AsinhOp: torch.asinh,
    math.AtanOp: torch.atan,
    math.AtanhOp: torch.atanh,
    math.Atan2Op: torch.atan2,
    math.CeilOp: torch.ceil,
    math.CopySignOp: torch.copysign,
    math.CosOp: torch.cos,
    math.CoshOp: torch.cosh,
    math.ErfOp: torch.erf,
    math.Exp2Op: torch.exp2,
    math.ExpM1Op: torch.expm1,
    math.ExpOp: torch.exp,
    math.FPowIOp: torch.pow,
    math.FloorOp: torch.floor,
    math.FmaOp: f.fused_multiply_add,
    math.IPowIOp: f.integer_power,
    math.Log10Op: torch.log10,
    math.Log1pOp: torch.log1p,
    math.Log2Op: torch.log2,
    math.LogOp: torch.log,
    math.PowFOp: torch.pow,
    math.RoundEvenOp: torch.round,
    math.RoundOp: f.round_half_away,
    math.RsqrtOp: torch.rsqrt,
    math.SinOp: torch.sin,
    math.SinhOp: torch.sinh,
    math.SqrtOp: torch.sqrt,
    math.TanOp: torch.tan,
    math.TanhOp: torch.tanh,
    math.TruncOp: torch.trunc,
    vector.FMAOp: f.fused_multiply_add,
}
"""The operations that are one function of their operands, element by element."""
_ELEMENTWISE.update({ours: _ELEMENTWISE[theirs] for theirs, ours in REPLACED.items() if theirs in _ELEMENTWISE})


def _elementwise(op: Operation, frame: Frame) -> None:
    frame.set(op.results[0], _ELEMENTWISE[type(op)](*(frame.register(v) for v in op.operands)))


for _kind in _ELEMENTWISE:
    execute.register(_kind)(_elementwise)


@execute.register
def _(op: arith.ConstantOp, frame: Frame) -> None:
    dtype = register_dtype(op.result.type)
    match op.value:
        case IntegerAttr() | FloatAttr() as attribute:
            frame.set(op.result, f.constant(attribute.value.data, dtype))
        case DenseIntOrFPElementsAttr() as dense:
            numbers = [f.constant(n, dtype) for n in dense.get_values() if not isinstance(n, tuple)]
            shape = lanes_of(op.result)
            value = numbers[0].expand(shape) if len(numbers) == 1 else torch.stack(numbers).reshape(shape)
            frame.set(op.result, value)
        case _:
            raise failure(op, "expected a number or a list of numbers")


_INTEGER_COMPARISONS: tuple[Function, ...] = (
    torch.eq,
    torch.ne,
    f.signed(torch.lt),
    f.signed(torch.le),
    f.signed(torch.gt),
    f.signed(torch.ge),
    f.unsigned(torch.lt),
    f.unsigned(torch.le),
    f.unsigned(torch.gt),
    f.unsigned(torch.ge),
)
"""By the number of the predicate."""


@execute.register
def _(op: arith.CmpiOp, frame: Frame) -> None:
    compare = _INTEGER_COMPARISONS[op.predicate.value.data]
    frame.set(op.results[0], compare(frame.register(op.lhs), frame.register(op.rhs)))


_ORDERED: tuple[Function, ...] = (torch.eq, torch.gt, torch.ge, torch.lt, torch.le, torch.ne)


@execute.register
def _(op: arith.CmpfOp, frame: Frame) -> None:
    lhs, rhs = frame.register(op.lhs), frame.register(op.rhs)
    predicate = op.predicate.value.data
    unordered = lhs.isnan() | rhs.isnan()
    match predicate:
        case 0:
            value = torch.zeros_like(unordered)
        case 15:
            value = torch.ones_like(unordered)
        case 7:
            value = ~unordered
        case 14:
            value = unordered
        case _ if predicate < 7:
            value = _ORDERED[predicate - 1](lhs, rhs) & ~unordered
        case _:
            value = _ORDERED[predicate - 8](lhs, rhs) | unordered
    frame.set(op.results[0], value)


_COMPARISONS: dict[str, Function] = {
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}


@execute.register
def _(op: arith.SelectOp, frame: Frame) -> None:
    condition = frame.register(op.cond)

    def select(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(condition.reshape(*condition.shape, *(1,) * (a.ndim - condition.ndim)), a, b)

    match frame.operand(op.lhs), frame.operand(op.rhs):
        case Pointers() as value, Pointers() as other:
            frame.set(op.result, value.joined(other, select))
        case Tensor() as value, Tensor() as other:
            frame.set(op.result, select(value, other))
        case _:
            raise AssertionError("both have one type")


@execute.register
def _(op: loop.CmpOp, frame: Frame) -> None:
    compare = _COMPARISONS[op.predicate.data]
    compare = f.unsigned(compare) if op.unsigned is not None else compare
    frame.set(op.results[0], compare(frame.register(op.lhs), frame.register(op.rhs)))


@execute.register
def _(op: loop.IntrinsicOp, frame: Frame) -> None:
    function = f.INTRINSICS[op.function.data]
    if op.unsigned is not None:
        function = f.unsigned(function)
    frame.set(op.results[0], function(*(frame.register(v) for v in op.arguments)))


@execute.register
def _(op: loop.CheckOp, frame: Frame) -> None:
    condition = frame.register(op.condition)
    failed = ~condition
    active = frame.space.active
    if active is not None:
        failed = failed & (active[..., None] if is_vector(op.value.type) else active)
    if failed.any() and 0 not in frame.space.extents:
        raise check_failure(op, op.error.data)
    frame.set(op.result, torch.where(condition, frame.register(op.value), 0))


@execute.register
def _(op: loop.CastOp, frame: Frame) -> None:
    frame.set(op.result, f.cast(frame.register(op.input), register_dtype(op.result.type), op.unsigned is not None))


_CONVERSIONS: dict[type[Operation], Callable[[Tensor, torch.dtype], Tensor]] = {
    arith.ExtFOp: f.convert,
    arith.TruncFOp: f.convert,
    arith.FPToSIOp: f.convert,
    arith.FPToUIOp: f.convert_to_unsigned,
    arith.SIToFPOp: f.convert_from_signed,
    arith.UIToFPOp: f.convert_from_unsigned,
    arith.ExtSIOp: f.convert_from_signed,
    arith.ExtUIOp: f.convert_from_unsigned,
    arith.TruncIOp: f.truncate,
    arith.IndexCastOp: f.convert,
    arith.BitcastOp: Tensor.view,
}
"""The operations that turn a value into another type."""
_CONVERSIONS.update({ours: _CONVERSIONS[theirs] for theirs, ours in REPLACED.items() if theirs in _CONVERSIONS})


def _convert(op: Operation, frame: Frame) -> None:
    frame.set(op.results[0], _CONVERSIONS[type(op)](frame.register(op.operands[0]), register_dtype(op.results[0].type)))


for _kind in _CONVERSIONS:
    execute.register(_kind)(_convert)


@execute.register
def _(op: vector.BroadcastOp, frame: Frame) -> None:
    value = frame.register(op.source)
    value = value if is_vector(op.source.type) else value[..., None]
    frame.set(op.results[0], value.expand(*value.shape[:-1], *lanes_of(op.vector)))
