"""Import the FX graph that AOTAutograd gives into the `aten` dialect: one `aten.call` for each call of an operator.

What becomes of the rest: arithmetic on sizes disappears, because its users take the expression; a `getitem` is the
result it names; a tensor that is an attribute of the graph module becomes a trailing argument. Whatever the IR lacks,
such as control flow or sizes computed from data, raises `Unsupported` with the operator and the user's line.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NoReturn

import torch
from torch import fx
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    ModuleOp,
    NoneType,
    StringAttr,
    TensorType,
    f64,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue

from tilewright.dialects.aten import CallOp, SizeOp
from tilewright.dialects.aten_schema import Schema, lookup, parse_schema
from tilewright.dialects.call_syntax import MemoryFormatAttr, OperandAttr
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.sym import LayoutAttr, contiguous_strides
from tilewright.dialects.sym_expr import Symbol, integer
from tilewright.frontends.arguments import ArgumentConverter, is_list, is_ssa_value
from tilewright.frontends.locations import Locations, describe
from tilewright.frontends.symbols import SymbolTable
from tilewright.frontends.torch_internals import (
    TOKEN_OPERATORS,
    HigherOrderOperator,
    Overload,
    is_overload,
    schema_text,
    with_effects,
)
from tilewright.frontends.types import TensorTypes
from tilewright.frontends.unsupported import Unsupported


@dataclass(frozen=True)
class ImportedGraph:
    """A graph as IR, and the constant tensors that are its function's last arguments."""

    module: ModuleOp
    constants: tuple[torch.Tensor, ...]


def import_graph(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any] = (),
    *,
    name: str = "forward",
    ranges: Mapping[Any, Any] | None = None,
    free_outputs: Container[int] = (),
) -> ImportedGraph:
    """Convert a functional graph of ATen operators to a module with the one function `name`.

    Every node has its traced value as `meta["val"]`; a placeholder without one takes it from `example_inputs`. The
    function's arguments and results are those of the graph, in its order, but for results that are None. `ranges` has
    the bounds of symbols that are not to be taken from torch's shape environment. `free_outputs` are the positions of
    outputs whose strides the program may choose. An input whose example has other strides than tracing saw comes with
    these, and is copied to those. The graph is not changed. Raises `Unsupported` for a graph that the IR cannot hold.
    """
    return _Importer(graph_module, example_inputs, SymbolTable(ranges), free_outputs).run(name)


