"""Kernels to callable code: one library per kernel, shared by all of the same text, released with its last user."""

from __future__ import annotations

import threading
import weakref

from xdsl.dialects.func import FuncOp

from tilewright.backends.llvm.emit import emit_module
from tilewright.backends.llvm.jit import CompileOptions, Function, Library, ObjectStore, compile_library, object_key
from tilewright.backends.llvm.target import SymbolResolver, Target

_OPTIONS = CompileOptions()
_loaded: weakref.WeakValueDictionary[str, Library] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def compile_kernel(
    kernel: FuncOp, target: Target, resolve: SymbolResolver, store: ObjectStore | None = None
) -> Function:
    """Compile one kernel, or take it from this process or from `store` if it was compiled before.

    Raises `EmitError` for an operation without code, `CompileError` if LLVM refuses the text.
    """
    text = emit_module([kernel], target)
    key = object_key(text, target, _OPTIONS)
    with _lock:
        library = _loaded.get(key)
    if library is None:
        library = compile_library(text, target, resolve, _OPTIONS, store)
        with _lock:
            library = _loaded.setdefault(key, library)
    return library.function(kernel.sym_name.data)
