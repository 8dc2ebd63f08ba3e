"""The functions of C that operations of xDSL's `math` are; SLEEF and libdevice name theirs after them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from xdsl.dialects import math
from xdsl.ir import Operation

C_FUNCTIONS: Mapping[type[Operation], str] = MappingProxyType(
    {
        math.AcosOp: "acos",
        math.AcoshOp: "acosh",
        math.AsinOp: "asin",
        math.AsinhOp: "asinh",
        math.AtanOp: "atan",
        math.Atan2Op: "atan2",
        math.AtanhOp: "atanh",
        math.CosOp: "cos",
        math.CoshOp: "cosh",
        math.ErfOp: "erf",
        math.ExpOp: "exp",
        math.Exp2Op: "exp2",
        math.ExpM1Op: "expm1",
        math.LogOp: "log",
        math.Log10Op: "log10",
        math.Log1pOp: "log1p",
        math.Log2Op: "log2",
        math.PowFOp: "pow",
        math.SinOp: "sin",
        math.SinhOp: "sinh",
        math.TanOp: "tan",
        math.TanhOp: "tanh",
    }
)
"""Those that no target has an instruction for."""
