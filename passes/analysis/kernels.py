"""The kernels of a module, by the kind of device they are for."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tilewright.dialects.loop import KernelOp, NestOp


def kernels_for(module: ModuleOp, device: str) -> list[KernelOp]:
    """Return the kernels of `module` for one kind of device (`cpu`, `cuda`), in order."""
    return [op for op in module.ops if isinstance(op, KernelOp) and op.device == device]


def nests_for(module: ModuleOp, device: str) -> list[NestOp]:
    """Return the nests of the kernels of `module` for one kind of device, in order."""
    return [op for kernel in kernels_for(module, device) for op in kernel.block.ops if isinstance(op, NestOp)]
