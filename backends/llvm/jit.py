"""LLVM IR text to machine code that this process can call.

    library = compile_library(text, target, resolve)
    address = library.address("kernel_0")

A library holds the code of one module and is unloaded with its last reference. Any number of threads may compile at
once; LLVM itself runs one at a time under llvmlite's lock.

Floating-point semantics are those of the text: nothing here relaxes them, so a multiplication and an addition are fused
only where their flags say `contract`.
"""

import hashlib
import itertools
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import llvmlite
import llvmlite.binding as llvm

from tilewright.backends.llvm.elf import object_symbols
from tilewright.backends.llvm.target import SymbolResolver, Target

# Each library that LLVM has linked makes the next one a little slower to link, even when it is gone, and leaves some
# bytes behind until its session closes. A fresh session costs 0.4 ms and 100 KB.
_LIBRARIES_PER_SESSION = 200


class CompileError(Exception):
    """LLVM refused a module, or an object needs a symbol that this process does not have."""


@dataclass(frozen=True)
class CompileOptions:
    """How hard LLVM works. The vectorizers are off: what can be vectorized arrives as vectors.

    Over kernels as they arrive LLVM's pipeline takes 16 to 27 ms and the short list 2 to 3 ms, for code of the same
    speed (softmax, gelu, layer norm, sums, transposes) or better (column sums: 0.17 ms against 0.23).
    """

    opt_level: int = 1
    """The passes over the IR: 0 none, 1 the short list below, 2 and 3 LLVM's own pipelines."""
    codegen_level: int = 2
    """0 to 3: instruction selection and scheduling."""
    vectorize: bool = False
    unroll: bool = True
    """Whether LLVM's own pipelines contain the loop vectorizers and unrolling."""

    def describe(self) -> str:
        """One line that determines the options, for cache keys."""
        return f"O{self.opt_level} codegen={self.codegen_level} vectorize={self.vectorize:d} unroll={self.unroll:d}"


class ObjectStore(Protocol):
    """Where compiled objects are kept between processes."""

    def get(self, key: str) -> bytes | None:
        """Return what was put under `key`, or None."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Keep `value` under `key`, if possible."""
        ...


def object_key(text: str, target: Target, options: CompileOptions) -> str:
    """Return the name under which the object of this text is cached: a hash of everything that it depends on."""
    versions = f"llvmlite {llvmlite.__version__} LLVM {'.'.join(map(str, llvm.llvm_version_info))}"
    parts = (versions, target.describe(), options.describe(), text)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def compile_object(text: str, target: Target, options: CompileOptions = CompileOptions()) -> bytes:
    """Compile a module to an object image. Raises `CompileError` with LLVM's message if the text is not valid."""
    with _optimized(text, target, options) as module:
        return _target_machine(target, options.codegen_level).emit_object(module)


def emit_assembly(text: str, target: Target, options: CompileOptions = CompileOptions()) -> str:
    """Compile a module to assembly text. Raises `CompileError` if the text is not valid."""
    with _optimized(text, target, options) as module:
        return _target_machine(target, options.codegen_level).emit_assembly(module)


def emit_optimized_ir(text: str, target: Target, options: CompileOptions = CompileOptions()) -> str:
    """Return the module as LLVM IR text after its passes. Raises `CompileError` if the text is not valid."""
    with _optimized(text, target, options) as module:
        return str(module)


@dataclass(frozen=True)
class Function:
    """A function in a library, which it keeps loaded."""

    library: "Library"
    name: str
    key: str = ""
    """The name under which the library's object is cached."""

    @property
    def address(self) -> int:
        return self.library.address(self.name)

    @property
    def keys(self) -> dict[int, str]:
        """The key as that of the only variant."""
        return {0: self.key}


