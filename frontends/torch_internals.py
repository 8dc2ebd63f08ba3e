"""What the frontends use of torch beyond its documented interface: an upgrade of torch is checked here."""

# These parts of torch are private and carry few types; what is passed on from here has them.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import contextlib
import importlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import sympy
import torch
from torch import fx
from torch._decomp import global_decomposition_table
from torch._export.utils import _collect_all_valid_cia_ops, _get_decomp_for_cia
from torch._guards import TracingContext, detect_fake_mode
from torch._higher_order_ops.effects import with_effects
from torch._ops import HigherOrderOperator, OpOverload
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._prims_common import compute_elementwise_output_logical_to_physical_perm, suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._sympy import functions as torch_functions
from torch.utils._sympy.symbol import SymT, symbol_is_type

__all__ = [
    "HigherOrderOperator",
    "Overload",
    "ShapeEnv",
    "run_and_save_rng_state",
    "run_with_rng_state",
    "torch_functions",
    "with_effects",
]

TOKEN_OPERATORS: frozenset[object] = frozenset(
    (torch.ops.prims._make_token.default, torch.ops.prims._sink_tokens.default)
)
"""What makes the first token that `with_effects` takes and consumes the last."""

if TYPE_CHECKING:
    Overload: TypeAlias = OpOverload[..., Any]
else:
    Overload = OpOverload

Decomposition: TypeAlias = Callable[..., Any]
"""Computes what an operator computes, with its signature, by calling other operators."""


def operator_schemas() -> Iterator[tuple[str, bool]]:
    """Yield the schema of each operator that the dispatcher has, and whether it draws random numbers.

    Operators that only TorchScript knows (`aten::append.t`) are left out: no graph holds them.
    """
    # Importing these registers operators, such as `prims::fma`, that they put into graphs.
    importlib.import_module("torch._dynamo")
    importlib.import_module("torch._functorch.aot_autograd")
    importlib.import_module("tilewright.frontends.random_operators")
    dispatched = set(torch._C._dispatch_get_all_op_names())
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        if name in dispatched:
            overload = find_overload(f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}")
            assert overload is not None
            yield str(schema), torch.Tag.nondeterministic_seeded in overload.tags


def keep_saved_tensors() -> None:
    """Tell AOTAutograd, which has just split a graph, that the backward pass overwrites nothing that was saved for it.

    Else it lets nobody run that pass again, as `retain_graph=True` asks for.
    """
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def saved_outputs(count: int) -> range:
    """Return which of its `count` outputs the forward graph that is being compiled saves for the backward graph.

    There are none where nobody takes their strides from `report_strides`.
    """
    context = TracingContext.try_get()
    if context is None or context.output_strides is None or context.fw_metadata is None:
        return range(0)
    return range(*context.fw_metadata.tensors_saved_for_backwards_slice.indices(count))


def report_strides(strides: Sequence[tuple[int, ...] | None]) -> None:
    """Tell AOTAutograd the strides of a forward graph's outputs, None for those that are as traced.

    The backward graph is then compiled for inputs with these strides.
    """
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides[:] = strides


def convolutions_may_round() -> bool:
    """Whether cuDNN may round the operands of f32 convolutions to TF32."""
    settings: Any = torch.backends.cudnn
    return settings.conv.fp32_precision == "tf32"


def find_overload(name: str) -> Overload | None:
    """Return the operator called `aten.add.Tensor`, or None if this torch has none."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if is_overload(found) else None


def is_overload(target: object) -> TypeGuard[Overload]:
    """Whether what an FX node calls is an operator of the dispatcher."""
    return isinstance(target, OpOverload)


def schema_text(operator: Overload) -> str:
    """Return the schema as torch prints it."""
    return str(operator._schema)


def stock_decompositions() -> Mapping[Any, Decomposition]:
    """Return torch's table of decompositions that come after autograd."""
    return global_decomposition_table["post_autograd"]


def suggested_format(x: torch.Tensor) -> torch.memory_format:
    """Return the memory format that kernels take from the strides of a tensor: contiguous, or one of channels last."""
    return suggest_memory_format(x)


def storage_order(x: torch.Tensor) -> list[int]:
    """Return the dims of a tensor in the order that a clone of it has them in memory, the outermost first."""
    return list(compute_elementwise_output_logical_to_physical_perm(x)[0])


def composite_decompositions() -> Mapping[Any, Decomposition]:
    """Return what each operator does that torch defines by calls of others, on every device and for autograd."""
    return {operator: _get_decomp_for_cia(operator) for operator in _collect_all_valid_cia_ops()}


def decompose(program: ExportedProgram, table: Mapping[Any, Decomposition]) -> ExportedProgram:
    """Return a program with the operators of `table` decomposed, for inference; the given one is not changed."""
    return program.run_decompositions(dict(table))


def dynamic_ranges(program: ExportedProgram) -> Mapping[Any, Any]:
    """Return the ranges of the sizes that were exported as dynamic, by torch's symbol."""
    return program.range_constraints


def input_names(program: ExportedProgram) -> list[str]:
    """Return how a user writes each of the flattened inputs: `args[0]`, `kwargs['mask']`."""
    return [f"args{name[3:]}" if name[1] == "0" else f"kwargs{name[3:]}" for name in _names(program.call_spec.in_spec)]


