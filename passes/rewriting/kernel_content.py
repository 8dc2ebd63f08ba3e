"""What kernels say, to tell whether they are equal; and who launches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, SSAValue

from tilewright.dialects import host, loop

Translation: TypeAlias = Callable[[str, Attribute], Attribute]
"""What takes the place of a property of some name, or, under no name, of the type of a buffer."""


def _as_it_is(name: str, attribute: Attribute) -> Attribute:
    return attribute


def kernel_content(kernel: loop.KernelOp, translate: Translation = _as_it_is) -> tuple[object, ...]:
    """Return what the translated text of `kernel` says, but for names and origin: as good as it, and cheaper."""
    parts: list[object] = [kernel.symbols]
    numbers: dict[SSAValue, int] = {}

    def define(values: Sequence[SSAValue]) -> tuple[Attribute, ...]:
        for value in values:
            numbers[value] = len(numbers)
        return tuple(translate("", v.type) for v in values)

    def visit(block: Block) -> None:
        parts.append(define(block.args))
        for op in block.ops:
            operands = tuple(numbers[o] for o in op.operands)
            properties = {name: translate(name, a) for name, a in op.properties.items()}
            parts.extend((op.name, operands, _sorted(properties), _sorted(op.attributes), define(op.results)))
            for region in op.regions:
                for inner in region.blocks:
                    visit(inner)
        parts.append(None)

    visit(kernel.block)
    parts.append(_sorted({name: a for name, a in kernel.attributes.items() if name != "origin"}))
    return tuple(parts)


def _sorted(attributes: Mapping[str, Attribute]) -> tuple[tuple[str, Attribute], ...]:
    return tuple(sorted(attributes.items(), key=lambda item: item[0]))


def launches_in(module: ModuleOp) -> list[host.LaunchOp]:
    """Return the launches of a module's programs, in order."""
    functions = [op for op in module.ops if isinstance(op, func.FuncOp)]
    return [op for function in functions for op in function.walk() if isinstance(op, host.LaunchOp)]
