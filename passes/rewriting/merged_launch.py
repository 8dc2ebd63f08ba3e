"""One kernel for several launches of another: which of them a program belongs to decides about its buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import (
    ArrayAttr,
    FunctionType,
    IntegerAttr,
    IntegerType,
    StringAttr,
    i32,
    i64,
)
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import Rewriter

from tilewright.dialects import arith_tensor, tt
from tilewright.dialects.sym import ExprAttr, IntsAttr
from tilewright.dialects.sym_expr import integer

_OF_LAUNCHES = ("symbols", "reach", "wide")


@dataclass(frozen=True)
class Part:
    """One launch: which arguments of the new kernel its buffers are, its sizes, and how many programs it has."""

    buffers: tuple[int, ...]
    sizes: tuple[int, ...]
    programs: int


def merged_kernel(kernel: tt.FuncOp, name: str, parts: Sequence[Part]) -> tt.FuncOp:
    """Return a kernel that takes the buffers of all parts and does what `kernel` does for each."""
    made = kernel.clone()
    block = made.block
    old, first = list(block.args), block.first_op
    assert first is not None
    role = {n: r for part in parts for r, n in enumerate(part.buffers)}
    for n in range(len(role)):
        like = old[role[n]]
        block.insert_arg(like.type, len(old) + n).name_hint = like.name_hint
    prologue = Block()
    programs = [op for op in block.walk() if isinstance(op, tt.GetProgramIdOp)]
    values = _Prologue(prologue, block.args[len(old) :]).build(parts, with_program=bool(programs))
    for op in list(prologue.ops):
        op.detach()
        block.insert_op_before(op, first)
    for argument, value in zip(old, values, strict=False):
        argument.replace_all_uses_with(value)
    for op in programs:
        Rewriter.replace_op(op, [], [values[-1]])
    for argument in reversed(old):
        block.erase_arg(argument)
    made.properties.update(
        sym_name=StringAttr(name),
        function_type=FunctionType.from_lists([a.type for a in block.args], []),
    )
    given = kernel.arg_attrs
    if given is not None:
        made.properties["arg_attrs"] = ArrayAttr([given.data[role[n]] for n in range(len(role))])
    for one in _OF_LAUNCHES:
        made.attributes.pop(one, None)
    made.attributes["grid"] = ExprAttr(integer(sum(part.programs for part in parts)))
    made.attributes["parts"] = IntsAttr(tuple(integer(part.programs) for part in parts))
    return made


class _Prologue:
    """Builds what a program does first: find its part."""

    def __init__(self, block: Block, buffers: Sequence[SSAValue]):
        self._block = block
        self._buffers = buffers
        self._constants: dict[IntegerAttr, SSAValue] = {}

    def build(self, parts: Sequence[Part], *, with_program: bool) -> list[SSAValue]:
        """Return the buffers and sizes of a program's part, and `with_program` its number in the part."""
        firsts = [0, *accumulate(part.programs for part in parts)][:-1]
        program = self._emit(tt.GetProgramIdOp.get(), "pid")
        rows = [
            [
                *(self._buffers[n] for n in part.buffers),
                *(self._constant(size, i64) for size in part.sizes),
                *([self._constant(first, i32)] if with_program else []),
            ]
            for part, first in zip(parts, firsts, strict=True)
        ]
        moving = [n for n, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1]
        chosen = self._choose(self._block, program, [[row[n] for n in moving] for row in rows], firsts)
        values = list(rows[0])
        for n, value in zip(moving, chosen, strict=True):
            values[n] = value
        if with_program:
            values[-1] = self._emit(arith.SubiOp(program, values[-1]), "pid")
        return values

    def _choose(
        self, block: Block, program: SSAValue, rows: Sequence[Sequence[SSAValue]], firsts: Sequence[int]
    ) -> Sequence[SSAValue]:
        """Return the row of a program, those of `rows` beginning at the programs `firsts`."""
        if len(rows) == 1 or not rows[0]:
            return rows[0]
        middle = len(rows) // 2
        is_before = arith_tensor.CmpiOp(program, self._constant(firsts[middle], i32), "slt")
        regions: list[Region] = []
        for half in (slice(middle), slice(middle, None)):
            inner = Block()
            inner.add_op(scf.YieldOp(*self._choose(inner, program, rows[half], firsts[half])))
            regions.append(Region(inner))
        choice = scf.IfOp(is_before.result, [v.type for v in rows[0]], regions[0], regions[1])
        block.add_ops([is_before, choice])
        return choice.results

    def _constant(self, value: int, kind: IntegerType) -> SSAValue:
        attribute = IntegerAttr(value, kind)
        if attribute not in self._constants:
            self._constants[attribute] = self._emit(arith.ConstantOp(attribute))
        return self._constants[attribute]

    def _emit(self, op: Operation, hint: str | None = None) -> SSAValue:
        self._block.add_op(op)
        op.results[0].name_hint = hint
        return op.results[0]
