"""A host program read once for all emitters: where each value lives, which need a tensor object, and when each dies.

Everything that calls PyTorch needs a tensor handle; a kernel needs only an address. So a view that is only passed to
kernels is an address computed from its root (the buffer it looks into), and a view that is passed to a call or returned
gets a handle just before its first such use, which is given up after its last.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import func
from xdsl.dialects.builtin import (
    DictionaryAttr,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    NoneType,
    StringAttr,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from tilewright.backends.host.abi import dtype_of
from tilewright.backends.host.variants import SizeVariant, size_variant
from tilewright.dialects import host, tt
from tilewright.dialects.cpu_errors import errors_of
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.sym import LayoutAttr
from tilewright.dialects.sym_expr import Expr, Symbol, integer, symbol
from tilewright.dialects.type_guards import is_array, is_memref

CPU = "cpu"


@dataclass(frozen=True)
class SymbolSource:
    """Where a size symbol is found: argument `argument` itself, or its size or stride number `dim`."""

    name: Symbol
    argument: int
    dim: int | None
    is_stride: bool = False


@dataclass(frozen=True)
class Grid:
    """The number of programs of a kernel as an expression over its symbols."""

    symbols: tuple[Symbol, ...]
    size: Expr

    def programs(self, launch: host.LaunchOp) -> Expr:
        """Return the number of programs of a launch. Raises `VerifyException` if it has more or fewer symbols."""
        values = launch.symbols.exprs
        if len(values) != len(self.symbols):
            raise VerifyException(f"`@{launch.kernel_name}` takes {len(self.symbols)} symbols, found {len(values)}")
        return self.size.xreplace(dict(zip(self.symbols, values, strict=True)))


@dataclass(frozen=True)
class HostPlan:
    """A host program and what its emitters need to know of it."""

    function: func.FuncOp
    ops: tuple[Operation, ...]
    """The body, but for its return."""
    results: tuple[SSAValue, ...]
    num_constants: int
    """How many of the last arguments are constants."""
    symbols: tuple[SymbolSource, ...]
    roots: dict[SSAValue, SSAValue] = field(repr=False)
    """For each view the buffer it looks into."""
    handles: frozenset[SSAValue] = field(repr=False)
    """The views that need a tensor object."""
    deaths: dict[Operation, tuple[SSAValue, ...]] = field(repr=False)
    """The values whose handles are given up after an operation."""
    errors: dict[str, tuple[str, ...]] = field(repr=False)
    """For each kernel that returns a status the texts of the exceptions that it stands for."""
    device: str = CPU
    """Where kernels run, beside the CPU: at most one CUDA device, as `cuda:0`."""
    grids: dict[str, Grid] = field(default_factory=dict[str, "Grid"], repr=False)
    """How many programs each kernel of that device is launched with."""
    variants: dict[host.LaunchOp, SizeVariant] = field(default_factory=dict[host.LaunchOp, SizeVariant], repr=False)
    """Which variant of its kernel each launch on that device takes."""

    @property
    def name(self) -> str:
        return self.function.sym_name.data

    @property
    def arguments(self) -> Sequence[SSAValue]:
        return self.function.body.block.args

    @property
    def num_inputs(self) -> int:
        """How many arguments the caller gives."""
        return len(self.arguments) - self.num_constants

    @property
    def symbol_tensors(self) -> tuple[int, ...]:
        """The numbers of the arguments that size symbols are read from."""
        return tuple(dict.fromkeys(s.argument for s in self.symbols if s.dim is not None))

    def begins_at_multiple(self, value: SSAValue, alignment: int) -> bool:
        """Whether a buffer surely begins at a multiple of so many bytes: PyTorch aligns what it allocates."""
        root = self.root(value)
        if not isinstance(root.owner, host.AllocOp):
            return False
        offset = byte_offset(value, root)
        return bool(offset.is_Integer) and int(offset) % alignment == 0

    def root(self, value: SSAValue) -> SSAValue:
        """Return the buffer that a value looks into: itself, unless it is a view."""
        return self.roots.get(value, value)


def is_buffer(value: SSAValue) -> bool:
    """Whether a value is a tensor in memory rather than a number or nothing."""
    return isinstance(value.type, MemRefType)


def element_type(value: SSAValue) -> Attribute:
    """Return the element type of a buffer."""
    assert is_memref(value.type)
    return value.type.element_type


def layout(value: SSAValue) -> LayoutAttr:
    """Return the layout of a buffer."""
    return layout_of(value.type)


def is_read(value: SSAValue) -> bool:
    """Whether anything but the end of its memory follows for a value.

    A result that nothing reads may be undefined: the `logsumexp` of attention without gradients, traced as a tensor.
    """
    return any(not isinstance(use.operation, host.FreeOp) for use in value.uses)


def may_be_elsewhere(value: SSAValue) -> bool:
    """Whether a value may be on the CPU although its type says CUDA.

    The state of the random generator that attention returns is on either, and tracing does not tell. Operators alone
    read it.
    """
    kind = layout(value)
    return (
        kind.device != CPU
        and not kind.sizes
        and isinstance(element_type(value), IntegerType)
        and not any(isinstance(use.operation, (host.LaunchOp, host.ViewOp)) for use in value.uses)
    )


def byte_offset(value: SSAValue, root: SSAValue) -> Expr:
    """Return how many bytes after its root's first element a view begins."""
    own = layout(value).offset * integer(dtype_of(element_type(value)).itemsize)
    return own - layout(root).offset * integer(dtype_of(element_type(root)).itemsize)


