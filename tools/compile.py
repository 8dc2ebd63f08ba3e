"""From a module at any level to a program that can be called: run passes, compile kernels, link the host program.

Everything that is done here can be done by hand: `options.dump` writes the module before the first pass and after each,
headed by the pipeline that leads to the next.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from tilewright import stats
from tilewright.dialects import host
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.type_guards import is_memref, is_tensor
from tilewright.dialects.verifier import verify_module
from tilewright.passes.analysis.lifetimes import planned_bytes
from tilewright.passes.pipelines import PIPELINES, load_passes
from tilewright.tools.compile_cuda import (
    compile_device_kernels,
    describe_devices,
    dump_device_code,
    load_device_kernels,
)
from tilewright.tools.entry import no_garbage_collection
from tilewright.tools.options import Options
from tilewright.tools.program_cache import keep, load_kept, program_key

_LOWER = "convert-aten-to-loop"
_LAYOUT = "channels-last"

if TYPE_CHECKING:
    from tilewright.backends.cache import ObjectCache
    from tilewright.backends.host.runtime import Constants, Kernel, Program
    from tilewright.backends.llvm.target import Target


@dataclass
class StageTimes:
    """Seconds spent in each stage."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def measure(self, stage: str) -> Generator[None]:
        """Add the time spent inside to `stage`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class CompiledModule:
    """A program and what is known of it."""

    program: Program
    module: ModuleOp
    """The module after the last pass."""
    kernels: tuple[Kernel, ...]
    times: StageTimes


def compile_module(
    module: ModuleOp,
    ctx: Context,
    options: Options,
    constants: Constants = (),
    *,
    check_inputs: bool = True,
    dump: Path | None = None,
    times: StageTimes | None = None,
) -> CompiledModule:
    """Compile the program in `module`, which is changed, or load it from the cache if it was compiled before.

    `constants` are the tensors of the program's last arguments. `dump` is the folder for this module's stages.
    Raises what a pass, the emitters or LLVM raise.
    """
    from tilewright.backends.cache import ObjectCache
    from tilewright.backends.host.abi import native_target
    from tilewright.backends.host.runtime import load_program
    from tilewright.backends.llvm.pages import release_code_pages

    times = times or StageTimes()
    store = None if options.cache is None else ObjectCache(options.cache)
    with no_garbage_collection():
        # Whoever asks to see or verify the stages wants the passes to run.
        keeps = store is not None and dump is None and not options.verify
        last, kernels = _load_or_compile(module, ctx, options, store, times, keeps=keeps, dump=dump)
        with times.measure("host"):
            program = load_program(
                last,
                {k.name: k for k in kernels},
                constants,
                mode=options.host,
                check_inputs=check_inputs,
                store=store,
            )
    release_code_pages()
    if dump is not None:
        dump_code(module, native_target(), dump)
        dump_device_code(module, dump)
    return CompiledModule(program, last, kernels, times)


def _load_or_compile(
    module: ModuleOp,
    ctx: Context,
    options: Options,
    store: ObjectCache | None,
    times: StageTimes,
    *,
    keeps: bool,
    dump: Path | None,
) -> tuple[ModuleOp, tuple[Kernel, ...]]:
    """Return the last stage of a program and its kernels: if it `keeps` programs, those of an earlier compilation."""
    from tilewright.backends.host.abi import native_target

    names = devices(module)
    pipeline = pipeline_text(options, native_target(), names)
    if store is None or not keeps:
        run_passes(module, ctx, pipeline, verify=options.verify, dump=dump, times=times)
        return module, _compile_kernels(module, store, times)
    with times.measure("lookup"):
        key = program_key(module, [pipeline, native_target().describe(), *describe_devices(names)])
        kept = _load_kept(store, key, ctx)
    if kept is not None:
        return kept
    run_passes(module, ctx, pipeline, times=times)
    kernels = _compile_kernels(module, store, times)
    with times.measure("keep"):
        keep(store, key, module, {k.name: k.keys for k in kernels})
    return module, kernels


def _compile_kernels(module: ModuleOp, store: ObjectCache | None, times: StageTimes) -> tuple[Kernel, ...]:
    """Compile the kernels of a module after its last pass."""
    from tilewright.backends.host.abi import kernel_symbol, native_target
    from tilewright.backends.llvm.runtime import compile_kernel

    with times.measure("llvm"):
        kernels = [compile_kernel(k, native_target(), kernel_symbol, store) for k in kernel_functions(module)]
    with times.measure("triton"):
        return (*kernels, *compile_device_kernels(module, store))


def _load_kept(store: ObjectCache, key: str, ctx: Context) -> tuple[ModuleOp, tuple[Kernel, ...]] | None:
    """Load a program that was compiled before and the code of its kernels; None unless everything is still there."""
    from tilewright.backends.host.abi import kernel_symbol, native_target
    from tilewright.backends.llvm.runtime import load_kernel

    program = load_kept(store, key, ctx)
    on_device = None if program is None else load_device_kernels(program, store, ctx)
    if program is None or on_device is None:
        return None
    kernels: list[Kernel] = []
    for kernel in program.kernels:
        if kernel.text is None:
            ((_, object_key),) = kernel.codes
            function = load_kernel(kernel.name, object_key, native_target(), kernel_symbol, store)
            if function is None:
                return None
            kernels.append(function)
    return program.module, (*kernels, *on_device)


def record_stats(compiled: CompiledModule) -> None:
    """Add a program to what `tilewright.last_compile_stats()` gives."""
    from tilewright.backends.host.plan import find_program

    calls = compiled.program.stats
    stats.record_graph(
        kernels=len(compiled.kernels),
        extern=calls.operators,
        callbacks=calls.num_callbacks,
        bytes_planned=planned_bytes(find_program(compiled.module)).total,
        compile_s=compiled.times.seconds,
    )


def result_strides(module: ModuleOp) -> list[tuple[int, ...] | None]:
    """Return the strides of a program's results; None for what is no tensor, or has strides that are not known."""
    from tilewright.backends.host.plan import find_program

    results: list[tuple[int, ...] | None] = []
    for kind in find_program(module).function_type.outputs:
        strides = layout_of(kind).strides if is_memref(kind) else None
        known = strides is not None and all(s.is_Integer for s in strides)
        results.append(tuple(int(s) for s in strides) if strides is not None and known else None)
    return results


