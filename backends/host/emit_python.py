"""A host program as Python source, for people: the same calls and kernels in the same order, on tensor objects.

    def forward(kernels, constants, arg0, s0):
        buf0 = torch.empty_strided((s0, 8), (8, 1), dtype=torch.float32, device="cpu")
        kernels["k0"](arg0.data_ptr(), buf0.data_ptr(), s0)
        return [buf0]

A kernel on a CUDA device takes the number of its programs, that of its variant, and the stream first. Nothing of a
file's text reaches the source but through `repr` or a check of names.
"""

from functools import singledispatchmethod

import torch
from xdsl.dialects.builtin import NoneType
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from tilewright.backends.cuda.kernel import DIVISOR, UNEVEN, WIDE
from tilewright.backends.host.abi import dtype_of
from tilewright.backends.host.arguments import Size, TensorOperand, Value, argument_values, find_operator
from tilewright.backends.host.expressions import python_text
from tilewright.backends.host.plan import (
    CPU,
    HostPlan,
    byte_offset,
    element_type,
    is_buffer,
    is_read,
    layout,
    may_be_elsewhere,
)
from tilewright.backends.host.torch_internals import parameters
from tilewright.backends.host.variants import SizeVariant
from tilewright.dialects import aten_schema, host, tt
from tilewright.dialects.sym_expr import Expr, Symbol

FUNCTION = "program"
"""The name of the printed function."""

_SUPPORT = "tilewright.backends.host.python_support"


def emit_python(plan: HostPlan, *, check_inputs: bool = True) -> str:
    """Print a host program as the source of a Python module that defines `program(kernels, constants, *inputs)`.

    Raises `VerifyException` for a size symbol that no argument provides and for an operator that torch does not have.
    """
    emitter = _Emitter(plan)
    emitter.start(check_inputs)
    for op in plan.ops:
        emitter.emit(op)
    return emitter.finish()


