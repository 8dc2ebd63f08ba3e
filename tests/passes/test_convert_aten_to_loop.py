"""The pass as a whole: what it leaves alone, what it names, and whole models."""

# torch's own annotations are incomplete, and the tracers are not public.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.frontends.conftest import parse
from tests.passes.lowering_checks import aten, calls, lowered, sample
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr

from tilewright.backends.reference.interpreter import run_function
from tilewright.dialects import aten_schema
from tilewright.dialects.aten import CallOp
from tilewright.dialects.loop import NestOp
from tilewright.dialects.verifier import verify_module
from tilewright.frontends.decompositions import decomposition_table
from tilewright.frontends.fx import import_graph
from tilewright.passes.convert_aten_to_loop import LOWERINGS, ConvertAtenToLoopPass

ROOT = Path(__file__).resolve().parents[2]


def test_each_operator_of_the_table_exists() -> None:
    assert [name for name in LOWERINGS if aten_schema.lookup(name) is None] == []


def test_nests_have_the_names_of_their_calls() -> None:
    module = lowered(lambda x: aten.add(aten.exp(x), x), sample(torch.float32, 4)).module
    nests = [op for op in module.walk() if isinstance(op, NestOp)]
    assert [nest.outputs[0].name_hint for nest in nests] == ["exp", "add"]
    origins: list[Any] = [nest.attributes["origin"] for nest in nests]
    assert origins == [ArrayAttr([StringAttr("exp")]), ArrayAttr([StringAttr("add")])]


@pytest.mark.parametrize("operator", ["silu", "logsumexp", "mean"])
def test_a_call_without_a_rule_is_left_as_it_was(operator: str) -> None:
    # A nest for integers is half made when it turns out that there is no rule for them: its uses must go again.
    dims = ", dim = #sym.ints<[0]>" if operator == "logsumexp" else ""
    kind = "tensor<4xi64, #sym.layout<[4], [1]>>"
    call = f'%y = aten.call "aten.{operator}.default"(self = %x{dims}) : ({kind}) -> {kind}'
    module = parse(f"func.func @f(%x: {kind}) -> {kind} {{\n{call}\nfunc.return %y : {kind}\n}}")
    text = str(module)
    ConvertAtenToLoopPass().apply(Context(), module)
    assert str(module) == text
    (left,) = [op for op in module.walk() if isinstance(op, CallOp)]
    assert len(list(left.operands[0].uses)) == 1


class Encoder(nn.Module):
    """What large models are made of: embeddings, attention written out, norms, a mask, slices, gelu."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 32)
        self.norm, self.out = nn.LayerNorm(32), nn.Linear(32, 50)
        self.qkv, self.up, self.down = nn.Linear(32, 96), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, ids: Tensor) -> Tensor:
        batch, length = ids.shape
        x = self.tokens(ids) + torch.arange(length, dtype=self.out.weight.dtype).unsqueeze(-1) / length
        q, k, v = (t.view(batch, length, 4, 8).transpose(1, 2) for t in self.qkv(self.norm(x)).split(32, dim=2))
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~mask, float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, 32)
        x = torch.cat([x, y], 1)[:, length:]
        return self.out(x + self.down(F.gelu(self.up(F.layer_norm(x, [32])), approximate="tanh")))


def compiled(model: nn.Module, *, dynamic: bool) -> tuple[Any, list[ModuleOp]]:
    """Return `model` compiled to loops that the reference interpreter runs, and where its lowered graphs will be."""
    modules: list[ModuleOp] = []

    def compile_graph(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        graph = import_graph(graph_module, inputs)
        ConvertAtenToLoopPass().apply(Context(), graph.module)
        verify_module(graph.module)
        modules.append(graph.module)

        def run(args: list[Any]) -> Any:
            return run_function(graph.module, [*args, *graph.constants])

        run.__dict__["_boxed_call"] = True  # AOTAutograd hands over the list itself
        return run

    backend = aot_autograd(fw_compiler=compile_graph, decompositions=dict(decomposition_table()))
    torch._dynamo.reset()
    return torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic), modules


@pytest.mark.parametrize(("dynamic", "dtype"), [(False, torch.float32), (True, torch.bfloat16)], ids=str)
def test_of_a_transformer_only_products_are_left(dynamic: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Encoder().to(dtype).eval()
    ids = torch.randint(0, 50, (2, 9))
    program, modules = compiled(model, dynamic=dynamic)
    with torch.no_grad():
        result, expected = program(ids), model(ids)
        again = program(torch.cat([ids, ids], 1)), model(torch.cat([ids, ids], 1))
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(*again)
    assert len(modules) == (1 if dynamic else 2)
    for module in modules:
        assert set(calls(module)) <= {"aten.addmm.default", "aten.mm.default", "aten.bmm.default"}


LOWER = """
import sys
from xdsl.context import Context
from tests.frontends.conftest import parse
from tilewright.passes.convert_aten_to_loop import ConvertAtenToLoopPass
module = parse(sys.stdin.read())
ConvertAtenToLoopPass().apply(Context(), module)
print(module)
"""


def test_the_text_does_not_depend_on_hashes() -> None:
    graphs: list[str] = []

    def compile_graph(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        graphs.append(str(import_graph(graph_module, inputs).module))
        return graph_module

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=compile_graph, decompositions=dict(decomposition_table()))
    with torch.no_grad():
        torch.compile(Encoder(), backend=backend, dynamic=True)(torch.zeros(2, 9, dtype=torch.int64))
    elsewhere = subprocess.run(
        [sys.executable, "-c", LOWER],
        input=graphs[0],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    module = parse(graphs[0])
    ConvertAtenToLoopPass().apply(Context(), module)
    assert elsewhere == f"{module!s}\n"
    assert "loop.nest" in elsewhere
