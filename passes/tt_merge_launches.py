"""Make one launch of several of the same Triton kernel that do not depend on each other.

The step of an optimizer launches one kernel for each parameter, and most parameters are small: starting a launch takes
longer than what it does. The merged kernel takes the buffers of all launches, and its programs find out which launch
they belong to: the body is there once, however many there are.

Before:
```
!T = memref<1xf32, #sym.layout<[1], [1], device "cuda:0">>
tt.func public @zero(%y : !tt.ptr<f32>) attributes {grid = #sym.expr<1>} {
  %zero = arith.constant 0.000000e+00 : f32
  tt.store %y, %zero : !tt.ptr<f32>
  tt.return
}
func.func @forward(%a : !T, %b : !T, %c : !T) {
  host.launch @zero(%a) symbols [] : !T
  host.launch @zero(%b) symbols [] : !T
  host.launch @zero(%c) symbols [] : !T
  func.return
}
```
After:
```
!T = memref<1xf32, #sym.layout<[1], [1], device "cuda:0">>
tt.func public @zero_x3(%y : !tt.ptr<f32>, %y_1 : !tt.ptr<f32>, %y_2 : !tt.ptr<f32>)
    attributes {grid = #sym.expr<3>, parts = #sym.ints<[1, 1, 1]>} {
  %pid = tt.get_program_id x : i32
  %0 = arith.constant 1 : i32
  %1 = arith.constant 2 : i32
  %2 = arith.cmpi slt, %pid, %0 : i32
  %y_3 = scf.if %2 -> (!tt.ptr<f32>) {
    scf.yield %y : !tt.ptr<f32>
  } else {
    %3 = arith.cmpi slt, %pid, %1 : i32
    %y_4 = scf.if %3 -> (!tt.ptr<f32>) {
      scf.yield %y_1 : !tt.ptr<f32>
    } else {
      scf.yield %y_2 : !tt.ptr<f32>
    }
    scf.yield %y_4 : !tt.ptr<f32>
  }
  %zero = arith.constant 0.000000e+00 : f32
  tt.store %y_3, %zero : !tt.ptr<f32>
  tt.return
}
func.func @forward(%a : !T, %b : !T, %c : !T) {
  host.launch @zero_x3(%a, %b, %c) symbols [] : !T, !T, !T
  func.return
}
```
A launch moves to an earlier one if nothing in between uses its buffers otherwise. They have to be there by then, or
else only launches lie in between, so that no memory is taken before other is given back. Sizes must be known, since
those that allow to move 16 bytes at a time are not mixed with others. Launches of several kernels are left alone, and
those of few, as a merged kernel is one more to compile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from tilewright.dialects import host, tt
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.sym_expr import Expr, symbol
from tilewright.passes.analysis.aliasing import AliasSets, alias_sets
from tilewright.passes.analysis.pointers import writes
from tilewright.passes.rewriting.kernel_content import launches_in
from tilewright.passes.rewriting.merged_launch import Part, merged_kernel

_Key: TypeAlias = tuple[tt.FuncOp, tuple[Part, ...]]


@dataclass(frozen=True)
class _Launch:
    """A launch whose sizes are known: the function that it runs, and how many programs."""

    op: host.LaunchOp
    kernel: tt.FuncOp
    programs: int
    is_even: bool
    """Whether sizes are the multiples that the kernel expects."""

    @staticmethod
    def of(op: host.LaunchOp, kernel: tt.FuncOp) -> _Launch | None:
        sizes = op.symbols.exprs
        values = {symbol(name): size for name, size in zip(kernel.symbol_names, sizes, strict=True)}

        def at(expr: Expr) -> int | None:
            value = expr.xreplace(values)
            return int(value) if value.is_Integer else None

        programs = None if kernel.grid is None else at(kernel.grid.expr)
        if programs is None or programs < 1 or not all(size.is_Integer for size in sizes):
            return None
        first = len(kernel.args) - len(sizes)
        is_even = all(int(size) % kernel.divisor(first + n) == 0 for n, size in enumerate(sizes))
        reach = None if kernel.reach is None else at(kernel.reach.expr)
        if reach is not None and reach >= tt.NARROW_LIMIT and kernel.wide is not None:
            kernel = kernel.wide
        return _Launch(op, kernel, programs, is_even)

    def part(self, buffers: dict[SSAValue, int]) -> Part:
        """Return the launch as a part of one that has `buffers`."""
        sizes = tuple(int(size) for size in self.op.symbols.exprs)
        return Part(tuple(buffers[b] for b in self.op.buffers), sizes, self.programs)


@dataclass
class _Group:
    """Launches that can be one, where the first of them is."""

    position: int
    launches: list[_Launch] = field(default_factory=list[_Launch])
    buffers: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    programs: int = 0

    @property
    def key(self) -> _Key:
        """The kernel, and what has to be merged: equal groups run the same merged kernel."""
        return self.launches[0].kernel, tuple(launch.part(self.buffers) for launch in self.launches)

    def add(self, launch: _Launch) -> None:
        self.launches.append(launch)
        self.programs += launch.programs
        for buffer in launch.op.buffers:
            self.buffers.setdefault(buffer, len(self.buffers))


class _Program:
    """Finds the groups of a host program, going through it once."""

    def __init__(self, kernels: dict[str, tt.FuncOp], sets: AliasSets, most: int):
        self._kernels = kernels
        self._sets = sets
        self._most = most
        self._read: dict[int, int] = {}
        """For each set of buffers that may share memory, where it was read last."""
        self._written: dict[int, int] = {}
        self.defined: dict[SSAValue, int] = {}
        """Where each buffer is made."""
        self._last_other = -1
        """Where there was something last that is no launch and makes no buffer."""
        self._targets: dict[tt.FuncOp, set[SSAValue | None]] = {}
        self._latest: dict[tuple[tt.FuncOp, str, bool], _Group] = {}
        self.groups: list[_Group] = []

    def visit(self, op: Operation, position: int) -> None:
        """Look at the next operation."""
        self.defined.update((result, position) for result in op.results)
        if isinstance(op, host.LaunchOp) and op.kernel_name in self._kernels:
            kernel = self._kernels[op.kernel_name]
            launch = _Launch.of(op, kernel)
            if launch is not None:
                self._place(launch, position)
            self._touch(op.buffers, self._written_by(op, kernel), position)
        elif not isinstance(op, (host.AllocOp, host.ViewOp, host.SizeOp)):
            self._last_other = position
            buffers = [operand for operand in op.operands if operand in self._sets]
            self._touch(buffers, buffers, position)

    def _place(self, launch: _Launch, position: int) -> None:
        device = layout_of(launch.op.buffers[0].type).device if launch.op.buffers else ""
        key = launch.kernel, device, launch.is_even
        group = self._latest.get(key)
        if group is None or not self._can_join(launch, group):
            group = self._latest[key] = _Group(position)
            self.groups.append(group)
        group.add(launch)

    def _can_join(self, launch: _Launch, group: _Group) -> bool:
        new = sum(buffer not in group.buffers for buffer in launch.op.buffers)
        if len(group.buffers) + new > self._most or group.programs + launch.programs >= tt.NARROW_LIMIT:
            return False
        at, buffers = group.position, launch.op.buffers
        if self._last_other > at and any(self.defined.get(buffer, -1) > at for buffer in buffers):
            return False
        written = self._written_by(launch.op, launch.kernel)
        return not any(self._time(self._written, b) >= at for b in buffers) and not any(
            self._time(self._read, b) >= at for b in written
        )

    def _written_by(self, op: host.LaunchOp, kernel: tt.FuncOp) -> list[SSAValue]:
        """Return the buffers that a launch may write."""
        bases = self._targets.get(kernel)
        if bases is None:
            bases = self._targets[kernel] = {base for inner in kernel.walk() for base in writes(inner)}
        pairs = zip(op.buffers, kernel.args, strict=False)
        return [buffer for buffer, argument in pairs if argument in bases or None in bases]

    def _time(self, times: dict[int, int], buffer: SSAValue) -> int:
        return times.get(id(self._sets.members(buffer)), -1)

    def _touch(self, read: Iterable[SSAValue], written: Iterable[SSAValue], position: int) -> None:
        for times, buffers in ((self._read, read), (self._written, written)):
            times.update((id(self._sets.members(buffer)), position) for buffer in buffers)


@dataclass(frozen=True)
class TtMergeLaunchesPass(ModulePass):
    """Make one launch of several of the same Triton kernel that do not depend on each other."""

    name = "tt-merge-launches"

    buffers: int = 400
    """How many a merged launch has at most: its arguments have to fit 4 KiB."""

    saved: int = 2
    """How many launches a merged kernel has to save, in all its launches together: it is one more to compile."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        kernels = {k.sym_name.data: k for k in op.ops if isinstance(k, tt.FuncOp)}
        equal: dict[_Key, list[tuple[_Group, dict[SSAValue, int]]]] = {}
        for function in op.ops:
            if not isinstance(function, func.FuncOp) or len(function.body.blocks) != 1 or not kernels:
                continue
            program = _Program(kernels, alias_sets(function.body.block), self.buffers)
            for position, inner in enumerate(function.body.block.ops):
                program.visit(inner, position)
            for group in program.groups:
                if len(group.launches) > 1:
                    equal.setdefault(group.key, []).append((group, program.defined))
        taken = {name.data for other in op.ops if isinstance(name := other.properties.get("sym_name"), StringAttr)}
        merged: list[tt.FuncOp] = []
        for (kernel, parts), groups in equal.items():
            if len(groups) * (len(parts) - 1) < self.saved:
                continue
            made = merged_kernel(kernel, _new_name(f"{kernel.sym_name.data}_x{len(parts)}", taken), parts)
            Rewriter.insert_op(made, InsertPoint.before(kernel))
            for group, defined in groups:
                _merge(group, made, defined)
            merged.append(kernel)
        _drop_unused(op, merged)


