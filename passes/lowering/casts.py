"""Copies and conversions: new tensors with the elements of an operand, in the result's dtype and layout."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tilewright.passes.lowering.call import Call, Lowering
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import broadcast, copied


def _copy_of(argument: str) -> Lowering:
    """Return the lowering of an operator that copies its argument, broadcast to the result's sizes."""

    def lower(call: Call) -> Sequence[SSAValue]:
        source = call.tensor(argument)
        if call.has("pin_memory") and call.flag("pin_memory"):
            raise NotLoweredError("pinned memory")
        return copied(call, source, lambda i: broadcast(source, i))

    return lower


_COPY_OF_SELF = _copy_of("self")

LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(
        (
            "aten._to_copy.default",
            "aten.clone.default",
            "aten.contiguous.default",
            "aten.lift_fresh_copy.default",
            "prims.clone.default",
        ),
        _COPY_OF_SELF,
    ),
    "aten.copy.default": _copy_of("src"),
    "prims.convert_element_type.default": _copy_of("a"),
}
"""`contiguous` returns an operand that is contiguous; a graph after AOTAutograd has it only where it copies."""
