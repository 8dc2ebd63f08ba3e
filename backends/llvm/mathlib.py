"""Elementary functions on scalars and vectors of f32 and f64, as the symbols that LLVM IR calls.

With SLEEF a vector function is the very one that ATen's vectorized kernels call, at the same accuracy, so softmax, gelu
and their like are equal to eager's bit for bit. (For a lone elementwise function eager may prefer MKL's, which differs
in the last place.) A vector of another length than the machine's is padded or cut into pieces. Without SLEEF a vector
function calls the C library once per lane. A scalar is always the C library's, as in ATen's scalar loops.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tilewright.backends.llvm.target import Target

Element = Literal["f32", "f64"]


@dataclass(frozen=True)
class _Function:
    arity: int
    accuracy_f32: str
    accuracy_f64: str
    """SLEEF's suffix: `_u10` is 1.0 units in the last place; `` is exact."""


def _same(accuracy: str, arity: int = 1) -> _Function:
    return _Function(arity, accuracy, accuracy)


FUNCTIONS: Mapping[str, _Function] = MappingProxyType(
    {
        "acos": _same("_u10"),
        "acosh": _same("_u10"),
        "asin": _same("_u10"),
        "asinh": _same("_u10"),
        "atan": _same("_u10"),
        "atan2": _same("_u10", 2),
        "atanh": _same("_u10"),
        "cos": _Function(1, "_u35", "_u10"),
        "cosh": _same("_u10"),
        "erf": _same("_u10"),
        "erfc": _same("_u15"),
        "exp": _same("_u10"),
        "exp2": _same("_u10"),
        "expm1": _same("_u10"),
        "fmod": _same("", 2),
        "hypot": _same("_u05", 2),
        "lgamma": _same("_u10"),
        "log": _same("_u10"),
        "log10": _same("_u10"),
        "log1p": _same("_u10"),
        "log2": _same("_u10"),
        "nextafter": _same("", 2),
        "pow": _same("_u10", 2),
        "sin": _Function(1, "_u35", "_u10"),
        "sinh": _same("_u10"),
        "tan": _same("_u10"),
        "tanh": _same("_u10"),
    }
)
"""What can be called, by its name in C."""


@dataclass(frozen=True)
class MathFunction:
    """A function that a module may call once its text contains `definitions`."""

    symbol: str
    definitions: tuple[str, ...]
    """Declarations and definitions, each to be printed once in a module, in any order."""


def math_function(name: str, element: Element, lanes: int, target: Target) -> MathFunction:
    """Return how to call `name` (a key of `FUNCTIONS`) on `lanes` values at once: a power of two, or 1 for a scalar.

    The function takes and returns `<lanes x float>` or `<lanes x double>`, or plain values for one lane.
    """
    function = FUNCTIONS[name]
    if lanes == 1:
        return _scalar(name, element, function.arity)
    if name == "exp" and element == "f32" and (target.has_feature("fma") or target.is_aarch64):
        return _exp_f32(lanes)
    if not target.has_sleef:
        return _lane_by_lane(name, element, lanes, function.arity)
    native = _native_lanes(element, target)
    if lanes == native:
        if name == "erf" and element == "f32" and target.is_x86:
            return _erf_f32(lanes, target)
        if name in ("acosh", "asinh"):
            return _inverse_hyperbolic(name, element, lanes, target)
        return _sleef(name, element, lanes)
    if lanes < native:
        return _padded(name, element, lanes, target)
    return _halved(name, element, lanes, target)


def _native_lanes(element: Element, target: Target) -> int:
    return target.vector_bits // (32 if element == "f32" else 64)


def _scalar(name: str, element: Element, arity: int) -> MathFunction:
    symbol = f"{name}f" if element == "f32" else name
    return MathFunction(symbol, (_declare(symbol, _type(element, 1), arity),))


def _sleef(name: str, element: Element, lanes: int) -> MathFunction:
    function = FUNCTIONS[name]
    accuracy = function.accuracy_f32 if element == "f32" else function.accuracy_f64
    symbol = f"Sleef_{name}{'f' if element == 'f32' else 'd'}{lanes}{accuracy}"
    return MathFunction(symbol, (_declare(symbol, _type(element, lanes), function.arity),))


_EXP_COEFFICIENTS = (
    0.000198527617612853646,
    0.00139304355252534151,
    0.00833336077630519867,
    0.0416664853692054749,
    0.166666671633720398,
    0.5,
)
_LOG2_E = 1.442695040888963407
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.428606765330187045e-06


