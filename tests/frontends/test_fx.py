"""What the importer makes of small graphs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from tests.frontends.conftest import Graphs, Mode, Unary, calls, check, dynamic_rows, function, imported, trace
from torch import Tensor, fx
from torch.nn import functional
from xdsl.dialects.builtin import ArrayAttr, FileLineColLoc, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute

from tilewright.frontends.fx import import_graph
from tilewright.frontends.unsupported import Unsupported

aten = torch.ops.aten


def numbers(*values: int) -> Attribute:
    """Return the attribute that lists argument numbers."""
    return ArrayAttr([IntegerAttr(value, i64) for value in values])


def with_symbol_n(module: Any) -> str:
    """Return the text of a module with its one size symbol, whose name torch makes from a hash, called `n`."""
    text = str(module)
    (name,) = re.findall(r"aten\.symbols = \{(\w+) = [^,]*, [^,]*>\}", text)
    return re.sub(rf"\b{name}\b", "n", text)


def test_the_text_of_a_module(graphs: Graphs) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x @ w) * 2

    x = "tensor<4x3xf32, #sym.layout<[4, 3], [3, 1]>>"
    w = "tensor<3x5xf32, #sym.layout<[3, 5], [5, 1]>>"
    y = "tensor<4x5xf32, #sym.layout<[4, 5], [5, 1]>>"
    text = str(graphs.capture(program, torch.ones(4, 3), torch.ones(3, 5)))
    assert (
        text
        == f"""\
