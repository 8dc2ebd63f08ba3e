"""Operators that run with a given state of the random generator, as calls that get and set it around the operator.

Activation checkpointing makes them where a random operator of the forward pass is computed again in the backward pass.
They are those that `random_numbers.py` leaves calls of ATen.
"""

# FX nodes carry values of any type.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tilewright.frontends.random_operators import RNG_STATE, SET_RNG_STATE
from tilewright.frontends.torch_internals import run_and_save_rng_state, run_with_rng_state, traced_call


def expand_rng_states(graph_module: fx.GraphModule) -> None:
    """Replace the higher-order operators in a graph by calls in program order, in place."""
    graph = graph_module.graph
    nodes = [n for n in graph.nodes if n.target in (run_and_save_rng_state, run_with_rng_state)]
    for node in nodes:
        with graph.inserting_before(node):
            if node.target is run_and_save_rng_state:
                _run_and_save(graph, node)
            else:
                _run_with(graph, node)
        graph.erase_node(node)
    if nodes:
        graph_module.recompile()


def _run_and_save(graph: fx.Graph, node: fx.Node) -> None:
    target, *args = node.args
    states = [u for u in node.users if u.args[1] == 0]
    results = [u for u in node.users if u.args[1] == 1]
    assert len(states) + len(results) == len(node.users)
    like = next(iter(node.users)).meta["val"]
    state = _get_state(graph, like, _generator_device(node, results))
    result = _call(graph, target, args, node.kwargs, state)
    for users, replacement in ((states, state), (results, result)):
        for user in users:
            assert user.target is operator.getitem
            user.replace_all_uses_with(replacement)
            graph.erase_node(user)


def _run_with(graph: fx.Graph, node: fx.Node) -> None:
    state, target, *args = node.args
    assert isinstance(state, fx.Node)
    device = _generator_device(node, [node])
    before = _get_state(graph, state.meta["val"], device)
    state.meta["val"] = before.meta["val"]
    _set_state(graph, state, device)
    node.replace_all_uses_with(_call(graph, target, args, node.kwargs, state))
    _set_state(graph, before, device)


def _generator_device(node: fx.Node, results: Sequence[fx.Node]) -> dict[str, Any]:
    """Return the device whose generator an operator moves, as a keyword argument; nothing for the CPU."""
    tensors = [a for a in (*node.all_input_nodes, *results) if isinstance(a.meta.get("val"), torch.Tensor)]
    devices = (a.meta["val"].device for a in tensors)
    return next(({"device": d} for d in devices if d.type == "cuda"), {})


def _get_state(graph: fx.Graph, like: Any, device: dict[str, Any]) -> fx.Node:
    """Add what reads the state. Its size is a constant; the partitioner's traced values have a symbol there."""
    node = graph.call_function(RNG_STATE, (), device)
    node.meta["val"] = traced_call(RNG_STATE, (), device, like)
    return node


def _set_state(graph: fx.Graph, state: fx.Node, device: dict[str, Any]) -> None:
    graph.call_function(SET_RNG_STATE, (state,), device).meta["val"] = None


def _call(graph: fx.Graph, target: Any, args: list[Any], kwargs: dict[str, Any], like: fx.Node) -> fx.Node:
    """Add a call, with the value that it has in tracing."""
    node = graph.call_function(target, tuple(args), dict(kwargs))
    node.meta["val"] = traced_call(target, node.args, node.kwargs, like.meta["val"])
    return node
