"""Programs that `torch.export` captured: imported, compiled and called, and on the command line."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from xdsl.dialects.builtin import ModuleOp

from tilewright.dialects.aten import CallOp
from tilewright.frontends.export import import_exported_program
from tilewright.frontends.fx import ImportedGraph, import_graph
from tilewright.frontends.unsupported import Unsupported
from tilewright.tools import import_exported, opt, run
from tilewright.tools.exported import compile_exported

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


class Module(nn.Module):
    """A function as a module, which `export` wants."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Nested(nn.Module):
    """Everything that the signature of an exported program can say."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.scale = torch.full((4,), 2.0)
        self.register_buffer("unused", torch.ones(2), persistent=False)

    def forward(self, x: Tensor, state: dict[str, Tensor], *, flag: Any = None) -> Any:
        state["y"].add_(1)
        y = self.norm(self.linear(x)) * self.scale + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return {"a": y, "b": (x.sum(), flag, 3, x.shape[0], x)}, state["y"].view(-1), state["y"]


def nested() -> ExportedProgram:
    """Return the program of `Nested` with a dynamic batch size."""
    shapes = {"x": {0: Dim("batch", min=2, max=100)}, "state": {"y": None}, "flag": None}
    inputs = (torch.randn(3, 4), {"y": torch.randn(2, 2)})
    return export(Nested(), inputs, kwargs={"flag": None}, dynamic_shapes=shapes)


def check(program: ExportedProgram, *args: Any) -> Any:
    """Compare a program with torch's own; return what the compiled one gives."""
    ours, expected_args = copy.deepcopy(args), copy.deepcopy(args)
    expected = copy.deepcopy(program).module()(*expected_args)
    found = compile_exported(program)(*ours)
    torch.testing.assert_close(found, expected, check_stride=True)
    torch.testing.assert_close(ours, expected_args)
    return found


def exported(function: Callable[..., Any], *args: Any, shapes: Any = None) -> ExportedProgram:
    return export(Module(function), args, dynamic_shapes=None if shapes is None else (shapes,))


def operators(module: ModuleOp) -> list[str]:
    return [op.operator for op in module.walk() if isinstance(op, CallOp)]


def test_inputs_outputs_buffers_and_mutation() -> None:
    program = nested()
    reference = copy.deepcopy(program)
    ours, expected = compile_exported(program, options={"strict": True}), reference.module()
    for batch in (3, 2, 9):
        x, y = torch.randn(batch, 4), torch.randn(2, 2)
        state, expected_state = {"y": y.clone()}, {"y": y.clone()}
        version = state["y"]._version
        found = ours(x, state, flag=None)
        torch.testing.assert_close(found, expected(x, expected_state, flag=None))
        torch.testing.assert_close(state, expected_state)
        assert found[2] is state["y"]
        assert found[0]["b"][4] is x
        assert state["y"]._version > version
    for name, value in reference.state_dict.items():
        torch.testing.assert_close(program.state_dict[name], value)
    assert program.state_dict["norm.num_batches_tracked"] == 3


def test_the_module_says_where_everything_comes_from() -> None:
    imported = import_exported_program(nested())
    assert imported.argument_names == ("args[0]", "args[1]['y']")
    assert imported.result_names == ("[0]['a']", "[0]['b'][0]", "[0]['b'][3]", "[0]['b'][4]", "[1]", "[2]")
    assert set(imported.constants) == {
        *("linear.weight", "linear.bias", "norm.weight", "norm.bias", "scale", "lifted_tensor_0"),
        *("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"),
    }
    text = str(imported.graph.module)
    assert "2 to 100>" in text
    assert 'aten.constants = ["linear.weight"' in text


def test_the_operators_are_those_of_torch_compile() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(36),
        nn.Linear(36, 5),
    ).eval()
    x = torch.randn(2, 2, 8, 8)
    graphs: list[ImportedGraph] = []

    def backend(graph_module: torch.fx.GraphModule, inputs: Any) -> Any:
        from tilewright.frontends.aot import trace_and_compile

        def compiler(graph: torch.fx.GraphModule, given: Any, kind: str) -> Any:
            graphs.append(import_graph(graph, given))
            return lambda args: graph(*args)

        return trace_and_compile(graph_module, inputs, compiler)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=backend)(x)
    assert operators(import_exported_program(export(model, (x,))).graph.module) == operators(graphs[0].module)


