"""The `torch.compile` backend: `torch.compile(model, backend="tilewright")`.

Dynamo calls `backend` for each graph it captures. AOTAutograd turns the graph into functional graphs of ATen operators,
forward and perhaps backward; each is imported as `aten` IR, compiled, and called with its inputs in a list.
"""

from __future__ import annotations

import itertools
import logging
import os
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx
from xdsl.dialects.builtin import IntegerAttr, ModuleOp

from tilewright import stats
from tilewright.dialects.type_guards import is_array
from tilewright.frontends.aot import GraphFunction, trace_and_compile
from tilewright.frontends.fx import count_outputs, import_graph, restrided_inputs
from tilewright.frontends.torch_internals import convolutions_may_round, report_strides, saved_outputs
from tilewright.tools.compile import StageTimes, compile_module, record_stats, result_strides
from tilewright.tools.options import Options, parse_options
from tilewright.tools.universe import make_context

log = logging.getLogger("tilewright")

_graph_numbers = itertools.count()


class CompileFailure(RuntimeError):
    """A graph could not be compiled; raised with the option `strict`, a warning without it."""


def backend(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured. Raises `ValueError` or `TypeError` for options that do not exist."""
    chosen = parse_options(options, mode)
    if torch.are_deterministic_algorithms_enabled():
        chosen = replace(chosen, deterministic=True)
    chosen = replace(chosen, tf32=convolutions_may_round())
    number = next(_graph_numbers)

    def compiler(graph: fx.GraphModule, inputs: Sequence[Any], kind: str) -> GraphFunction:
        return _compile(graph, inputs, chosen, f"graph{number}-{kind}", is_forward=kind == "forward")

    return trace_and_compile(graph_module, example_inputs, compiler, chosen.random)


def _compile(
    graph: fx.GraphModule, inputs: Sequence[Any], options: Options, name: str, *, is_forward: bool
) -> GraphFunction:
    """Compile one graph of ATen operators, or leave it to eager where that fails and the options allow it."""
    try:
        return _compile_graph(graph, inputs, options, name, is_forward=is_forward)
    except Exception as error:  # whatever went wrong, the user's program can still run
        where = f" (stages in {options.dump / name})" if options.dump is not None else ""
        message = f"tilewright cannot compile {name}{where}: {describe_error(error)}"
        if options.strict:
            raise CompileFailure(message) from error
        warnings.warn(f"{message}; running it in eager mode", stacklevel=2)
        log.debug("%s is left to eager", name, exc_info=True)
        stats.record_fallback()
        return _eager(graph, restrided_inputs(graph, inputs))


def describe_error(error: BaseException) -> str:
    """Return type and message of an error, and where in tilewright it was raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f"{os.sep}tilewright{os.sep}" in f.filename]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _compile_graph(
    graph: fx.GraphModule, inputs: Sequence[Any], options: Options, name: str, *, is_forward: bool
) -> GraphFunction:
    times = StageTimes()
    with times.measure("import"):
        saved = saved_outputs(count_outputs(graph)) if is_forward else ()
        imported = import_graph(graph, inputs, free_outputs=saved)
    missing = none_outputs(imported.module)
    dump: Path | None = None if options.dump is None else options.dump / name
    ctx = make_context()
    compiled = compile_module(imported.module, ctx, options, imported.constants, dump=dump, times=times)
    record_stats(compiled)
    if is_forward:
        report_strides(with_nones(result_strides(compiled.module), missing))
    return with_none_outputs(compiled.program.run_boxed, missing)


def none_outputs(module: ModuleOp) -> list[int]:
    """Return the positions of the outputs that are None and that the program does not have."""
    for op in module.ops:
        positions = op.attributes.get("aten.none_outputs")
        if positions is not None and is_array(positions):
            return [p.value.data for p in positions.data if isinstance(p, IntegerAttr)]
    return []


def with_none_outputs(run: GraphFunction, positions: Sequence[int]) -> GraphFunction:
    """Return `run` with None inserted into its outputs at `positions`, which ascend."""
    if not positions:
        return run

    def call(inputs: list[Any]) -> Sequence[Any]:
        return with_nones(run(inputs), positions)

    return call


def with_nones(outputs: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """Return `outputs` with None inserted at `positions`, which ascend."""
    result = list(outputs)
    for position in positions:
        result.insert(position, None)
    return result


def _eager(graph: fx.GraphModule, restrided: Sequence[int]) -> GraphFunction:
    """Return the graph as a function of a list, which it empties; inputs that are `restrided` are made contiguous."""

    def call(inputs: list[Any]) -> Sequence[Any]:
        for number in restrided:
            inputs[number] = inputs[number].contiguous()
        arguments = tuple(inputs)
        inputs.clear()
        return graph(*arguments)

    return call
