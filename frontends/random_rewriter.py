"""Adds random numbers, and what is computed of them, to an FX graph in the place of a node."""

# FX nodes carry values of any type.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from tilewright.frontends import torch_internals as internals
from tilewright.frontends.random_operators import RANDOM, RANDOM_INTEGERS, STREAMS
from tilewright.frontends.unsupported import Unsupported

aten = torch.ops.aten

Rule: TypeAlias = Callable[..., "fx.Node | Sequence[fx.Node] | None"]
"""`rule(rewriter, **arguments by schema name)` returns what replaces a call; None where it does not cover it."""


class Rewriter:
    """Adds nodes in front of the one that is being replaced, each with its traced value."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._seeds: dict[torch.device, fx.Node] = {}
        self._streams = 0
        self._symbols: dict[Any, tuple[fx.Node, int | None]] | None = None
        self._replaced: fx.Node

    def apply(self, rule: Rule, node: fx.Node) -> None:
        """Replace a node by what its rule makes of it, if anything."""
        self._replaced = node
        try:
            with self._graph.inserting_before(node):
                results = rule(self, **_arguments(node))
        except Unsupported:  # it stays a call of ATen
            results = None
        if results is None:
            return
        if isinstance(results, fx.Node):
            node.replace_all_uses_with(results)
        else:
            for user in list(node.users):
                assert user.target is operator.getitem
                user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
                self._graph.erase_node(user)
        self._graph.erase_node(node)

    def result(self, position: int | None = None) -> torch.Tensor:
        """Return the traced value of what is being replaced, or of one of its results."""
        value: Any = self._replaced.meta["val"]
        return value if position is None else value[position]

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a call."""
        node = self._graph.call_function(target, args, kwargs)
        node.meta = copy.copy(self._replaced.meta)
        node.meta.pop("tensor_meta", None)
        node.meta["val"] = self._trace(target, args, kwargs)
        return node

    def random(self, distribution: str, like: torch.Tensor, dtype: torch.dtype | None = None) -> fx.Node:
        """Add random numbers, in a tensor with the sizes and the order of dims of a traced one."""
        place = self._place(like, STREAMS[distribution])
        return self.call(RANDOM, *place, distribution=distribution, dtype=dtype or like.dtype)

    def integers(self, low: Any, high: Any) -> fx.Node:
        """Add random integers like the result that is being replaced."""
        like = self.result()
        return self.call(RANDOM_INTEGERS, *self._place(like, 1), low=low, high=high, dtype=like.dtype)

    def true_with(self, probability: fx.Node | float, like: torch.Tensor) -> fx.Node:
        """Add bools that are true with a probability, which may be a tensor."""
        if isinstance(probability, fx.Node):
            is_double = probability.meta["val"].dtype == torch.float64
            numbers = self.random("uniform", like, torch.float64 if is_double else torch.float32)
            return self.call(aten.lt.Tensor, numbers, probability)
        return self.call(aten.lt.Scalar, self.random("uniform", like, torch.float32), probability)

    def _place(self, like: torch.Tensor, streams: int) -> tuple[fx.Node, int, list[Any], list[int]]:
        """Return the seed, the first of so many new streams, sizes and order of dims."""
        first = self._streams
        self._streams += streams
        return self._seed(like.device), first, [self._size(s) for s in like.shape], memory_order(like)

    def _seed(self, device: torch.device) -> fx.Node:
        """Return the seed, which is drawn at the start of the graph."""
        found = self._seeds.get(device)
        if found is None:
            first = next(n for n in self._graph.nodes if n.op != "placeholder")
            kwargs: dict[str, Any] = {"dtype": torch.int64, "device": device}
            with self._graph.inserting_before(first):
                found = self._graph.call_function(aten.randint.low, (-(2**63), 2**63 - 1, []), kwargs)
            found.meta = {"val": self._trace(found.target, found.args, kwargs), "partitioner_tag": "is_forward"}
            self._seeds[device] = found
        return found

    def _trace(self, target: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return internals.traced_call(target, args, dict(kwargs), self._replaced.meta["val"])

    def _size(self, size: int | torch.SymInt) -> Any:
        """Return a size as an argument: a number, or the node that has it."""
        if not isinstance(size, torch.SymInt):
            return size
        expr = internals.symint_expr(size)
        return int(expr) if expr.is_Integer else self._expression(expr, size)

    def _expression(self, expr: Any, size: torch.SymInt) -> fx.Node:
        if expr.is_Symbol:
            return self._symbol(expr)
        first, *rest = expr.args
        function = internals.ARITHMETIC.get(expr.func)
        if function is None:
            raise Unsupported(f"size expression `{expr}` has no form in a graph")
        total: Any = self._operand(first, size)
        for argument in rest:
            total = self.call(function, total, self._operand(argument, size))
        return total

    def _symbol(self, symbol: Any) -> fx.Node:
        """Return the argument that is a symbol, or else a node for the size of one."""
        if self._symbols is None:
            self._symbols = _symbols(self._graph)
        if symbol not in self._symbols:
            raise Unsupported(f"size {symbol} is neither an argument nor a size of one")
        node, dim = self._symbols[symbol]
        if dim is None:
            return node
        with self._graph.inserting_after(next(n for n in reversed(self._graph.nodes) if n.op == "placeholder")):
            made = self._graph.call_function(aten.sym_size.int, (node, dim))
        made.meta = {"val": node.meta["val"].shape[dim], "partitioner_tag": "is_forward"}
        self._symbols[symbol] = made, None
        return made

    def _operand(self, expr: Any, size: torch.SymInt) -> Any:
        return int(expr) if expr.is_Integer else self._expression(expr, size)


def memory_order(value: torch.Tensor) -> list[int]:
    """Return the dims of a traced tensor from the outermost in memory to the innermost."""
    dims = range(value.ndim)
    strides = [internals.integer_hint(s) for s in value.stride()]
    sizes = [internals.integer_hint(s) for s in value.shape]
    # Where sizes of one make strides equal, the order of the dims decides.
    return sorted(dims, key=lambda d: (-strides[d], -sizes[d], d))


def _symbols(graph: fx.Graph) -> dict[Any, tuple[fx.Node, int | None]]:
    """Return where the arguments of the forward pass have each symbol: as a number, or as the size of some dim."""
    found: dict[Any, tuple[fx.Node, int | None]] = {}
    # What comes with the backward pass is not there yet.
    given = [n for n in graph.nodes if n.op == "placeholder" and "tangents" not in n.name]
    for node in given:
        value = node.meta["val"]
        if isinstance(value, torch.SymInt):
            found.setdefault(internals.symint_expr(value), (node, None))
    for node in given:
        value = node.meta["val"]
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                found.setdefault(internals.symint_expr(size), (node, dim))
    return found


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call by name, defaults included."""
    target: Any = node.target
    schema = internals.arguments_of(target)
    defaults = {name: value for name, _, value in schema}
    positional = [name for name, by_name, _ in schema if not by_name]
    return defaults | dict(zip(positional, node.args, strict=False)) | node.kwargs
