"""The loops of a kernel: the grid of programs, axes of tensors, and loops that run one iteration after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import StringAttr, i32
from xdsl.ir import Block, Region, SSAValue
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects import tt
from tilewright.dialects.loop import Loop, LoopDim, NestOp
from tilewright.dialects.sym_expr import Expr, FloorDiv, integer
from tilewright.passes.lowering_tt.builder import TensorBuilder, shape_of
from tilewright.passes.lowering_tt.index import IndexBuilder

_AXIS = {"axis": StringAttr("x")}

Carried = Sequence[SSAValue]
"""The values that a loop carries from one iteration to the next."""

Body = Callable[[Carried], Carried]
"""Builds one iteration from the values carried into it, and returns those carried out."""


class LoopBuilder:
    """Builds the loops of kernel operations around bodies."""

    def __init__(self, builder: TensorBuilder, index: IndexBuilder):
        self._builder = builder
        self._index = index

    def trips(self, this: LoopDim) -> Expr:
        """Return how many iterations a loop has, which is given over the index space."""
        count = FloorDiv(this.upper - this.lower + (this.step - 1), this.step)
        return self._index.space.simplify(count)

    def grid(self, nest: NestOp) -> Expr:
        """Let each iteration of a nest be a program, and return how many there are; the last loop is the fastest."""
        dims = self._index.space.loops(nest)
        trips = [self.trips(d) for d in dims]
        for index, d, count in zip(nest.indices, dims, trips, strict=True):
            if count == 1:
                self._index.define(index, d.lower)
        moving = [i for i, count in enumerate(trips) if count != 1]
        if not moving:
            return integer(1)
        program = rest = self._index.convert(self._builder.shared(tt.GetProgramIdOp, (), i32, _AXIS, hint="pid"))
        for i in reversed(moving):
            coordinate = rest
            if i != moving[0]:
                count = self._index.scalar(trips[i])
                coordinate = self._builder.apply_shared(arith.RemSIOp, rest, count)
                rest = self._builder.apply_shared(arith.DivSIOp, rest, count)
            if coordinate is not program:
                coordinate.name_hint = nest.indices[i].name_hint
            part = self._index.add_part(coordinate, integer(0), trips[i] - 1)
            self._index.define(nest.indices[i], dims[i].lower + dims[i].step * part)
        return sympy.Mul(*trips)

    def serial(self, op: Loop, carried: Carried, body: Body, position: int = 0) -> Carried:
        """Run the loops of `op` from `position` on, one iteration after the other."""
        dims = self._index.space.loops(op)
        if position == len(dims):
            return body(carried)
        this, index = dims[position], op.indices[position]
        trips = self.trips(this)
        if trips.is_Integer and trips <= 0:
            return carried
        lower, upper = self._index.over_parts(this.lower), self._index.over_parts(this.upper)
        if trips == 1:
            self._index.define(index, lower)
            return self.serial(op, carried, body, position + 1)

        def iteration(counter: SSAValue, inner: Carried) -> Carried:
            counter.name_hint = index.name_hint
            multiple = this.step if self._index.is_multiple(lower, this.step) else 1
            part = self._index.add_part(counter, lower, upper - 1, multiple=multiple)
            self._index.define(index, part)
            return self.serial(op, inner, body, position + 1)

        begin, end = self._index.value(lower), self._index.value(upper)
        if shape_of(begin) or shape_of(end):
            raise PassFailedException(
                f"`{op.name}` has bounds from {this.lower} to {this.upper} that differ between the points of a block, "
                "expected `blocks` on it or none around it; established by loop-tile-blocks"
            )
        return self.counted(begin, end, this.step, carried, iteration)

    def counted(
        self,
        begin: SSAValue,
        end: SSAValue,
        step: int,
        carried: Carried,
        iteration: Callable[[SSAValue, Carried], Carried],
    ) -> Carried:
        """Build an `scf.for` and return its results."""
        block = Block(arg_types=[self._index.kind, *(v.type for v in carried)])
        for argument, value in zip(block.args[1:], carried, strict=True):
            argument.name_hint = value.name_hint
        self._builder.push(block)
        results = iteration(block.args[0], block.args[1:])
        self._builder.append(scf.YieldOp(*results))
        self._builder.pop()
        by = self._index.constant(step)
        return self._builder.append(scf.ForOp(begin, end, by, carried, Region(block)))
