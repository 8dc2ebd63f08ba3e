"""Random numbers, as `dialects/philox.py` defines them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from xdsl.ir import SSAValue

from tilewright.backends.reference.dtypes import register_dtype
from tilewright.backends.reference.frame import Frame, execute, lanes_of
from tilewright.dialects import loop
from tilewright.dialects.cpu_random import RandomOp
from tilewright.dialects.loop_random import RandomOperation
from tilewright.dialects.philox import element_bits, normal_words, uniform_digits
from tilewright.dialects.type_guards import is_vector


def _numbers(op: RandomOperation, element: Tensor, frame: Frame) -> Tensor:
    """Return the numbers of elements; the seed and the stream are single values."""
    dtype = register_dtype(op.result.type)
    seed, stream = (_with_lanes(v, op.result, frame) for v in (op.seed, op.stream))
    if op.distribution.data == "normal":
        return _normal(*normal_words(seed, stream, element), element)
    bits = element_bits(seed, stream, element, wide=op.is_wide)
    if op.distribution.data == "bits":
        return bits.to(dtype)
    width, digits = uniform_digits(wide=op.is_wide)
    return (bits >> width - digits & (1 << digits) - 1).to(dtype) * 2.0**-digits


def _normal(radius: Tensor, angle: Tensor, element: Tensor) -> Tensor:
    """Return normal numbers made of words, those of odd elements from the sine."""
    length = torch.sqrt(-2.0 * torch.log((radius.to(torch.float32) + 0.5) * 2.0**-32))
    turn = (angle >> 8).to(torch.float32) * 2.0**-24 * (2.0 * math.pi)
    return length * torch.where(element & 1 == 0, torch.cos(turn), torch.sin(turn))


def _with_lanes(value: SSAValue, result: SSAValue, frame: Frame) -> Tensor:
    register = frame.register(value)
    return register[..., None] if is_vector(result.type) else register


@execute.register
def _(op: loop.RandomOp, frame: Frame) -> None:
    frame.set(op.result, _numbers(op, frame.register(op.element), frame))


@execute.register
def _(op: RandomOp, frame: Frame) -> None:
    first = frame.register(op.element)[..., None]
    frame.set(op.result, _numbers(op, first + torch.arange(*lanes_of(op.result)), frame))