builtin.module {{
  func.func @forward(%arg0: {x}, %arg1: {w}) -> {y} {{
    %mm = aten.call "aten.mm.default"(self = %arg0, mat2 = %arg1) : ({x}, {w}) -> {y}
    %relu = aten.call "aten.relu.default"(self = %mm) : ({y}) -> {y}
    %mul = aten.call "aten.mul.Tensor"(self = %relu, other = 2 : i64) : ({y}) -> {y}
    func.return %mul : {y}
  }}
}}"""
    )


def test_layouts_are_those_that_tracing_saw(graphs: Graphs) -> None:
    program: Unary = lambda x: x.t()[1:].expand(2, 2, 4) + 1  # noqa: E731
    text = str(graphs.capture(program, torch.ones(8, 3)[::2]))
    assert "%arg0: tensor<4x3xf32, #sym.layout<[4, 3], [6, 1]>>" in text
    assert "tensor<2x4xf32, #sym.layout<[2, 4], [1, 6], offset 1>>" in text
    assert "tensor<2x2x4xf32, #sym.layout<[2, 2, 4], [0, 1, 6], offset 1>>" in text


def test_the_function_has_the_name_that_is_asked_for() -> None:
    graph_module = trace(torch.relu, torch.ones(2))
    assert "func.func @backward(" in str(import_graph(graph_module, name="backward").module)


class TestSymbols:
    def test_sizes_are_expressions_and_their_arithmetic_vanishes(self, graphs: Graphs) -> None:
        def grow(x: Tensor) -> Tensor:
            return torch.cat([x, x.new_zeros(x.shape[0] * 2 + 1, 3)])

        text = with_symbol_n(graphs.capture(grow, dynamic_rows(5, 3)))
        assert "aten.symbols = {n = #sym.symbol<hint 5, 2 to 4611686018427387903>}" in text
        assert "aten.symbol_args = {n = 0 : i64}" in text
        assert '%full = aten.call "aten.full.default"(size = #sym.ints<[2 * n + 1, 3]>' in text
        assert "-> tensor<?x3xf32, #sym.layout<[3 * n + 1, 3], [3, 1]>>" in text
        assert text.count("aten.call") == 2

    def test_a_range_comes_from_the_user(self, graphs: Graphs) -> None:
        module = graphs.capture(torch.relu, dynamic_rows(6, 3, least=4, most=64))
        assert "#sym.symbol<hint 6, 4 to 64>" in str(module)

    def test_pieces_of_a_split(self, graphs: Graphs) -> None:
        def program(x: Tensor) -> Tensor:
            first, second = torch.split(x, 2)
            return torch.cat([second, first]) + 1

        text = with_symbol_n(graphs.capture(program, dynamic_rows(4, 3)))
        assert "tensor<2x3xf32, #sym.layout<[2, 3], [3, 1]>>" in text
        assert "tensor<?x3xf32, #sym.layout<[n - 2, 3], [3, 1], offset 6>>" in text

    def test_a_size_is_an_output(self, graphs: Graphs) -> None:
        def program(x: Tensor) -> tuple[Tensor, int]:
            return x + 1, x.shape[0] + 7

        text = with_symbol_n(graphs.capture(program, dynamic_rows(5, 3)))
        assert "%0 = aten.size <n + 7> : i64" in text
        assert "func.return %add, %0 :" in text

    def test_a_size_takes_part_in_arithmetic_on_tensors(self, graphs: Graphs) -> None:
        def program(x: Tensor) -> Tensor:
            return x * x.shape[0]

        text = with_symbol_n(graphs.capture(program, dynamic_rows(5, 3)))
        assert '"aten.mul.Tensor"(self = %arg1, other = #sym.expr<n>)' in text

    def test_a_number_of_the_caller_is_an_argument(self, graphs: Graphs) -> None:
        def program(x: Tensor, k: int) -> Tensor:
            return x + k

        text = str(graphs.capture(program, torch.ones(3), 41, dynamic=True))
        assert "%arg2: i64" in text
        assert "#sym.symbol<hint 41, -4611686018427387903 to 4611686018427387903>" in text

    def test_a_symbol_that_no_argument_gives_is_refused(self) -> None:
        def program(x: Tensor) -> Tensor:
            return torch.ones(x.shape[0] * 2)

        graph_module = trace(program, torch.ones(5), mode="symbolic")
        imported(graph_module)
        argument = next(iter(graph_module.graph.nodes))
        argument.meta["val"] = torch.cat([argument.meta["val"]] * 2)
        with pytest.raises(Unsupported, match="is neither an argument nor, alone, a size or stride of one"):
            import_graph(graph_module)


class TestResults:
    def test_getitem_is_the_result_it_names(self, graphs: Graphs) -> None:
        def program(x: Tensor) -> Tensor:
            return functional.layer_norm(x, [8]) + 1

        norm, add = calls(graphs.capture(program, torch.ones(4, 8)))
        assert norm.operator == "aten.native_layer_norm.default"
        assert len(norm.results) == 3
        assert add.operands[0] is norm.results[0]

    def test_a_list_of_tensors_is_one_result_each(self) -> None:
        def program(a: Tensor, b: Tensor) -> Any:
            return aten._foreach_add.Scalar([a, b], 2)

        module = imported(trace(program, torch.ones(2), torch.ones(3)))
        (call,) = calls(module)
        assert "self = [%arg0, %arg1], scalar = 2 : i64" in str(module)
        assert [str(kind).split(",")[0] for kind in call.result_types] == ["tensor<2xf32", "tensor<3xf32"]

    def test_an_undefined_tensor_has_type_none(self, graphs: Graphs) -> None:
        weight = torch.ones(2, 3, 3, 3, requires_grad=True)
        _, backward = graphs.train(functional.conv2d, torch.ones(1, 3, 8, 8), weight)
        (call,) = (call for call in calls(backward) if call.operator == "aten.convolution_backward.default")
        assert [str(kind).split("<")[0] for kind in call.result_types] == ["none", "tensor", "none"]
        assert "output_mask = [false, true, false]" in str(call)

    def test_outputs_that_are_none_are_listed(self, graphs: Graphs) -> None:
        _, backward = graphs.train(torch.mul, torch.ones(2, requires_grad=True), torch.ones(2))
        assert function(backward).attributes["aten.none_outputs"] == numbers(1)
        assert len(function(backward).function_type.outputs) == 1


class TestMemory:
    """Mutation and aliasing."""

    def test_a_mutated_input(self, graphs: Graphs) -> None:
        def step(x: Tensor, y: Tensor) -> Tensor:
            y.add_(x)
            return y * 2

        module = graphs.capture(step, torch.ones(3), torch.ones(3))
        copy = calls(module)[-1]
        assert copy.operator == "aten.copy_.default"
        target = function(module).body.block.args.index(copy.operands[0])
        assert function(module).attributes == {"aten.mutates": numbers(target)}

    def test_a_write_to_a_slice_stays_a_scatter(self, graphs: Graphs) -> None:
        def scale_first(x: Tensor) -> None:
            x[0].mul_(2)

        assert [call.operator for call in calls(graphs.capture(scale_first, torch.ones(100, 3)))] == [
            "aten.select.int",
            "aten.mul.Tensor",
            "aten.select_scatter.default",
            "aten.copy_.default",
        ]

    def test_outputs_in_the_memory_of_inputs(self) -> None:
        def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return y.t()[1:], x + 1, x, y.expand(2, 2, 3).sum(0), torch.split(y, 1)[1]

        module = imported(trace(program, torch.ones(4), torch.ones(2, 3)))
        assert function(module).attributes == {"aten.output_alias": numbers(1, -1, 0, -1, 1)}

    def test_nothing_shared_is_no_attribute(self, graphs: Graphs) -> None:
        assert function(graphs.capture(torch.relu, torch.ones(2, 2))).attributes == {}

    def test_a_write_to_an_intermediate_is_refused(self) -> None:
        def program(x: Tensor) -> Tensor:
            return (x + 1).mul_(2)

        message = r"`aten.mul_.Tensor`: it writes to `self`, where only a copy_ to an argument may"
        with pytest.raises(Unsupported, match=message):
            import_graph(trace(program, torch.ones(2)))


class TestConstants:
    def test_a_constant_is_a_trailing_argument(self, graphs: Graphs) -> None:
        def program(x: Tensor) -> Tensor:
            return x * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(7)

        module = graphs.capture(program, torch.ones(2, 3))
        names = ArrayAttr([StringAttr("_tensor_constant0"), StringAttr("_tensor_constant1")])
        assert function(module).attributes == {"aten.constants": names}
        (graph,) = graphs.imported
        assert torch.equal(graph.constants[0], torch.tensor([1.0, 2.0, 3.0]))
        assert torch.equal(graph.constants[1], torch.tensor(7))
        assert "%arg2: tensor<i64, #sym.layout<[], []>>" in str(module)

    def test_a_constant_used_twice_is_one_argument(self) -> None:
        graph = fx.Graph()
        total = graph.call_function(aten.add.Tensor, (graph.get_attr("c"), graph.get_attr("c")))
        total.meta["val"] = torch.ones(3)
        graph.output((total,))
        result = import_graph(fx.GraphModule({"c": torch.ones(3)}, graph))
        check(result.module)
        assert len(result.constants) == 1
        assert 'aten.call "aten.add.Tensor"(self = %arg0, other = %arg0)' in str(result.module)


def test_calls_know_their_line_in_the_program(graphs: Graphs) -> None:
    def program(x: Tensor) -> Tensor:
        y = x + 1
        return y.sin()

    first = program.__code__.co_firstlineno
    for call, line in zip(calls(graphs.capture(program, torch.ones(3))), (first + 1, first + 2), strict=True):
        location = call.location
        assert isinstance(location, FileLineColLoc)
        assert (location.filename.data, location.line.data) == (__file__, line)


class TestUnsupported:
    """What is refused, by whom it is named, and where it stands in the program."""

    UNSUPPORTED: list[tuple[Unary, Mode, str]] = [  # noqa: RUF012
        (lambda x: x.nonzero(), "symbolic", "`aten.nonzero.default`: its result has a size or a value that depends on"),
        (lambda x: x + x[0].item(), "symbolic", "`aten._local_scalar_dense.default`: its result has a size or a value"),
        (
            lambda x: torch.complex(x, x).conj().imag,
            "fake",
            "`aten._neg_view.default`: tensor whose elements are to be negated when they are read",
        ),
        (lambda x: x.to_sparse(), "fake", "`aten._to_sparse.default`: tensor with layout torch.sparse_coo, expected"),
    ]

    @pytest.mark.parametrize(("program", "mode", "message"), UNSUPPORTED)
    def test_operators(self, program: Unary, mode: Mode, message: str) -> None:
        with pytest.raises(Unsupported, match=re.escape(message)):
            import_graph(trace(program, torch.ones(3), mode=mode))

    def test_control_flow(self) -> None:
        def branch(x: Tensor) -> Any:
            cond: Any = torch.ops.higher_order.cond
            return cond(x.sum() > 0, torch.sin, torch.cos, (x,))

        with pytest.raises(Unsupported, match="`cond`: a higher-order operator, expected an operator on tensors"):
            import_graph(trace(branch, torch.ones(3), mode="real"))

    def test_an_argument_that_is_no_tensor(self) -> None:
        graph_module = trace(torch.relu, torch.ones(3))
        next(iter(graph_module.graph.nodes)).meta["val"] = "text"
        with pytest.raises(Unsupported, match="argument 0 is a str, expected a tensor or an integer"):
            import_graph(graph_module)

    @pytest.mark.skipif(torch.__version__ < "2.12", reason="PyTorch 2.11 traces no generators")
    def test_a_generator(self) -> None:
        def program(x: Tensor) -> Any:
            return aten.bernoulli.default(x, generator=torch.Generator())

        message = r"`aten.bernoulli.default`: argument .* expected torch's default generator"
        with pytest.raises(Unsupported, match=message):
            import_graph(trace(program, torch.ones(3)))

    def test_the_message_has_the_line(self) -> None:
        def program(x: Tensor) -> Tensor:
            return (x + 1).mul_(2)

        graph_module = trace(program, torch.ones(2))
        for node in graph_module.graph.nodes:
            node.meta["stack_trace"] = (
                '  File "lib.py", line 3, in g\n  File "model.py", line 12, in f\n    x.mul_(2)\n'
            )
        with pytest.raises(Unsupported, match=r" \(at model.py:12\)$"):
            import_graph(graph_module)


IMPORT_A_DYNAMIC_GRAPH = """
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from tilewright.frontends.fx import import_graph
def program(x, y):
    return torch.cat([x, y.view(-1, 3)]).view(-1)[: y.shape[0] // 2].reshape(1, -1) * x.shape[0]
print(import_graph(make_fx(program, tracing_mode="symbolic")(torch.ones(5, 3), torch.ones(7, 3))).module)
"""


@pytest.mark.slow
def test_the_text_is_equal_in_every_process() -> None:
    texts = {
        subprocess.run(
            [sys.executable, "-c", IMPORT_A_DYNAMIC_GRAPH],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
    assert "floordiv" in texts.pop()


def test_the_cost_of_a_node_is_small() -> None:
    graph = fx.Graph()
    value = graph.placeholder("x")
    value.meta["val"] = torch.ones(4, 3)
    for _ in range(3000):
        value = graph.call_function(aten.add.Tensor, (value, 1), {"alpha": 2})
        value.meta["val"] = torch.ones(4, 3)
    graph.output((value,))
    graph_module = fx.GraphModule({}, graph)

    def cpu_seconds() -> float:
        start = time.process_time()
        import_graph(graph_module)
        return time.process_time() - start

    assert min(cpu_seconds() for _ in range(3)) < 3000 * 0.3e-3
