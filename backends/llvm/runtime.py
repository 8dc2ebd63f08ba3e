"""Kernels to callable code: one library per kernel, shared by all of the same text, released with its last user."""

from __future__ import annotations

import threading
import weakref

from xdsl.dialects.func import FuncOp

from tilewright.backends.llvm.jit import (
    CompileOptions,
    Function,
    Library,
    ObjectStore,
    compile_library,
    load_object,
    object_key,
)
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
    # Whoever finds all kernels compiled does not need it.
    from tilewright.backends.llvm.emit import emit_module

    text = emit_module([kernel], target)
    key = object_key(text, target, _OPTIONS)
    library = _loaded_library(key)
    if library is None:
        library = _share(key, compile_library(text, target, resolve, _OPTIONS, store))
    return library.function(kernel.sym_name.data, key)


def load_kernel(name: str, key: str, target: Target, resolve: SymbolResolver, store: ObjectStore) -> Function | None:
    """Load a kernel that was compiled before, or return None if its object is not kept any more.

    Raises `CompileError` if the object needs a symbol that this process does not have.
    """
    library = _loaded_library(key)
    if library is None:
        image = store.get(key)
        if image is None:
            return None
        library = _share(key, load_object(image, target, resolve))
    return library.function(name, key)


def _loaded_library(key: str) -> Library | None:
    with _lock:
        return _loaded.get(key)


def _share(key: str, library: Library) -> Library:
    """Return the library of this key: another thread may have loaded it meanwhile."""
    with _lock:
        return _loaded.setdefault(key, library)