def devices(module: ModuleOp) -> list[str]:
    """Return the devices of the tensors in a module's functions: `cpu`, `cuda:0`."""
    found: dict[str, None] = {}
    for function in module.ops:
        if isinstance(function, FuncOp):
            for block in function.body.blocks:
                for value in (*block.args, *(r for op in block.ops for r in op.results)):
                    if is_tensor(value.type) or is_memref(value.type):
                        found[layout_of(value.type).device] = None
    return list(found)


def pipeline_text(options: Options, target: Target, devices: Sequence[str] = ()) -> str:
    """Return the text of the pipeline to run: the one asked for, or the one for `target` and for the other devices."""
    kind = "cuda" if any(name.startswith("cuda") for name in devices) else "cpu"
    name = options.pipeline or f"{kind}-{target.vector_bits}"
    text = PIPELINES.get(name, name)
    if name == text:
        return text
    if options.deterministic:
        text = text.replace(_LOWER, f"{_LOWER}{{deterministic=true}}")
    return text if options.tf32 else text.replace(_LAYOUT, f"{_LAYOUT}{{tf32=false}}")


def run_passes(
    module: ModuleOp,
    ctx: Context,
    pipeline: str,
    *,
    verify: bool = False,
    dump: Path | None = None,
    times: StageTimes | None = None,
) -> None:
    """Run a pipeline on `module`. With `dump` write the module before the first pass and after each."""
    times = times or StageTimes()
    passes = load_passes(pipeline)
    if dump is not None:
        dump.mkdir(parents=True, exist_ok=True)
        _dump_stage(module, dump, 0, "input", passes)
    for number, one in enumerate(passes, 1):
        with times.measure(one.name):
            one.apply(ctx, module)
        if verify:
            with times.measure("verify"):
                verify_module(module)
        if dump is not None:
            _dump_stage(module, dump, number, one.name, passes)


def _dump_stage(module: ModuleOp, folder: Path, number: int, name: str, passes: Sequence[ModulePass]) -> None:
    rest = ",".join(str(p.spec()) for p in passes[number:])
    following = (
        f"// next stage: -p '{passes[number].spec()}'\n// to the end: -p '{rest}'\n" if rest else "// last stage\n"
    )
    (folder / f"{number:02d}-{name}.ir").write_text(f"// stage {number}: {name}\n{following}{module!s}\n")


def launched_kernels(module: ModuleOp) -> dict[str, None]:
    """Return the names of the kernels that host programs launch, in the order of first launch."""
    names: dict[str, None] = {}
    for op in module.walk():
        if isinstance(op, host.LaunchOp):
            names[op.kernel_name] = None
    return names


def kernel_functions(module: ModuleOp) -> list[FuncOp]:
    """Return the kernels in `module` that have been lowered to functions."""
    launched = launched_kernels(module)
    return [op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data in launched]


def dump_code(module: ModuleOp, target: Target, folder: Path) -> None:
    """Write what the last stage becomes: kernels as LLVM IR and assembly, the host program as Python and LLVM IR."""
    from tilewright.backends.host.emit_llvm import emit_llvm
    from tilewright.backends.host.emit_python import emit_python
    from tilewright.backends.host.plan import find_program, make_plan
    from tilewright.backends.llvm.emit import emit_module
    from tilewright.backends.llvm.jit import emit_assembly

    for kernel in kernel_functions(module):
        text = emit_module([kernel], target)
        (folder / f"{kernel.sym_name.data}.ll").write_text(text)
        (folder / f"{kernel.sym_name.data}.s").write_text(emit_assembly(text, target))
    plan = make_plan(find_program(module))
    (folder / "host.py").write_text(emit_python(plan))
    (folder / "host.ll").write_text(emit_llvm(plan).text)