def test_inputs_may_have_other_strides() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y.mul_(2)
        return x @ y, y

    program = export(
        Module(f), (torch.randn(3, 4), torch.randn(4, 5)), dynamic_shapes=(({0: Dim("a")}, {1: Dim("b")}),)
    )
    ours = compile_exported(program)
    for a, b in ((3, 5), (1, 9), (0, 1), (6, 0)):
        x, y = torch.randn(4, a).t(), torch.randn(b, 4).t()
        expected = f(x, y.clone())
        version = y._version
        found = ours(x, y)
        torch.testing.assert_close(found, expected)
        assert found[1] is y
        assert y._version > version


def test_gradients_autocast_and_runtime_checks_are_inlined() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            y = x * 2
        with torch.autocast("cpu", torch.bfloat16):
            z = y @ x.t()
        torch._check(x.shape[0] > 1)
        return z.to(torch.float64), F.rms_norm(x, (4,))

    check(exported(f, torch.randn(3, 4), shapes=({0: Dim("n", min=2)},)), torch.randn(7, 4))


def test_an_integer_is_an_argument() -> None:
    def f(x: Tensor, n: int) -> tuple[Tensor, int]:
        return x.expand(n, 3) * n, n + 1

    program = exported(f, torch.randn(1, 3), 4, shapes=(None, Dim.DYNAMIC))
    _, number = check(program, torch.randn(1, 3), 7)
    assert number == 8


def test_tied_weights_and_one_output() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embedding(ids))

    ids = torch.tensor([[1, 2, 9]])
    check(export(Tied(), (ids,)), ids)


def test_an_operator_of_a_library() -> None:
    @torch.library.custom_op("tilewright_test::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    check(exported(lambda x: twice(x) + 1, torch.randn(3)), torch.randn(3))


def test_what_the_ir_cannot_say() -> None:
    x = torch.ones(3)
    branches = exported(lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), x)
    with pytest.raises(Unsupported, match=r"`cond`: a higher-order operator.*test_exported.py"):
        import_exported_program(branches)
    sizes = exported(lambda x: x.nonzero() + 1, x)
    with pytest.raises(Unsupported, match=r"`aten.nonzero.default`: .* depends on data"):
        import_exported_program(sizes)


def test_wrong_inputs() -> None:
    ours = compile_exported(exported(lambda x: x + 1, torch.randn(3, 4), shapes=({0: Dim("n", max=9)},)))
    with pytest.raises(RuntimeError, match="<= 9, but got 10"):
        ours(torch.randn(10, 4))
    with pytest.raises(RuntimeError, match="equal to 4, but got 5"):
        ours(torch.randn(3, 5))
    with pytest.raises(ValueError, match=r"expected input 0 to be float32 .*, found float64"):
        ours(torch.randn(3, 4).double())
    with pytest.raises(ValueError, match=r"found float32 .* on meta"):
        ours(torch.empty(3, 4, device="meta"))
    with pytest.raises((ValueError, RuntimeError)):
        ours(torch.randn(3, 4), 1)
    expanded = compile_exported(exported(lambda x: x + 1, torch.randn(1, 4).expand(3, 4)))
    with pytest.raises(ValueError, match=r"to be float32 \[3, 4\] with strides \[0, 1\]"):
        expanded(torch.randn(3, 4))


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, ir, constants, inputs = (str(tmp_path / n) for n in ("model.pt2", "model.ir", "constants.pt", "inputs.pt"))
    program = nested()
    torch.export.save(program, model)
    assert import_exported.main([model, "-o", ir, "--constants", constants]) == 0
    assert (
        Path(ir)
        .read_text()
        .startswith("// imported from model.pt2\n// argument 0: args[0]\n// argument 1: args[1]['y']")
    )
    x, y = torch.randn(3, 4), torch.randn(2, 2)
    torch.save([x, y], inputs)
    expected = program.module()(x, {"y": y.clone()}, flag=None)
    for backend in ("reference", "native"):
        capsys.readouterr()
        assert run.main([ir, "--args", inputs, "--constants", constants, "--backend", backend]) == 0
        sums = capsys.readouterr().out.split("result 1: float32[]\n")[1]
        assert float(sums.split()[0]) == pytest.approx(expected[0]["b"][0].item(), abs=1e-4)
    assert run.main([ir, "--args", "random"]) == 0
    assert opt.main([ir, "-p", "@buffers"]) == 0
    capsys.readouterr()
    assert import_exported.main([ir]) == 1
    assert "cannot be read as an exported program" in capsys.readouterr().err
    assert run.main([ir, "--constants", inputs]) == 1
    assert "holds a list, expected a dictionary" in capsys.readouterr().err
    torch.save({"linear.weight": x}, constants)
    assert run.main([ir, "--constants", constants]) == 1
    assert "has no tensor for the constant `linear.bias`" in capsys.readouterr().err