class _Emitter:
    def __init__(self, plan: HostPlan):
        self._plan = plan
        self._lines: list[str] = []
        self._names: dict[SSAValue, str] = {}
        self._counts: dict[str, int] = {}
        self._symbols: dict[Symbol, str] = {}

    def start(self, check_inputs: bool) -> None:
        """Print what comes before the operations."""
        plan = self._plan
        for argument in plan.arguments:
            self._name(argument, "arg")
        inputs = [self._names[a] for a in plan.arguments[: plan.num_inputs]]
        self._lines += [
            '"""A host program, printed by tilewright."""',
            "",
            "import torch",
            f"from {_SUPPORT} import Shape, conform, view",
            f"from {_SUPPORT} import check_input, check_kernel, check_rank",
            *([] if plan.device == CPU else [f"from {_SUPPORT} import current_stream, on_device"]),
            "",
            "",
            *([] if plan.device == CPU else [f"@on_device({plan.device!r})"]),
            f"def {FUNCTION}({', '.join(['kernels', 'constants', *inputs])}):",
        ]
        constants = [self._names[a] for a in plan.arguments[plan.num_inputs :]]
        if constants:
            self._line(f"{', '.join(constants)}, = constants")
        for number in plan.symbol_tensors:
            argument = plan.arguments[number]
            self._line(f"check_rank({self._names[argument]}, {number}, {len(layout(argument).sizes)})")
        for number, source in enumerate(plan.symbols):
            name = self._names[plan.arguments[source.argument]]
            if source.dim is not None:
                name = f"{name}.{'stride' if source.is_stride else 'size'}({source.dim})"
            # The symbol's own name may be a word of Python or the name of something else here.
            self._symbols[source.name] = f"size{number}"
            self._line(f"size{number} = {name}  # {source.name}")
        for number, argument in enumerate(plan.arguments[: plan.num_inputs]):
            if check_inputs and is_buffer(argument) and not may_be_elsewhere(argument):
                device = f"torch.device({layout(argument).device!r})"
                self._line(f"check_input({self._names[argument]}, {number}, {self._shape(argument)}, {device})")
        if plan.device != CPU:
            self._line(f"stream = current_stream({plan.device!r})")

    def emit(self, op: Operation) -> None:
        """Print one operation, and delete the names that die with it."""
        self._emit(op)
        dead = [self._names.pop(v) for v in self._plan.deaths.get(op, ()) if v in self._names]
        if dead:
            self._line(f"del {', '.join(dead)}")

    @singledispatchmethod
    def _emit(self, op: Operation) -> None:
        raise VerifyException(f"`{op.name}` is no operation of a host program")

    @_emit.register
    def _(self, op: host.AllocOp) -> None:
        kind = layout(op.result)
        dtype, sizes, strides = dtype_of(element_type(op.result)), self._tuple(kind.sizes), self._tuple(kind.strides)
        arguments = f"{sizes}, {strides}, dtype={dtype}, device={kind.device!r}"
        self._line(f"{self._name(op.result, 'buf')} = torch.empty_strided({arguments})")

    @_emit.register
    def _(self, op: host.FreeOp) -> None:
        """Nothing: the plan says after which operation a name is deleted."""

    @_emit.register
    def _(self, op: host.ViewOp) -> None:
        root = self._plan.root(op.result)
        offset = self._text(byte_offset(op.result, root))
        source = self._names[root]
        self._line(f"{self._name(op.result, 'view')} = view({source}, {self._shape(op.result)}, {offset})")

    @_emit.register
    def _(self, op: host.LaunchOp) -> None:
        arguments = [f"{self._names[b]}.data_ptr()" for b in op.buffers] + [self._text(e) for e in op.symbols.exprs]
        grid = self._plan.grids.get(op.kernel_name)
        if grid is not None:
            arguments = [self._text(grid.programs(op)), self._variant(self._plan.variants[op]), "stream", *arguments]
        call = f"kernels[{op.kernel_name!r}]({', '.join(arguments)})"
        errors = self._plan.errors.get(op.kernel_name)
        self._line(f"check_kernel({call}, {errors!r})" if errors else call)

    @_emit.register
    def _(self, op: host.CallOp) -> None:
        operator = find_operator(op.operator)
        arguments: list[str] = []
        by_position = True
        given = argument_values(op.arguments.data)
        for parameter in parameters(operator):
            if parameter.name not in given:
                by_position = False
                continue
            text = self._argument(given[parameter.name], op)
            by_position = by_position and not parameter.kwarg_only
            arguments.append(text if by_position else f"{parameter.name}={text}")
        call = f"torch.ops.{op.operator}({', '.join(arguments)})"
        names = [self._name(r, "_" if isinstance(r.type, NoneType) else "out") for r in op.results]
        self._line(f"{self._targets(op, names)} = {call}" if names else call)
        for result, name in zip(op.results, names, strict=True):
            if is_buffer(result) and is_read(result) and not may_be_elsewhere(result):
                self._line(f"{name} = conform({name}, {op.operator!r}, {self._shape(result)})")

    @_emit.register
    def _(self, op: host.SizeOp) -> None:
        self._line(f"{self._name(op.result, 'number')} = {self._text(op.size.expr)}")

    def finish(self) -> str:
        """Print the return and give out the source."""
        self._line(f"return [{', '.join(self._names[r] for r in self._plan.results)}]")
        return "\n".join([*self._lines, ""])

    def _line(self, text: str) -> None:
        self._lines.append(f"    {text}")

    def _name(self, value: SSAValue, prefix: str) -> str:
        number = self._counts.get(prefix, 0)
        self._counts[prefix] = number + 1
        self._names[value] = f"{prefix}{number}"
        return self._names[value]

    @staticmethod
    def _targets(op: host.CallOp, names: list[str]) -> str:
        schema = aten_schema.lookup(op.operator)
        several = len(names) > 1 or (schema is not None and any(r.kind.is_list for r in schema.returns))
        return f"[{', '.join(names)}]" if several else names[0]

    def _text(self, expr: Expr) -> str:
        try:
            return python_text(expr, self._symbols)
        except KeyError as error:
            raise VerifyException(f"no argument provides the size `{error.args[0]}`") from error

    def _variant(self, sizes: SizeVariant) -> str:
        """Return the number of a kernel's variant, as the sizes of a launch want it."""
        parts = [str(sizes.fixed)] if sizes.fixed else []
        if sizes.divided:
            rests = " or ".join(f"({self._text(e)}) % {DIVISOR}" for e in sizes.divided)
            parts.append(f"({UNEVEN} if {rests} else 0)")
        if sizes.reach is not None:
            parts.append(f"({WIDE} if {self._text(sizes.reach)} >= {tt.NARROW_LIMIT} else 0)")
        return " + ".join(parts) or "0"

    def _tuple(self, exprs: tuple[Expr, ...]) -> str:
        items = [self._text(e) for e in exprs]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"

    def _shape(self, value: SSAValue) -> str:
        kind = layout(value)
        return f"Shape({dtype_of(element_type(value))}, {self._tuple(kind.sizes)}, {self._tuple(kind.strides)})"

    def _argument(self, value: Value, call: host.CallOp) -> str:
        match value:
            case TensorOperand():
                return self._names[call.operands[value.index]]
            case tuple():
                return f"[{', '.join(self._argument(v, call) for v in value)}]"
            case float() | complex():
                return _float_text(value)
            case torch.device():
                return f"torch.device({str(value)!r})"
            case torch.dtype() | torch.layout() | torch.memory_format():
                return str(value)
            case Size(expr):
                return self._text(expr)
            case _:
                return repr(value)


def _float_text(value: float | complex) -> str:
    """Print a number; infinities and NaN have no literal."""
    if isinstance(value, complex):
        return f"complex({_float_text(value.real)}, {_float_text(value.imag)})"
    text = repr(value)
    return text if text[-1].isdigit() else f"float({text!r})"