def find_program(module: ModuleOp) -> func.FuncOp:
    """Return the host program of a module. Raises `VerifyException` unless there is exactly one."""
    functions = [op for op in module.ops if isinstance(op, func.FuncOp) and not op.is_declaration and _is_program(op)]
    # A kernel of which nothing is left looks like a program.
    launched = {op.kernel_name for f in functions for op in f.body.block.ops if isinstance(op, host.LaunchOp)}
    programs = [f for f in functions if f.sym_name.data not in launched]
    if len(programs) != 1:
        raise VerifyException(f"expected one host program in the module, found {len(programs)}")
    return programs[0]


def _is_program(function: func.FuncOp) -> bool:
    return len(function.body.blocks) == 1 and all(
        isinstance(op, (host.AllocOp, host.FreeOp, host.ViewOp, host.LaunchOp, host.CallOp, host.SizeOp, func.ReturnOp))
        for op in function.body.block.ops
    )


def make_plan(function: func.FuncOp) -> HostPlan:
    """Read a host program.

    Raises `VerifyException` if it has no return at its end, an argument of unknown kind, a kernel on several devices,
    or kernels on several CUDA devices.
    """
    block = function.body.block
    *ops, terminator = block.ops
    if not isinstance(terminator, func.ReturnOp):
        raise VerifyException(f"expected a host program to end with `func.return`, found `{terminator.name}`")
    for argument in block.args:
        if not isinstance(argument.type, (MemRefType, IntegerType)):
            raise VerifyException(f"expected arguments of a host program to be memrefs and i64, found {argument.type}")
    launches = [op for op in ops if isinstance(op, host.LaunchOp)]
    results = tuple(terminator.arguments)
    roots: dict[SSAValue, SSAValue] = {}
    for op in ops:
        if isinstance(op, host.ViewOp):
            roots[op.result] = roots.get(op.source, op.source)
    kernels = {k.sym_name.data: k for k in _siblings(function) if isinstance(k, tt.FuncOp)}
    handles = frozenset(v for op in ops if isinstance(op, host.CallOp) for v in op.operands if v in roots)
    num_constants = len(constant_names(function))
    return HostPlan(
        function=function,
        ops=tuple(ops),
        results=results,
        num_constants=num_constants,
        symbols=_symbol_sources(function),
        roots=roots,
        handles=handles | {v for v in results if v in roots},
        deaths=_deaths(ops, results, roots, block.args[: len(block.args) - num_constants]),
        errors=_errors(function),
        device=_device(launches),
        grids=_grids(kernels, launches),
        variants={op: size_variant(kernels[op.kernel_name], op) for op in launches if op.kernel_name in kernels},
    )


def launch_device(launch: host.LaunchOp) -> str:
    """Return the device of a kernel's buffers. Raises `VerifyException` unless it is one, the CPU or a CUDA device."""
    devices = list(dict.fromkeys(layout(b).device for b in launch.buffers)) or [CPU]
    if len(devices) > 1:
        raise VerifyException(f"expected buffers of `@{launch.kernel_name}` on one device, found {', '.join(devices)}")
    if devices[0] != CPU and not devices[0].startswith("cuda"):
        raise VerifyException(f"expected buffers of `@{launch.kernel_name}` on the CPU or CUDA, found {devices[0]}")
    return devices[0]