def _exp_f32(lanes: int) -> MathFunction:
    """SLEEF's expf of 1.0 units in the last place, inline: the same operations, so the same bits, without the call.

    `x = q ln 2 + s`; a polynomial gives `exp(s)`, and two multiplications by powers of two give `2**q` so that results
    below the normal range round once. Shibata and Petrogalli, SLEEF: A Portable Vectorized Library of C Standard
    Mathematical Functions (2020).
    """
    kind, word, test = _type("f32", lanes), f"<{lanes} x i32>", f"<{lanes} x i1>"
    suffix = f"v{lanes}f32"

    def splat(value: float) -> str:
        return f"splat (float {_float_bits(value)})"

    def power(name: str, exponent: str) -> list[str]:
        return [
            f"  %{name}b = add {word} {exponent}, splat (i32 127)",
            f"  %{name}s = shl {word} %{name}b, splat (i32 23)",
            f"  %{name} = bitcast {word} %{name}s to {kind}",
        ]

    fma = f"call {kind} @llvm.fma.{suffix}"
    lines = [
        f"  %scaled = fmul {kind} %x0, {splat(_LOG2_E)}",
        f"  %q = call {kind} @llvm.rint.{suffix}({kind} %scaled)",
        f"  %s0 = {fma}({kind} %q, {kind} {splat(-_LN2_HIGH)}, {kind} %x0)",
        f"  %s = {fma}({kind} %q, {kind} {splat(-_LN2_LOW)}, {kind} %s0)",
    ]
    polynomial = splat(_EXP_COEFFICIENTS[0])
    for i, coefficient in enumerate(_EXP_COEFFICIENTS[1:]):
        lines.append(f"  %p{i} = {fma}({kind} {polynomial}, {kind} %s, {kind} {splat(coefficient)})")
        polynomial = f"%p{i}"
    lines += [
        f"  %square = fmul {kind} %s, %s",
        f"  %t = {fma}({kind} %square, {kind} {polynomial}, {kind} %s)",
        f"  %u = fadd {kind} {splat(1.0)}, %t",
        # Frozen, because the conversion of a NaN or of what exceeds 32 bits is undefined; such lanes end up NaN, 0 or
        # infinite.
        f"  %unsafe = fptosi {kind} %q to {word}",
        f"  %n = freeze {word} %unsafe",
        f"  %half = ashr {word} %n, splat (i32 1)",
        f"  %rest = sub {word} %n, %half",
        *power("a", "%half"),
        *power("b", "%rest"),
        f"  %ua = fmul {kind} %u, %a",
        f"  %y = fmul {kind} %ua, %b",
        f"  %low = fcmp olt {kind} %x0, {splat(-104.0)}",
        f"  %y1 = select {test} %low, {kind} zeroinitializer, {kind} %y",
        f"  %high = fcmp ogt {kind} %x0, {splat(100.0)}",
        f"  %r = select {test} %high, {kind} {splat(float('inf'))}, {kind} %y1",
    ]
    callees = MathFunction(
        "",
        (
            f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})",
            f"declare {kind} @llvm.rint.{suffix}({kind})",
        ),
    )
    return _define("exp", "f32", lanes, 1, lines, "%r", callees)


_ERF_SCALE = 0.3275911
_ERF_COEFFICIENTS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _erf_f32(lanes: int, target: Target) -> MathFunction:
    """Abramowitz and Stegun's formula 7.1.26, which ATen's x86 kernels use instead of SLEEF; error below 1.5e-7."""
    kind = _type("f32", lanes)
    exp = math_function("exp", "f32", lanes, target)
    suffix = f"v{lanes}f32"

    def splat(value: float) -> str:
        return f"splat (float {_float_bits(value)})"

    lines = [
        f"  %abs = call {kind} @llvm.fabs.{suffix}({kind} %x0)",
        f"  %d = call {kind} @llvm.fma.{suffix}({kind} {splat(_ERF_SCALE)}, {kind} %abs, {kind} {splat(1.0)})",
        f"  %t = fdiv {kind} {splat(1.0)}, %d",
    ]
    polynomial = splat(_ERF_COEFFICIENTS[0])
    for i, coefficient in enumerate(_ERF_COEFFICIENTS[1:]):
        lines.append(
            f"  %p{i} = call {kind} @llvm.fma.{suffix}({kind} {polynomial}, {kind} %t, {kind} {splat(coefficient)})"
        )
        polynomial = f"%p{i}"
    lines += [
        f"  %square = fmul {kind} %x0, %x0",
        f"  %exponent = fneg {kind} %square",
        f"  %e = call {kind} @{exp.symbol}({kind} %exponent)",
        f"  %minus = fneg {kind} %e",
        f"  %scaled = fmul {kind} %minus, %t",
        f"  %y = call {kind} @llvm.fma.{suffix}({kind} %scaled, {kind} {polynomial}, {kind} {splat(1.0)})",
        f"  %r = call {kind} @llvm.copysign.{suffix}({kind} %y, {kind} %x0)",
    ]
    callees = MathFunction(
        exp.symbol,
        (
            *exp.definitions,
            f"declare {kind} @llvm.fabs.{suffix}({kind})",
            f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})",
            f"declare {kind} @llvm.copysign.{suffix}({kind}, {kind})",
        ),
    )
    return _define("erf", "f32", lanes, 1, lines, "%r", callees)


