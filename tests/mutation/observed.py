"""What a caller can see of a function that mutates its arguments or returns aliases of them."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def observe(function: Callable[..., Any], arguments: Sequence[Any], *, calls: int = 1) -> dict[str, Any]:
    """Call `function` and return all that the caller can tell apart: values, memory shared, strides, gradients.

    Of two calls the second sees what the first left in the arguments.
    """
    given = [a for a in arguments if isinstance(a, Tensor)]
    versions = [t._version for t in given if not t.is_inference()]  # pyright: ignore[reportPrivateUsage]
    seen: dict[str, Any] = {}
    for number in range(calls):
        returned = function(*arguments)
        outputs = [t for t in _flat(returned) if isinstance(t, Tensor)]
        seen[f"call {number}"] = {
            "outputs": [_value(t) for t in outputs],
            "other outputs": [v for v in _flat(returned) if not isinstance(v, Tensor)],
            "layouts": [_layout(t) for t in outputs],
            "needs grad": [t.requires_grad for t in outputs],
            "is leaf": [t.is_leaf for t in outputs],
            "shared": _shared([*given, *outputs]),
            "same object": [[o is t for t in given] for o in outputs],
        }
        total = sum((t.sum() for t in outputs if t.requires_grad), start=torch.zeros(()))
        if total.requires_grad:
            total.backward()
    seen["arguments"] = [_value(t) for t in given]
    seen["argument layouts"] = [_layout(t) for t in given]
    seen["gradients"] = [None if t.grad is None else _value(t.grad) for t in given if t.is_leaf]
    seen["written"] = [t._version != v for t, v in zip(given, versions, strict=False)]  # pyright: ignore[reportPrivateUsage]
    return seen


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _flat(item)]
    if isinstance(value, dict):
        return _flat(list(value.values()))
    return [value]


def _value(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    # Strides of dims of size one, and of tensors without elements, are nobody's business but `stride()`'s.
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def _shared(tensors: Sequence[Tensor]) -> list[int]:
    """Return for each tensor the number of the first one in the same storage."""
    first: dict[int, int] = {}
    return [first.setdefault(t.untyped_storage().data_ptr() or -1 - i, i) for i, t in enumerate(tensors)]
