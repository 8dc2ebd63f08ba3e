"""The table of decompositions that AOTAutograd applies while it traces.

An operator is listed for one of three reasons: its lowering would be nothing but the decomposition (elementwise
formulas, losses, their gradients); it only renames another operator (`rsub`, `zeros`); or it returns several views
or tensors, each better made by itself (`split`, `_foreach_add`). All else stays whole:

- softmax, norms, gelu, batch norm and their gradients are one loop nest each when whole, with eager's order of
  summation, and a dozen nodes that fusion has to join again when decomposed;
- products with something added, convolution, attention, pooling, interpolation, grid sampling, padding, `cumsum` have
  loop nests or library kernels of their own, where decompositions build index tensors;
- random operators are rewritten as a whole (`random_numbers.py`);
- single views cost nothing to lower, and decomposing them costs a traced call each;
- `select_scatter`, `slice_scatter`, `diagonal_scatter` and `index_put`, into which `b[0].mul_()` turns when it is made
  functional, can be done in place on the slice, where the stock table compares an arange over all of `b`;
- `index_add`, `index_copy`, `embedding_dense_backward` and `scatter` are one scatter each, with its own combination.

Gradients are listed by themselves: AOTAutograd runs autograd first, then the table, on both directions.
"""

from __future__ import annotations

import math
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tilewright.frontends.dropout import native_dropout_backward
from tilewright.frontends.foreach import foreach_decompositions
from tilewright.frontends.layouts import LAYOUTS
from tilewright.frontends.torch_internals import (
    Decomposition,
    find_overload,
    stock_decompositions,
)

RENAMED = """
    arange.default arange.start eye.default eye.m fill.Scalar new_full.default new_ones.default
    new_zeros.default ones.default ones_like.default zero.default zeros.default zeros_like.default

    clamp_max.Tensor clamp_max.default clamp_min.Tensor clamp_min.default deg2rad.default floor_divide.Scalar
    floor_divide.default hardtanh.default isneginf.default isposinf.default masked_fill.Scalar masked_fill.Tensor
    rad2deg.default rsub.Scalar rsub.Tensor sgn.default threshold_backward.default

    _reshape_alias.default _unsafe_index.Tensor _unsafe_index_put.default _unsafe_view.default stack.default

    aminmax.default count_nonzero.default count_nonzero.dim_IntList nansum.default norm.Scalar norm.ScalarOpt_dim
    norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype std.correction std_mean.correction sum.default trace.default

    diagonal_backward.default select_backward.default slice_backward.default
"""
"""Other operators say the same: creation by `full`, elementwise ones, indexing, reductions, gradients of views.

`_unsafe_view` is among them because its schema hides that the result is a view, which alias analysis must know.
"""

FORMULAS = """
    _prelu_kernel.default addr.default celu.default elu.default frac.default
    glu.default hardshrink.default hardsigmoid.default hardswish.default heaviside.default leaky_relu.default
    log_sigmoid_forward.default logaddexp.default logaddexp2.default mish.default nan_to_num.default
    silu.default sinc.default softplus.default special_entr.default special_log_ndtr.default
    special_xlog1py.default special_xlog1py.other_scalar special_xlog1py.self_scalar

    _prelu_kernel_backward.default elu_backward.default glu_backward.default hardsigmoid_backward.default
    hardswish_backward.default leaky_relu_backward.default log_sigmoid_backward.default
    logit_backward.default mish_backward.default
    silu_backward.default softplus_backward.default

    binary_cross_entropy.default binary_cross_entropy_with_logits.default huber_loss.default mse_loss.default
    nll_loss2d_forward.default nll_loss_forward.default smooth_l1_loss.default soft_margin_loss.default

    binary_cross_entropy_backward.default huber_loss_backward.default mse_loss_backward.default
    smooth_l1_loss_backward.default soft_margin_loss_backward.default

    _safe_softmax.default _unsafe_masked_index.default _unsafe_masked_index_put_accumulate.default
    _weight_norm_interface.default
"""
"""Elementwise formulas and their gradients, losses and their gradients, and a few made of indexing, softmax or norms.

In half precision the elementwise ones convert to float32, compute, and round once. That is where eager rounds, but for
`addr`, `entr` and `xlog1py`, where eager rounds each step. `logit`, `sigmoid_backward` and `xlogy` are not listed for
that reason, nor are `addcdiv`, `addcmul`, `lerp` and `tanh_backward`, whose steps CUDA's kernels order or round
differently.
`softshrink`, `threshold` and `hardtanh_backward` are not because the stock formulas round the bounds, which eager does
not.
"""