def _inverse_hyperbolic(name: str, element: Element, lanes: int, target: Target) -> MathFunction:
    """SLEEF's function, but the logarithm of twice the argument where SLEEF's square of it might be infinite."""
    kind = _type(element, lanes)
    scalar, suffix = _type(element, 1), f"v{lanes}{element}"
    near, log = _sleef(name, element, lanes), math_function("log", element, lanes, target)

    def splat(value: float) -> str:
        return f"splat ({scalar} {_bits(value, element)})"

    magnitude = "%abs" if name == "asinh" else "%x0"
    lines = [
        f"  %abs = call {kind} @llvm.fabs.{suffix}({kind} %x0)",
        f"  %log = call {kind} @{log.symbol}({kind} {magnitude})",
        f"  %far = fadd {kind} %log, {splat(0.6931471805599453)}",
        f"  %signed = call {kind} @llvm.copysign.{suffix}({kind} %far, {kind} %x0)",
        f"  %near = call {kind} @{near.symbol}({kind} %x0)",
        f"  %large = fcmp ogt {kind} {magnitude}, {splat(1e9)}",
        f"  %r = select <{lanes} x i1> %large, {kind} %signed, {kind} %near",
    ]
    definitions = (
        *near.definitions,
        *log.definitions,
        f"declare {kind} @llvm.fabs.{suffix}({kind})",
        f"declare {kind} @llvm.copysign.{suffix}({kind}, {kind})",
    )
    return _define(name, element, lanes, 1, lines, "%r", MathFunction(near.symbol, definitions))


def _float_bits(value: float) -> str:
    return _bits(value, "f32")


def _bits(value: float, element: Element) -> str:
    """Print a number as LLVM wants it: the bits of the double that is equal to it."""
    if element == "f32":
        (value,) = struct.unpack("<f", struct.pack("<f", value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _lane_by_lane(name: str, element: Element, lanes: int, arity: int) -> MathFunction:
    scalar = _scalar(name, element, arity)
    vector, value = _type(element, lanes), _type(element, 1)
    lines: list[str] = []
    result = "poison"
    for lane in range(lanes):
        lines += [f"  %x{lane}_{i} = extractelement {vector} %x{i}, i64 {lane}" for i in range(arity)]
        arguments = ", ".join(f"{value} %x{lane}_{i}" for i in range(arity))
        lines.append(f"  %y{lane} = call {value} @{scalar.symbol}({arguments})")
        lines.append(f"  %r{lane} = insertelement {vector} {result}, {value} %y{lane}, i64 {lane}")
        result = f"%r{lane}"
    return _define(name, element, lanes, arity, lines, result, scalar)


def _padded(name: str, element: Element, lanes: int, target: Target) -> MathFunction:
    """Call the machine's vector length with the last lane repeated, so that no lane traps or is slow."""
    native = _native_lanes(element, target)
    wide = math_function(name, element, native, target)
    arity = FUNCTIONS[name].arity
    narrow_type, wide_type = _type(element, lanes), _type(element, native)
    spread = _mask(min(lane, lanes - 1) for lane in range(native))
    lines = [
        f"  %w{i} = shufflevector {narrow_type} %x{i}, {narrow_type} poison, <{native} x i32> {spread}"
        for i in range(arity)
    ]
    lines.append(f"  %y = call {wide_type} @{wide.symbol}({', '.join(f'{wide_type} %w{i}' for i in range(arity))})")
    lines.append(f"  %r = shufflevector {wide_type} %y, {wide_type} poison, <{lanes} x i32> {_mask(range(lanes))}")
    return _define(name, element, lanes, arity, lines, "%r", wide)


def _halved(name: str, element: Element, lanes: int, target: Target) -> MathFunction:
    half = lanes // 2
    part = math_function(name, element, half, target)
    arity = FUNCTIONS[name].arity
    whole_type, half_type = _type(element, lanes), _type(element, half)
    lines: list[str] = []
    for side, first in (("a", 0), ("b", half)):
        mask = _mask(range(first, first + half))
        lines += [
            f"  %{side}{i} = shufflevector {whole_type} %x{i}, {whole_type} poison, <{half} x i32> {mask}"
            for i in range(arity)
        ]
        arguments = ", ".join(f"{half_type} %{side}{i}" for i in range(arity))
        lines.append(f"  %y{side} = call {half_type} @{part.symbol}({arguments})")
    lines.append(f"  %r = shufflevector {half_type} %ya, {half_type} %yb, <{lanes} x i32> {_mask(range(lanes))}")
    return _define(name, element, lanes, arity, lines, "%r", part)


def _define(
    name: str, element: Element, lanes: int, arity: int, lines: list[str], result: str, callee: MathFunction
) -> MathFunction:
    symbol = f"{name}.v{lanes}{element}"
    kind = _type(element, lanes)
    parameters = ", ".join(f"{kind} %x{i}" for i in range(arity))
    text = "\n".join(
        (f"define internal {kind} @{symbol}({parameters}) alwaysinline {{", *lines, f"  ret {kind} {result}", "}")
    )
    return MathFunction(symbol, (*callee.definitions, text))


def _declare(symbol: str, kind: str, arity: int) -> str:
    return f"declare {kind} @{symbol}({', '.join([kind] * arity)}) nounwind willreturn memory(none)"


def _type(element: Element, lanes: int) -> str:
    scalar = "float" if element == "f32" else "double"
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def _mask(lanes: Iterable[int]) -> str:
    return "<" + ", ".join(f"i32 {lane}" for lane in lanes) + ">"