class Library:
    """Loaded code. Its addresses are valid while the library is referenced."""

    def __init__(self, addresses: Mapping[str, int]):
        self._addresses = dict(addresses)

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of the functions that can be called."""
        return tuple(self._addresses)

    def address(self, name: str) -> int:
        """Return the address of a function. Raises KeyError if the library has none of that name."""
        return self._addresses[name]

    def function(self, name: str, key: str = "") -> Function:
        """Return a function together with this library. Raises KeyError if the library has none of that name."""
        self.address(name)
        return Function(self, name, key)


def load_object(image: bytes, target: Target, resolve: SymbolResolver) -> Library:
    """Link an object into this process. Raises `CompileError` if a symbol that it needs is not to be had."""
    symbols = object_symbols(image)
    builder = llvm.JITLibraryBuilder().add_object_img(image)
    missing: list[str] = []
    for name in symbols.undefined:
        address = resolve(name)
        if address is None:
            missing.append(name)
        else:
            builder.import_symbol(name, address)
    if missing:
        raise CompileError(
            f"expected this process to have the symbols that the code calls, missing: {', '.join(missing)}"
        )
    for name in symbols.functions:
        builder.export_symbol(name)
    session, number = _sessions.take(target)
    try:
        tracker = builder.link(session, f"library{number}")
    except RuntimeError as error:
        raise CompileError(f"LLVM cannot link the object: {error}") from error
    library = Library({name: tracker[name] for name in symbols.functions})
    # The finalizer also keeps the session until the library is unloaded.
    weakref.finalize(library, _unload, tracker, session).atexit = False
    return library


def compile_library(
    text: str,
    target: Target,
    resolve: SymbolResolver,
    options: CompileOptions = CompileOptions(),
    store: ObjectStore | None = None,
) -> Library:
    """Compile and load a module, or load its object from `store` if it is there.

    Raises `CompileError` if the text is not valid or a symbol is missing.
    """
    if store is None:
        return load_object(compile_object(text, target, options), target, resolve)
    key = object_key(text, target, options)
    image = store.get(key)
    if image is None:
        image = compile_object(text, target, options)
        store.put(key, image)
    return load_object(image, target, resolve)


def _unload(tracker: llvm.ResourceTracker, session: llvm.LLJIT) -> None:
    assert not session.closed
    tracker.close()


class _Sessions:
    """Hands out LLVM's JIT sessions; an old one is closed when the last library in it is unloaded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: dict[Target, llvm.LLJIT] = {}
        self._numbers = itertools.count()

    def take(self, target: Target) -> tuple[llvm.LLJIT, int]:
        """Return a session and a number that no library of it has."""
        with self._lock:
            number = next(self._numbers)
            session = self._current.get(target)
            if session is None or number % _LIBRARIES_PER_SESSION == 0:
                session = llvm.create_lljit_compiler(_target_machine(target, 2), use_jit_link=True)
                self._current[target] = session
            return session, number


_sessions = _Sessions()


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def _target_machine(target: Target, codegen_level: int) -> llvm.TargetMachine:
    _initialize()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=codegen_level, reloc="pic", codemodel="small"
    )


def _optimized(text: str, target: Target, options: CompileOptions) -> llvm.ModuleRef:
    machine = _target_machine(target, options.codegen_level)
    # A context of its own: types, constants and metadata in the global one are never freed.
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
    except RuntimeError as error:
        raise CompileError(f"LLVM cannot read the module: {error}") from error
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    try:
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM finds the module invalid: {error}") from error
    if options.opt_level:
        passes, builder = _passes(target, options)
        passes.run(module, builder)
    return module


# Made once for equal options, and used under llvmlite's lock: llvmlite never frees pass managers, and builders in part.
@cache
def _passes(target: Target, options: CompileOptions) -> tuple[llvm.ModulePassManager, llvm.PassBuilder]:
    tuning = llvm.create_pipeline_tuning_options(options.opt_level)
    tuning.loop_vectorization = options.vectorize
    tuning.slp_vectorization = options.vectorize
    tuning.loop_unrolling = options.unroll
    builder = llvm.create_pass_builder(_target_machine(target, options.codegen_level), tuning)
    return (_short_pipeline() if options.opt_level == 1 else builder.getModulePassManager()), builder


def _short_pipeline() -> llvm.ModulePassManager:
    """Inline what must be, use registers, fold and merge computations, give loops the form that codegen expects."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_new_gvn_pass()
    passes.add_simplify_cfg_pass()
    passes.add_loop_simplify_pass()
    passes.add_loop_rotate_pass()
    passes.add_lcssa_pass()
    return passes