COPIED_VIEWS = """
    alias_copy.default as_strided_copy.default diagonal_copy.default expand_copy.default narrow_copy.default
    permute_copy.default pixel_shuffle.default pixel_unshuffle.default rot90.default
    split_with_sizes_copy.default squeeze_copy.default squeeze_copy.dim squeeze_copy.dims t_copy.default
    transpose_copy.int unbind_copy.int unfold_copy.default unsqueeze_copy.default view_copy.default
"""
"""A view, or several, and then a copy."""

Table: TypeAlias = MappingProxyType[Any, Decomposition]


@cache
def decomposition_table() -> Table:
    """Return the table, overload to function, for `aot_autograd(decompositions=dict(decomposition_table()))`.

    An operator that the installed torch lacks is left out: no graph holds it.
    """
    stock = stock_decompositions()
    own = {**_OWN, **LAYOUTS, **foreach_decompositions()}
    named = {name: find_overload(f"aten.{name}") for name in (*(RENAMED + FORMULAS + COPIED_VIEWS).split(), *own)}
    return MappingProxyType(
        {overload: own.get(name) or stock[overload] for name, overload in named.items() if overload is not None}
    )


def _split(x: Tensor, split_size: int, dim: int = 0) -> list[Tensor]:
    size = x.shape[dim]
    # A split size of zero is allowed for an empty dimension only, and gives one piece. How many pieces there are is a
    # guard where the size is symbolic; the size of the last is not.
    last = int(max((size + split_size - 1) // split_size, 1)) - 1 if split_size else 0
    pieces = [_slice(x, dim, i * split_size, (i + 1) * split_size) for i in range(last)]
    return [*pieces, _slice(x, dim, last * split_size, size)]


def _split_with_sizes(x: Tensor, split_sizes: list[int], dim: int = 0) -> list[Tensor]:
    pieces: list[Tensor] = []
    start = 0
    for size in split_sizes:
        pieces.append(_slice(x, dim, start, start + size))
        start += size
    return pieces


def _unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    return [torch.ops.aten.select.int(x, dim, i) for i in range(x.shape[dim])]


def _slice(x: Tensor, dim: int, start: int, end: int) -> Tensor:
    return torch.ops.aten.slice.Tensor(x, dim, start, end)


def _take(x: Tensor, index: Tensor) -> Tensor:
    # Python's `x[index]`, in the stock table, reads an index without dims while it traces.
    return torch.ops.aten.index.Tensor(x.reshape(-1), [index])


def _addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    """Eager mode truncates the factor of integers, where the stock formula takes none but an integer."""
    if x.is_floating_point() and x.dtype == a.dtype == b.dtype:
        return NotImplemented  # CUDA's kernel multiplies in another order than the stock formula
    integers = not any(t.is_floating_point() or t.is_complex() for t in (x, a, b))
    if integers and isinstance(value, float) and math.isfinite(value):
        value = int(value)
    return stock_decompositions()[torch.ops.aten.addcmul.default](x, a, b, value=value)


def _neg_view(x: Tensor) -> Tensor:
    return -x


_OWN: dict[str, Decomposition] = {
    "_neg_view.default": _neg_view,
    "addcmul.default": _addcmul,
    "native_dropout_backward.default": native_dropout_backward,
    "split.Tensor": _split,
    "split_with_sizes.default": _split_with_sizes,
    "unsafe_split.Tensor": _split,
    "unsafe_split_with_sizes.default": _split_with_sizes,
    "take.default": _take,
    "unbind.int": _unbind,
}
"""Operators with several results that are views, as slices and selects; a view that no kernel can read; and what
the stock table cannot trace."""
