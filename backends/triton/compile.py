"""Cubins: kernels of the `tt` dialect as machine code of an NVIDIA GPU.

No device is needed. Triton runs in processes of its own (`workers.py`), so it neither sees nor changes anything of this
one, and kernels are compiled at the same time. A cubin depends on the text of the kernel, the architecture, the options
and the version of Triton alone; under the hash of these it is kept.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from tilewright.backends.cache import ObjectCache
from tilewright.backends.triton.ttir import ALL_EXPECTED, Expected, emit_ttir, installed_version, parse_version
from tilewright.backends.triton.workers import Workers
from tilewright.dialects.tt import FuncOp
from tilewright.dialects.type_guards import is_integer_constant

ARCHITECTURES = (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
"""The compute capabilities that can be compiled for, times ten."""

_FORMAT = "tilewright cubin 1"
_DEFAULTS = {"num_warps": 4, "num_stages": 3}
_NUMBERS: dict[str, object] = {"enable_fp_fusion": False, "enable_reflect_ftz": False}
"""Eager's kernels neither fuse what is not written as one operation, nor flush denormals in functions of libdevice."""

_ENTRY = re.compile(r"\.entry\s+\w+\s*\(([^)]*)\)")
_DIAGNOSTIC = re.compile(r'^(?:loc\()?"?[^:"]*\.ttir"?:(\d+):(\d+)\)?: error: (.*)$', re.MULTILINE)
_ASSEMBLER = re.compile(r"^ptxas\S* (?:\S+, line \d+; )?(?:error|fatal)\s*: (.*)$", re.MULTILINE)
_MAX_PRINTED = 2000


class CompileError(Exception):
    """Triton is not installed, or refused a kernel."""


@dataclass(frozen=True)
class Cubin:
    """A kernel as machine code, and what a launch needs to know.

    A block has `32 * num_warps` threads and `shared` bytes of dynamic shared memory. The arguments are those of the
    kernel, then `hidden` pointers that may be null: memory that Triton's kernels can ask for and ours do not.
    """

    name: str
    arch: int
    num_warps: int
    shared: int
    parameters: int
    hidden: int
    image: bytes
    key: str
    """The entry of the cache that it is kept as."""


@dataclass(frozen=True)
class Stages:
    """A kernel in the languages that it goes through: those of Triton, LLVM and NVIDIA, and the cubin."""

    ttir: str
    ttgir: str
    llir: str
    ptx: str
    cubin: Cubin


_workers = Workers()


def compile_kernel(
    kernel: FuncOp, arch: int, *, cache: ObjectCache | None = None, expected: Expected = ALL_EXPECTED
) -> Cubin:
    """Compile a kernel for an architecture such as 90, or take it from `cache`. Raises `CompileError`."""
    release = _release(arch)
    text = emit_ttir(kernel, parse_version(release), expected)
    options = _options(kernel)
    key = _key(text, arch, options, release)
    kept = None if cache is None else cache.get(key)
    if kept is not None:
        return _unpack(key, kept)
    cubin = _cubin(kernel, arch, _compile(kernel, text, arch, options), key)
    if cache is not None:
        cache.put(key, _pack(cubin))
    return cubin


def load_cubin(key: str, cache: ObjectCache) -> Cubin | None:
    """Return a cubin that was compiled before, or None if it is not kept any more."""
    kept = cache.get(key)
    return None if kept is None else _unpack(key, kept)


def compile_kernels(
    kernels: Sequence[tuple[FuncOp, Expected]], arch: int, *, cache: ObjectCache | None = None
) -> list[Cubin]:
    """Compile many kernels at the same time; otherwise as `compile_kernel`."""

    def compile_one(kernel: tuple[FuncOp, Expected]) -> Cubin:
        return compile_kernel(kernel[0], arch, cache=cache, expected=kernel[1])

    if len(kernels) < 2:
        return [compile_one(k) for k in kernels]
    try:
        with ThreadPoolExecutor(min(len(kernels), len(os.sched_getaffinity(0)))) as pool:
            return list(pool.map(compile_one, kernels))
    finally:
        # A process takes a few hundred MiB; one is kept for the kernels that come one by one.
        _workers.keep(1)


