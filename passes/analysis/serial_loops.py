"""Loops of Triton kernels: how often they run, and what each iteration loads."""

from __future__ import annotations

from math import prod

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import FixedBitwidthType
from xdsl.ir import SSAValue

from tilewright.dialects import tt
from tilewright.dialects.arith_tensor import element_of
from tilewright.dialects.type_guards import is_integer_constant, is_tensor

STAGES = "tt.num_stages"
"""The attribute by which Triton loads what later iterations of a loop need while it computes."""


def _constant(value: SSAValue) -> int | None:
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and is_integer_constant(owner.value):
        return owner.value.value.data
    return None


def trips(loop: scf.ForOp) -> int | None:
    """Return how many iterations a loop has, None where that is not known."""
    lower, upper, step = _constant(loop.lb), _constant(loop.ub), _constant(loop.step)
    if lower is None or upper is None or step is None:
        return None
    return max(0, -(-(upper - lower) // step))


def loaded_bytes(load: tt.LoadOp) -> int:
    """Return the bytes of the tile that is loaded; 0 for a scalar."""
    kind = load.result.type
    element = element_of(kind)
    if not is_tensor(kind) or not isinstance(element, FixedBitwidthType):
        return 0
    return prod(kind.get_shape()) * element.size
