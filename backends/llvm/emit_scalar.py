"""LLVM IR of elementwise operations, on scalars and lane by lane on vectors.

They are those of `arith` and `math`, `vector.broadcast`, and the scalar operations of `loop`.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith, math, vector
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type, Float64Type, IntegerType, f32
from xdsl.ir import Attribute, Operation

from tilewright.backends.llvm.builder import FunctionText, compare
from tilewright.backends.llvm.emit_intrinsic import emit_intrinsic
from tilewright.backends.llvm.emit_random import emit_random, emit_random_run
from tilewright.backends.llvm.types import (
    bit_width,
    constant_text,
    element_of,
    float_text,
    is_bf16,
    is_float,
    llvm_type,
    suffix,
)
from tilewright.dialects.arith_tensor import REPLACED
from tilewright.dialects.cpu_random import RandomOp as RandomRunOp
from tilewright.dialects.loop_random import RandomOp
from tilewright.dialects.loop_scalar import CastOp, CmpOp, IntrinsicOp, SelectOp, like
from tilewright.dialects.math_functions import C_FUNCTIONS

Emit = Callable[[FunctionText, Operation], str]

_BINARY: dict[type[Operation], str] = {
    arith.AddiOp: "add",
    arith.SubiOp: "sub",
    arith.MuliOp: "mul",
    arith.DivSIOp: "sdiv",
    arith.DivUIOp: "udiv",
    arith.RemSIOp: "srem",
    arith.RemUIOp: "urem",
    arith.AndIOp: "and",
    arith.OrIOp: "or",
    arith.XOrIOp: "xor",
    arith.ShLIOp: "shl",
    arith.ShRSIOp: "ashr",
    arith.ShRUIOp: "lshr",
}
_FLOAT_BINARY: dict[type[Operation], str] = {
    arith.AddfOp: "fadd",
    arith.SubfOp: "fsub",
    arith.MulfOp: "fmul",
    arith.DivfOp: "fdiv",
}
_INTRINSIC: dict[type[Operation], str] = {
    arith.MaximumfOp: "maximum",
    arith.MinimumfOp: "minimum",
    arith.MaxnumfOp: "maxnum",
    arith.MinnumfOp: "minnum",
    arith.MaxSIOp: "smax",
    arith.MinSIOp: "smin",
    arith.MaxUIOp: "umax",
    arith.MinUIOp: "umin",
    math.AbsFOp: "fabs",
    math.CeilOp: "ceil",
    math.FloorOp: "floor",
    math.TruncOp: "trunc",
    math.RoundOp: "round",
    math.RoundEvenOp: "roundeven",
    math.SqrtOp: "sqrt",
    math.FmaOp: "fma",
    math.CopySignOp: "copysign",
    math.CtPopOp: "ctpop",
}
_CONVERT: dict[type[Operation], str] = {
    arith.ExtFOp: "fpext",
    arith.TruncFOp: "fptrunc",
    arith.SIToFPOp: "sitofp",
    arith.UIToFPOp: "uitofp",
    arith.FPToSIOp: "fptosi",
    arith.FPToUIOp: "fptoui",
    arith.ExtSIOp: "sext",
    arith.ExtUIOp: "zext",
    arith.TruncIOp: "trunc",
    arith.BitcastOp: "bitcast",
}
_CONVERT.update({ours: _CONVERT[theirs] for theirs, ours in REPLACED.items() if theirs in _CONVERT})
_RESIZE = (arith.ExtFOp, arith.TruncFOp, REPLACED[arith.ExtFOp], REPLACED[arith.TruncFOp])
_CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
_CMPF = (
    "false",
    "oeq",
    "ogt",
    "oge",
    "olt",
    "ole",
    "one",
    "ord",
    "ueq",
    "ugt",
    "uge",
    "ult",
    "ule",
    "une",
    "uno",
    "true",
)


def _flags(op: Operation) -> str:
    """Return the fast-math flags that the operation carries, as LLVM writes them."""
    attribute = op.properties.get("fastmath")
    if not isinstance(attribute, arith.FastMathFlagsAttr) or not attribute.data:
        return ""
    return " ".join(sorted(flag.value for flag in attribute.data)) + " "


def _binary(fn: FunctionText, op: Operation) -> str:
    lhs, rhs = op.operands
    return fn.op(f"{_BINARY[type(op)]} {fn.typed(lhs)}, {fn.name(rhs)}")


def _float_binary(fn: FunctionText, op: Operation) -> str:
    lhs, rhs = op.operands
    return fn.op(f"{_FLOAT_BINARY[type(op)]} {_flags(op)}{fn.typed(lhs)}, {fn.name(rhs)}")


def _intrinsic(fn: FunctionText, op: Operation) -> str:
    return fn.intrinsic(_INTRINSIC[type(op)], op.results[0].type, *(fn.name(o) for o in op.operands))


def _math(fn: FunctionText, op: Operation) -> str:
    return fn.math(C_FUNCTIONS[type(op)], op.results[0].type, *(fn.name(o) for o in op.operands))


def _resize_float(fn: FunctionText, op: Operation) -> str:
    source, target = op.operands[0].type, op.results[0].type
    if is_bf16(source) or is_bf16(target):
        return convert(fn, fn.name(op.operands[0]), source, target, unsigned=False)
    return _convert(fn, op)


def _convert(fn: FunctionText, op: Operation) -> str:
    return fn.op(f"{_CONVERT[type(op)]} {fn.typed(op.operands[0])} to {llvm_type(op.results[0].type)}")


def _constant(fn: FunctionText, op: Operation) -> str:
    assert isinstance(op, arith.ConstantOp)
    return constant_text(op.value)


def _negf(fn: FunctionText, op: Operation) -> str:
    return fn.op(f"fneg {_flags(op)}{fn.typed(op.operands[0])}")


def _index_cast(fn: FunctionText, op: Operation) -> str:
    source, target = op.operands[0], op.results[0].type
    if llvm_type(source.type) == llvm_type(target):
        return fn.name(source)
    narrower = bit_width(target) < bit_width(source.type)
    return fn.op(f"{'trunc' if narrower else 'sext'} {fn.typed(source)} to {llvm_type(target)}")


def _rsqrt(fn: FunctionText, op: Operation) -> str:
    kind = op.results[0].type
    root = fn.intrinsic("sqrt", kind, fn.name(op.operands[0]))
    one = fn.splat(kind, float_text(1.0, kind))
    return fn.op(f"fdiv {llvm_type(kind)} {one}, {root}")


def _absi(fn: FunctionText, op: Operation) -> str:
    kind = op.results[0].type
    text = llvm_type(kind)
    return fn.call(f"llvm.abs.{suffix(kind)}", text, [(text, fn.name(op.operands[0])), ("i1", "false")])


def _select(fn: FunctionText, op: Operation) -> str:
    condition, if_true, if_false = op.operands
    return fn.op(f"select {fn.typed(condition)}, {fn.typed(if_true)}, {fn.typed(if_false)}")


def _cmp(fn: FunctionText, op: Operation) -> str:
    assert isinstance(op, CmpOp)
    instruction = compare(op.predicate.data, op.lhs.type, op.unsigned is not None)
    return fn.op(f"{instruction} {fn.typed(op.lhs)}, {fn.name(op.rhs)}")


def _cmpi(fn: FunctionText, op: Operation) -> str:
    assert isinstance(op, arith.CmpiOp)
    return fn.op(f"icmp {_CMPI[op.predicate.value.data]} {fn.typed(op.lhs)}, {fn.name(op.rhs)}")


def _cmpf(fn: FunctionText, op: Operation) -> str:
    assert isinstance(op, arith.CmpfOp)
    return fn.op(f"fcmp {_CMPF[op.predicate.value.data]} {fn.typed(op.lhs)}, {fn.name(op.rhs)}")


def _broadcast(fn: FunctionText, op: Operation) -> str:
    return fn.splat(op.results[0].type, fn.name(op.operands[0]))


def _loop_intrinsic(fn: FunctionText, op: Operation) -> str:
    assert isinstance(op, IntrinsicOp)
    values = [fn.name(o) for o in op.operands]
    return emit_intrinsic(fn, op.function.data, op.operands[0].type, values, op.unsigned is not None)


def _cast(fn: FunctionText, op: Operation) -> str:
    assert isinstance(op, CastOp)
    return convert(fn, fn.name(op.input), op.input.type, op.result.type, op.unsigned is not None)


def convert(fn: FunctionText, value: str, source: Attribute, target: Attribute, unsigned: bool) -> str:
    """Convert a value as `loop.cast` does and return the result."""
    if source == target:
        return value
    if is_float(source):
        return _from_float(fn, value, source, target, unsigned)
    if is_float(target):
        return _int_to_float(fn, value, source, target, unsigned)
    kind = llvm_type(source)
    if bit_width(target) == 1 and bit_width(source) != 1:
        return fn.op(f"icmp ne {kind} {value}, {fn.splat(source, '0')}")
    if bit_width(target) == bit_width(source):
        return value
    widen = "zext" if unsigned or bit_width(source) == 1 else "sext"
    return fn.op(f"{'trunc' if bit_width(target) < bit_width(source) else widen} {kind} {value} to {llvm_type(target)}")


def _from_float(fn: FunctionText, value: str, source: Attribute, target: Attribute, unsigned: bool) -> str:
    if isinstance(element_of(source), (BFloat16Type, Float16Type)):
        value, source = _widen_half(fn, value, source)
        if source == target:
            return value
    kind = llvm_type(source)
    if not is_float(target):
        if bit_width(target) == 1:
            return fn.op(f"fcmp une {kind} {value}, {fn.splat(source, float_text(0.0, source))}")
        # Narrow integers take the low bits of a wider one, as C++ code for them does in eager.
        wide = like(target, IntegerType(64 if bit_width(target) < 32 or unsigned else bit_width(target)))
        number = fn.op(f"fptosi {kind} {value} to {llvm_type(wide)}")
        return (
            number
            if bit_width(wide) == bit_width(target)
            else fn.op(f"trunc {llvm_type(wide)} {number} to {llvm_type(target)}")
        )
    if isinstance(element_of(target), Float64Type):
        return fn.op(f"fpext {kind} {value} to {llvm_type(target)}")
    single = like(target, f32)
    if isinstance(element_of(source), Float64Type):
        value = fn.op(f"fptrunc {kind} {value} to {llvm_type(single)}")
    return value if isinstance(element_of(target), Float32Type) else _narrow_single(fn, value, target)


def _int_to_float(fn: FunctionText, value: str, source: Attribute, target: Attribute, unsigned: bool) -> str:
    instruction = "uitofp" if unsigned or bit_width(source) == 1 else "sitofp"
    half = isinstance(element_of(target), (BFloat16Type, Float16Type))
    through = like(target, f32) if half else target
    number = fn.op(f"{instruction} {llvm_type(source)} {value} to {llvm_type(through)}")
    return _narrow_single(fn, number, target) if half else number


def _widen_half(fn: FunctionText, value: str, source: Attribute) -> tuple[str, Attribute]:
    single = like(source, f32)
    if isinstance(element_of(source), Float16Type):
        return fn.op(f"fpext {llvm_type(source)} {value} to {llvm_type(single)}"), single
    word = like(source, IntegerType(32))
    wide = fn.op(f"zext {llvm_type(source)} {value} to {llvm_type(word)}")
    high = fn.op(f"shl {llvm_type(word)} {wide}, {fn.splat(word, '16')}")
    return fn.op(f"bitcast {llvm_type(word)} {high} to {llvm_type(single)}"), single


def _narrow_single(fn: FunctionText, value: str, target: Attribute) -> str:
    """Round an f32 to bf16 or f16, to nearest even.

    bf16 is rounded in integers, because the processors' own instruction flushes denormals.
    """
    single, word = like(target, f32), like(target, IntegerType(32))
    if isinstance(element_of(target), Float16Type):
        return fn.op(f"fptrunc {llvm_type(single)} {value} to {llvm_type(target)}")
    kind, test = llvm_type(word), llvm_type(like(target, IntegerType(1)))
    # A NaN is made one that rounding leaves alone. Selecting after the rounding, on 16 bits, would go lane by lane.
    nan = fn.op(f"fcmp uno {llvm_type(single)} {value}, {value}")
    quiet = fn.splat(single, float_text(float("nan"), single))
    value = fn.op(f"select {test} {nan}, {llvm_type(single)} {quiet}, {llvm_type(single)} {value}")
    bits = fn.op(f"bitcast {llvm_type(single)} {value} to {kind}")
    high = fn.op(f"lshr {kind} {bits}, {fn.splat(word, '16')}")
    odd = fn.op(f"and {kind} {high}, {fn.splat(word, '1')}")
    bias = fn.op(f"add {kind} {odd}, {fn.splat(word, '32767')}")
    rounded = fn.op(f"lshr {kind} {fn.op(f'add {kind} {bits}, {bias}')}, {fn.splat(word, '16')}")
    return fn.op(f"trunc {kind} {rounded} to {llvm_type(target)}")


EMITTERS: dict[type[Operation], Emit] = {
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_FLOAT_BINARY, _float_binary),
    **dict.fromkeys(_INTRINSIC, _intrinsic),
    **dict.fromkeys(C_FUNCTIONS, _math),
    **dict.fromkeys(_CONVERT, _convert),
    **dict.fromkeys(_RESIZE, _resize_float),
    arith.ConstantOp: _constant,
    arith.NegfOp: _negf,
    arith.IndexCastOp: _index_cast,
    arith.SelectOp: _select,
    arith.CmpiOp: _cmpi,
    arith.CmpfOp: _cmpf,
    math.RsqrtOp: _rsqrt,
    math.AbsIOp: _absi,
    vector.BroadcastOp: _broadcast,
    CastOp: _cast,
    CmpOp: _cmp,
    SelectOp: _select,
    IntrinsicOp: _loop_intrinsic,
    RandomOp: emit_random,
    RandomRunOp: emit_random_run,
}
"""The operations with one result that this file has code for."""
EMITTERS.update({ours: EMITTERS[theirs] for theirs, ours in REPLACED.items()})

MOVES = frozenset(
    {
        arith.ConstantOp,
        arith.SelectOp,
        REPLACED[arith.SelectOp],
        arith.BitcastOp,
        vector.BroadcastOp,
        CastOp,
        SelectOp,
        *_RESIZE,
    },
)
"""The operations of `EMITTERS` that take or give bf16."""
