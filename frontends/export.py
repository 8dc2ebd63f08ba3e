"""Import a program that `torch.export` captured: the same `aten` as for `torch.compile`, with its parameters by name.

    imported = import_exported_program(torch.export.load("model.pt2"))

The function's arguments are the tensors and integers among the user's inputs, flattened as `torch.export` does it
(arguments, then keyword arguments; `argument_names` says which is which), then the parameters, buffers and constants
that are used, which `aten.constants` names. What the program mutates, of inputs and buffers alike, an `aten.copy_` at
its end writes. Results are the user's outputs, flattened, without those that are known beforehand: see `OutputSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, SymIntArgument, TensorArgument

from tilewright.frontends.arguments import is_list
from tilewright.frontends.decompositions import decomposition_table
from tilewright.frontends.fx import ImportedGraph, import_graph
from tilewright.frontends.random_numbers import RandomMode, replace_random
from tilewright.frontends.torch_internals import (
    composite_decompositions,
    decompose,
    dynamic_ranges,
    input_names,
    output_names,
)
from tilewright.frontends.unsupported import Unsupported


@dataclass(frozen=True)
class Result:
    """An output that is result `number` of the function."""

    number: int


@dataclass(frozen=True)
class Known:
    """An output that is the same in every call: None, or a number or string that was specialized on."""

    value: Any


OutputSource: TypeAlias = Result | Known


@dataclass(frozen=True)
class ImportedProgram:
    """An exported program as IR, and how its function's arguments and results belong to the user's."""

    graph: ImportedGraph
    constant_names: tuple[str, ...]
    """What the program calls its last arguments: `layers.0.weight`."""
    input_positions: tuple[int, ...]
    """For each argument that the caller gives its position among the user's flattened inputs."""
    mutated_arguments: frozenset[int]
    """Those that the caller gives and the program writes to."""
    outputs: tuple[OutputSource, ...]
    """For each of the user's flattened outputs where it comes from."""
    argument_names: tuple[str, ...]
    """How a user writes each argument that the caller gives: `args[0]`, `kwargs['mask']`."""
    result_names: tuple[str, ...]
    """How a user writes each result: `['logits']`; empty for an output that is not in anything."""

    @property
    def constants(self) -> dict[str, Tensor]:
        """Return parameters, buffers and constant tensors by name: those of the program, not copies."""
        return dict(zip(self.constant_names, self.graph.constants, strict=True))


def import_exported_program(
    program: ExportedProgram, *, name: str = "forward", random: RandomMode = "compiled"
) -> ImportedProgram:
    """Convert an exported program to a module with the one function `name`.

    Operators are decomposed, and random numbers drawn, as for `torch.compile`. Sizes that were exported as dynamic are
    symbols, with the ranges that were given for them. The program is not changed. Raises `Unsupported` for a program
    that the IR cannot hold: one with control flow, with sizes computed from data, or with objects that are not tensors.
    """
    # Decomposed first are the operators that torch itself defines by others, as AOTAutograd does; ours say otherwise.
    lowered = decompose(program, {**composite_decompositions(), **decomposition_table()})
    rewriter = _Rewriter(lowered)
    rewritten = rewriter.run()
    replace_random(rewritten, random)
    graph = import_graph(rewritten, name=name, ranges=dynamic_ranges(lowered))
    inputs, outputs = input_names(program), output_names(program)
    return ImportedProgram(
        graph=graph,
        constant_names=tuple(rewriter.used_state()),
        input_positions=tuple(rewriter.input_positions),
        mutated_arguments=frozenset(rewriter.mutated),
        outputs=tuple(rewriter.outputs),
        argument_names=tuple(inputs[p] for p in rewriter.input_positions),
        result_names=tuple(n for n, o in zip(outputs, rewriter.outputs, strict=True) if isinstance(o, Result)),
    )


