"""CUDA's library of device functions, as Triton names it: which function stands for which operation.

The functions are those that PyTorch's own CUDA kernels call, so results have the same bits. `math` operations that are
not here are instructions, or exact whatever computes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from xdsl.dialects import math
from xdsl.dialects.builtin import Float32Type, Float64Type
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.math_functions import C_FUNCTIONS

LIBRARY = "libdevice"

MATH: Mapping[type[Operation], str] = MappingProxyType(
    {
        **C_FUNCTIONS,
        math.CopySignOp: "copysign",
        math.RoundOp: "round",
        math.RoundEvenOp: "rint",
        math.RsqrtOp: "rsqrt",
        math.TruncOp: "trunc",
    }
)
"""The functions of `math` operations."""

INTRINSICS = frozenset({"acosh", "asinh", "erfc", "exp10", "fmod", "hypot", "lgamma", "nextafter"})
"""The functions of `loop.intrinsic` that are one of the library's, under the same name."""


def symbol(function: str, kind: Attribute) -> str:
    """Return the name of a function of floats of type `kind`. Raises `VerifyException` for any but f32 and f64."""
    if isinstance(kind, Float32Type):
        return f"__nv_{function}f"
    if isinstance(kind, Float64Type):
        return f"__nv_{function}"
    raise VerifyException(f"libdevice has no function `{function}` of {kind}")
