"""`loop.intrinsic`: functions of libdevice, and those that are made of several operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith, math, scf
from xdsl.dialects.builtin import AnyFloat, BoolAttr, Float32Type, IntegerType, StringAttr, i1, i32, i64
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.utils.exceptions import PassFailedException, VerifyException

from tilewright.dialects import arith_tensor, libdevice, tt
from tilewright.dialects.type_guards import is_integer_constant
from tilewright.passes.lowering_tt.builder import TensorBuilder, element_of, shape_of
from tilewright.passes.lowering_tt.casts import convert_integer, width_of

Values = Sequence[SSAValue]

_ORDER = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}


def compare(b: TensorBuilder, predicate: str, x: SSAValue, y: SSAValue, *, unsigned: bool = False) -> SSAValue:
    """Compare as `loop.cmp` does; false is below true."""
    x, y = b.fit_all([x, y])
    kind = element_of(x)
    if isinstance(kind, AnyFloat):
        return b.emit(arith_tensor.CmpfOp(x, y, "une" if predicate == "ne" else f"o{predicate}"))
    signed = _ORDER.get(predicate, predicate)
    return b.emit(arith_tensor.CmpiOp(x, y, signed.replace("s", "u", 1) if unsigned or kind == i1 else signed))


def divide(b: TensorBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    """Return a quotient of floats, rounded correctly."""
    if isinstance(element_of(y), Float32Type):
        return b.apply(tt.PreciseDivFOp, x, y)
    return b.apply(arith.DivfOp, x, y)


def call(b: TensorBuilder, function: str, *operands: SSAValue) -> SSAValue:
    """Call a function of libdevice on floats."""
    try:
        name = libdevice.symbol(function, element_of(operands[0]))
    except VerifyException as error:
        raise PassFailedException(str(error)) from error
    return call_symbol(b, name, element_of(operands[0]), *operands)


def call_symbol(b: TensorBuilder, name: str, result: Attribute, *operands: SSAValue) -> SSAValue:
    """Call the function `name` of libdevice."""
    properties = {
        "libname": StringAttr(libdevice.LIBRARY),
        "libpath": StringAttr(""),
        "pure": BoolAttr.from_bool(True),
        "symbol": StringAttr(name),
    }
    return b.apply(tt.ExternElementwiseOp, *operands, result=result, properties=properties)


def intrinsic(b: TensorBuilder, function: str, values: Values, *, unsigned: bool) -> SSAValue:
    """Evaluate a function of `loop.intrinsic`. Raises `PassFailedException` if there is no code for it."""
    kind = element_of(values[0])
    if isinstance(kind, AnyFloat):
        if function in libdevice.INTRINSICS:
            return call(b, function, *values)
        on_floats = _FLOAT.get(function)
        if on_floats is not None:
            return on_floats(b, values)
    else:
        on_integers = _INT.get(function)
        if on_integers is not None:
            return on_integers(b, values, unsigned)
    raise PassFailedException(f'`loop.intrinsic "{function}"` of {kind} has no lowering to `tt`')


def _number(b: TensorBuilder, like: SSAValue, value: float) -> SSAValue:
    return b.number(value, element_of(like))


def _isnan(b: TensorBuilder, values: Values) -> SSAValue:
    return compare(b, "ne", values[0], values[0])


def _isinf(b: TensorBuilder, values: Values) -> SSAValue:
    return compare(b, "eq", b.apply(math.AbsFOp, values[0]), _number(b, values[0], float("inf")))


def _isfinite(b: TensorBuilder, values: Values) -> SSAValue:
    return compare(b, "lt", b.apply(math.AbsFOp, values[0]), _number(b, values[0], float("inf")))


def _signbit(b: TensorBuilder, values: Values) -> SSAValue:
    raw = b.emit(tt.BitcastOp.get(values[0], IntegerType(width_of(element_of(values[0])))))
    return compare(b, "lt", raw, _number(b, raw, 0))


def _sign(b: TensorBuilder, values: Values) -> SSAValue:
    (x,) = values
    zero = _number(b, x, 0)
    negative = b.select(compare(b, "lt", x, zero), _number(b, x, -1), zero)
    return b.select(compare(b, "gt", x, zero), _number(b, x, 1), negative)


def _wrong_side(b: TensorBuilder, rest: SSAValue, divisor: SSAValue) -> SSAValue:
    """Whether a remainder is not zero and has not the sign of the divisor."""
    zero = _number(b, rest, 0)
    differ = b.apply(arith.XOrIOp, compare(b, "lt", rest, zero), compare(b, "lt", divisor, zero))
    return b.apply(arith.AndIOp, compare(b, "ne", rest, zero), differ)


def _remainder(b: TensorBuilder, values: Values) -> SSAValue:
    """C's fmod, moved by the divisor where the signs differ, as torch.remainder does."""
    x, y = values
    rest = call(b, "fmod", x, y)
    return b.select(_wrong_side(b, rest, y), b.apply(arith.AddfOp, rest, y), rest)


def _floordiv(b: TensorBuilder, values: Values) -> SSAValue:
    """Floor division that agrees with the remainder, as Python and torch define it; by zero it is IEEE's."""
    x, y = values
    zero = _number(b, x, 0)
    rest, plain = call(b, "fmod", x, y), divide(b, x, y)
    quotient = divide(b, b.apply(arith.SubfOp, x, rest), y)
    lower = b.apply(arith.SubfOp, quotient, _number(b, x, 1))
    quotient = b.select(_wrong_side(b, rest, y), lower, quotient)
    floor = b.apply(math.FloorOp, quotient)
    gap = b.apply(arith.SubfOp, quotient, floor)
    higher = b.apply(arith.AddfOp, floor, _number(b, x, 1))
    near = b.select(compare(b, "gt", gap, _number(b, x, 0.5)), higher, floor)
    signed_zero = call(b, "copysign", zero, plain)
    near = b.select(compare(b, "eq", quotient, zero), signed_zero, near)
    return b.select(compare(b, "eq", y, zero), plain, near)


