"""The scale of dropout, and its gradient, rounded where eager mode rounds."""

from __future__ import annotations

import struct

import torch
from torch import Tensor


def kept_scale(kept: float, dtype: torch.dtype) -> float:
    """Return by what dropout multiplies an element that it keeps with probability `kept`.

    Eager mode divides a one of the dtype by the probability: in f32 for the 16-bit floats. Nothing here calls torch,
    because a graph may be being traced.
    """
    if kept == 0.0:
        return 0.0
    if dtype == torch.float64:
        return 1.0 / kept
    # Dividing in f64 and rounding to f32 gives what dividing in f32 gives.
    quotient = _rounded(1.0 / _rounded(kept, "f"), "f")
    if dtype == torch.float16:
        return _rounded(quotient, "e")
    return _to_bfloat(quotient) if dtype == torch.bfloat16 else quotient


def scale_on_cuda(kept: float, dtype: torch.dtype) -> float:
    """Return by what dropout multiplies on CUDA: there the scale has the precision in which the product is computed."""
    return kept_scale(kept, torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype)


def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Multiply a gradient by the noise that the forward pass multiplied with, in place of `aten`'s own rounding."""
    if grad_output.device.type == "cuda":
        return grad_output * mask.to(grad_output.dtype) * scale
    noise = mask.to(grad_output.dtype) * kept_scale(1.0 / scale if scale else 0.0, grad_output.dtype)
    return grad_output * noise


def _rounded(value: float, form: str) -> float:
    try:
        return float(struct.unpack(form, struct.pack(form, value))[0])
    except OverflowError:
        return float("inf")


def _to_bfloat(value: float) -> float:
    """Round an f32 to the nearest bf16, to even between two."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    rounded = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", rounded))[0])
