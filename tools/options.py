"""The options of `torch.compile(model, backend="tilewright", options={...})`, checked before anything is compiled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""The modes that `torch.compile` names. They mean the same: no program is recorded as a CUDA graph by itself."""

HOSTS = ("native", "python")

RANDOM = ("compiled", "eager")


@dataclass(frozen=True)
class Options:
    """How to compile a graph."""

    mode: str = "default"
    """One of `MODES`."""
    dump: Path | None = None
    """A folder for every stage of every graph, numbered, each with the pipeline that leads to the next."""
    strict: bool = False
    """Raise when a graph cannot be compiled, instead of leaving it to eager with a warning."""
    host: Literal["native", "python"] = "native"
    """`native` compiles the program around the kernels; `python` runs the same program as Python, for debugging."""
    random: Literal["compiled", "eager"] = "compiled"
    """`compiled` draws a seed per call and computes random numbers from it; `eager` has the numbers of eager mode."""
    pipeline: str = ""
    """The passes to run: the name of a pipeline, or its text. Empty for the one that suits this machine."""
    deterministic: bool = False
    """Whether the same call gives the same numbers every time, also on CUDA. If
    `torch.use_deterministic_algorithms(True)` was called it does, whatever is given here."""
    tf32: bool = True
    """Whether cuDNN may round the operands of f32 convolutions to TF32; `backend` asks torch."""
    verify: bool = False
    """Verify the IR after each pass."""
    cache: Path | None = None
    """A folder for compiled programs and kernels, shared by any number of processes."""


def default_cache() -> Path | None:
    """Return the folder for what was compiled: `$TILEWRIGHT_CACHE_DIR` (empty: none), else one in the user's cache."""
    chosen = os.environ.get("TILEWRIGHT_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tilewright"


def parse_options(given: Mapping[str, Any] | None, mode: str | None) -> Options:
    """Return the options that a user gave.

    Raises `ValueError` or `TypeError` that says what was found and what is allowed.
    """
    values: dict[str, Any] = dict(given or {})
    if mode is not None:
        if values.get("mode", mode) != mode:
            raise ValueError(f"tilewright: mode is given twice, as {mode!r} and as {values['mode']!r} in options")
        values["mode"] = mode
    known = {f.name for f in fields(Options)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"tilewright: unknown option {unknown[0]!r}, expected one of {', '.join(sorted(known))}")
    for name, allowed in (("mode", MODES), ("host", HOSTS), ("random", RANDOM)):
        if name in values and values[name] not in allowed:
            raise ValueError(f"tilewright: {name} is {values[name]!r}, expected one of {', '.join(allowed)}")
    for name in ("deterministic", "strict", "tf32", "verify"):
        if name in values and not isinstance(values[name], bool):
            raise TypeError(f"tilewright: {name} is {values[name]!r}, expected True or False")
    if not isinstance(values.get("pipeline", ""), str):
        raise TypeError(f"tilewright: pipeline is {values['pipeline']!r}, expected a name or text")
    for name in ("dump", "cache"):
        if values.get(name) is not None:
            values[name] = _folder(name, values[name])
    values.setdefault("cache", default_cache())
    values.setdefault("strict", os.environ.get("TILEWRIGHT_STRICT", "") not in ("", "0"))
    return Options(**values)


def _folder(name: str, value: object) -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"tilewright: {name} is {value!r}, expected the path of a folder")
    path = Path(os.fspath(value))
    if path.exists() and not path.is_dir():
        raise ValueError(f"tilewright: {name} is {str(path)!r}, expected the path of a folder")
    return path
