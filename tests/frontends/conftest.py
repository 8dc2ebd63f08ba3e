"""How the tests of the frontend get graphs, and what every imported module must satisfy."""

# torch's own annotations are incomplete, and the tracers are not public.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from typing import Any, Literal, TypeAlias

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func, FuncOp
from xdsl.parser import Parser
from xdsl.printer import Printer

from tilewright.dialects.aten import Aten, CallOp
from tilewright.dialects.sym import Sym
from tilewright.dialects.verifier import verify_module
from tilewright.frontends.decompositions import decomposition_table
from tilewright.frontends.fx import ImportedGraph, import_graph

Unary: TypeAlias = Callable[[Tensor], Any]
"""The type that lets a checker know the argument of a lambda."""

Mode: TypeAlias = Literal["real", "fake", "symbolic"]
"""How tensors are traced: as they are, without data, or without data and with symbolic sizes."""


class Graphs:
    """Compiles functions with a backend that imports each graph, checks it, and then runs the graph itself."""

    def __init__(self) -> None:
        self.imported: list[ImportedGraph] = []
        self._backend = aot_autograd(
            fw_compiler=self._compile,
            bw_compiler=self._compile,
            decompositions=dict(decomposition_table()),
            keep_inference_input_mutations=True,
        )

    def capture(self, program: Unary | Callable[..., Any], *args: Any, dynamic: bool | None = None) -> ModuleOp:
        """Return the one graph of `program`, which has no gradients."""
        self.imported.clear()
        torch.compile(program, backend=self._backend, fullgraph=True, dynamic=dynamic)(*args)
        (graph,) = self.imported
        return graph.module

    def train(self, program: Unary | Callable[..., Any], *args: Any) -> tuple[ModuleOp, ModuleOp]:
        """Return the forward and the backward graph of `program`."""
        self.imported.clear()
        torch.compile(program, backend=self._backend, fullgraph=True)(*args).sum().backward()
        forward, backward = self.imported
        return forward.module, backward.module

    def _compile(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graph = import_graph(graph_module, inputs)
        check(graph.module)
        self.imported.append(graph)

        def run(args: list[Any]) -> Any:
            return graph_module(*args)

        run.__dict__["_boxed_call"] = True  # AOTAutograd hands over the list itself
        return run


@pytest.fixture
def graphs() -> Iterator[Graphs]:
    """Give a test what compiles for it, with nothing compiled before."""
    torch._dynamo.reset()
    yield Graphs()
    torch._dynamo.reset()


def dynamic_rows(*shape: int, least: int | None = None, most: int | None = None) -> Tensor:
    """Return a tensor whose first size is to be a symbol."""
    x = torch.ones(shape)
    torch._dynamo.mark_dynamic(x, 0, min=least, max=most)
    return x


def trace(program: Unary | Callable[..., Any], *args: Any, mode: Mode = "fake") -> fx.GraphModule:
    """Return the graph of `program` as it is, without AOTAutograd and decompositions."""
    return make_fx(program, tracing_mode=mode)(*args)


def imported(graph_module: fx.GraphModule) -> ModuleOp:
    """Return the checked module of a graph."""
    module = import_graph(graph_module).module
    check(module)
    return module


def parse(text: str) -> ModuleOp:
    """Parse a module of the `aten` level."""
    context = Context()
    for dialect in (Builtin, Func, Aten, Sym):
        context.load_dialect(dialect)
    return Parser(context, text).parse_module()


def text_of(module: ModuleOp, *, locations: bool) -> str:
    """Return the text of a module."""
    stream = StringIO()
    Printer(stream, print_debuginfo=locations).print_op(module)
    return stream.getvalue()


def check(module: ModuleOp) -> None:
    """Check that a module verifies, and that its text reads back as the same module."""
    verify_module(module)
    for locations in (False, True):
        text = text_of(module, locations=locations)
        again = parse(text)
        verify_module(again)
        assert text_of(again, locations=locations) == text


def calls(module: ModuleOp) -> list[CallOp]:
    """Return the calls of a module in order."""
    return [op for op in module.walk() if isinstance(op, CallOp)]


def function(module: ModuleOp) -> FuncOp:
    """Return the one function of a module."""
    (found,) = module.ops
    assert isinstance(found, FuncOp)
    return found
