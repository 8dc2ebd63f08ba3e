"""Runs a program before and after each of the passes from tensors to kernels, and writes random programs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects import arith, builtin, func, math
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from tilewright.backends.reference import run_function
from tilewright.dialects import aten, host, loop, sym
from tilewright.dialects.verifier import verify_module
from tilewright.passes.assign_layouts import AssignLayoutsPass
from tilewright.passes.buffer_reuse import BufferReusePass
from tilewright.passes.bufferize import BufferizePass
from tilewright.passes.elide_copies import ElideCopiesPass
from tilewright.passes.merge_kernels import MergeKernelsPass
from tilewright.passes.outline_kernels import OutlineKernelsPass

DIALECTS = (builtin.Builtin, arith.Arith, math.Math, func.Func, sym.Sym, aten.Aten, loop.LoopDialect, host.Host)
PASSES: tuple[ModulePass, ...] = (
    BufferizePass(),
    ElideCopiesPass(),
    BufferReusePass(),
    OutlineKernelsPass(),
    MergeKernelsPass(),
)

Input = Tensor | int
Output = Tensor | int | None


def context() -> Context:
    """Return a context with the dialects of these levels."""
    ctx = Context()
    for dialect in DIALECTS:
        ctx.load_dialect(dialect)
    return ctx


def parse(text: str) -> ModuleOp:
    """Return the module of a text, verified."""
    module = Parser(context(), text).parse_module()
    verify_module(module)
    return module


def transformed(text: str, *passes: ModulePass) -> ModuleOp:
    """Return the module of a text after some passes, verified after each."""
    module = parse(text)
    for step in passes:
        step.apply(context(), module)
        verify_module(module)
    return module


@dataclass(frozen=True)
class Observed:
    """All that a caller sees of one run: results, inputs afterwards, and who shares memory with whom."""

    results: list[Output]
    inputs: list[Input]
    shares: list[int]
    """For each result the first of the inputs, then the results, that has its storage; -1 for numbers."""

    def same(self, other: Observed) -> bool:
        """Whether two runs cannot be told apart."""
        return (
            self.shares == other.shares
            and all(_same(a, b) for a, b in zip(self.results, other.results, strict=True))
            and all(_same(a, b) for a, b in zip(self.inputs, other.inputs, strict=True))
        )


def _same(a: Output, b: Output) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a.nan_to_num(), b.nan_to_num())
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b


def observe(module: ModuleOp, inputs: Sequence[Input], symbols: Mapping[str, int] | None = None) -> Observed:
    """Run `@forward` on copies of the inputs."""
    given = [_copy(i) for i in inputs]
    results = run_function(module, given, "forward", symbols)
    storages = [v.untyped_storage().data_ptr() if isinstance(v, Tensor) else None for v in (*given, *results)]
    shares = [-1 if s is None else storages.index(s) for s in storages[len(given) :]]
    return Observed(results, given, shares)


def _copy(value: Input) -> Input:
    """Copy a tensor with its strides, those of an expanded one too."""
    if not isinstance(value, Tensor):
        return value
    whole = value.as_strided([value.untyped_storage().nbytes() // value.itemsize], [1], 0).clone()
    return whole.as_strided(value.shape, value.stride(), value.storage_offset())


def check_stages(text: str, *inputs: Input, symbols: Mapping[str, int] | None = None) -> list[str]:
    """Run a program on tensors and after each pass, each time as read back from its text. Returns the texts."""
    expected = observe(parse(text), inputs, symbols)
    texts = [str(parse(text))]
    for step in PASSES:
        module = transformed(texts[-1], step)
        texts.append(str(module))
        assert str(parse(texts[-1])) == texts[-1], step.name
        found = observe(module, inputs, symbols)
        assert expected.same(found), f"{step.name} changes results:\n{texts[-1]}"
    whole = transformed(text, *PASSES)
    assert str(whole) == texts[-1], "going through text makes a difference"
    for steps in ((AssignLayoutsPass(),), (AssignLayoutsPass(), *PASSES)):
        laid_out = transformed(text, *steps)
        assert expected.same(observe(laid_out, inputs, symbols)), f"layouts change results:\n{laid_out}"
    return texts


def tensor(sizes: Sequence[int], strides: Sequence[int], element: str = "f32") -> str:
    """Return the text of a tensor type."""
    shape = "".join(f"{s}x" for s in sizes)
    return f"tensor<{shape}{element}, #sym.layout<{list(sizes)}, {list(strides)}>>"


@dataclass(frozen=True)
class Value:
    """A matrix in a program being written."""

    name: str
    sizes: tuple[int, int]
    strides: tuple[int, int]

    @property
    def kind(self) -> str:
        return tensor(self.sizes, self.strides)

    @property
    def is_contiguous(self) -> bool:
        return self.strides == (self.sizes[1], 1)


@dataclass
class RandomProgram:
    """Writes programs of nests, views, calls and writes to arguments, on matrices of 12 elements."""

    choose: random.Random
    lines: list[str] = field(default_factory=list[str])
    values: list[Value] = field(default_factory=list[Value])
    arguments: list[Value] = field(default_factory=list[Value])
    written: list[Value] = field(default_factory=list[Value])

    def new(self, sizes: tuple[int, int], strides: tuple[int, int] | None = None) -> Value:
        """Return a value that is about to be defined, row-major unless told otherwise."""
        value = Value(f"%t{len(self.values)}", sizes, strides or (sizes[1], 1))
        self.values.append(value)
        return value

    def pick(self, sizes: tuple[int, int] | None = None) -> Value:
        """Return a value that exists, recent ones more often."""
        fits = [v for v in self.values if sizes is None or v.sizes == sizes]
        return fits[-1 - min(int(self.choose.expovariate(0.5)), len(fits) - 1)]

    def pointwise(self) -> None:
        """Combine two matrices element by element, perhaps one of them turned over."""
        a = self.pick()
        b = self.pick(a.sizes)
        order = self.choose.choice([(0, 1), (1, 0)])
        out = self.new(a.sizes, (a.sizes[1], 1) if order == (0, 1) else (1, a.sizes[0]))
        turned = self.choose.choice(["%i, %j", "%i, %j", f"{a.sizes[0] - 1} - %i, %j"])
        self.lines += [
            f"{out.name} = loop.nest (%i : {a.sizes[0]}, %j : {a.sizes[1]}) outs(%o : {out.kind}) {{",
            f"  %v = loop.load {a.name}[%i, %j] : {a.kind} -> f32",
            f"  %w = loop.load {b.name}[{turned}] : {b.kind} -> f32",
            "  %x = arith.subf %v, %w : f32",
            f"  loop.store %x, %o[%i, %j] : f32, {out.kind}",
            "}",
        ]

    def rows(self) -> None:
        """Subtract from each row its maximum, and perhaps keep the maxima too."""
        a = self.pick()
        out = self.new(a.sizes)
        self.lines += [
            f"{out.name} = loop.nest (%i : {a.sizes[0]}) outs(%o : {out.kind}) {{",
            f'  %m = loop.reduce "max" (%j : {a.sizes[1]}) {{',
            f"    %v = loop.load {a.name}[%i, %j] : {a.kind} -> f32",
            "    loop.yield %v : f32",
            "  } : f32",
            f"  loop.for (%j : {a.sizes[1]}) {{",
            f"    %v = loop.load {a.name}[%i, %j] : {a.kind} -> f32",
            "    %x = arith.subf %v, %m : f32",
            f"    loop.store %x, %o[%i, %j] : f32, {out.kind}",
            "  }",
            "}",
        ]

    def two_results(self) -> None:
        """Compute two matrices in one nest."""
        a = self.pick()
        first, second = self.new(a.sizes), self.new(a.sizes)
        self.lines += [
            f"{first.name}, {second.name} = loop.nest (%i : {a.sizes[0]}, %j : {a.sizes[1]}) "
            f"outs(%o : {first.kind}, %p : {second.kind}) {{",
            f"  %v = loop.load {a.name}[%i, %j] : {a.kind} -> f32",
            "  %x = math.absf %v : f32",
            f"  loop.store %x, %o[%i, %j] : f32, {first.kind}",
            "  %y = arith.negf %v : f32",
            f"  loop.store %y, %p[%i, %j] : f32, {second.kind}",
            "}",
        ]

    def transposed(self) -> None:
        a = self.pick()
        out = self.new((a.sizes[1], a.sizes[0]), (a.strides[1], a.strides[0]))
        self.lines.append(f"{out.name} = loop.view {a.name} <(d0, d1) -> (d1, d0)> : {a.kind} to {out.kind}")

    def reshaped(self) -> None:
        a = self.pick()
        if not a.is_contiguous:
            return
        rows, columns = self.choose.choice([(3, 4), (4, 3), (2, 6)])
        out = self.new((rows, columns))
        place, width = f"(d0 * {columns} + d1)", a.sizes[1]
        self.lines.append(
            f"{out.name} = loop.view {a.name} <(d0, d1) -> ({place} floordiv {width}, {place} mod {width})> "
            f": {a.kind} to {out.kind}"
        )

    def called(self) -> None:
        a = self.pick()
        if not a.is_contiguous:
            return
        out = self.new(a.sizes)
        self.lines.append(f'{out.name} = aten.call "aten.neg.default"(self = {a.name}) : ({a.kind}) -> {out.kind}')

    def viewed_by_call(self) -> None:
        a = self.pick()
        out = self.new((a.sizes[1], a.sizes[0]), (a.strides[1], a.strides[0]))
        self.lines.append(f'{out.name} = aten.call "aten.t.default"(self = {a.name}) : ({a.kind}) -> {out.kind}')

    def argument_written(self) -> None:
        target = self.choose.choice(self.arguments)
        self.write(target, self.pick(target.sizes))

    def write(self, target: Value, source: Value) -> None:
        """Copy a matrix into an argument."""
        out = self.new(target.sizes, target.strides)
        self.written.append(target)
        self.lines.append(
            f'{out.name} = aten.call "aten.copy_.default"(self = {target.name}, src = {source.name}) '
            f": ({target.kind}, {source.kind}) -> {target.kind}"
        )

    def part_written(self) -> None:
        """Write to some rows of an argument, or to all of it through a view that turns it over."""
        whole = self.choose.choice(self.arguments)
        rows = self.choose.randint(1, whole.sizes[0])
        first = self.choose.randint(0, whole.sizes[0] - rows)
        turned = rows == whole.sizes[0]
        sizes = (whole.sizes[1], rows) if turned else (rows, whole.sizes[1])
        strides = (whole.strides[1], whole.strides[0]) if turned else whole.strides
        offset = 0 if turned else first * whole.strides[0]
        kind = tensor(sizes, strides).replace("]>>", f"], offset {offset}>>") if offset else tensor(sizes, strides)
        access = "(d1, d0)" if turned else f"(d0 + {first}, d1)" if first else "(d0, d1)"
        number = len(self.lines)
        source = self.pick()
        row, column = source.sizes[0], source.sizes[1]
        value = tensor(sizes, (sizes[1], 1))
        self.written.append(whole)
        self.lines += [
            f"%n{number} = loop.nest (%i : {sizes[0]}, %j : {sizes[1]}) outs(%o : {value}) {{",
            f"  %v = loop.load {source.name}[%i mod {row}, %j mod {column}] : {source.kind} -> f32",
            "  %x = math.absf %v : f32",
            f"  loop.store %x, %o[%i, %j] : f32, {value}",
            "}",
            f"%p{number} = loop.view {whole.name} <(d0, d1) -> {access}> : {whole.kind} to {kind}",
            f'%c{number} = aten.call "aten.copy_.default"(self = %p{number}, src = %n{number}) '
            f": ({kind}, {value}) -> {kind}",
        ]

    def updated(self) -> None:
        """Store to some rows of what begins as another matrix, perhaps reading that one."""
        a = self.choose.choice([*self.arguments, self.pick()])
        rows = self.choose.randint(1, a.sizes[0])
        first = self.choose.randint(0, a.sizes[0] - rows)
        source = self.choose.choice([a, self.pick()])
        row, column = source.sizes[0], source.sizes[1]
        shift = first if self.choose.random() < 0.5 else 0
        out = self.new(a.sizes, a.strides)
        self.lines += [
            f"{out.name} = loop.nest (%i : {rows}, %j : {a.sizes[1]}) outs(%o = {a.name} : {a.kind}) {{",
            f"  %v = loop.load {source.name}[(%i + {shift}) mod {row}, %j mod {column}] : {source.kind} -> f32",
            "  %x = math.absf %v : f32",
            f"  loop.store %x, %o[%i + {first}, %j] : f32, {out.kind}",
            "}",
        ]
        if self.choose.random() < 0.5 and a in self.arguments:
            self.write(a, out)

    def text(self, steps: int) -> str:
        """Write a whole program."""
        for sizes, strides in (((3, 4), (4, 1)), ((4, 3), (1, 4)), ((2, 6), (6, 1))):
            self.arguments.append(self.new(sizes, strides))
        plain = [self.pointwise] * 4 + [self.rows] * 2 + [self.two_results, self.transposed, self.reshaped, self.called]
        choices = [*plain, self.viewed_by_call, *([self.argument_written, self.part_written, self.updated] * 2)]
        for _ in range(steps):
            self.choose.choice(choices)()
        results = [self.pick() for _ in range(self.choose.randint(1, 3))]
        arguments = ", ".join(f"{a.name} : {a.kind}" for a in self.arguments)
        kinds = ", ".join(r.kind for r in results)
        names = ", ".join(r.name for r in results)
        body = "\n  ".join(self.lines)
        return f"func.func @forward({arguments}) -> ({kinds}) {{\n  {body}\n  func.return {names} : {kinds}\n}}"

    def inputs(self) -> list[Tensor]:
        """Return values for the arguments."""
        made: list[Tensor] = []
        for argument in self.arguments:
            values = torch.tensor([float(self.choose.randint(-9, 9)) for _ in range(12)])
            made.append(values.as_strided(argument.sizes, argument.strides))
        return made
