"""From a graph that Dynamo captured to functional graphs of ATen operators, forward and backward, by AOTAutograd."""

# AOTAutograd is private to torch and its types differ from release to release.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import fx

from tilewright.frontends.attention import fuse_attention
from tilewright.frontends.decompositions import decomposition_table
from tilewright.frontends.overlaps import guarded, writes_to_inputs
from tilewright.frontends.random_numbers import RandomMode, replace_random
from tilewright.frontends.rng_states import expand_rng_states
from tilewright.frontends.torch_internals import keep_saved_tensors
from tilewright.frontends.unused_arguments import drop_unused_arguments

GraphFunction: TypeAlias = Callable[[list[Any]], Sequence[Any]]
"""A compiled graph: takes its inputs in a list, which it may empty, and returns its outputs."""

GraphCompiler: TypeAlias = Callable[[fx.GraphModule, Sequence[Any], str], GraphFunction]
"""Compiles one functional graph; the last argument says which: `inference`, `forward` or `backward`."""


def trace_and_compile(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    compiler: GraphCompiler,
    random: RandomMode = "compiled",
) -> Callable[..., Any]:
    """Return a function with the meaning of `graph_module`, differentiable where its inputs are.

    `compiler` is called for each functional graph, for a backward graph perhaps not before the first backward pass.
    `random` says whose random numbers they have (`frontends/random_numbers.py`).
    """
    from torch._dynamo import disable
    from torch._dynamo.utils import GmWrapper
    from torch._functorch import config
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    fuse_attention(graph_module)
    writes = False

    def boxed(kind: str) -> Callable[..., Any]:
        def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            nonlocal writes
            writes = writes or (kind != "backward" and writes_to_inputs())
            if kind == "inference":
                replace_random(graph, random)
            expand_rng_states(graph)
            if kind == "forward":
                keep_saved_tensors()
            return _mark_boxed(compiler(graph, inputs, kind))

        # A backward graph is compiled, and run, by autograd: where Dynamo traces all Python code that it meets.
        return _untraced(compile_graph) if kind == "backward" else compile_graph

    def partition(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        replace_random(joint, random)
        drop_unused_arguments(joint)
        return min_cut_rematerialization_partition(joint, *args, **kwargs)

    # Tokens that order effects are made in the graph: as inputs they are tensors in tracing and None in calls.
    # The states of CUDA's generators are tensors, as the CPU's are: generators cannot be inputs.
    with config.patch(unlift_effect_tokens=True, graphsafe_rng_functionalization=False):
        compiled = aot_module_simplified(
            graph_module,
            list(example_inputs),
            fw_compiler=boxed("forward"),
            bw_compiler=boxed("backward"),
            inference_compiler=boxed("inference"),
            partition_fn=partition,
            decompositions=dict(decomposition_table()),
            keep_inference_input_mutations=True,
        )
    # A wrapper of the graph takes its inputs in a list.
    if writes and not isinstance(graph_module, GmWrapper):
        compiled = guarded(compiled, graph_module.forward)
    return disable(compiled, reason="tilewright has compiled it")


def _untraced(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    """Keep Dynamo out of a compiler and of what it makes."""
    from torch._dynamo import disable

    compiler = disable(compile_graph, reason="tilewright compiles a backward graph")

    def compile_untraced(*args: Any) -> Callable[..., Any]:
        return _mark_boxed(disable(compiler(*args), reason="tilewright has compiled it"))

    return compile_untraced


def _mark_boxed(function: GraphFunction) -> Callable[..., Any]:
    """Mark a function of a list, so that AOTAutograd hands its inputs over and keeps none alive.

    A partial takes the attribute and, unlike a function of ours, adds no frame to a call.
    """
    marked = functools.partial(function)
    marked._boxed_call = True
    return marked
