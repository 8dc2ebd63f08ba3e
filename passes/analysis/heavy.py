"""Which operations cost far more than a load from a cache."""

from __future__ import annotations

from xdsl.ir import Operation

from tilewright.dialects.loop import IntrinsicOp, PrefixOp, RandomOp

# One or two machine instructions each; what else `math` has is a call, a polynomial, or a slow instruction.
_CHEAP_MATH = frozenset(
    {
        "math.absf",
        "math.absi",
        "math.ceil",
        "math.copysign",
        "math.floor",
        "math.fma",
        "math.round",
        "math.roundeven",
        "math.trunc",
    }
)
_CHEAP_INTRINSICS = frozenset({"isfinite", "isinf", "isnan", "sign", "signbit"})


def is_heavy(op: Operation) -> bool:
    """Whether `op` is an elementary function or made of such: an exponential, a logarithm, a root, a random number."""
    if isinstance(op, IntrinsicOp):
        return op.function.data not in _CHEAP_INTRINSICS
    if isinstance(op, PrefixOp):
        return op.combiner.data == "logaddexp"
    return isinstance(op, RandomOp) or (op.name.startswith("math.") and op.name not in _CHEAP_MATH)