def output_names(program: ExportedProgram) -> list[str]:
    """Return how a user writes each of the flattened outputs: `['logits']`; empty for one that is not in anything."""
    return _names(program.call_spec.out_spec)


def _names(spec: pytree.TreeSpec | None) -> list[str]:
    assert spec is not None
    leaves = pytree.tree_unflatten(range(spec.num_leaves), spec)
    return [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(leaves)[0]]


def unflatten_outputs(program: ExportedProgram, outputs: Sequence[Any]) -> Any:
    """Return the user's outputs of which `outputs` are the leaves."""
    assert program.call_spec.out_spec is not None
    return pytree.tree_unflatten(outputs, program.call_spec.out_spec)


def flat_inputs(program: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """Return the leaves of the user's inputs to an exported program.

    Raises what `program.module()` raises for inputs with another structure, or with sizes that were not exported.
    """
    flat, spec = program._get_flat_args_with_check(tuple(args), dict(kwargs))
    if spec != program.call_spec.in_spec:
        raise ValueError(f"expected inputs of the structure {program.call_spec.in_spec}, found {spec}")
    return flat


def symint_expr(value: torch.SymInt) -> sympy.Expr:
    """Return torch's expression for a symbolic integer, with what its guards decided substituted."""
    return value.node.expr


def shape_env_of(value: torch.SymInt) -> ShapeEnv:
    """Return the environment that holds the facts about the symbols of `value`."""
    return value.node.shape_env


def is_size_symbol(symbol: sympy.Symbol) -> bool:
    """Whether a symbol stands for an integer that is known before the graph runs."""
    return symbol_is_type(symbol, SymT.SIZE)


def is_unbacked_symbol(symbol: sympy.Symbol) -> bool:
    """Whether a symbol stands for an integer that the graph computes from data."""
    return symbol_is_type(symbol, SymT.UNBACKED_INT)


def symbol_hint(env: ShapeEnv, symbol: sympy.Symbol) -> int | None:
    """Return the value that a symbol had when the graph was traced."""
    hint = env.backed_var_to_val.get(symbol)
    return None if hint is None else int(hint)


def symbol_range(env: ShapeEnv, symbol: sympy.Symbol, given: Mapping[Any, Any]) -> tuple[Any, Any]:
    """Return the inclusive bounds of a symbol, each a SymPy integer or infinity: those `given`, or those of `env`."""
    bounds = given[symbol] if symbol in given else env.var_to_range[symbol]
    return bounds.lower, bounds.upper


def is_positive(env: ShapeEnv, expr: Any) -> bool:
    """Whether `expr` is above zero for all values that its symbols can have."""
    return bool(expr.is_positive) or bool(env.bound_sympy(expr).lower > 0)


def traced_call(target: Any, args: Any, kwargs: Any, like: Any) -> Any:
    """Return the traced value of a call on nodes that have theirs, traced as `like` was."""
    positional, named = map_arg((args, kwargs), _traced_value)
    with detect_fake_mode(like) or contextlib.nullcontext():
        return target(*positional, **named)


def is_fake(value: object) -> bool:
    """Whether a value is a plain tensor of which only the type is known."""
    return type(value) is FakeTensor


def is_backed(*values: torch.Tensor) -> bool:
    """Whether all sizes of traced values were known when they were traced."""
    sizes: list[Any] = [size for value in values for size in value.shape]
    return all(isinstance(size, int) or size.node.hint is not None for size in sizes)


def operators_of(function: Callable[..., Any], *values: torch.Tensor) -> list[Overload]:
    """Return the operators that a function of traced values comes to."""

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found.append(func)
            return func(*args, **(kwargs or {}))

    found: list[Overload] = []
    with Recorder():  # traced values know how they were traced
        function(*values)
    return found


def without_modes() -> contextlib.AbstractContextManager[Any]:
    """Return what lets operators compute although a graph may be being traced."""
    return _disable_current_modes()


def _traced_value(node: fx.Node) -> Any:
    return node.meta["val"]


def integer_hint(value: int | torch.SymInt) -> int:
    """Return an integer, if it is symbolic the one that it was when it was traced; no guard is made."""
    if isinstance(value, int):
        return value
    hint: int = value.node.hint
    return hint


def arguments_of(operator: Overload) -> list[tuple[str, bool, Any]]:
    """Return each argument's name, whether it is given by name only, and its default, None without one."""
    return [(a.name, a.kwarg_only, a.default_value) for a in operator._schema.arguments]


ARITHMETIC: Mapping[Any, Callable[[Any, Any], Any]] = {
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
    sympy.Pow: operator.pow,
    torch_functions.PowByNatural: operator.pow,
    torch_functions.FloorDiv: operator.floordiv,
    torch_functions.CleanDiv: operator.floordiv,
    torch_functions.Mod: operator.mod,
    torch_functions.PythonMod: operator.mod,
    torch_functions.Max: torch.sym_max,
    torch_functions.Min: torch.sym_min,
}
"""What computes torch's expressions of sizes in a graph."""
