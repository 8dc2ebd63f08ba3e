"""The functions of libdevice, the math library of kernels for a GPU, by PyTorch's own."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tilewright.backends.reference import functions as f


def _cube_root(x: Tensor) -> Tensor:
    return torch.copysign(x.double().abs().pow(1 / 3), x)


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "acos": torch.acos,
    "acosh": torch.acosh,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atan2": torch.atan2,
    "atanh": torch.atanh,
    "cbrt": _cube_root,
    "ceil": torch.ceil,
    "copysign": torch.copysign,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfcx": torch.special.erfcx,
    "erfinv": torch.erfinv,
    "exp": torch.exp,
    "exp10": f.INTRINSICS["exp10"],
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "fabs": torch.abs,
    "floor": torch.floor,
    "fma": f.fused_multiply_add,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "fmod": torch.fmod,
    "hypot": torch.hypot,
    "isfinited": torch.isfinite,
    "isinfd": torch.isinf,
    "isnand": torch.isnan,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "ldexp": torch.ldexp,
    "lgamma": torch.lgamma,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "nearbyint": torch.round,
    "nextafter": torch.nextafter,
    "normcdf": torch.special.ndtr,
    "pow": torch.pow,
    "powi": torch.pow,
    "rint": torch.round,
    "round": f.round_half_away,
    "rsqrt": torch.rsqrt,
    "signbitd": torch.signbit,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "sqrt": torch.sqrt,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "trunc": torch.trunc,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
}
"""By name without `__nv_`, as it is for doubles."""

_FOR_FLOATS = {"finitef": "isfinited", "isinff": "isinfd", "isnanf": "isnand", "signbitf": "signbitd"}
"""The names for floats that are not those for doubles with an `f` behind."""


def find(symbol: str, operand: torch.dtype) -> Callable[..., Tensor] | None:
    """Return what the function `symbol` of libdevice computes on elements of dtype `operand`; None for one unknown."""
    name = symbol.removeprefix("__nv_")
    if operand == torch.float32:
        name = _FOR_FLOATS.get(name) or name.removesuffix("f")
    return _FUNCTIONS.get(name)
