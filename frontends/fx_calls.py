"""What nodes of a graph that Dynamo captured call, by function or by the name of a method."""

# FX nodes carry values of any type.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Collection
from typing import Any

from torch import Tensor, fx

from tilewright.frontends.torch_internals import is_fake, is_overload


def calls(node: Any, targets: frozenset[Any]) -> bool:
    """Whether a node gives a tensor by one of `targets`: functions, and the names of methods."""
    if not isinstance(node, fx.Node) or node.op not in ("call_function", "call_method"):
        return False
    return node.target in targets and is_traced(node)


def is_traced(node: Any) -> bool:
    """Whether a node gives a plain tensor, whose value in tracing is known."""
    return isinstance(node, fx.Node) and is_fake(node.meta.get("example_value"))


def traced(node: fx.Node) -> Tensor:
    """Return the value that a node, which gives a tensor, had in tracing."""
    value: Tensor = node.meta["example_value"]
    return value


def is_static(value: Tensor) -> bool:
    """Whether no size of a traced value is symbolic."""
    sizes: tuple[Any, ...] = tuple(value.shape)
    return all(isinstance(size, int) for size in sizes)


_WRITING = frozenset({operator.setitem, operator.delitem})


def may_write(node: fx.Node) -> bool:
    """Whether a node may write to a tensor that existed before, or change how others compute."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if "out" in node.kwargs or any(value is True for value in (*node.args, *node.kwargs.values())):
        return True  # the True may be `inplace`
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    if node.op == "call_method":
        return name.endswith("_")
    target: Any = node.target
    if node.op != "call_function" or target in _WRITING:
        return True
    if is_overload(target):
        return target._schema.is_mutable  # pyright: ignore[reportPrivateUsage]
    if getattr(target, "__module__", None) == "_operator":
        return name.startswith("i") and hasattr(operator, name[1:])
    if name == "_log_api_usage_once":  # what making a module calls
        return False
    return name.endswith("_") or name.startswith("_") or not _is_of_torch(target)


def _is_of_torch(function: Any) -> bool:
    module = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
    return module in ("torch", "torch.nn.functional", "torch._C._nn", "torch.functional", "builtins")


class Order:
    """The order of the nodes of a graph, and where in it something may be written."""

    def __init__(self, graph: fx.Graph) -> None:
        self.position: dict[fx.Node, int] = {node: number for number, node in enumerate(graph.nodes)}
        self.writes = [number for node, number in self.position.items() if may_write(node)]

    def may_write(self, first: fx.Node, last: fx.Node, but: Collection[fx.Node]) -> bool:
        """Whether something is written between two nodes, other than by some nodes between them."""
        between = bisect_left(self.writes, self.position[last]) - bisect_right(self.writes, self.position[first])
        return between > sum(may_write(node) for node in but if node is not first)
