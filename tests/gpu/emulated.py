"""A GPU that is not there: programs are compiled for CUDA, and their kernels run by the reference interpreter.

The tensors are on the CPU, but a graph says CUDA from the first pass on, since much is decided before there are
kernels: where half precision rounds, which reductions are split, what is fused. Each graph is lowered to kernels once,
and from that text on for both targets.
"""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from xdsl.dialects.builtin import ModuleOp

from tilewright.backends.host.abi import native_target
from tilewright.backends.reference import host, run_function
from tilewright.backends.reference.buffers import Buffer
from tilewright.backends.reference.tt_launch import run_programs
from tilewright.dialects import loop, tt
from tilewright.frontends.aot import GraphFunction, trace_and_compile
from tilewright.frontends.fx import import_graph
from tilewright.passes.pipelines import PIPELINES
from tilewright.tools.compile import compile_module, run_passes
from tilewright.tools.options import Options
from tilewright.tools.source import Source, read_module
from tilewright.tools.torch_compile import none_outputs, with_none_outputs
from tilewright.tools.universe import make_context

_SHARED = f"{PIPELINES['graph']},{PIPELINES['buffers']}"
_TO_CUDA, _TO_CPU = 'retarget{device="cuda:0"}', 'retarget{device="cpu"}'


def read(text: str) -> ModuleOp:
    """Return the module of a text."""
    return read_module(make_context(), Source("<test>", text)).module


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, with copies of its buffers."""

    kernel: tt.FuncOp
    before: list[Tensor]
    after: list[Tensor]
    sizes: list[int]


@contextmanager
def recorded(launches: list[Launch]) -> Generator[None]:
    """Add to `launches` the first of each kernel whose buffers do not overlap."""

    def run(kernel: tt.FuncOp, buffers: Sequence[Buffer], sizes: Sequence[int], *rest: Any, **options: Any) -> None:
        before = [b.flat().tensor.clone() for b in buffers]
        run_programs(kernel, buffers, sizes, *rest, **options)
        apart = len({b.tensor.untyped_storage().data_ptr() for b in buffers}) == len(buffers)
        if apart and all(launch.kernel is not kernel for launch in launches):
            launches.append(Launch(kernel, before, [b.flat().tensor.clone() for b in buffers], [*sizes]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "run_programs", run)
        yield


@dataclass
class EmulatedDevice:
    """A backend of `torch.compile`; each program also runs on the CPU, compiled, and must give the same."""

    rtol: float | None = None
    atol: float | None = None
    texts: list[str] = field(default_factory=list[str])
    """For each graph the kernels as loops, and the host program, before they belong to a target."""
    lowered: list[ModuleOp] = field(default_factory=list[ModuleOp])
    """For each graph the same for CUDA."""
    launches: list[Launch] = field(default_factory=list[Launch])

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return trace_and_compile(graph, inputs, self._compile)

    @property
    def kernels(self) -> list[tt.FuncOp]:
        """All kernels for CUDA."""
        return [op for module in self.lowered for op in module.ops if isinstance(op, tt.FuncOp)]

    def _compile(self, graph: fx.GraphModule, inputs: Sequence[Any], kind: str) -> GraphFunction:
        imported = import_graph(graph, inputs)
        missing = none_outputs(imported.module)
        run_passes(imported.module, make_context(), f"{_TO_CUDA},{_SHARED}", verify=True)
        text = str(imported.module)
        cuda = read(text)
        run_passes(cuda, make_context(), PIPELINES["tt"], verify=True)
        left = [op.sym_name.data for op in cuda.ops if isinstance(op, loop.KernelOp)]
        assert not left, f"kernels that are not lowered: {left}"
        self.texts.append(text)
        self.lowered.append(cuda)
        cpu = self._for_cpu(text, imported.constants)

        def run(given: list[Any]) -> Sequence[Any]:
            arguments = [*given, *imported.constants]
            given.clear()
            same = deepcopy([a.detach() if isinstance(a, Tensor) else a for a in arguments])
            state = torch.default_generator.get_state()
            with recorded(self.launches):
                results = run_function(cuda, arguments)
            torch.default_generator.set_state(state)
            others = cpu(same[: len(arguments) - len(imported.constants)])
            for result, other in zip([*results, *arguments], [*others, *same], strict=True):
                if isinstance(result, Tensor):
                    torch.testing.assert_close(result, other, rtol=self.rtol, atol=self.atol, equal_nan=True)
            return results

        return with_none_outputs(run, missing)

    @staticmethod
    def _for_cpu(text: str, constants: Sequence[Tensor]) -> GraphFunction:
        """Compile a text for this machine."""
        everything = PIPELINES[f"cpu-{native_target().vector_bits}"]
        rest = everything.removeprefix(_SHARED + ",")
        assert rest != everything
        options = Options(pipeline=f"{_TO_CPU},{rest}")
        return compile_module(read(text), make_context(), options, constants).program.run_boxed
