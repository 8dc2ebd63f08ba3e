"""Loops of a kernel as `scf.for` and `cpu.parallel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy
from xdsl.dialects import arith, scf
from xdsl.ir import Block, Region, SSAValue

from tilewright.dialects import cpu
from tilewright.dialects.loop import Loop, LoopDim
from tilewright.dialects.sym_expr import Expr, FloorDiv
from tilewright.passes.lowering_cpu.address import AddressBuilder, Lanes
from tilewright.passes.lowering_cpu.builder import INDEX

Carried = Sequence[SSAValue]
"""The values that a loop carries from one iteration to the next."""

Body = Callable[[Carried], Carried]
"""Builds one iteration from the values carried into it, and returns those carried out."""


class LoopBuilder:
    """Builds the loops of kernel operations around bodies."""

    def __init__(self, address: AddressBuilder, set_mask: Callable[[SSAValue, SSAValue], None]):
        self._address = address
        self._builder = address.builder
        self._space = address.space
        self._set_mask = set_mask

    def trips(self, this: LoopDim) -> Expr:
        """Return how many iterations a loop has."""
        return self._space.simplify(FloorDiv(this.upper - this.lower + (this.step - 1), this.step))

    def total(self, op: Loop) -> Expr:
        """Return how many iterations the loops of `op` have together."""
        return sympy.Mul(*(self.trips(d) for d in self._space.loops(op)))

    def serial(self, op: Loop, carried: Carried, body: Body, position: int = 0) -> Carried:
        """Run the loops of `op` from `position` on, one iteration after the other."""
        dims = self._space.loops(op)
        if position == len(dims):
            return body(carried)
        this = dims[position]
        trips = self.trips(this)
        if trips.is_Integer and trips <= 0:
            return carried
        if trips == 1:
            self._bind(op, position, self._address.scalar(this.lower))
            return self.serial(op, carried, body, position + 1)

        def iteration(index: SSAValue, inner: Carried) -> Carried:
            self._bind(op, position, index)
            return self.serial(op, inner, body, position + 1)

        lower, upper = self._address.scalar(this.lower), self._address.scalar(this.upper)
        return self.counted(lower, upper, carried, iteration, this.step)

    def parallel(self, extent: SSAValue, grain: int, chunk: Callable[[SSAValue, SSAValue], None]) -> None:
        """Split `extent` iterations over threads; `chunk` builds the code for those from a begin to an end."""
        region = cpu.ParallelOp.get(extent, grain)
        begin, end = region.block.args
        self._builder.push(region.block, floor=True)
        chunk(begin, end)
        self._builder.pop()
        self._builder.append(region)

    def part(
        self, op: Loop, begin: SSAValue, end: SSAValue, carried: Carried, body: Body, position: int = 0
    ) -> Carried:
        """Run the iterations `begin` to `end` of the loops of `op` from `position` on, counted over all of these loops.

        Each loop but the last runs over the part of its range that the iterations touch, and passes on to the loops
        inside which part of theirs is meant. So no iteration divides to find out its indices.
        """
        dims = self._space.loops(op)
        if self.trips(dims[position]) == 1 and position + 1 < len(dims):
            self._bind(op, position, self._address.scalar(dims[position].lower))
            return self.part(op, begin, end, carried, body, position + 1)
        inside = sympy.Mul(*(self.trips(d) for d in dims[position + 1 :]))
        if inside == 1:
            return self.counted(begin, end, carried, lambda i, c: self._last_part(op, position, i, c, body))
        builder, size = self._builder, self._address.scalar(inside)
        if not inside.is_Integer:
            size = builder.binary(arith.MaxSIOp, size, builder.constant(1))
        first = builder.binary(arith.DivUIOp, begin, size)
        beyond = builder.binary(arith.SubiOp, builder.binary(arith.AddiOp, end, size), builder.constant(1))
        last = builder.binary(arith.DivUIOp, beyond, size)

        def iteration(number: SSAValue, inner: Carried) -> Carried:
            start = builder.binary(arith.MuliOp, number, size)
            inner_begin = builder.binary(arith.MaxSIOp, builder.binary(arith.SubiOp, begin, start), builder.constant(0))
            inner_end = builder.binary(arith.MinSIOp, builder.binary(arith.SubiOp, end, start), size)
            self._bind_number(op, position, number)
            return self.part(op, inner_begin, inner_end, inner, body, position + 1)

        return self.counted(first, last, carried, iteration)

    def _last_part(self, op: Loop, position: int, number: SSAValue, carried: Carried, body: Body) -> Carried:
        """Run one iteration of the loop at `position`, inside which each loop has one iteration."""
        self._bind_number(op, position, number)
        for i, d in enumerate(self._space.loops(op)[position + 1 :], position + 1):
            self._bind(op, i, self._address.scalar(d.lower))
        return body(carried)

    def counted(
        self,
        begin: SSAValue,
        end: SSAValue,
        carried: Carried,
        iteration: Callable[[SSAValue, Carried], Carried],
        step: int = 1,
    ) -> Carried:
        """Build an `scf.for` and return its results."""
        block = Block(arg_types=[INDEX, *(v.type for v in carried)])
        self._builder.push(block)
        results = iteration(block.args[0], block.args[1:])
        self._builder.append(scf.YieldOp(*results))
        self._builder.pop()
        return self._builder.append(scf.ForOp(begin, end, self._builder.constant(step), carried, Region(block)))

    def _bind_number(self, op: Loop, position: int, number: SSAValue) -> None:
        """Let a loop be in its iteration `number`."""
        this = self._space.loops(op)[position]
        start = number
        if this.step != 1:
            start = self._builder.binary(arith.MuliOp, number, self._builder.constant(this.step))
        if this.lower != 0:
            start = self._builder.binary(arith.AddiOp, start, self._address.scalar(this.lower))
        self._bind(op, position, start)

    def _bind(self, op: Loop, position: int, start: SSAValue) -> None:
        """Let the index of a loop be `start`, or count lanes from there."""
        this = self._space.loops(op)[position]
        if not self._builder.is_constant(start):
            start.name_hint = start.name_hint or op.indices[position].name_hint
        self._address.values[op.indices[position]] = Lanes(start, 1, this.step) if this.lanes else start
        if this.lanes and op.mask is not None:
            end = self._address.scalar(this.upper)
            key = ("mask", this.step)
            mask = self._builder.hoisted(key, (start, end), lambda: cpu.TailMaskOp.get(start, end, this.step))
            self._set_mask(op.mask, mask)
