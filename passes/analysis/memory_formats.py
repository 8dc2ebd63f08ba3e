"""The two orders in which tensors of images and volumes lie in memory: contiguous, and with their channels last.

A format fixes the strides of every dim, those of size one included: by them ATen's kernels tell the formats apart.
"""

from __future__ import annotations

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute

from tilewright.dialects.call_syntax import MemoryFormatAttr
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.sym import LayoutAttr, contiguous_strides
from tilewright.dialects.sym_expr import Expr, integer
from tilewright.dialects.type_guards import is_tensor

_CHANNELS_LAST = {4: MemoryFormatAttr("channels_last"), 5: MemoryFormatAttr("channels_last_3d")}
CONTIGUOUS = MemoryFormatAttr("contiguous_format")


def channels_last_format(rank: int) -> MemoryFormatAttr:
    """Return what ATen calls channels last for tensors of `rank`, 4 or 5."""
    return _CHANNELS_LAST[rank]


def channels_last_strides(sizes: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Return the strides of a tensor of `sizes` (batch, channels, rows, ..) whose channels are the innermost dim."""
    strides = [integer(1)] * len(sizes)
    stride = sizes[1]
    for d in (*range(len(sizes) - 1, 1, -1), 0):
        strides[d] = stride
        stride = stride * sizes[d]
    return tuple(strides)


def is_contiguous(kind: Attribute) -> bool:
    """Whether a type is that of a tensor of images or volumes, with elements, that is contiguous."""
    layout = _images(kind)
    return layout is not None and layout.strides == contiguous_strides(layout.sizes)


def is_channels_last(kind: Attribute) -> bool:
    """Whether a type is that of a tensor of images or volumes, with elements, whose channels are last."""
    layout = _images(kind)
    return layout is not None and layout.strides == channels_last_strides(layout.sizes)


def with_channels_last(kind: TensorType[Attribute]) -> TensorType[Attribute]:
    """Return the type of a tensor of images or volumes with its channels last, at the start of its storage."""
    layout = layout_of(kind)
    strides = channels_last_strides(layout.sizes)
    return TensorType(kind.element_type, kind.shape, LayoutAttr.get(layout.sizes, strides, device=layout.device))


def as_contiguous(kind: TensorType[Attribute]) -> TensorType[Attribute]:
    """Return the type of a contiguous tensor like one of `kind`."""
    layout = layout_of(kind)
    return TensorType(kind.element_type, kind.shape, LayoutAttr.contiguous(layout.sizes, layout.device))


def _images(kind: Attribute) -> LayoutAttr | None:
    """Return the layout of a tensor that may have either format; None for any other type."""
    if not is_tensor(kind):
        return None
    layout = layout_of(kind)
    return layout if len(layout.sizes) in _CHANNELS_LAST and all(s != 0 for s in layout.sizes) else None
