"""Checks of a kernel: a failed one is noted in a status, which the kernel returns once all of it has run."""

from __future__ import annotations

from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import AnyFloat, ArrayAttr, FloatAttr, IntegerAttr, StringAttr, i1, i32
from xdsl.ir import Attribute, Block, Region, SSAValue

from tilewright.dialects import cpu
from tilewright.dialects.combiners import element_type
from tilewright.dialects.loop import CheckOp, KernelOp, SelectOp
from tilewright.dialects.type_guards import is_vector
from tilewright.passes.lowering_cpu.builder import ScopedBuilder


class CheckBuilder:
    """Builds the checks of one kernel.

    The status is 0 or the number, from one on, of the text in `errors` that says what failed; of several the largest,
    whatever the order in which threads come to them.
    """

    def __init__(self, kernel: KernelOp, builder: ScopedBuilder):
        self._builder = builder
        found = dict.fromkeys(op.error for op in kernel.walk() if isinstance(op, CheckOp))
        # The first check counts most: what fails after it may do so because of the zero that it gave.
        self._numbers = {error: len(found) - i for i, error in enumerate(found)}
        self.errors: ArrayAttr[StringAttr] = ArrayAttr(reversed(found))
        self._status: SSAValue | None = None

    @property
    def result_types(self) -> list[Attribute]:
        """The types of what the kernel returns: its status, if it checks anything."""
        return [i32] if self._numbers else []

    def begin(self) -> None:
        """Start the kernel with a status of 0."""
        if self._numbers:
            self._status = self._builder.emit(memref.AllocaOp.get(i32, 4, [1]))
            self._builder.append(cpu.StoreOp.get(self._number(0), self._status, self._builder.constant(0)))

    def end(self) -> None:
        """Return the status, if there is one."""
        results: list[SSAValue] = []
        if self._status is not None:
            results = [self._builder.emit(cpu.LoadOp.get(self._status, self._builder.constant(0), i32))]
        self._builder.append(func.ReturnOp(*results))

    def lower(self, op: CheckOp, condition: SSAValue, value: SSAValue) -> SSAValue:
        """Note that `condition` fails in some lane; return `value`, where it does zero."""
        assert self._status is not None
        builder, kind = self._builder, value.type
        zero, true = builder.constant(_zero(element_type(kind))), builder.constant(IntegerAttr(1, i1))
        if is_vector(kind):
            zero, true = (builder.broadcast(v, kind.get_shape()[0]) for v in (zero, true))
        failed = builder.emit(arith.XOrIOp(condition, true))
        if is_vector(kind):
            failed = builder.emit(cpu.ReduceOp.get("any", failed))
        number = self._number(self._numbers[op.error])
        note = cpu.StoreOp.get(number, self._status, builder.constant(0), combine="max")
        builder.append(scf.IfOp(failed, [], Region(Block([note, scf.YieldOp()]))))
        return builder.emit(SelectOp.get(condition, value, zero))

    def _number(self, value: int) -> SSAValue:
        return self._builder.constant(IntegerAttr(value, i32))


def _zero(kind: Attribute) -> FloatAttr | IntegerAttr:
    return FloatAttr(0.0, kind) if isinstance(kind, AnyFloat) else IntegerAttr(0, kind)  # pyright: ignore[reportArgumentType, reportCallIssue]
