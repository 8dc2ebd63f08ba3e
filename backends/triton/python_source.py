"""Kernels of the `tt` dialect as Triton's Python, to be read, changed and run by themselves.

The text has the arithmetic of the kernel. A launch also passes what Triton would otherwise choose: no operations are
fused, and the numbers of warps and stages.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i8
from xdsl.ir import SSAValue

from tilewright.backends.host.expressions import python_text
from tilewright.backends.triton.python_combine import CombineFunctions
from tilewright.backends.triton.python_expressions import typed
from tilewright.backends.triton.python_kernel import KernelSource
from tilewright.backends.triton.python_values import Names, SourceError, Text, dtype_name
from tilewright.dialects import tt
from tilewright.dialects.sym import symbol
from tilewright.dialects.tt import FuncOp, PointerType
from tilewright.dialects.type_guards import is_integer_constant


def emit_python(kernels: Sequence[FuncOp]) -> str:
    """Return a file with `kernels`, and for each a function that launches it on tensors.

    That function is `launch` where there is one kernel only, else `launch_<kernel>`. Raises `SourceError` for a kernel
    that Triton's Python cannot say.
    """
    names = Names()
    combiners = CombineFunctions(names, lambda op, arguments: _combine_body(op, arguments, combiners))
    bodies: list[str] = []
    for kernel in kernels:
        name = names.fresh(kernel.sym_name.data, top=True)
        launch = "launch" if len(kernels) == 1 else f"launch_{name}"
        bodies += ["", "", *_Kernel(kernel, name, combiners).lines(launch)]
    imports = ["import torch", "import triton", "import triton.language as tl"]
    if any("libdevice." in line for line in (*bodies, *combiners.lines)):
        imports.append("from triton.language.extra import libdevice")
    return "\n".join([*imports, "", "", *combiners.lines, *bodies[2:]]) + "\n"


def _combine_body(op: tt.ReduceOp | tt.ScanOp, arguments: Sequence[str], combiners: CombineFunctions) -> list[str]:
    source = KernelSource(Names(arguments), combiners, {})
    for value, name in zip(op.block.args, arguments, strict=True):
        source.define(value, Text(name))
    source.block(op.block)
    last = op.block.last_op
    assert last is not None
    results = ", ".join(typed(source.text(v), v.type).code for v in last.operands)
    return [*source.lines, f"    return {results}"]


class _Kernel:
    """One kernel: its parameters, body and launch."""

    def __init__(self, kernel: FuncOp, name: str, combiners: CombineFunctions) -> None:
        self._kernel = kernel
        self._name = name
        self._names = Names()
        self._blocks = self._block_sizes()
        self._parameters = [self._parameter(i) for i in range(len(kernel.args))]
        self._source = KernelSource(self._names, combiners, self._blocks)

    def lines(self, launch: str) -> list[str]:
        """Return the function of the kernel and the one that launches it."""
        kernel = self._kernel
        for value, name in zip(kernel.args, self._parameters, strict=True):
            self._source.define(value, Text(name))
        self._source.block(kernel.block)
        declared = [
            name if isinstance(value.type, PointerType) else f"{name}: {dtype_name(value.type)}"
            for value, name in zip(kernel.args, self._parameters, strict=True)
        ]
        declared += [f"{name}: tl.constexpr" for name in self._blocks.values()]
        return [
            "@triton.jit",
            *_call(f"def {self._name}", declared, ":"),
            *(self._source.lines or ["    pass"]),
            "",
            "",
            *self._launch(launch),
        ]

    def _block_sizes(self) -> dict[int, str]:
        """Return a name for the length of each range."""
        lengths: dict[int, str] = {}
        for op in self._kernel.walk():
            if isinstance(op, tt.MakeRangeOp) and op.start.value.data == 0 and op.end.value.data > 1:
                lengths.setdefault(op.end.value.data, op.result.name_hint or "")
        if len(lengths) == 1:
            return {length: self._names.fresh("BLOCK") for length in lengths}
        return {n: self._names.fresh(f"BLOCK_{hint.upper()}" if hint else "BLOCK") for n, hint in lengths.items()}

    def _parameter(self, number: int) -> str:
        value = self._kernel.args[number]
        symbols = self._kernel.symbol_names
        place = number - (len(self._kernel.args) - len(symbols))
        if place >= 0:
            return self._names.fresh(symbols[place])
        hint = value.name_hint or f"arg{number}"
        return self._names.fresh(f"{hint}_ptr" if isinstance(value.type, PointerType) else hint)

    def _launch(self, launch: str) -> list[str]:
        kernel = self._kernel
        tensors = [p for p, v in zip(self._parameters, kernel.args, strict=True) if isinstance(v.type, PointerType)]
        arguments = [p.removesuffix("_ptr") for p in self._parameters]
        passed = [_passed(a, value) for a, value in zip(arguments, kernel.args, strict=True)]
        options = [f"{name}={size}" for size, name in self._blocks.items()]
        for option in ("num_warps", "num_stages"):
            given = kernel.attributes.get(option)
            if given is not None and is_integer_constant(given):
                options.append(f"{option}={given.value.data}")
        options.append("enable_fp_fusion=False")
        if any(isinstance(op, tt.AssertOp) for op in kernel.walk()):
            options += ["debug=True", "sanitize_overflow=False"]
        grid = kernel.grid
        if grid is None:
            raise SourceError(f"kernel `{kernel.sym_name.data}` does not say how many programs run it (`grid`)")
        named = dict(zip([symbol(s) for s in kernel.symbol_names], arguments[len(tensors) :], strict=True))
        kinds = ["torch.Tensor" if p in tensors else "int" for p in self._parameters]
        annotated = [f"{a}: {kind}" for a, kind in zip(arguments, kinds, strict=True)]
        call = _call(f"{self._name}[(programs,)]", [*passed, *options], "", indent=2)
        return [
            *_call(f"def {launch}", annotated, " -> None:"),
            f"    programs = {python_text(grid.expr, named)}",
            "    if programs > 0:",
            *call,
        ]


def _passed(name: str, value: SSAValue) -> str:
    """Return the argument of a launch: a tensor of bools is one of bytes to the kernel."""
    kind = value.type
    return f"{name}.view(torch.int8)" if isinstance(kind, PointerType) and kind.pointee == i8 else name


def _call(head: str, arguments: Sequence[str], tail: str, indent: int = 0) -> list[str]:
    """Return a call or the head of a function, on several lines where one would be too long."""
    lead = "    " * indent
    line = f"{lead}{head}({', '.join(arguments)}){tail}"
    if len(line) <= 100:
        return [line]
    return [f"{lead}{head}(", *(f"{lead}    {a}," for a in arguments), f"{lead}){tail}"]
