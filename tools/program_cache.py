"""Programs that were compiled before, found by the text that they were compiled from: no pass runs again.

An entry is kept beside the compiled objects, in the same folder and under the same rules (`backends/cache.py`). It is
JSON: the module after the last pass as text, in which kernels have no bodies, and for each kernel the entry that holds
its code. Kernels for CUDA also have their text, from which variants are compiled when a program first needs them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, Region
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError

import tilewright
from tilewright.dialects import tt
from tilewright.dialects.aliases import print_with_aliases

if TYPE_CHECKING:
    from tilewright.backends.llvm.jit import ObjectStore

_FORMAT = "tilewright program 1"
_DEPENDENCIES = ("torch", "xdsl", "sympy", "llvmlite", "triton")


@dataclass(frozen=True)
class KeptKernel:
    """A kernel of a kept program."""

    name: str
    codes: Sequence[tuple[int, str]]
    """The entries with its code, by the number of the variant; a kernel for the CPU has variant 0 alone."""
    text: str | None = None
    """The kernel itself, with the one for wide indices if there is one, if it is for CUDA."""


@dataclass(frozen=True)
class KeptProgram:
    """A program as it is kept: `module` is the last stage, with stubs for its kernels."""

    module: ModuleOp
    kernels: tuple[KeptKernel, ...]


def program_key(module: ModuleOp, conditions: Sequence[str]) -> str:
    """Return the name of the entry for the program that `module` becomes.

    `conditions` is what else it depends on: passes and targets. What is compiled with other versions of this package or
    of what it uses has another name.
    """
    parts = json.dumps([_FORMAT, _fingerprint(), *conditions, print_with_aliases(module)])
    return hashlib.sha256(parts.encode()).hexdigest()


def load_kept(store: ObjectStore, key: str, ctx: Context) -> KeptProgram | None:
    """Return a program that was kept, or None if there is none that can be read."""
    content = store.get(key)
    if content is None:
        return None
    try:
        entry = json.loads(content)
        kernels = tuple(KeptKernel(**kernel) for kernel in entry["kernels"])
        return KeptProgram(Parser(ctx, entry["program"], "<kept program>").parse_module(), kernels)
    except (ValueError, KeyError, TypeError, ParseError):
        return None


def keep(store: ObjectStore, key: str, module: ModuleOp, codes: Mapping[str, Mapping[int, str]]) -> None:
    """Keep a program after its last pass; `codes` is, for each of its kernels, the entries of its variants."""
    kernels = [
        KeptKernel(name, [*codes[name].items()], _text(op) if isinstance(op, tt.FuncOp) else None)
        for op in module.ops
        if (name := _name(op)) in codes
    ]
    stubs = ModuleOp([_stub(op) if _is_kernel(op, codes) else op.clone() for op in module.ops], module.attributes)
    entry = {"program": print_with_aliases(stubs), "kernels": [vars(kernel) for kernel in kernels]}
    store.put(key, json.dumps(entry).encode())


def read_kernel(text: str, ctx: Context) -> tt.FuncOp:
    """Return the kernel for CUDA in a text that was kept."""
    kernel = Parser(ctx, text, "<kept kernel>").parse_module().body.block.first_op
    assert isinstance(kernel, tt.FuncOp)
    return kernel


def _text(kernel: tt.FuncOp) -> str:
    return "\n".join(str(k) for k in (kernel, kernel.wide) if k is not None)


def _is_kernel(op: Operation, names: Container[str]) -> bool:
    return isinstance(op, tt.FuncOp) or (isinstance(op, FuncOp) and op.sym_name.data in names)


def _name(op: Operation) -> str:
    return op.sym_name.data if isinstance(op, (FuncOp, tt.FuncOp)) else ""


def _stub(kernel: Operation) -> Operation:
    """Return a kernel's signature and attributes: for the CPU a declaration, for CUDA a kernel that does nothing."""
    if isinstance(kernel, FuncOp):
        kind = kernel.function_type
        stub = FuncOp.external(kernel.sym_name.data, kind.inputs.data, kind.outputs.data)
        stub.attributes.update(kernel.attributes)
        return stub
    assert isinstance(kernel, tt.FuncOp)
    body = Block([tt.ReturnOp.get()], arg_types=kernel.function_type.inputs.data)
    return tt.FuncOp.create(properties=kernel.properties, attributes=kernel.attributes, regions=[Region(body)])


@cache
def _fingerprint() -> str:
    """Return a hash of this package's files, and the versions of those it uses."""
    root = Path(tilewright.__file__).parent
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in sorted(files):
            path = Path(folder, name)
            digest.update(f"{path.relative_to(root)}\n".encode())
            digest.update(path.read_bytes())
    return " ".join((digest.hexdigest(), *(f"{name} {_version(name)}" for name in _DEPENDENCIES)))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
