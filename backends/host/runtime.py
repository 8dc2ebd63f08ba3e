"""Load a host program and call it.

    program = load_program(module, kernels, constants)
    outputs = program(inputs)

A program is native code, or the same program as Python source for debugging. It may be called by several threads at
once, and from within itself. Inputs and outputs are in the order of the function's arguments and results; outputs of
the graph that are None have no result and are the caller's to add.
"""

import ctypes
import linecache
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from tilewright.backends.cuda import kernel as cuda
from tilewright.backends.host.abi import capabilities, native_target, torch_symbol
from tilewright.backends.host.callbacks import Callbacks
from tilewright.backends.host.emit_cuda import KERNEL_PREFIX
from tilewright.backends.host.emit_llvm import emit_llvm
from tilewright.backends.host.emit_python import FUNCTION, emit_python
from tilewright.backends.host.entry import Entry, delete_handle, new_handle
from tilewright.backends.host.plan import CPU, HostPlan, find_program, is_buffer, make_plan
from tilewright.backends.host.routes import choose_route, route_name
from tilewright.backends.host.torch_internals import profiler_is_on
from tilewright.backends.llvm.jit import CompileOptions, Function, ObjectStore, compile_library
from tilewright.dialects import host

Mode = Literal["native", "python"]
Argument = Tensor | int
Kernel: TypeAlias = Function | cuda.Kernel
"""A kernel for the CPU, or on a CUDA device."""
Constants: TypeAlias = Sequence[Tensor]
"""The tensors that are a program's last arguments in every call."""

# The program is calls in a row: there is nothing to optimize, and this compiles ten times faster.
_OPTIONS = CompileOptions(opt_level=0, codegen_level=0)


@dataclass(frozen=True)
class ProgramStats:
    """What one call of a program does."""

    kernels: Mapping[str, int]
    """How often each kernel is launched."""
    calls: Mapping[str, Mapping[str, int]]
    """How often each operator is called, by way: `shim`, `dispatcher`, `callback`."""

    @property
    def operators(self) -> tuple[str, ...]:
        """The names of all operators that are called, sorted."""
        return tuple(sorted({name for names in self.calls.values() for name in names}))

    @property
    def num_callbacks(self) -> int:
        """How many calls go back to Python."""
        return sum(self.calls["callback"].values())


class _Executor(Protocol):
    def run(self, inputs: list[Argument]) -> list[Argument]:
        """Run the program on inputs, which it takes out of the list."""
        ...


class Program:
    """A loaded program; see the module's text."""

    def __init__(self, executor: _Executor, stats: ProgramStats, source: str):
        self.run_boxed = executor.run
        """Call the program with a list that it empties, so that it can give up inputs early."""
        self.stats = stats
        self.source = source
        """The text that runs: LLVM IR or Python."""

    def __call__(self, inputs: Sequence[Argument]) -> list[Argument]:
        """Return the outputs. Raises ValueError for an input that is not as compiled for, and what eager raises."""
        return self.run_boxed(list(inputs))


def load_program(
    module: ModuleOp,
    kernels: Mapping[str, Kernel],
    constants: Constants = (),
    *,
    mode: Mode = "native",
    check_inputs: bool = True,
    store: ObjectStore | None = None,
) -> Program:
    """Load the one host program in `module`.

    `kernels` has the code of each kernel that is launched, by name. One for the CPU is `void kernel(buffers..,
    symbols..)` on the addresses of first elements, or returns its status if its function in the module has
    `cpu.errors`; one for CUDA is loaded on the device of its buffers. `constants` are the tensors for the last
    arguments. Without `check_inputs` the caller warrants that tensors are as the program's types say. `store` keeps
    compiled programs.
    Raises `VerifyException` if the program is malformed, lacks a kernel, or needs what this PyTorch does not have.
    """
    plan = make_plan(find_program(module))
    if plan.device != CPU and not capabilities().cuda:
        raise VerifyException(
            f"PyTorch {torch.__version__} cannot run kernels on {plan.device}: it is built without CUDA"
        )
    if len(constants) != plan.num_constants:
        raise VerifyException(f"expected {plan.num_constants} constants for `@{plan.name}`, found {len(constants)}")
    stats = _stats(plan)
    missing = [name for name in stats.kernels if name not in kernels]
    if missing:
        raise VerifyException(f"no code for the kernel `@{missing[0]}` that `@{plan.name}` launches")
    used = {name: kernels[name] for name in stats.kernels}
    if mode == "python":
        source = emit_python(plan, check_inputs=check_inputs)
        return Program(_PythonExecutor(plan, source, used, constants), stats, source)
    native = _NativeExecutor(plan, used, constants, check_inputs, store)
    return Program(native, stats, native.source)


def _stats(plan: HostPlan) -> ProgramStats:
    calls: dict[str, Counter[str]] = {"shim": Counter(), "dispatcher": Counter(), "callback": Counter()}
    launches: Counter[str] = Counter()
    for op in plan.ops:
        if isinstance(op, host.CallOp):
            calls[route_name(choose_route(op))][op.operator] += 1
        elif isinstance(op, host.LaunchOp):
            launches[op.kernel_name] += 1
    return ProgramStats(launches, calls)


