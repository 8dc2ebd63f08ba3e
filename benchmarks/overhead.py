"""Say where the time of a call of a small program goes, in one run.

    python benchmarks/overhead.py [--device cuda] [--seconds 0.3]

Each line is a function, in microseconds a call: eager mode; Dynamo's guards alone, in front of a function that returns
what it returned before; AOTAutograd around the same; tilewright; and of that the programs alone, called with their
inputs. What tilewright adds to a call is the difference between its column and AOTAutograd's.
"""

# torch's own functions carry few types, and some of it is private.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))  # nothing need be installed

from tilewright.frontends.aot import GraphFunction, trace_and_compile
from tilewright.frontends.fx import import_graph
from tilewright.tools.compile import compile_module
from tilewright.tools.options import parse_options
from tilewright.tools.universe import make_context

Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def guards_alone(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile to a function that computes nothing."""
    with torch.no_grad():
        results = [torch.empty_like(r) for r in graph(*inputs)]

    def give(*_: Any) -> list[Tensor]:
        return results

    return give


def around(compiler: Callable[[fx.GraphModule, Sequence[Any], str], GraphFunction]) -> Backend:
    """Return the backend that gives the graphs of AOTAutograd to a compiler."""
    return lambda graph, inputs: trace_and_compile(graph, inputs, compiler)


def give_the_same(graph: fx.GraphModule, inputs: Sequence[Any], kind: str) -> GraphFunction:
    """Compile a graph to a function that computes nothing."""
    with torch.no_grad():
        results = list(graph(*(torch.zeros_like(i) if isinstance(i, Tensor) else i for i in inputs)))

    def give(arguments: list[Any]) -> list[Any]:
        arguments.clear()
        return results

    return give


class Programs:
    """Compiles graphs as tilewright does, and keeps the programs with the inputs of their last call."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[GraphFunction, list[Any]]] = {}
        self.kernels = 0

    def compile(self, graph: fx.GraphModule, inputs: Sequence[Any], kind: str) -> GraphFunction:
        imported = import_graph(graph, inputs)
        compiled = compile_module(imported.module, make_context(), parse_options(None, None), imported.constants)
        self.kernels += sum(compiled.program.stats.kernels.values())
        run = compiled.program.run_boxed

        def call(arguments: list[Any]) -> Sequence[Any]:
            self.calls[kind] = run, list(arguments)
            return run(arguments)

        return call

    def alone(self, seconds: float, synchronize: Callable[[], None]) -> dict[str, float]:
        """Return the time of a call of each program."""
        found: dict[str, float] = {}
        for kind, (run, inputs) in self.calls.items():
            found[kind] = per_call(lambda run=run, inputs=inputs: run(list(inputs)), seconds, synchronize)
        return found


def per_call(function: Callable[[], Any], seconds: float, synchronize: Callable[[], None]) -> float:
    """Return the microseconds of a call, the best of several hundred calls in a row."""
    for _ in range(20):
        function()
    synchronize()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(200):
            function()
        spent = time.perf_counter() - start
        synchronize()
        best = min(best, spent / 200)
    return 1e6 * best


def once(function: Callable[..., Any], inputs: list[Tensor], ones: Tensor | None) -> Callable[[], Any]:
    """Return a call, with the gradients of all inputs if there is one of the result."""
    if ones is None:
        return lambda: function(*inputs)
    return lambda: torch.autograd.grad(function(*inputs), inputs, ones)


def chain(length: int) -> Callable[[Tensor], Tensor]:
    """Return a function of so many kernels: each sums up over the other dim."""

    def function(x: Tensor) -> Tensor:
        for n in range(length):
            x = x.cumsum(n % 2)
        return x

    return function


def cases(device: str) -> dict[str, Callable[[], tuple[Callable[..., Any], list[Tensor], bool]]]:
    """Return functions with their inputs and whether gradients are asked for, by name."""
    square = torch.randn(16, 16, device=device)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    heads = [torch.randn(1, 2, 32, 64, device=device, requires_grad=True) for _ in range(3)]
    return {
        "add": lambda: (lambda x, y: x + y, [square, square], False),
        **{f"{n} kernels": lambda n=n: (chain(n), [square], False) for n in (4, 16)},
        "gelu forward": lambda: (F.gelu, [square.clone().requires_grad_()], False),
        "gelu and gradient": lambda: (F.gelu, [square.clone().requires_grad_()], True),
        "attention and gradient": lambda: (attention, heads, True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each measurement")
    arguments = parser.parse_args()
    synchronize = torch.cuda.synchronize if arguments.device == "cuda" else lambda: None
    for name, make in cases(arguments.device).items():
        function, inputs, differentiates = make()
        ones = torch.ones_like(function(*inputs)) if differentiates else None
        programs = Programs()
        columns = {"eager": per_call(once(function, inputs, ones), arguments.seconds, synchronize)}
        backends = {"AOTAutograd": around(give_the_same), "tilewright": around(programs.compile)}
        if not differentiates:
            backends = {"guards": guards_alone, **backends}
        for label, backend in backends.items():
            torch._dynamo.reset()
            compiled = torch.compile(function, backend=backend)
            columns[label] = per_call(once(compiled, inputs, ones), arguments.seconds, synchronize)
        columns |= {f"{kind} alone": t for kind, t in programs.alone(arguments.seconds, synchronize).items()}
        text = "  ".join(f"{label} {micros:.1f}" for label, micros in columns.items())
        print(f"{name:24} {text}  ({programs.kernels} kernels)", flush=True)


if __name__ == "__main__":
    main()
