"""Compile a program that `torch.export` captured.

    program = torch.export.load("model.pt2")
    compiled = compile_exported(program)
    outputs = compiled(x, mask=mask)

It is called as `program.module()` is, for inference: outputs have no gradients. What the program mutates is mutated,
and parameters and buffers are those of `program`, not copies. Any number of threads may call it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.export import ExportedProgram
from xdsl.dialects.func import FuncOp

from tilewright.backends.host.abi import dtype_of
from tilewright.backends.host.expressions import evaluate
from tilewright.backends.host.python_support import Shape
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.sym_expr import Expr, Symbol
from tilewright.dialects.type_guards import is_tensor
from tilewright.frontends.export import ImportedProgram, Known, OutputSource, import_exported_program
from tilewright.frontends.torch_internals import flat_inputs, unflatten_outputs
from tilewright.tools.compile import StageTimes, compile_module, record_stats
from tilewright.tools.options import parse_options
from tilewright.tools.universe import make_context


@dataclass(frozen=True)
class _Input:
    """An input of the program, and for a tensor how it lies in memory."""

    position: int
    """Among the user's flattened inputs."""
    is_mutated: bool
    dtype: torch.dtype | None = None
    """None for an integer."""
    sizes: tuple[Expr, ...] = ()
    strides: tuple[Expr, ...] = ()

    def bind(self, value: Any) -> dict[Symbol, int]:
        """Return the values of the symbols that are sizes of a tensor."""
        if self.dtype is None:
            return {}
        return {e: size for e, size in zip(self.sizes, value.shape, strict=True) if isinstance(e, Symbol)}

    def conform(self, value: Any, sizes: Mapping[Symbol, int]) -> Any:
        """Return an input, or a copy of it with the strides that the program was compiled for."""
        if self.dtype is None or value.dtype != self.dtype:
            return value
        strides = [evaluate(stride, sizes) for stride in self.strides]
        # Elements that share memory cannot be copied one by one: the program says what it expects.
        overlaps = any(stride == 0 and size > 1 for stride, size in zip(strides, value.shape, strict=True))
        if overlaps or Shape(value.dtype, value.shape, strides).fits(value):
            return value
        return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)


class CompiledProgram:
    """A compiled exported program; call it as you would `program.module()`."""

    def __init__(
        self,
        program: ExportedProgram,
        run: Callable[[list[Any]], Sequence[Any]],
        inputs: Sequence[_Input],
        outputs: Sequence[OutputSource],
    ) -> None:
        self._program = program
        self._run = run
        self._inputs = inputs
        self._outputs = outputs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, in the structure that was exported.

        Raises what `program.module()` raises for inputs of another structure or with sizes that were not exported, and
        ValueError for a tensor of another dtype or on another device. A tensor with other strides is copied.
        """
        flat = flat_inputs(self._program, args, kwargs)
        with torch.no_grad():
            results = self._call([flat[one.position] for one in self._inputs])
        outputs = [o.value if isinstance(o, Known) else results[o.number] for o in self._outputs]
        return unflatten_outputs(self._program, outputs)

    def _call(self, given: Sequence[Any]) -> list[Any]:
        sizes: dict[Symbol, int] = {}
        for one, value in zip(self._inputs, given, strict=True):
            sizes |= one.bind(value)
        taken = [one.conform(value, sizes) for one, value in zip(self._inputs, given, strict=True)]
        results = self._run(list(taken))
        originals: dict[int, Any] = {}
        for one, value, copy in zip(self._inputs, given, taken, strict=True):
            if copy is not value:
                originals[id(copy)] = value
            if one.is_mutated and copy is not value:
                value.copy_(copy)
            elif one.is_mutated:
                increment_version(value)
        return [originals.get(id(result), result) for result in results]


def compile_exported(program: ExportedProgram, *, options: Mapping[str, Any] | None = None) -> CompiledProgram:
    """Compile an exported program, with the options of `torch.compile(.., backend="tilewright")`.

    There is no eager mode to fall back to: raises `Unsupported` for a program that the IR cannot hold.
    """
    chosen = parse_options(options, None)
    times = StageTimes()
    with times.measure("import"):
        imported = import_exported_program(program, random=chosen.random)
    inputs = _inputs(imported)
    compiled = compile_module(
        imported.graph.module, make_context(), chosen, imported.graph.constants, dump=chosen.dump, times=times
    )
    record_stats(compiled)
    return CompiledProgram(program, compiled.program.run_boxed, inputs, imported.outputs)


def _inputs(imported: ImportedProgram) -> list[_Input]:
    """Read from the module what the inputs are, before passes change it."""
    (function,) = imported.graph.module.ops
    assert isinstance(function, FuncOp)
    inputs: list[_Input] = []
    for number, position in enumerate(imported.input_positions):
        kind = function.body.block.args[number].type
        if is_tensor(kind):
            layout = layout_of(kind)
            dtype = dtype_of(kind.element_type)
            is_mutated = number in imported.mutated_arguments
            inputs.append(_Input(position, is_mutated, dtype, layout.sizes, layout.strides))
        else:
            inputs.append(_Input(position, is_mutated=False))
    return inputs
