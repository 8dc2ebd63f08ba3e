"""Decompositions of `aten._foreach_*`: what they do to lists of tensors, tensor by tensor.

Eager mode on a CPU does the same. That the updates of many tensors become one kernel is for the passes to find.
"""

# torch's functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

_OVERLOADS = ("default", "List", "Scalar", "ScalarList", "Tensor", "ScalarAndTensor")

_NAMED_LIKE_TORCH = """
    abs acos add asin atan ceil clamp_max clamp_min clone cos cosh div erf erfc exp expm1 floor frac lerp lgamma log
    log10 log1p log2 maximum minimum mm mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc
"""
"""The operators whose name without `_foreach_` is a function of torch with the same arguments."""


def _each(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    """Apply a function to the first items of all lists among the arguments, then to the second ones, and so on."""
    count = next(len(a) for a in args if isinstance(a, (list, tuple)))
    return [function(*(a[i] if isinstance(a, (list, tuple)) else a for a in args), **kwargs) for i in range(count)]


def _with_value(function: Callable[..., Tensor], x: Any, a: Any, b: Any, value: Any = 1) -> list[Tensor]:
    """Apply `addcdiv` or `addcmul`, whose factor is a number, a list of numbers, or a tensor of them."""
    if isinstance(value, Tensor):
        value = list(value.unbind())
    scaled = partial(_scaled, function)
    return _each(scaled, x, a, b, value)


def _scaled(function: Callable[..., Tensor], x: Tensor, a: Tensor, b: Tensor, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        return function(x, a, b, value=value)
    return x + value * (a / b if function is torch.addcdiv else a * b)


def _bound(function: Callable[..., Tensor], x: Tensor, bound: Any) -> Tensor:
    """Return the larger or smaller of a tensor's elements and a number or tensor."""
    if isinstance(bound, Tensor):
        return function(x, bound)
    return torch.clamp_min(x, bound) if function is torch.maximum else torch.clamp_max(x, bound)


def _norm(x: Tensor, order: Any = 2, dtype: torch.dtype | None = None) -> Tensor:
    return torch.linalg.vector_norm(x, order, dtype=dtype)


def _power_sum(x: Tensor, order: Any = 2, dtype: torch.dtype | None = None) -> Tensor:
    return x.abs().pow(order).sum(dtype=dtype)


def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return torch.ops.aten.copy.default(x, source, non_blocking)


def _each_like_torch(function: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    return partial(_each, function)


def foreach_decompositions() -> Mapping[str, Callable[..., list[Tensor]]]:
    """Return what computes each operator, by the name `_foreach_add.List`; some may be unknown to this torch."""
    functions: dict[str, Callable[..., list[Tensor]]] = {
        name: _each_like_torch(getattr(torch, name)) for name in _NAMED_LIKE_TORCH.split()
    }
    functions |= {
        "addcdiv": partial(_with_value, torch.addcdiv),
        "addcmul": partial(_with_value, torch.addcmul),
        "copy": partial(_each, _copy),
        "max": partial(_each, torch.amax),
        "maximum": partial(_each, partial(_bound, torch.maximum)),
        "minimum": partial(_each, partial(_bound, torch.minimum)),
        "norm": partial(_each, _norm),
        "powsum": partial(_each, _power_sum),
        "zero": partial(_each, torch.zeros_like),
    }
    return {f"_foreach_{name}.{o}": function for name, function in functions.items() for o in _OVERLOADS}
