"""How the tests of the lowering compare the loops that a program becomes with eager."""

# torch's own annotations are incomplete, and the tracer is not public.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any, TypeAlias, TypeVarTuple

import pytest
import torch
from tests import adapter
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from tilewright.backends.reference.interpreter import run_function
from tilewright.dialects.aten import CallOp
from tilewright.dialects.verifier import verify_module
from tilewright.frontends.fx import ImportedGraph, import_graph
from tilewright.passes.convert_aten_to_loop import ConvertAtenToLoopPass
from tilewright.passes.retarget import RetargetPass

Unary: TypeAlias = Callable[[Tensor], Any]
Binary: TypeAlias = Callable[[Tensor, Tensor], Any]
Ts = TypeVarTuple("Ts")
"""The arguments of a program, which are tensors: so a checker knows those of a lambda."""

aten: Any = torch.ops.aten
prims: Any = torch.ops.prims

HALVES = (torch.bfloat16, torch.float16)
FLOATS = (*HALVES, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (torch.bool, *INTEGERS, *FLOATS)


def lowered(
    program: Callable[[*Ts], Any], *args: *Ts, dynamic: bool = False, keep: tuple[str, ...] = ()
) -> ImportedGraph:
    """Trace `program`, lower it, and verify the outcome. With `dynamic` all sizes above one are symbolic."""

    untyped: Any = program

    def traced(*args: Any) -> Any:  # the tracer asks for a function, and an operator is none
        return untyped(*args)

    return _lower(make_fx(traced, tracing_mode="symbolic" if dynamic else "fake")(*args), keep)


def lowered_call(operator: Any, *args: Any, **kwargs: Any) -> ImportedGraph:
    """Lower one call of an operator, though tracing would decompose it. Tensors become the function's arguments."""
    graph = fx.Graph()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = tree_map_only(Tensor, mode.from_tensor, (args, kwargs))
        traced: Any = operator(*fakes[0], **fakes[1])

    def placeholder(tensor: Tensor) -> fx.Node:
        node = graph.placeholder(f"x{len(graph.nodes)}")
        node.meta["val"] = mode.from_tensor(tensor)
        return node

    given, named = tree_map_only(Tensor, placeholder, (args, kwargs))
    node = graph.call_function(operator, given, named)
    node.meta["val"] = traced
    several = not isinstance(traced, Tensor)
    parts = [graph.call_function(getitem, (node, i)) for i in range(len(traced))] if several else [node]
    graph.output(tuple(parts))
    return _lower(fx.GraphModule(torch.nn.Module(), graph), ())


def _lower(graph_module: fx.GraphModule, keep: tuple[str, ...]) -> ImportedGraph:
    graph = import_graph(graph_module)
    verify_for_cuda(graph.module, keep)
    ConvertAtenToLoopPass(keep).apply(Context(), graph.module)
    verify_module(graph.module)
    return graph


def verify_for_cuda(module: ModuleOp, keep: tuple[str, ...]) -> None:
    """Raise `VerifyException` unless what a program is lowered to for CUDA, which rounds elsewhere, is well formed."""
    there = module.clone()
    RetargetPass("cuda:0").apply(Context(), there)
    ConvertAtenToLoopPass(keep).apply(Context(), there)
    verify_module(there)


def calls(module: ModuleOp) -> list[str]:
    """Return the operators that are still called."""
    return [op.operator for op in module.walk() if isinstance(op, CallOp)]


def outputs(
    program: Callable[[*Ts], Any],
    *args: *Ts,
    dynamic: bool = False,
    on_device: Callable[[*Ts], Any] | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Run a program as loops and in eager; return the pairs of results. Asserts that no call is left.

    With `--device` the program is compiled, and both run on the device; there eager computes `on_device`, if given:
    for what its kernel for the device does in another way than that for the CPU.
    """
    inputs: Any = args
    if adapter.device is not None:
        return _device_pairs(program, inputs, dynamic, on_device)
    return _pairs(lowered(program, *args, dynamic=dynamic), inputs, program(*args))


def call_outputs(operator: Any, *args: Any, **kwargs: Any) -> list[tuple[Tensor, Tensor]]:
    """Run one call of an operator as loops and in eager; return the pairs of results."""
    if adapter.device is not None:
        return _device_call_pairs(operator, args, kwargs)
    tensors = [a for a in tree_leaves((args, kwargs)) if isinstance(a, Tensor)]
    return _pairs(lowered_call(operator, *args, **kwargs), tensors, operator(*args, **kwargs))


def _pairs(graph: ImportedGraph, inputs: Sequence[Tensor], expected: Any) -> list[tuple[Tensor, Tensor]]:
    assert calls(graph.module) == []
    results: list[Any] = [*run_function(graph.module, [*(t.clone() for t in inputs), *graph.constants])]
    for position in _none_outputs(graph.module):
        results.insert(position, None)
    tensors: Sequence[Any] = [expected] if isinstance(expected, Tensor) else expected
    pairs: list[tuple[Tensor, Tensor]] = []
    for result, tensor in zip(results, tensors, strict=True):
        # A gradient that is masked out is None in eager, though not always in the trace.
        if tensor is not None:
            assert isinstance(result, Tensor)
            pairs.append((result, tensor))
    return pairs


def _device_pairs(
    program: Callable[..., Any], args: Sequence[Any], dynamic: bool, eager: Callable[..., Any] | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Compile what a program does to some tensors, as one graph, and run it on the device of the tests; so eager."""
    given = [a.to(adapter.device) for a in args]
    try:
        expected = (eager or program)(*given)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"not in eager on this device: {error}")

    def traced(*args: Any) -> Any:
        return program(*args)

    graph = make_fx(traced, tracing_mode="symbolic" if dynamic else "fake")(*given)
    torch.compiler.reset()
    found = adapter.compiled(graph, dynamic=dynamic)(*(t.clone() for t in given))
    return [(a, b) for a, b in zip(tree_leaves(found), tree_leaves(expected), strict=True) if b is not None]


def _device_call_pairs(operator: Any, args: Any, kwargs: Any) -> list[tuple[Tensor, Tensor]]:
    """Compile one call of an operator for the device of the tests; the tensors are the arguments."""
    leaves, spec = tree_flatten((args, kwargs))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def program(*tensors: Tensor) -> Any:
        values = [*leaves]
        for place, tensor in zip(places, tensors, strict=True):
            values[place] = tensor
        given, named = tree_unflatten(values, spec)
        return operator(*given, **named)

    return _device_pairs(program, [leaves[n] for n in places], dynamic=False)


def _none_outputs(module: ModuleOp) -> list[int]:
    found: Any = next(iter(module.ops)).attributes.get("aten.none_outputs")
    return [] if found is None else [position.value.data for position in found]


def assert_close(pairs: list[tuple[Tensor, Tensor]], rtol: float | None = None, atol: float | None = None) -> None:
    """Assert that results are as expected: the dtypes and strides, too."""
    for result, expected in pairs:
        strides = expected.numel() > 0
        torch.testing.assert_close(result, expected, rtol=rtol, atol=atol, equal_nan=True, check_stride=strides)


def check(
    program: Callable[[*Ts], Any],
    *args: *Ts,
    dynamic: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
    on_device: Callable[[*Ts], Any] | None = None,
) -> None:
    """Assert that a program computes as loops what it does in eager, in the same dtypes and strides."""
    assert_close(outputs(program, *args, dynamic=dynamic, on_device=on_device), rtol=rtol, atol=atol)


def check_exactly(
    program: Callable[[*Ts], Any],
    *args: *Ts,
    dynamic: bool = False,
    on_device: Callable[[*Ts], Any] | None = None,
) -> None:
    """Assert that a program computes as loops the very values that it does in eager; on a device, nearly."""
    exact = 0 if adapter.device is None else None
    check(program, *args, dynamic=dynamic, rtol=exact, atol=exact, on_device=on_device)


def sample(dtype: torch.dtype, *shape: int, scale: float = 4.0) -> Tensor:
    """Return random elements of any dtype, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(shape, generator=generator) * scale
    if dtype is torch.bool:
        return values > 0
    return (values.abs() if dtype is torch.uint8 else values).to(dtype)