class _Rewriter:
    """Turns the graph of an exported program into one of the kind that AOTAutograd gives.

    Parameters and the like become attributes of the graph module, known inputs and outputs disappear, and new values of
    what is mutated, which an exported graph returns first, are copied to where they belong.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.graph = fx.Graph()
        self.state: dict[str, Tensor] = {}
        """Parameters, buffers and constant tensors that the graph reads or writes."""
        self.input_positions: list[int] = []
        self.outputs: list[OutputSource] = []
        self.nodes: dict[fx.Node, Any] = {}
        """What stands for each node of the exported graph: a node of the new one, or a value that is known."""
        self.mutated: list[int] = []
        """The numbers of the inputs that are written to, in the new graph."""
        self.targets: dict[str, fx.Node] = {}
        """By name the inputs and the state that the graph may mutate."""

    def run(self) -> fx.GraphModule:
        """Return the new graph."""
        placeholders = list(self.program.graph.find_nodes(op="placeholder"))
        self.add_inputs(placeholders)
        for node in self.program.graph.nodes:
            if node.op == "placeholder" or node.target in _CHECKS_OF_TRACING:
                continue
            if node.op == "output":
                self.add_outputs(node)
            else:
                self.nodes[node] = self.graph.node_copy(node, self.nodes.__getitem__)
        names = [str(node.target) for node in self.graph.find_nodes(op="get_attr")]
        modules = {name: getattr(self.program.graph_module, name) for name in names if name not in self.state}
        return fx.GraphModule({**self.used_state(), **modules}, self.graph)

    def used_state(self) -> dict[str, Tensor]:
        """Return the state that the graph uses, in its order."""
        return {name: tensor for name, tensor in self.state.items() if self.targets[name].users}

    def add_inputs(self, placeholders: Sequence[fx.Node]) -> None:
        """Replace what the graph takes: first the user's inputs, then what is an attribute from now on."""
        specs = self.program.graph_signature.input_specs
        pairs = list(zip(placeholders, specs, strict=True))
        users = [(node, spec) for node, spec in pairs if spec.kind is InputKind.USER_INPUT]
        for position, (node, spec) in enumerate(users):
            match spec.arg:
                case TensorArgument() | SymIntArgument():
                    self.targets[node.name] = self.nodes[node] = self.graph.node_copy(node)
                    self.input_positions.append(position)
                case ConstantArgument(value=value):
                    self.nodes[node] = value
                case other:
                    raise Unsupported(
                        f"input `{node.name}` is a {type(other).__name__}, expected a tensor or an integer"
                    )
        for node, spec in pairs:
            if spec.kind is InputKind.USER_INPUT:
                continue
            name = spec.target
            if not isinstance(spec.arg, TensorArgument) or name is None:
                raise Unsupported(f"the program holds `{name or node.name}`, a {spec.kind.name}, expected tensors only")
            self.state[name] = self.tensor(name)
            self.targets[name] = self.nodes[node] = self.graph.get_attr(name)

    def tensor(self, name: str) -> Tensor:
        """Return the tensor of a parameter, buffer or constant."""
        holders: Sequence[Mapping[str, Any]] = (self.program.state_dict, self.program.constants)
        found = next((holder[name] for holder in holders if name in holder), None)
        if not isinstance(found, Tensor):
            raise Unsupported(f"the program holds no tensor for `{name}`")
        return found

    def add_outputs(self, node: fx.Node) -> None:
        """Write what is mutated, and return the rest. A value that is written and returned is what was written to."""
        (values,) = node.args
        assert is_list(values)
        written: dict[fx.Node, fx.Node] = {}
        returned: list[Any] = []
        for value, spec in zip(values, self.program.graph_signature.output_specs, strict=True):
            if spec.kind in _MUTATIONS:
                source, target = self.nodes[value], self.targets[str(spec.target)]
                if target.op == "placeholder":
                    self.mutated.append(list(self.graph.find_nodes(op="placeholder")).index(target))
                copy = self.graph.call_function(torch.ops.aten.copy_.default, (target, source))
                copy.meta = {**value.meta, "val": target.meta.get("val", value.meta["val"])}
                written[value] = copy
            elif spec.kind is not OutputKind.USER_OUTPUT:
                raise Unsupported(f"output `{value}` is a {spec.kind.name}, expected outputs of the user and mutations")
            elif isinstance(value, fx.Node) and isinstance(self.nodes[value], fx.Node):
                self.outputs.append(Result(len(returned)))
                returned.append(written.get(value, self.nodes[value]))
            else:
                self.outputs.append(Known(self.nodes[value] if isinstance(value, fx.Node) else value))
        self.graph.output(tuple(returned))
        for name in self.state:
            if not self.targets[name].users:
                self.graph.erase_node(self.targets[name])


_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)

_CHECKS_OF_TRACING: tuple[Callable[..., Any], ...] = (torch.ops.aten._assert_tensor_metadata.default,)
"""Operators that compare a tensor with what tracing knew of it, as its type does."""
