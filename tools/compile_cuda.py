"""Kernels for CUDA to what a host program can launch: Triton compiles them for the device that the program runs on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from tilewright.dialects import host, tt
from tilewright.dialects.loop_access import layout_of
from tilewright.tools.program_cache import KeptProgram, read_kernel

if TYPE_CHECKING:
    from tilewright.backends.cache import ObjectCache
    from tilewright.backends.cuda.kernel import Kernel
    from tilewright.backends.triton.compile import Cubin
    from tilewright.backends.triton.ttir import Expected


def device_kernels(module: ModuleOp) -> list[tt.FuncOp]:
    """Return the kernels for CUDA in a module."""
    return [op for op in module.ops if isinstance(op, tt.FuncOp)]


def compile_device_kernels(module: ModuleOp, cache: ObjectCache | None) -> list[Kernel]:
    """Compile and load the kernels that a host program launches on CUDA, for sizes such as it was traced with.

    Raises `CudaError` where there is no such device, and what Triton raises.
    """
    variants = _first_variants(module)
    if not variants:
        return []
    from tilewright.backends.cuda.driver import cuda_driver
    from tilewright.backends.cuda.kernel import Kernel
    from tilewright.backends.triton.compile import compile_kernel, compile_kernels

    device = _device_number(module, list(variants))
    driver = cuda_driver()
    architecture = driver.capability(device)

    def compile_variant(kernel: tt.FuncOp, number: int) -> Cubin:
        function, expected = _variant(kernel, number)
        return compile_kernel(function, architecture, cache=cache, expected=expected)

    wanted = [_variant(kernel, number) for kernel, numbers in variants.items() for number in numbers]
    cubins = iter(compile_kernels(wanted, architecture, cache=cache))
    return [
        Kernel(
            kernel.sym_name.data,
            driver,
            device,
            dict(zip(numbers, cubins, strict=False)),
            partial(compile_variant, kernel),
        )
        for kernel, numbers in variants.items()
    ]


def load_device_kernels(program: KeptProgram, cache: ObjectCache, ctx: Context) -> list[Kernel] | None:
    """Load the kernels for CUDA of a kept program, or return None if the code of one is not kept any more.

    Raises `CudaError` where there is no such device.
    """
    kept = [kernel for kernel in program.kernels if kernel.text is not None]
    if not kept:
        return []
    from tilewright.backends.cuda.driver import cuda_driver
    from tilewright.backends.cuda.kernel import Kernel
    from tilewright.backends.triton.compile import compile_kernel, load_cubin

    device = _device_number(program.module, device_kernels(program.module))
    driver = cuda_driver()
    architecture = driver.capability(device)

    def compile_variant(text: str, number: int) -> Cubin:
        function, expected = _variant(read_kernel(text, ctx), number)
        return compile_kernel(function, architecture, cache=cache, expected=expected)

    kernels: list[Kernel] = []
    for kernel in kept:
        codes = {number: load_cubin(key, cache) for number, key in kernel.codes}
        found = {number: code for number, code in codes.items() if code is not None and code.arch == architecture}
        if len(found) < len(codes):
            return None
        assert kernel.text is not None
        kernels.append(Kernel(kernel.name, driver, device, found, partial(compile_variant, kernel.text)))
    return kernels


def describe_devices(names: Sequence[str]) -> list[str]:
    """Return each CUDA device among `names` with its compute capability, as `cuda:0 sm_90`.

    Raises `CudaError` where there is no such device.
    """
    cuda = [name for name in names if name.startswith("cuda")]
    if not cuda:
        return []
    from tilewright.backends.cuda.driver import cuda_driver

    return [f"{name} sm_{cuda_driver().capability(_number(name))}" for name in cuda]


def _first_variants(module: ModuleOp) -> dict[tt.FuncOp, list[int]]:
    """Return for each kernel that is launched the variants for the sizes that the program was traced with."""
    kernels = {k.sym_name.data: k for k in device_kernels(module)}
    if not kernels:
        return {}
    from tilewright.backends.host.plan import find_program
    from tilewright.backends.host.variants import size_variant
    from tilewright.passes.analysis.sizes import SizeHints

    program = find_program(module)
    hints = SizeHints(program)
    found: dict[tt.FuncOp, list[int]] = {}
    for op in program.body.block.ops:
        if isinstance(op, host.LaunchOp) and op.kernel_name in kernels:
            kernel = kernels[op.kernel_name]
            numbers, number = found.setdefault(kernel, []), size_variant(kernel, op).number(hints.value)
            if number not in numbers:
                numbers.append(number)
    return found


def _variant(kernel: tt.FuncOp, number: int) -> tuple[tt.FuncOp, Expected]:
    """Return the function of a variant, and what it may expect."""
    from tilewright.backends.cuda.kernel import UNALIGNED, UNEVEN, WIDE
    from tilewright.backends.triton.ttir import Expected

    function = kernel.wide if number & WIDE else kernel
    assert function is not None
    return function, Expected(pointers=not number & UNALIGNED, sizes=not number & UNEVEN)


def dump_device_code(module: ModuleOp, folder: Path) -> None:
    """Write each kernel for CUDA as Triton's Python, and as what it goes through: Triton's two IRs, and PTX."""
    kernels = device_kernels(module)
    if not kernels:
        return
    from tilewright.backends.cuda.driver import cuda_driver
    from tilewright.backends.triton.compile import compile_stages

    architecture = cuda_driver().capability(_device_number(module, kernels))
    for kernel in kernels:
        stages = compile_stages(kernel, architecture)
        texts = {"py": _python(kernel), "ttir": stages.ttir, "ttgir": stages.ttgir, "ptx": stages.ptx}
        for suffix, text in texts.items():
            (folder / f"{kernel.sym_name.data}.{suffix}").write_text(text)


def _python(kernel: tt.FuncOp) -> str:
    """Return a kernel as Triton's Python, or a comment that says what that has no words for."""
    from tilewright.backends.triton.python_source import emit_python
    from tilewright.backends.triton.python_values import SourceError

    try:
        return emit_python([kernel])
    except SourceError as error:
        return f"# {error}\n"


def _device_number(module: ModuleOp, kernels: Sequence[tt.FuncOp]) -> int:
    """Return the number of the device on which kernels are launched; `make_plan` refuses programs with several."""
    kernel_names = {k.sym_name.data for k in kernels}
    launches = (op for op in module.walk() if isinstance(op, host.LaunchOp) and op.kernel_name in kernel_names)
    names = (layout_of(b.type).device for launch in launches for b in launch.buffers)
    return _number(next(names, "cuda:0"))


def _number(device: str) -> int:
    return int(device.partition(":")[2] or 0)
