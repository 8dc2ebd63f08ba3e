"""Compare tilewright with eager and with TorchInductor on a few workloads, in one run.

    python benchmarks/ratios.py [--peer inductor] [--threads 1] [WORKLOAD ...]

Prints, for each workload, how many times faster than eager each backend is, and the CPU seconds of its first call.
Calls of all backends alternate, and a time is the tenth percentile over many calls, so that other work on the machine
hits all alike. Only ratios mean something. Inductor needs a C++ compiler; without one, leave it out with `--peer ''`.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Workload = tuple[Callable[..., Any], tuple[Tensor, ...]]


def workloads() -> dict[str, Workload]:
    """Return functions with their arguments; sizes are such that a call takes a few milliseconds."""
    torch.manual_seed(0)
    rows, row = torch.randn(4096, 1024), torch.randn(1024)
    return {
        "softmax": (lambda x: torch.softmax(x, -1), (rows,)),
        "layer_norm": (lambda x, w: F.layer_norm(x, (1024,), w, w), (rows, row)),
        "bias_gelu": (lambda x, b: F.gelu(x + b, approximate="tanh"), (rows, row)),
        "residual_norm": (lambda x, y, w: F.layer_norm(x + y, (1024,), w, w) + x, (rows, rows.flip(0), row)),
        "row_sum": (lambda x: x.sum(1), (rows,)),
        "column_sum": (lambda x: x.sum(0), (rows,)),
        "transpose_add": (lambda x, y: x.t() + y, (rows, rows.t().contiguous())),
        "embedding": (lambda w, i: F.embedding(i, w) * 2, (rows, torch.randint(0, 4096, (2048,)))),
    }


def cpu_seconds() -> float:
    """Return the CPU time of this process and its children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def measure(
    functions: dict[str, Callable[..., Any]], arguments: tuple[Tensor, ...], seconds: float
) -> dict[str, float]:
    """Return the tenth percentile of the time of a call of each function; calls alternate."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["eager"]) < 10:
        for name, function in functions.items():
            start = time.perf_counter()
            function(*arguments)
            times[name].append(time.perf_counter() - start)
    return {name: sorted(found)[len(found) // 10] for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="default: all")
    parser.add_argument("--peer", default="inductor", help="another backend to compare with; empty for none")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="sampling time of a workload")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    backends = ["tilewright", *filter(None, [options.peer])]
    for backend in backends:  # what a backend does once in its life is not the workload's
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(4))
    every = workloads()
    for name in options.workloads or every:
        function, arguments = every[name]
        expected = function(*arguments)
        functions: dict[str, Callable[..., Any]] = {"eager": function}
        first: dict[str, float] = {}
        with torch.no_grad():
            for backend in backends:
                torch._dynamo.reset()
                functions[backend] = torch.compile(function, backend=backend)
                start = cpu_seconds()
                torch.testing.assert_close(functions[backend](*arguments), expected, rtol=1e-4, atol=1e-4)
                first[backend] = cpu_seconds() - start
            times = measure(functions, arguments, options.seconds)
        columns = (f"{b} {times['eager'] / times[b]:.2f}x eager, first call {first[b]:.2f} s CPU" for b in backends)
        print(f"{name:14}", "; ".join(columns), flush=True)


if __name__ == "__main__":
    main()
