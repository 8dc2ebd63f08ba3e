"""Operators whose traced results have other strides than eager mode's on a CPU, and what gives them eager's.

The strides of a traced result decide what `as_strided` and `is_contiguous` mean after it, and those of the output.
torch computes them by a function of its own for each operator; where that differs from the kernel, an operator here is
traced as itself on a contiguous input (`NotImplemented` leaves it alone), followed by the layout that the kernel gives.
What CUDA's kernels share with the CPU's, that they fill a clone or are made of other operators, goes for both.
"""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilewright.frontends.torch_internals import Decomposition, storage_order, suggested_format

aten = torch.ops.aten


def _roll(x: Tensor, shifts: list[int], dims: tuple[int, ...] = ()) -> Tensor:
    """Eager mode concatenates two parts, and so keeps channels last."""
    if x.device.type != "cpu" or not dims or not _is_channels_last(x):
        return NotImplemented
    return _as_suggested(aten.roll.default(x.contiguous(), shifts, dims), x)


def _keeps_channels_last(operator: Callable[..., Tensor]) -> Decomposition:
    def call(x: Tensor, *args: Any) -> Tensor:
        if x.device.type != "cpu" or not _is_channels_last(x):
            return NotImplemented
        return _as_suggested(operator(x.contiguous(), *args), x)

    return call


def _unpool(x: Tensor, *args: Any) -> Tensor:
    """One pixel a channel may have its channels last, too, and is then contiguous as well."""
    if x.device.type != "cpu" or suggested_format(x) == torch.contiguous_format:
        return NotImplemented
    rows = x.clone(memory_format=torch.contiguous_format)
    return _as_suggested(aten.max_unpool2d.default(rows, *args), x)


def _is_channels_last(x: Tensor) -> bool:
    return not x.is_contiguous() and suggested_format(x) != torch.contiguous_format


def _as_suggested(result: Tensor, x: Tensor) -> Tensor:
    return result.contiguous(memory_format=suggested_format(x))


def _shuffle_channels(x: Tensor, groups: int) -> Tensor:
    """Channels last stay last on a CPU alone: other devices have no kernel of their own, and copy into rows."""
    apart = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    shuffled = apart.transpose(1, 2).reshape(x.shape)
    return _as_suggested(shuffled, x) if x.device.type == "cpu" else shuffled.contiguous()


def _normalize(operator: Callable[..., Any]) -> Decomposition:
    """A batch norm's result is contiguous or has its channels last, whatever the input."""

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.device.type != "cpu" or x.is_contiguous() or x.is_contiguous(memory_format=suggested_format(x)):
            return NotImplemented
        return operator(_as_suggested(x, x), *args, **kwargs)

    return call


def _power_of_number(base: Any, exponent: Tensor) -> Tensor:
    return NotImplemented if exponent.is_contiguous() else aten.pow.Scalar(base, exponent.contiguous())


def _fill(operator: Callable[..., Tensor]) -> Decomposition:
    """Eager mode fills a clone."""

    def call(x: Tensor, *args: Any) -> Tensor:
        if x.is_contiguous():
            return NotImplemented
        order = storage_order(x)
        positions = [order.index(d) for d in range(x.dim())]
        return operator(x.contiguous(), *args).permute(order).contiguous().permute(positions)

    return call


LAYOUTS: dict[str, Decomposition] = {
    "channel_shuffle.default": _shuffle_channels,
    "index_fill.int_Scalar": _fill(aten.index_fill.int_Scalar),
    "index_fill.int_Tensor": _fill(aten.index_fill.int_Tensor),
    "max_unpool2d.default": _unpool,
    "pow.Scalar": _power_of_number,
    "reflection_pad3d.default": _keeps_channels_last(aten.reflection_pad3d.default),
    "replication_pad3d.default": _keeps_channels_last(aten.replication_pad3d.default),
    "roll.default": _roll,
    **{
        f"{name}.{overload}": _normalize(getattr(getattr(aten, name), overload))
        for name, overload in (
            ("_native_batch_norm_legit", "default"),
            ("_native_batch_norm_legit", "no_stats"),
            ("_native_batch_norm_legit_functional", "default"),
            ("_native_batch_norm_legit_no_training", "default"),
            ("_batch_norm_with_update_functional", "default"),
            ("_batch_norm_no_update", "default"),
        )
    },
}