def _new_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _merge(group: _Group, kernel: tt.FuncOp, defined: dict[SSAValue, int]) -> None:
    """Replace the launches of a group by one of a merged kernel."""
    for buffer in group.buffers:
        _make_before(buffer, group, defined)
    first, *others = (launch.op for launch in group.launches)
    Rewriter.replace_op(first, host.LaunchOp.get(kernel.sym_name.data, list(group.buffers), []), [])
    for op in others:
        Rewriter.erase_op(op)


def _make_before(buffer: SSAValue, group: _Group, defined: dict[SSAValue, int]) -> None:
    """Move what makes a buffer in front of the first launch of a group unless it is there."""
    maker = buffer.owner
    if isinstance(maker, Operation) and defined[buffer] > group.position:
        for operand in maker.operands:
            _make_before(operand, group, defined)
        defined[buffer] = group.position
        maker.detach()
        Rewriter.insert_op(maker, InsertPoint.before(group.launches[0].op))


def _drop_unused(module: ModuleOp, kernels: Sequence[tt.FuncOp]) -> None:
    """Remove kernels that nothing launches any more, and those that would have taken over."""
    if not kernels:
        return
    launched = {launch.kernel_name for launch in launches_in(module)}
    for kernel in dict.fromkeys(kernels):
        wide = kernel.wide
        named = {SymbolRefAttr(kernel.sym_name)} & {k.attributes.get("wide") for k in module.ops}
        if kernel.sym_name.data in launched or named:
            continue
        Rewriter.erase_op(kernel)
        if wide is not None and wide.sym_name.data not in launched:
            Rewriter.erase_op(wide)
