"""Compile a small GPT with tilewright, compare it with eager at several batch sizes, and show where its stages are.

Exits with status 1 if a result differs or if more than one artifact was needed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from gpt import GPT

import tilewright

STAGES = Path(__file__).resolve().parents[1] / "build" / "demo"
TOLERANCE = 2e-5


def milliseconds(function: torch.nn.Module, ids: torch.Tensor) -> float:
    """Return the median time of a call."""
    times: list[float] = []
    for _ in range(20):
        start = time.perf_counter()
        function(ids)
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] * 1e3


def main() -> int:
    torch.manual_seed(0)
    model = GPT().eval()
    compiled = torch.compile(
        model, backend="tilewright", dynamic=True, options={"dump": str(STAGES), "strict": True, "verify": True}
    )
    worst = 0.0
    with torch.no_grad():
        start = time.perf_counter()
        for batch in (4, 2, 7):
            ids = torch.randint(0, 2000, (batch, 64))
            expected, found = model(ids), compiled(ids)
            error = ((found - expected).abs().max() / expected.abs().max()).item()
            worst = max(worst, error)
            print(f"batch {batch}: largest difference from eager {error:.1e}", end="")
            print(f", first call {time.perf_counter() - start:.1f} s" if batch == 4 else "")
        ids = torch.randint(0, 2000, (4, 64))
        print(f"eager {milliseconds(model, ids):.2f} ms, tilewright {milliseconds(compiled, ids):.2f} ms")
    stats = tilewright.last_compile_stats()
    extern = ", ".join(sorted(set(stats["extern"])))
    print(f"{stats['graphs']} graph, {stats['kernels']} kernels, left to ATen: {extern}")
    print(f"compiled in {sum(stats['compile_s'].values()):.2f} s; every stage is in {STAGES}")
    return 0 if worst < TOLERANCE and stats["graphs"] == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