def _device(launches: Sequence[host.LaunchOp]) -> str:
    found = [d for d in dict.fromkeys(map(launch_device, launches)) if d != CPU]
    if len(found) > 1:
        raise VerifyException(f"expected kernels on one CUDA device, found {', '.join(found)}")
    return found[0] if found else CPU


def _grids(kernels: Mapping[str, tt.FuncOp], launches: Sequence[host.LaunchOp]) -> dict[str, Grid]:
    """Find the grids of the CUDA kernels that a program launches, which must have been lowered to Triton's IR."""
    grids: dict[str, Grid] = {}
    for launch in launches:
        name = launch.kernel_name
        if launch_device(launch) == CPU or name in grids:
            continue
        grid = kernels[name].grid if name in kernels else None
        if grid is None:
            raise VerifyException(f"expected `@{name}`, which runs on CUDA, to be a `tt.func` with a grid")
        grids[name] = Grid(tuple(map(symbol, kernels[name].symbol_names)), grid.expr)
    return grids


def _siblings(function: func.FuncOp) -> Iterable[Operation]:
    module = function.parent_op()
    return module.ops if isinstance(module, ModuleOp) else ()


def _errors(function: func.FuncOp) -> dict[str, tuple[str, ...]]:
    """Find the kernels beside a program that return a status."""
    kernels = (op for op in _siblings(function) if isinstance(op, func.FuncOp))
    return {kernel.sym_name.data: texts for kernel in kernels if (texts := errors_of(kernel))}


def constant_names(function: func.FuncOp) -> tuple[str, ...]:
    """Return the names of the constant tensors that are the last arguments."""
    names = function.attributes.get("aten.constants")
    if names is None or not is_array(names):
        return ()
    return tuple(n.data for n in names.data if isinstance(n, StringAttr))


def _deaths(
    ops: Sequence[Operation], results: Iterable[SSAValue], roots: dict[SSAValue, SSAValue], inputs: Iterable[SSAValue]
) -> dict[Operation, tuple[SSAValue, ...]]:
    """Find where handles end: a view's after its last use, a buffer's where it is freed, but after its views' last use.

    The caller gives its inputs away, so the handle of one ends after its last use: an activation that was saved for a
    backward program is gone as soon as that has read it. A buffer that is never freed lives to the end of the call, and
    what is returned lives on.
    """
    last_use: dict[SSAValue, int] = {}
    freed: dict[SSAValue, None] = dict.fromkeys(filter(is_buffer, inputs))
    for position, op in enumerate(ops):
        if isinstance(op, host.FreeOp):
            freed[op.buffer] = None
        for operand in op.operands:
            last_use[operand] = last_use[roots.get(operand, operand)] = position
        for result in op.results:
            if result in roots:
                last_use[result] = last_use[roots[result]] = position
    returned = set(results)
    kept = returned | {roots[v] for v in returned if v in roots}
    deaths: dict[Operation, list[SSAValue]] = {}
    for value, position in last_use.items():
        if (value in roots and value not in returned) or (value in freed and value not in kept):
            deaths.setdefault(ops[position], []).append(value)
    return {op: tuple(values) for op, values in deaths.items()}


def _symbol_sources(function: func.FuncOp) -> tuple[SymbolSource, ...]:
    """Find the sources of symbols: an i64 argument, or the first argument that has it alone as a size or stride."""
    sources: dict[Symbol, SymbolSource] = {}
    given = function.attributes.get("aten.symbol_args")
    if isinstance(given, DictionaryAttr):
        for name, number in given.data.items():
            assert isinstance(number, IntegerAttr)
            sources[symbol(name)] = SymbolSource(symbol(name), number.value.data, None)
    for number, argument in enumerate(function.body.block.args):
        if not isinstance(argument.type, MemRefType):
            continue
        kind = layout(argument)
        for exprs, is_stride in ((kind.sizes, False), (kind.strides, True)):
            for dim, expr in enumerate(exprs):
                if isinstance(expr, Symbol):
                    sources.setdefault(expr, SymbolSource(expr, number, dim, is_stride))
    return tuple(sources.values())


def is_none(value: SSAValue) -> bool:
    """Whether a call's result is an undefined tensor."""
    return isinstance(value.type, NoneType)