def compile_stages(kernel: FuncOp, arch: int, expected: Expected = ALL_EXPECTED) -> Stages:
    """Compile a kernel and return it in every language on the way. Raises `CompileError`."""
    release = _release(arch)
    text = emit_ttir(kernel, parse_version(release), expected)
    options = _options(kernel)
    facts = _compile(kernel, text, arch, options, stages=True)
    ttir, ttgir, llir, ptx = (facts.text(name) for name in ("ttir", "ttgir", "llir", "ptx"))
    return Stages(ttir, ttgir, llir, ptx, _cubin(kernel, arch, facts, _key(text, arch, options, release)))


def _release(arch: int) -> str:
    """Return the version of Triton that compiles for `arch`."""
    if arch not in ARCHITECTURES:
        raise CompileError(f"cannot compile for sm_{arch}, expected one of {', '.join(map(str, ARCHITECTURES))}")
    release = installed_version()
    if release is None:
        raise CompileError("triton is not installed: kernels for CUDA devices need it (`pip install tilewright[cuda]`)")
    return release


def _options(kernel: FuncOp) -> dict[str, object]:
    options = dict(_NUMBERS)
    for name, default in _DEFAULTS.items():
        given = kernel.attributes.get(name)
        options[name] = given.value.data if given is not None and is_integer_constant(given) else default
    return options


def _key(text: str, arch: int, options: dict[str, object], release: str) -> str:
    parts = json.dumps([_FORMAT, release, arch, options, text], sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()


def _pack(cubin: Cubin) -> bytes:
    facts = {k: v for k, v in asdict(cubin).items() if k not in ("image", "key")}
    return json.dumps(facts).encode() + b"\n" + cubin.image


def _unpack(key: str, content: bytes) -> Cubin:
    facts, _, image = content.partition(b"\n")
    return Cubin(**json.loads(facts), image=image, key=key)


@dataclass(frozen=True)
class _Facts:
    """What a worker says about a kernel."""

    values: dict[str, object]

    def text(self, name: str) -> str:
        value = self.values[name]
        assert isinstance(value, str)
        return value

    def number(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int)
        return value


def _compile(kernel: FuncOp, text: str, arch: int, options: dict[str, object], *, stages: bool = False) -> _Facts:
    name = kernel.sym_name.data
    answer = _workers.compile(name, text, arch, options, stages=stages)
    if answer.error is not None:
        raise CompileError(_explain(name, text, answer.error, answer.printed))
    facts = _Facts(answer.facts)
    scratch = facts.number("global_scratch_size") + facts.number("profile_scratch_size")
    if scratch:
        raise CompileError(f"kernel `{name}` needs {scratch} bytes of scratch memory, which a launch does not provide")
    return facts


def _cubin(kernel: FuncOp, arch: int, facts: _Facts, key: str) -> Cubin:
    parameters = len(kernel.args)
    return Cubin(
        name=facts.text("name"),
        arch=arch,
        num_warps=facts.number("num_warps"),
        shared=facts.number("shared"),
        parameters=parameters,
        hidden=_count_parameters(facts.text("ptx")) - parameters,
        image=base64.b64decode(facts.text("cubin")),
        key=key,
    )


def _count_parameters(ptx: str) -> int:
    """Return how many parameters the entry of a PTX module has."""
    match = _ENTRY.search(ptx)
    assert match is not None
    return match[1].count(".param")


def _explain(name: str, text: str, error: str, printed: str) -> str:
    """Return in words why Triton refused a kernel: what it said first, and the line it said it about."""
    diagnostic = _DIAGNOSTIC.search(printed)
    if diagnostic is None:
        assembler = _ASSEMBLER.search(error)
        if assembler is not None:
            return f"triton cannot compile kernel `{name}`: ptxas says: {assembler[1]}"
        said = printed.strip()[-_MAX_PRINTED:]
        return f"triton cannot compile kernel `{name}`: {error}" + (f"\n{said}" if said else "")
    line, column = int(diagnostic[1]), int(diagnostic[2])
    lines = text.split("\n")
    excerpt = f"\n  {lines[line - 1]}\n  {' ' * (column - 1)}^" if 0 < line <= len(lines) else ""
    return f"triton cannot compile kernel `{name}`: {line}:{column}: {diagnostic[3]}{excerpt}"