def restrided_inputs(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> list[int]:
    """Return the numbers of the inputs that come with other strides than tracing saw."""
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    pairs = zip((node.meta.get("val") for node in placeholders), example_inputs, strict=False)
    return [number for number, pair in enumerate(pairs) if _other_strides(*pair) is not None]


def _other_strides(traced: Any, example: Any) -> list[int] | None:
    """Return the strides of an example, if they are numbers and those that tracing saw are other numbers."""
    if example is traced or not isinstance(traced, torch.Tensor) or not isinstance(example, torch.Tensor):
        return None
    strides: list[Any] = list(example.stride())
    if not all(isinstance(s, int) for s in (*traced.stride(), *strides)) or tuple(strides) == traced.stride():
        return None
    return strides


def count_outputs(graph_module: fx.GraphModule) -> int:
    """Return how many outputs a graph has."""
    outputs: Any = graph_module.graph.output_node().args[0]
    return len(outputs) if is_list(outputs) else 1


@dataclass(frozen=True)
class _Operator:
    """What the importer needs of an overload, worked out once per graph."""

    name: StringAttr
    schema: Schema
    written: tuple[str, ...]
    """The arguments that the operator writes to."""
    aliased: tuple[tuple[str, ...], ...]
    """For each return the arguments whose memory it shares."""

    @staticmethod
    def of(target: Overload) -> _Operator:
        schema = lookup(str(target)) or parse_schema(schema_text(target))
        aliased: list[tuple[str, ...]] = []
        for result in schema.returns:
            sets = set[str]() if result.alias is None else set(result.alias.before)
            aliased.append(tuple(a.name for a in schema.arguments if a.alias and not sets.isdisjoint(a.alias.before)))
        written = tuple(a.name for a in schema.arguments if a.is_write)
        return _Operator(StringAttr(str(target)), schema, written, tuple(aliased))


class _Importer:
    """The state of one import; `run` reads from top to bottom what happens to a graph."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        example_inputs: Sequence[Any],
        symbols: SymbolTable,
        free_outputs: Container[int],
    ) -> None:
        self.graph_module = graph_module
        self.example_inputs = example_inputs
        self.free_outputs = free_outputs
        self.symbols = symbols
        self.types = TensorTypes(self.symbols)
        self.locations = Locations()
        self.values: dict[fx.Node, Any] = {}
        """What each node stands for; see `arguments.Environment`."""
        self.arguments = ArgumentConverter(self.symbols, self.values)
        self.operators: dict[Overload, _Operator] = {}
        self.argument_types: list[Attribute] = []
        self.argument_numbers: dict[fx.Node, int] = {}
        self.constants: dict[str, tuple[int, torch.Tensor]] = {}
        """By name the number of the argument that stands for a constant, and the constant."""
        self.symbol_args: dict[Symbol, int] = {}
        self.ops: list[Operation] = []
        self.mutated: set[int] = set()
        self.roots: dict[SSAValue, int] = {}
        """For arguments and views of them the number of the argument whose memory it is."""
        self.none_outputs: list[int] = []
        self.free_results: list[int] = []
        self.restrided: dict[fx.Node, Attribute] = {}
        """Arguments that come with other strides than tracing saw, and their traced types."""

    def run(self, name: str) -> ImportedGraph:
        self.visit({"placeholder": self.add_argument})
        self.visit({"get_attr": self.add_constant})
        block = self.make_block()
        refused = {"call_method": _refuse, "call_module": _refuse}
        self.visit({"call_function": self.add_call, "output": self.add_return, **refused})
        block.add_ops(self.ops)
        self.check_symbols_are_bound()
        results = [value.type for value in self.ops[-1].operands]
        function = FuncOp(name, (self.argument_types, results), Region(block))
        function.attributes |= self.function_attributes()
        return ImportedGraph(ModuleOp([function]), tuple(tensor for _, tensor in self.constants.values()))

    def visit(self, handlers: Mapping[str, Callable[[fx.Node], None]]) -> None:
        """Call the handler of each node that has one, and say where in the user's program it failed if it does."""
        for node in self.graph_module.graph.nodes:
            handler = handlers.get(node.op)
            if handler is None:
                continue
            try:
                handler(node)
            except Unsupported as error:
                target = node.target
                name = str(target) if is_overload(target) or isinstance(target, HigherOrderOperator) else None
                raise error.at(name, describe(self.locations.get(node))) from None

    def add_argument(self, node: fx.Node) -> None:
        number = len(self.argument_types)
        traced = node.meta["val"] if "val" in node.meta else self.example_inputs[number]
        if isinstance(traced, torch.Tensor):
            self.argument_numbers[node] = number
            self.argument_types.append(self.argument_type(node, traced, number))
        elif isinstance(traced, (int, torch.SymInt)) and not isinstance(traced, bool):
            self.values[node] = traced
            self.argument_types.append(i64)
            expr = self.symbols.expr(traced)
            if isinstance(expr, Symbol):
                self.symbol_args.setdefault(expr, number)
        else:
            raise Unsupported(f"argument {number} is a {type(traced).__name__}, expected a tensor or an integer")

    def argument_type(self, node: fx.Node, traced: torch.Tensor, number: int) -> Attribute:
        """Return the type that an argument comes with, which may have other strides than the traced one."""
        kind = self.types.get(traced)
        example = self.example_inputs[number] if number < len(self.example_inputs) else traced
        strides = _other_strides(traced, example)
        if strides is None:
            return kind
        layout = layout_of(kind)
        self.restrided[node] = kind
        given = LayoutAttr.get(layout.sizes, map(integer, strides), layout.offset, layout.device)
        return TensorType(kind.element_type, kind.shape, given)

    def add_constant(self, node: fx.Node) -> None:
        assert isinstance(node.target, str)
        constant: Any = reduce(getattr, node.target.split("."), self.graph_module)
        if not isinstance(constant, torch.Tensor):
            self.values[node] = constant  # refused where it is used, which can say by what
            return
        if node.target not in self.constants:
            self.constants[node.target] = len(self.argument_types), constant
            self.argument_types.append(self.types.get(constant))
        self.argument_numbers[node] = self.constants[node.target][0]

    def make_block(self) -> Block:
        block = Block(arg_types=self.argument_types)
        for number, argument in enumerate(block.args):
            argument.name_hint = f"arg{number}"
            self.roots[argument] = number
        self.values.update((node, block.args[number]) for node, number in self.argument_numbers.items())
        for node, kind in self.restrided.items():
            self.values[node] = self.restride(block.args[self.argument_numbers[node]], kind)
        return block

    def restride(self, argument: BlockArgument, kind: Attribute) -> SSAValue:
        """Add a copy of an argument with the strides that tracing saw."""
        arguments: dict[str, Attribute] = {"self": OperandAttr(0)}
        if layout_of(kind).strides == contiguous_strides(layout_of(kind).sizes):
            arguments["memory_format"] = MemoryFormatAttr("contiguous_format")
        copy = CallOp.get("aten.clone.default", arguments, [argument], [kind])
        self.ops.append(copy)
        return copy.results[0]

    def add_call(self, node: fx.Node) -> None:
        target = node.target
        traced = node.meta.get("val")
        if target in TOKEN_OPERATORS:
            self.values[node] = None
            return
        if target is with_effects:
            self.values[node] = self.call_with_effects(node, traced)
            return
        if isinstance(target, HigherOrderOperator):
            raise Unsupported("a higher-order operator, expected an operator on tensors")
        if node.meta.get("unbacked_bindings"):
            raise Unsupported("its result has a size or a value that depends on data")
        if isinstance(traced, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.values[node] = traced
        elif target is operator.getitem:
            values, position = node.args
            assert isinstance(values, fx.Node)
            self.values[node] = self.values[values][position]
        elif is_overload(target):
            self.values[node] = self.call_operator(node, target, node.args, node.kwargs, traced)
        else:
            raise Unsupported(f"call of `{target}`, expected an operator")

    def call_with_effects(self, node: fx.Node, traced: Any) -> tuple[Any, ...]:
        """Add the call of an operator that has an effect; return its token, which is nothing, and its results.

        Tokens order such calls in the graph. Operations have an order.
        """
        _, target, *arguments = node.args
        if not is_overload(target):
            raise Unsupported(f"it calls `{target}`, expected an operator on tensors")
        returns = len(parse_schema(schema_text(target)).returns)
        if returns > 1:
            return (None, *self.call_operator(node, target, arguments, node.kwargs, traced[1:]))
        return (None, self.call_operator(node, target, arguments, node.kwargs, traced[1]))

    def call_operator(
        self, node: fx.Node, target: Overload, args: Sequence[Any], kwargs: Mapping[str, Any], traced: Any
    ) -> Any:
        """Add an `aten.call` and return what it stands for: `traced` with the tensors replaced by results."""
        overload = self.operators.get(target)
        if overload is None:
            overload = self.operators[target] = _Operator.of(target)
        if traced is None and overload.schema.returns:
            raise Unsupported("the graph does not hold its traced value")
        arguments, operands = self.arguments.convert(overload.schema, args, kwargs)
        for name in overload.written:
            self.check_write(target, name, _operands_of(arguments.get(name), operands))
        kinds: list[Attribute] = []
        self.add_result_types(traced, kinds)
        call = CallOp.create(
            operands=operands,
            result_types=kinds,
            properties={"op": overload.name, "arguments": DictionaryAttr(arguments)},
            location=self.locations.get(node),
        )
        for result in call.results:
            result.name_hint = node.name
        self.ops.append(call)
        self.note_aliases(overload, arguments, call)
        return None if traced is None else _replace_tensors(traced, iter(call.results))

    def check_write(self, target: Overload, name: str, written: Sequence[SSAValue]) -> None:
        for value in written:
            if target is not torch.ops.aten.copy_.default or not isinstance(value, BlockArgument):
                raise Unsupported(f"it writes to `{name}`, where only a copy_ to an argument may")
            self.mutated.add(value.index)

    def add_result_types(self, traced: Any, kinds: list[Attribute]) -> None:
        """Append the types of the results whose traced value is `traced`, lists of tensors one by one."""
        match traced:
            case torch.Tensor():
                kinds.append(self.types.get(traced))
            case _ if is_list(traced):
                for item in traced:
                    kinds.append(NoneType()) if item is None else self.add_result_types(item, kinds)
            case int() | torch.SymInt():
                kinds.append(i64)
            case float():
                kinds.append(f64)
            case None:
                pass
            case _:
                raise Unsupported(f"it returns a {type(traced).__name__}, expected tensors and numbers")

    def note_aliases(self, overload: _Operator, arguments: Mapping[str, Attribute], call: CallOp) -> None:
        for position, names in enumerate(overload.aliased):
            sources = [v for name in names for v in _operands_of(arguments.get(name), call.operands) if v in self.roots]
            if sources:
                # A return that is a list is always the only one.
                results = call.results if len(overload.aliased) == 1 else call.results[position : position + 1]
                self.roots.update((result, self.roots[sources[0]]) for result in results)

    def add_return(self, node: fx.Node) -> None:
        outputs: Any = node.args[0]
        returned: list[SSAValue] = []
        for position, output in enumerate(outputs if is_list(outputs) else (outputs,)):
            value = self.values[output] if isinstance(output, fx.Node) else output
            if is_ssa_value(value):
                if position in self.free_outputs:
                    self.free_results.append(len(returned))
                returned.append(value)
            elif value is None:
                self.none_outputs.append(position)
            elif isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
                size = SizeOp.get(self.symbols.expr(value))
                self.ops.append(size)
                returned.append(size.result)
            else:
                raise Unsupported(f"output {position} is a {type(value).__name__}, expected a tensor or an integer")
        self.ops.append(ReturnOp(*returned))

    def check_symbols_are_bound(self) -> None:
        """Check that each symbol is an argument, or a size or stride of one: that is where a call reads it."""
        bound = set(self.symbol_args)
        for kind in self.argument_types:
            if kind != i64:
                layout = layout_of(kind)
                bound.update(expr for expr in (*layout.sizes, *layout.strides) if isinstance(expr, Symbol))
        for symbol in self.symbols.facts:
            if symbol not in bound:
                raise Unsupported(f"size {symbol} is neither an argument nor, alone, a size or stride of one")

    def function_attributes(self) -> dict[str, Attribute]:
        """Return the attributes that `dialects/aten.py` lists, as far as there is something to say."""
        aliases = [self.roots.get(value, -1) for value in self.ops[-1].operands]
        attributes: dict[str, Attribute] = {}
        if self.symbols.facts:
            attributes["aten.symbols"] = DictionaryAttr({str(s): fact for s, fact in self.symbols.facts.items()})
        if self.symbol_args:
            numbers = {str(s): IntegerAttr(number, i64) for s, number in self.symbol_args.items()}
            attributes["aten.symbol_args"] = DictionaryAttr(numbers)
        if self.mutated:
            attributes["aten.mutates"] = _numbers(sorted(self.mutated))
        if any(alias >= 0 for alias in aliases):
            attributes["aten.output_alias"] = _numbers(aliases)
        if self.free_results:
            attributes["aten.free_results"] = _numbers(self.free_results)
        if self.constants:
            attributes["aten.constants"] = ArrayAttr([StringAttr(name) for name in self.constants])
        if self.none_outputs:
            attributes["aten.none_outputs"] = _numbers(self.none_outputs)
        return attributes


def _refuse(node: fx.Node) -> NoReturn:
    raise Unsupported(f"node `{node.op}` of {node.target}, expected a call of an operator")


def _operands_of(argument: Attribute | None, operands: Sequence[SSAValue]) -> list[SSAValue]:
    """Return the operands that an argument names: one, or those of a list."""
    match argument:
        case OperandAttr():
            return [operands[argument.data]]
        case ArrayAttr():
            return [operands[item.data] for item in argument if isinstance(item, OperandAttr)]
        case _:
            return []


def _replace_tensors(traced: Any, results: Iterator[SSAValue]) -> Any:
    """Return `traced` with each tensor replaced by the result it became. Sizes stay: users take their expressions."""
    if is_list(traced):
        return tuple(_replace_tensors(item, results) for item in traced)
    result = next(results)
    return result if isinstance(traced, torch.Tensor) else traced


def _numbers(numbers: Sequence[int]) -> ArrayAttr[IntegerAttr]:
    return ArrayAttr([IntegerAttr(number, i64) for number in numbers])
