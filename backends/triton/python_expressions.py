"""Operations without an effect as expressions of Triton's Python.

Triton's operators give literals the type of the other operand; its functions do not, so there literals of types that
are not what Python's numbers become get theirs in writing.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, Float32Type
from xdsl.ir import Attribute, Operation

from tilewright.backends.triton.python_values import (
    AND,
    ATOM,
    COMPARISON,
    OR,
    PRODUCT,
    SHIFT,
    SUM,
    UNARY,
    XOR,
    SourceError,
    Text,
    broadcast,
    dtype_name,
    unsigned_name,
)
from tilewright.dialects import tt
from tilewright.dialects.arith_tensor import element_of
from tilewright.dialects.type_guards import is_integer

_OPERATORS: dict[type[Operation], tuple[str, int]] = {
    arith.AddfOp: ("+", SUM),
    arith.AddiOp: ("+", SUM),
    arith.SubfOp: ("-", SUM),
    arith.SubiOp: ("-", SUM),
    arith.MulfOp: ("*", PRODUCT),
    arith.MuliOp: ("*", PRODUCT),
    arith.DivfOp: ("/", PRODUCT),
    arith.DivSIOp: ("//", PRODUCT),
    arith.RemSIOp: ("%", PRODUCT),
    arith.AndIOp: ("&", AND),
    arith.OrIOp: ("|", OR),
    arith.XOrIOp: ("^", XOR),
    arith.ShLIOp: ("<<", SHIFT),
    arith.ShRSIOp: (">>", SHIFT),
    tt.AddPtrOp: ("+", SUM),
}
_UNSIGNED_OPERATORS: dict[type[Operation], tuple[str, int]] = {
    arith.DivUIOp: ("//", PRODUCT),
    arith.RemUIOp: ("%", PRODUCT),
    arith.ShRUIOp: (">>", SHIFT),
}
_NAN = "propagate_nan=tl.PropagateNan.ALL"
_FUNCTIONS: dict[type[Operation], tuple[str, str]] = {
    arith.MaxSIOp: ("tl.maximum", ""),
    arith.MinSIOp: ("tl.minimum", ""),
    arith.MaximumfOp: ("tl.maximum", _NAN),
    arith.MinimumfOp: ("tl.minimum", _NAN),
    arith.MaxnumfOp: ("tl.maximum", ""),
    arith.MinnumfOp: ("tl.minimum", ""),
    math.AbsFOp: ("tl.abs", ""),
    math.AbsIOp: ("tl.abs", ""),
    math.CeilOp: ("tl.ceil", ""),
    math.CosOp: ("tl.cos", ""),
    math.ErfOp: ("tl.erf", ""),
    math.Exp2Op: ("tl.exp2", ""),
    math.ExpOp: ("tl.exp", ""),
    math.FloorOp: ("tl.floor", ""),
    math.FmaOp: ("tl.fma", ""),
    math.Log2Op: ("tl.log2", ""),
    math.LogOp: ("tl.log", ""),
    math.RsqrtOp: ("tl.rsqrt", ""),
    math.SinOp: ("tl.sin", ""),
    math.SqrtOp: ("tl.sqrt", ""),
    tt.MulhiUIOp: ("tl.umulhi", ""),
    tt.PreciseDivFOp: ("tl.div_rn", ""),
    tt.PreciseSqrtOp: ("tl.sqrt_rn", ""),
}
_UNSIGNED_FUNCTIONS: dict[type[Operation], str] = {arith.MaxUIOp: "tl.maximum", arith.MinUIOp: "tl.minimum"}
_SIGNED = ("==", "!=", "<", "<=", ">", ">=")
_CMPF = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<=", 13: "!="}
_NOT_CMPF = {8: None, 9: "<=", 10: "<", 11: ">=", 12: ">"}
"""For `ugt` and its like the ordered comparison of which each is the opposite."""

Operands = Sequence[Text]


def elementwise(op: Operation, values: Operands) -> Text | None:
    """Return the expression of an operation on each element, None if `op` is not one.

    Raises `SourceError` for one that cannot be said.
    """
    shape = broadcast(v.shape for v in values)
    code = _code(op, values)
    return None if code is None else Text(code.code, code.rank, shape)


def call(function: str, op: Operation, values: Operands, named: str = "") -> Text:
    """Return a call on the operands of `op`."""
    arguments = [_argument(v, o.type) for v, o in zip(values, op.operands, strict=True)]
    return Text(f"{function}({', '.join([*arguments, *([named] if named else [])])})")


def _argument(value: Text, kind: Attribute) -> str:
    element = element_of(kind)
    untyped = isinstance(element, Float32Type) or (is_integer(element) and element.width.data >= 32)
    if not value.literal or untyped:
        return value.code
    return f"tl.full([], {value.code}, {dtype_name(kind)})"


def binary(sign: str, rank: int, lhs: Text, rhs: Text) -> Text:
    """Return `lhs sign rhs`, which Python computes from the left."""
    return Text(f"{lhs.within(rank)} {sign} {rhs.within(rank + 1)}", rank)


def cast(value: Text, target: str, *, bitcast: bool = False) -> Text:
    """Return a conversion to a type, by its name."""
    last = ", bitcast=True" if bitcast else ""
    if value.plain:
        return Text(f"tl.cast({value.code}, {target}{last})")
    return Text(f"{value.within(ATOM)}.to({target}{last})")


def typed(value: Text, kind: Attribute) -> Text:
    """Return a literal with its type, anything else as it is."""
    return Text(f"tl.full([], {value.code}, {dtype_name(kind)})") if value.literal else value


def _unsigned(value: Text, kind: Attribute) -> Text:
    if value.literal and value.rank != UNARY:
        return value
    return cast(typed(value, kind), unsigned_name(kind), bitcast=True)


def _code(op: Operation, values: Operands) -> Text | None:
    kind = type(op)
    if kind in _OPERATORS:
        return _operator(op, *_OPERATORS[kind], values)
    if kind in _FUNCTIONS:
        function, named = _FUNCTIONS[kind]
        return call(function, op, values, named)
    result = op.results[0].type if op.results else None
    if kind in _UNSIGNED_OPERATORS:
        sign, rank = _UNSIGNED_OPERATORS[kind]
        operands = [_unsigned(v, o.type) for v, o in zip(values, op.operands, strict=True)]
        assert result is not None
        return cast(binary(sign, rank, *operands), dtype_name(result), bitcast=True)
    if kind in _UNSIGNED_FUNCTIONS:
        operands = [_unsigned(v, o.type) for v, o in zip(values, op.operands, strict=True)]
        assert result is not None
        return cast(call(_UNSIGNED_FUNCTIONS[kind], op, operands), dtype_name(result), bitcast=True)
    match op:
        case arith.NegfOp():
            return Text(f"{values[0].within(PRODUCT)} * -1.0", PRODUCT)
        case arith.CmpiOp():
            return _cmpi(op, values)
        case arith.CmpfOp():
            return _cmpf(op, values)
        case arith.SelectOp():
            return _select(op, values)
        case tt.ExternElementwiseOp():
            return call(_library_function(op), op, values)
        case tt.ClampfOp():
            rule = op.propagateNan.data.upper()
            return call("tl.clamp", op, values, f"propagate_nan=tl.PropagateNan.{rule}")
        case tt.BitcastOp():
            return cast(typed(values[0], op.src.type), dtype_name(op.result.type), bitcast=True)
        case tt.IntToPtrOp() | tt.PtrToIntOp():
            return cast(typed(values[0], op.src.type), dtype_name(op.result.type))
        case tt.FpToFpOp():
            rounding = "" if op.rounding is None else f', fp_downcast_rounding="{op.rounding.data}"'
            return cast(typed(values[0], op.src.type), f"{dtype_name(op.result.type)}{rounding}")
        case _:
            return _conversion(op, values)


def _operator(op: Operation, sign: str, rank: int, values: Operands) -> Text:
    lhs, rhs = values
    if lhs.literal and rhs.literal:
        # Python would compute with its own numbers.
        lhs = typed(lhs, op.operands[0].type)
    if isinstance(op, arith.XOrIOp) and rhs.literal and rhs.code == "True":
        return Text(f"~{lhs.within(UNARY)}", UNARY)
    return binary(sign, rank, lhs, rhs)


def _cmpi(op: arith.CmpiOp, values: Operands) -> Text:
    predicate = op.predicate.value.data
    if predicate < len(_SIGNED):
        return _operator(op, _SIGNED[predicate], COMPARISON, _comparable(values))
    lhs, rhs = (_unsigned(v, o.type) for v, o in zip(values, op.operands, strict=True))
    return binary(_SIGNED[predicate - 4], COMPARISON, lhs, rhs)


def _comparable(values: Operands) -> list[Text]:
    """Return the operands of a comparison, which Python would chain with another one."""
    return [Text(f"({v.code})", shape=v.shape) if v.rank == COMPARISON else v for v in values]


def _cmpf(op: arith.CmpfOp, values: Operands) -> Text:
    predicate, (lhs, rhs) = op.predicate.value.data, _comparable(values)
    if predicate in _CMPF:
        return _operator(op, _CMPF[predicate], COMPARISON, [lhs, rhs])
    if predicate in _NOT_CMPF and _NOT_CMPF[predicate] is not None:
        return Text(f"~({_operator(op, str(_NOT_CMPF[predicate]), COMPARISON, [lhs, rhs]).code})", UNARY)
    same = lhs.code == rhs.code
    match predicate:
        case 14 if same:
            return binary("!=", COMPARISON, lhs, rhs)
        case 7 if same:
            return binary("==", COMPARISON, lhs, rhs)
        case 14:
            return Text(f"({lhs.code} != {lhs.code}) | ({rhs.code} != {rhs.code})", OR)
        case 7:
            return Text(f"({lhs.code} == {lhs.code}) & ({rhs.code} == {rhs.code})", AND)
        case 6:
            return Text(f"({lhs.code} < {rhs.code}) | ({lhs.code} > {rhs.code})", OR)
        case 8:
            return Text(f"~(({lhs.code} < {rhs.code}) | ({lhs.code} > {rhs.code}))", UNARY)
        case _:
            raise SourceError(f"triton has no comparison of floats by predicate {predicate}")


def _select(op: arith.SelectOp, values: Operands) -> Text:
    condition, lhs, rhs = values
    if lhs.literal and rhs.literal:
        lhs = typed(lhs, op.lhs.type)
    return Text(f"tl.where({condition.code}, {lhs.code}, {rhs.code})")


def _library_function(op: tt.ExternElementwiseOp) -> str:
    name, kind = op.symbol.data.removeprefix("__nv_"), element_of(op.srcs[0].type)
    if op.symbol.data == name or not isinstance(kind, AnyFloat):
        raise SourceError(f"the function `{op.symbol.data}` has no name in triton's libdevice")
    return f"libdevice.{name.removesuffix('f') if isinstance(kind, Float32Type) else name}"


_CASTS = (arith.ExtFOp, arith.TruncFOp, arith.FPToSIOp, arith.SIToFPOp, arith.ExtSIOp)
_FROM_UNSIGNED = (arith.UIToFPOp, arith.ExtUIOp)


def _is_bool(kind: Attribute) -> bool:
    element = element_of(kind)
    return is_integer(element) and element.width.data == 1


def _conversion(op: Operation, values: Operands) -> Text | None:
    if not op.operands or not op.results:
        return None
    source, target = op.operands[0].type, op.results[0].type
    if isinstance(op, arith.TruncIOp):
        if not _is_bool(target):
            return cast(typed(values[0], source), dtype_name(target))
        return binary("!=", COMPARISON, binary("&", AND, values[0], Text("1", literal=True)), Text("0"))
    if isinstance(op, _FROM_UNSIGNED):
        # Triton's bool is 0 or 1 as a number already.
        value = typed(values[0], source) if _is_bool(source) else _unsigned(values[0], source)
        return cast(value, dtype_name(target))
    if isinstance(op, (arith.FPToSIOp, arith.FPToUIOp)) and _is_bool(target):
        raise SourceError(f"triton's conversion of {source} to {target} is another one")
    if isinstance(op, arith.FPToUIOp):
        return cast(cast(typed(values[0], source), unsigned_name(target)), dtype_name(target), bitcast=True)
    if isinstance(op, _CASTS):
        value = cast(typed(values[0], source), dtype_name(target))
        return Text(f"-{value.code}", UNARY) if _is_bool(source) else value
    return None
