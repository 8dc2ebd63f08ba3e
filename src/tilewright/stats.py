"""Facts about what was compiled: how many kernels, which operators were left to ATen, and where the time went.

Numbers add up over all graphs since the last `reset_compile_stats()`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Totals:
    graphs: int = 0
    fallbacks: int = 0
    kernels: int = 0
    callbacks: int = 0
    bytes_planned: int = 0
    extern: list[str] = field(default_factory=list[str])
    compile_s: dict[str, float] = field(default_factory=dict[str, float])


_lock = threading.Lock()
_totals = _Totals()


def record_graph(
    *,
    kernels: int,
    extern: Sequence[str],
    callbacks: int,
    bytes_planned: int,
    compile_s: Mapping[str, float],
) -> None:
    """Add one compiled graph to the totals."""
    with _lock:
        _totals.graphs += 1
        _totals.kernels += kernels
        _totals.callbacks += callbacks
        _totals.bytes_planned += bytes_planned
        _totals.extern.extend(extern)
        for stage, seconds in compile_s.items():
            _totals.compile_s[stage] = _totals.compile_s.get(stage, 0.0) + seconds


def record_fallback() -> None:
    """Count a graph that was left to eager because it could not be compiled."""
    with _lock:
        _totals.fallbacks += 1


def last_compile_stats() -> dict[str, Any]:
    """Return what was compiled since the last `reset_compile_stats()`, or since the start.

    - `graphs`: compiled graphs (forward and backward count one each); `fallbacks`: graphs left to eager;
    - `kernels`: generated kernels, equal ones once per graph;
    - `extern`: the ATen operators that compiled graphs call, one name per call; `callbacks`: how many of these calls go
      through Python;
    - `bytes_planned`: bytes of buffers that one run of each graph allocates, at the sizes it was traced with;
    - `compile_s`: seconds per stage.
    """
    with _lock:
        return {
            "graphs": _totals.graphs,
            "fallbacks": _totals.fallbacks,
            "kernels": _totals.kernels,
            "extern": list(_totals.extern),
            "callbacks": _totals.callbacks,
            "bytes_planned": _totals.bytes_planned,
            "compile_s": dict(_totals.compile_s),
        }


def reset_compile_stats() -> None:
    """Begin counting anew."""
    global _totals  # noqa: PLW0603  (statistics are the one thing that is kept per process)
    with _lock:
        _totals = _Totals()