class _NativeExecutor:
    def __init__(
        self,
        plan: HostPlan,
        kernels: Mapping[str, Kernel],
        constants: Sequence[Tensor],
        check_inputs: bool,
        store: ObjectStore | None,
    ):
        self._plan = plan
        self._kernels = kernels
        self._device_kernels = {n: k for n, k in kernels.items() if isinstance(k, cuda.Kernel)}
        self._check_inputs = check_inputs
        self._store = store
        self._in_python: frozenset[host.CallOp] = frozenset()
        self._constants = [new_handle(c) for c in constants]
        weakref.finalize(self, _delete_handles, self._constants).atexit = False
        self._plain = self._load(record=False)
        self._recording: _Loaded | None = None

    @property
    def source(self) -> str:
        return self._plain.source

    def run(self, inputs: list[Argument]) -> list[Argument]:
        loaded = self._profiled() if profiler_is_on() else self._plain
        results = loaded.call(inputs)
        if results is None:
            raise loaded.callbacks.take_error()
        if loaded.callbacks.worked_in_python:
            self._give_up_routes(loaded.callbacks.worked_in_python)
        return results

    def _give_up_routes(self, calls: Set[host.CallOp]) -> None:
        """From now on make these calls in Python at once."""
        self._in_python |= calls
        self._plain = self._load(record=False)
        self._recording = None

    def _profiled(self) -> "_Loaded":
        """Return the variant that shows kernels and operators to the profiler, compiled when first asked for."""
        if self._recording is None:
            self._recording = self._load(record=True)
        return self._recording

    def _load(self, record: bool) -> "_Loaded":
        native = emit_llvm(self._plan, check_inputs=self._check_inputs, record=record, in_python=self._in_python)
        library = compile_library(native.text, native_target(), self._resolve, _OPTIONS, self._store)
        callbacks = Callbacks(native, self._device_kernels)
        inputs = self._plan.arguments[: self._plan.num_inputs]
        entry = Entry(
            run=library.address("run"),
            callback=callbacks.address,
            frame=native.frame,
            input_is_tensor=[is_buffer(a) for a in inputs],
            result_scalars=[None if is_buffer(r) else native.frame.scalars[r] for r in self._plan.results],
            constants=self._constants,
        )
        return _Loaded(entry.call, callbacks, native.text, (entry, library))

    def _resolve(self, name: str) -> int | None:
        if name.startswith(KERNEL_PREFIX):
            return self._kernels[name.removeprefix(KERNEL_PREFIX)].address
        return torch_symbol(name)


@dataclass(frozen=True)
class _Loaded:
    call: Callable[[list[Any]], list[Any] | None]
    callbacks: Callbacks
    source: str
    owners: tuple[object, ...]
    """What must live as long as `call` is used."""


def _delete_handles(handles: Sequence[int]) -> None:
    for handle in handles:
        delete_handle(handle)


class _PythonExecutor:
    def __init__(self, plan: HostPlan, source: str, kernels: Mapping[str, Kernel], constants: Sequence[Tensor]):
        self._owners = kernels
        self._constants = tuple(constants)
        self._kernels = {name: _kernel_function(function, name, plan) for name, function in kernels.items()}
        filename = f"<tilewright host program {id(self)}>"
        # Tracebacks and debuggers find the source there.
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        weakref.finalize(self, linecache.cache.pop, filename, None).atexit = False
        namespace: dict[str, Any] = {}
        exec(compile(source, filename, "exec"), namespace)  # noqa: S102  the text is printed from checked names alone
        self._program: Callable[..., list[Argument]] = namespace[FUNCTION]

    def run(self, inputs: list[Argument]) -> list[Argument]:
        arguments = tuple(inputs)
        inputs.clear()
        # Asking makes this thread take over what `torch.set_num_threads` said, as the native entry does.
        torch.get_num_threads()
        with torch.no_grad():
            return self._program(self._kernels, self._constants, *arguments)


def _kernel_function(function: Kernel, name: str, plan: HostPlan) -> Callable[..., int | None]:
    """Return a kernel as the printed source calls it."""
    launch = next(op for op in plan.ops if isinstance(op, host.LaunchOp) and op.kernel_name == name)
    if isinstance(function, cuda.Kernel):
        kernel, num_buffers = function, len(launch.buffers)

        def launch_on_device(programs: int, variant: int, stream: int, *arguments: int) -> None:
            kernel.launch(programs, variant, stream, arguments[:num_buffers], arguments[num_buffers:])

        return launch_on_device
    kinds = [ctypes.c_void_p] * len(launch.buffers) + [ctypes.c_int64] * len(launch.symbols.exprs)
    return ctypes.CFUNCTYPE(ctypes.c_int32 if name in plan.errors else None, *kinds)(function.address)
