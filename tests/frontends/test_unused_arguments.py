"""What is saved for a backward pass is read there."""

# torch.compile and FX nodes have partial types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from tilewright.frontends.aot import GraphFunction, trace_and_compile


def test_running_statistics_are_not_saved() -> None:
    graphs: dict[str, fx.GraphModule] = {}

    def keep(graph: fx.GraphModule, inputs: Sequence[Any], kind: str) -> GraphFunction:
        graphs[kind] = graph
        return lambda arguments: graph(*arguments)

    def trace(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return trace_and_compile(graph, inputs, keep)

    norm = nn.BatchNorm2d(3)
    compiled = torch.compile(norm, backend=trace)
    x, again = (torch.randn(2, 3, 4, 4) for _ in range(2))
    mine, theirs = (x.clone().requires_grad_() for _ in range(2))
    eager = nn.BatchNorm2d(3)
    compiled(mine).mul(again).sum().backward()
    eager(theirs).mul(again).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(norm.running_var, eager.running_var)
    backward = graphs["backward"].graph
    assert all(node.users for node in backward.find_nodes(op="placeholder"))
    (call,) = backward.find_nodes(op="call_function", target=torch.ops.aten.native_batch_norm_backward.default)
    assert call.args[3:5] == (None, None)
