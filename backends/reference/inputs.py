"""Inputs for a function: made up for the types of its arguments, or read from a file."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from xdsl.dialects import func
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute

from tilewright.backends.reference.aten import is_list
from tilewright.backends.reference.buffers import span
from tilewright.backends.reference.dtypes import memory_dtype
from tilewright.backends.reference.errors import ExecutionError
from tilewright.backends.reference.expressions import evaluate_int
from tilewright.backends.reference.interpreter import Callee, Input, find_callee
from tilewright.dialects import tt
from tilewright.dialects.loop import KernelOp, layout_of
from tilewright.dialects.loop_kernel import RANGES
from tilewright.dialects.sym import LayoutAttr, SymbolAttr, free_symbols
from tilewright.dialects.sym_expr import Symbol, symbol
from tilewright.dialects.type_guards import is_array, is_memref, is_tensor

_DEFAULT_SIZE = 5
"""The value of a symbol that has no hint: odd, so that loops have tails."""

_INDICES = (0, 2)
"""The range of integers that may be indices of anything."""


@dataclass(frozen=True)
class InputSpec:
    """How to make inputs up."""

    ones: bool = False
    """Whether all elements are one; else floats are normally distributed and integers uniformly."""
    seed: int = 0
    symbols: Mapping[str, int] = field(default_factory=dict[str, int])
    """Values of size symbols; one that is not here has its hint, or a small value in its range."""
    int_range: tuple[int, int] | None = None
    """The least integer and the one above the greatest. None for 0 and 1 where integers may be indices."""


def make_inputs(module: ModuleOp, name: str, spec: InputSpec) -> list[Input]:
    """Return inputs that fit the types of a function's arguments, or of a kernel's buffers and symbols."""
    callee = find_callee(module, name)
    if isinstance(callee, tt.FuncOp):
        raise ExecutionError(f"kernel `@{name}` takes pointers, which do not say how much memory to make up")
    sizes = symbol_values(callee, spec.symbols)
    numbers = {n: sizes[s] for s, n in _symbol_arguments(callee).items()}
    generator = torch.Generator()
    generator.manual_seed(spec.seed)
    inputs: list[Input] = []
    for number, argument in enumerate(callee.body.block.args):
        if is_tensor(argument.type) or is_memref(argument.type):
            dtype = memory_dtype(argument.type.element_type)
            inputs.append(_make_tensor(dtype, layout_of(argument.type), sizes, spec, generator))
        else:
            # A kernel that is a function names its sizes as its types do.
            named = sizes.get(symbol(argument.name_hint or ""))
            inputs.append(numbers.get(number, 1 if named is None else named))
    if isinstance(callee, KernelOp):
        inputs += [sizes[symbol(n)] for n in callee.symbol_names]
    return inputs


def symbol_values(callee: func.FuncOp | KernelOp, given: Mapping[str, int]) -> dict[Symbol, int]:
    """Return a value for each symbol of a function or kernel: the one given, its hint, or a small one in its range."""
    names = list(callee.symbol_names) if isinstance(callee, KernelOp) else []
    for argument in callee.body.block.args:
        if is_tensor(argument.type) or is_memref(argument.type):
            layout = layout_of(argument.type)
            names += [s.name for s in free_symbols((*layout.sizes, *layout.strides, layout.offset))]
    names += [s.name for s in _symbol_arguments(callee)]
    facts = callee.attributes.get("aten.symbols", callee.attributes.get(RANGES))
    return {symbol(n): given[n] if n in given else _default(n, facts) for n in dict.fromkeys(names)}


def _default(name: str, facts: Attribute | None) -> int:
    fact = facts.data.get(name) if isinstance(facts, DictionaryAttr) else None
    if not isinstance(fact, SymbolAttr):
        return _DEFAULT_SIZE
    info = fact.data
    return info.hint if info.hint is not None else min(max(_DEFAULT_SIZE, info.lower), info.upper)


def _symbol_arguments(callee: func.FuncOp | KernelOp) -> dict[Symbol, int]:
    """Return for each symbol that an argument holds the number of that argument."""
    numbers = callee.attributes.get("aten.symbol_args")
    if not isinstance(numbers, DictionaryAttr):
        return {}
    return {symbol(n): a.value.data for n, a in numbers.data.items() if isinstance(a, IntegerAttr)}


def _make_tensor(
    dtype: torch.dtype, layout: LayoutAttr, symbols: Mapping[Symbol, int], spec: InputSpec, generator: torch.Generator
) -> Tensor:
    sizes = [evaluate_int(e, symbols) for e in layout.sizes]
    strides = [evaluate_int(e, symbols) for e in layout.strides]
    offset = evaluate_int(layout.offset, symbols)
    if any(n < 0 for n in (*sizes, *strides, offset)):
        raise ExecutionError(f"the layout {layout} has sizes {sizes}, strides {strides} and offset {offset}")
    count = offset + span(sizes, strides)
    storage = torch.ones(count, dtype=dtype) if spec.ones else _random(count, dtype, spec, generator)
    return storage.as_strided(sizes, strides, offset)


def _random(count: int, dtype: torch.dtype, spec: InputSpec, generator: torch.Generator) -> Tensor:
    if dtype.is_floating_point:
        precise = dtype if dtype.itemsize > 2 else torch.float32
        return torch.randn(count, dtype=precise, generator=generator).to(dtype)
    if dtype.is_complex:
        return torch.randn(count, dtype=dtype, generator=generator)
    low, high = (0, 2) if dtype == torch.bool else spec.int_range or _integers(dtype)
    return torch.randint(low, high, (count,), generator=generator).to(dtype)


def _integers(dtype: torch.dtype) -> tuple[int, int]:
    if dtype in (torch.int64, torch.int32):
        return _INDICES
    return (-100, 100) if dtype.is_signed else (0, 200)


def load_inputs(path: str) -> list[Input]:
    """Return the inputs in a file written by `torch.save`: a list of tensors and ints.

    Raises `ExecutionError` if it cannot be read or holds something else.
    """
    loaded = _load(path, "inputs")
    if not is_list(loaded):
        raise ExecutionError(f"{path} holds a {type(loaded).__name__}, expected a list of tensors and ints")
    inputs: list[Input] = []
    for number, value in enumerate(loaded):
        if not isinstance(value, (Tensor, int)):
            raise ExecutionError(f"input {number} in {path} is a {type(value).__name__}, expected a tensor or an int")
        inputs.append(value)
    return inputs


def load_constants(path: str, module: ModuleOp, name: str) -> list[Tensor]:
    """Return the tensors that `aten.constants` of a function names from a file written by `torch.save`: a dictionary.

    Raises `ExecutionError` if it cannot be read, holds something else or lacks one.
    """
    loaded = _load(path, "constants")
    if not isinstance(loaded, dict):
        raise ExecutionError(f"{path} holds a {type(loaded).__name__}, expected a dictionary from names to tensors")
    tensors = cast("dict[object, object]", loaded)
    constants: list[Tensor] = []
    for constant in constant_names(find_callee(module, name)):
        tensor = tensors.get(constant)
        if not isinstance(tensor, Tensor):
            raise ExecutionError(f"{path} has no tensor for the constant `{constant}`")
        constants.append(tensor)
    return constants


def constant_names(callee: Callee) -> list[str]:
    """Return the names of a function's last arguments, where they are constants."""
    names = callee.attributes.get("aten.constants")
    return [n.data for n in names.data if isinstance(n, StringAttr)] if names is not None and is_array(names) else []


def _load(path: str, what: str) -> object:
    try:
        return torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        first = str(error).partition("\n")[0]
        raise ExecutionError(f"{path} cannot be read as {what}: {first}") from error
