"""Canonical names of the values of a kernel."""

from __future__ import annotations

from xdsl.ir import SSAValue

from tilewright.dialects.loop import KernelOp, Loop, StoreOp


def number_values(kernel: KernelOp) -> None:
    """Number the values of a kernel as they occur: inputs x, outputs y, loop indices i, masks m, results v."""
    numbers: dict[str, int] = {}

    def name(value: SSAValue, letter: str) -> None:
        number = numbers.get(letter, 0)
        value.name_hint = f"{letter}{number}"
        numbers[letter] = number + 1

    ops = list(kernel.block.walk())
    outputs = {op.target for op in ops if isinstance(op, StoreOp)}
    for buffer in kernel.buffers:
        name(buffer, "y" if buffer in outputs else "x")
    for op in ops:
        for result in op.results:
            name(result, "v")
        if isinstance(op, Loop):
            for index in op.indices:
                name(index, "i")
            if op.mask is not None:
                name(op.mask, "m")