def _truncdiv(b: TensorBuilder, values: Values) -> SSAValue:
    return call(b, "trunc", divide(b, *values))


_FLOAT: dict[str, Callable[[TensorBuilder, Values], SSAValue]] = {
    "floordiv": _floordiv,
    "isfinite": _isfinite,
    "isinf": _isinf,
    "isnan": _isnan,
    "remainder": _remainder,
    "sign": _sign,
    "signbit": _signbit,
    "truncdiv": _truncdiv,
}


def _divide(b: TensorBuilder, values: Values, unsigned: bool) -> tuple[SSAValue, SSAValue]:
    """Return quotient and remainder, rounded towards zero.

    What is undefined, a zero divisor or the lowest integer by -1, gives some value instead: LLVM concludes from a
    division that its divisor is not zero, also where the quotient is not used.
    """
    x, y = values
    quotient, remainder = (arith.DivUIOp, arith.RemUIOp) if unsigned else (arith.DivSIOp, arith.RemSIOp)
    divisor = _constant(y)
    if divisor is not None and divisor not in (0, -1):
        return b.apply(quotient, x, y), b.apply(remainder, x, y)
    zero, one = _number(b, y, 0), _number(b, y, 1)
    unsafe = compare(b, "eq", y, zero)
    if unsigned:
        safe = b.select(unsafe, one, y)
        return b.apply(quotient, x, safe), b.apply(remainder, x, safe)
    minus = compare(b, "eq", y, _number(b, y, -1))
    safe = b.select(b.apply(arith.OrIOp, unsafe, minus), one, y)
    negated = b.apply(arith.SubiOp, zero, x)
    return b.select(minus, negated, b.apply(quotient, x, safe)), b.apply(remainder, x, safe)


def _constant(value: SSAValue) -> int | None:
    """Return the integer that a value is known to be."""
    attribute = value.owner.value if isinstance(value.owner, arith.ConstantOp) else None
    return attribute.value.data if attribute is not None and is_integer_constant(attribute) else None


def _int_truncdiv(b: TensorBuilder, values: Values, unsigned: bool) -> SSAValue:
    return _divide(b, values, unsigned)[0]


def _int_fmod(b: TensorBuilder, values: Values, unsigned: bool) -> SSAValue:
    return _divide(b, values, unsigned)[1]


def _int_floordiv(b: TensorBuilder, values: Values, unsigned: bool) -> SSAValue:
    quotient, rest = _divide(b, values, unsigned)
    if unsigned:
        return quotient
    lower = b.apply(arith.SubiOp, quotient, _number(b, quotient, 1))
    return b.select(_wrong_side(b, rest, values[1]), lower, quotient)


def _int_remainder(b: TensorBuilder, values: Values, unsigned: bool) -> SSAValue:
    rest = _divide(b, values, unsigned)[1]
    if unsigned:
        return rest
    return b.select(_wrong_side(b, rest, values[1]), b.apply(arith.AddiOp, rest, values[1]), rest)


def _int_sign(b: TensorBuilder, values: Values, unsigned: bool) -> SSAValue:
    if not unsigned:
        return _sign(b, values)
    return convert_integer(b, compare(b, "ne", values[0], _number(b, values[0], 0)), element_of(values[0]))


def _powi(b: TensorBuilder, values: Values, unsigned: bool) -> SSAValue:
    """Square and multiply, once per bit of the exponent."""
    base, exponent = values
    kind = element_of(base)
    shape = b.common_shape([shape_of(base), shape_of(exponent)])
    zero, one = b.number(0, kind), b.number(1, kind)
    start = [b.fit(v, shape) for v in (one, base, exponent)]
    block = Block(arg_types=[i32, *(v.type for v in start)])
    b.push(block)
    _, result, square, rest = block.args
    odd = compare(b, "ne", b.apply(arith.AndIOp, rest, one), zero)
    following = [
        b.select(odd, b.apply(arith.MuliOp, result, square), result),
        b.apply(arith.MuliOp, square, square),
        b.apply(arith.ShRUIOp, rest, one),
    ]
    b.append(scf.YieldOp(*following))
    b.pop()
    first, end, step = (b.number(n, i32) for n in (0, width_of(kind), 1))
    power = b.append(scf.ForOp(first, end, step, start, Region(block)))[0]
    if unsigned:
        return power
    minus_one = b.number(-1, kind)
    odd = compare(b, "ne", b.apply(arith.AndIOp, exponent, one), zero)
    unit = b.select(odd, minus_one, one)
    reciprocal = b.select(compare(b, "eq", base, minus_one), unit, zero)
    reciprocal = b.select(compare(b, "eq", base, one), one, reciprocal)
    return b.select(compare(b, "lt", exponent, zero), reciprocal, power)


_INT: dict[str, Callable[[TensorBuilder, Values, bool], SSAValue]] = {
    "floordiv": _int_floordiv,
    "fmod": _int_fmod,
    "powi": _powi,
    "remainder": _int_remainder,
    "sign": _int_sign,
    "truncdiv": _int_truncdiv,
}


def population_count(b: TensorBuilder, value: SSAValue) -> SSAValue:
    """Return how many bits are set."""
    kind = element_of(value)
    if kind == i64:
        return convert_integer(b, call_symbol(b, "__nv_popcll", i32, value), kind)
    wide = convert_integer(b, value, i32, unsigned=True)
    return convert_integer(b, call_symbol(b, "__nv_popc", i32, wide), kind)
