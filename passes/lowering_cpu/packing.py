"""Rectangles of elements that lie across the lanes, turned into ones that lie along them.

In a loop over a small rectangle `(%t, %n lanes)`, a load whose address moves by one along `%t` would gather an element
from another row for each lane. Here such a rectangle is first copied to the stack, a square of registers at a time,
with the elements of each vector side by side. Every cache line is then read once, whatever the distance of the rows:
rows a power of two apart share few places in a cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import VectorType
from xdsl.ir import Attribute, SSAValue

from tilewright.dialects import cpu
from tilewright.dialects.combiners import element_type
from tilewright.dialects.cpu_transpose import TransposeOp
from tilewright.dialects.loop import ForOp, LoadOp, StoreOp
from tilewright.dialects.sym_expr import Expr, Symbol
from tilewright.passes.analysis.index_space import IndexSpace, stride
from tilewright.passes.lowering_cpu.address import AddressBuilder
from tilewright.passes.lowering_cpu.loops import Carried, LoopBuilder

SIDE = 8
"""The rows and columns of the squares that are transposed in registers."""

MAX_ELEMENTS = 4096
"""The largest rectangle that is worth a copy: it has to stay in the first level cache."""


def transposed_rectangle(space: IndexSpace, op: ForOp, load: LoadOp) -> tuple[int, int] | None:
    """Return the height and width of the rectangle that `load` reads in all of `op`, if it lies across the lanes."""
    dims = space.loops(op)
    if len(dims) != 2 or dims[0].step != 1 or not dims[1].lanes or load.mask not in (None, op.mask):
        return None
    if any(isinstance(use.operation, StoreOp) for use in load.source.uses):
        return None
    across, along = (space.symbol(i) for i in op.indices)
    (expr,) = space.access(load.access, load.indices)
    inside = {r for inner in op.block.ops for r in inner.results}
    if any(space.value(s) in inside for s in expr.free_symbols):
        return None
    if stride(expr, across) != 1 or stride(expr, along) in (None, 0, 1):
        return None
    extents = [space.largest_extent(d) for d in dims]
    if extents[0] is None or extents[1] is None or extents[0] * extents[1] > MAX_ELEMENTS:
        return None
    return extents[0], extents[1]


@dataclass(frozen=True)
class Packed:
    """A rectangle on the stack: element `(t, n)` is at `(t - first_t) * width + n - first_n`."""

    buffer: SSAValue
    element: Attribute
    width: int
    across: Symbol
    along: Symbol
    first: tuple[Expr, Expr]

    def place(self) -> Expr:
        """Return where the element of an iteration is, over the index space."""
        return (self.across - self.first[0]) * self.width + self.along - self.first[1]


class PackingBuilder:
    """Builds the copies ahead of a loop."""

    def __init__(self, loops: LoopBuilder, address: AddressBuilder):
        self._loops = loops
        self._address = address
        self._builder = address.builder
        self._space = address.space

    def pack(self, op: ForOp, load: LoadOp, source: SSAValue) -> Packed | None:
        """Copy what `load` reads from `source` in all of `op`, if it lies across the lanes; else return None."""
        rectangle = transposed_rectangle(self._space, op, load)
        if rectangle is None:
            return None
        height, width = (-(-extent // SIDE) * SIDE for extent in rectangle)
        element = element_type(load.result.type)
        make = memref.AllocaOp.get
        buffer = self._builder.on_entry(("packed", load), lambda: make(element, 64, [height * width]))
        dims = self._space.loops(op)
        across, along = (self._space.symbol(i) for i in op.indices)
        packed = Packed(buffer, element, width, across, along, (dims[0].lower, dims[1].lower))
        (expr,) = self._space.access(load.access, load.indices)
        (top, bottom), (left, right) = ((self._address.scalar(d.lower), self._address.scalar(d.upper)) for d in dims)
        whole = [self._space.is_multiple(d.upper - d.lower, SIDE) for d in dims]
        if dims[1].step % SIDE == 0 and op.mask is None:
            whole[1] = True

        def rows(t: SSAValue, carried: Carried) -> Carried:
            mask = None if whole[0] else self._builder.emit(cpu.TailMaskOp.get(t, bottom, SIDE))

            def columns(n: SSAValue, carried: Carried) -> Carried:
                self._square(packed, source, expr, t, self._numbers(n, None if whole[1] else right), mask)
                return carried

            return self._loops.counted(left, right, carried, columns, SIDE)

        self._loops.counted(top, bottom, (), rows, SIDE)
        return packed

    def _numbers(self, first: SSAValue, end: SSAValue | None) -> list[Expr]:
        """Return the numbers of the rows of a square; those beyond `end`, which nobody looks at, are the last's."""
        start = self._position(first)
        if end is None:
            return [start + j for j in range(SIDE)]
        builder = self._builder
        last = builder.binary(arith.SubiOp, end, builder.constant(1))
        rows = (builder.binary(arith.AddiOp, first, builder.constant(j)) for j in range(1, SIDE))
        return [start, *(self._position(builder.binary(arith.MinSIOp, row, last)) for row in rows)]

    def _square(
        self, packed: Packed, source: SSAValue, expr: Expr, t: SSAValue, rows: list[Expr], mask: SSAValue | None
    ) -> None:
        """Copy the square whose rows are `rows`, from element `t` of each on."""
        builder, address = self._builder, self._address
        across = self._position(t)
        kind = VectorType(packed.element, [SIDE])
        loaded: list[SSAValue] = []
        for row in rows:
            place = address.scalar(sympy.expand(expr.xreplace({packed.across: across, packed.along: row})))
            loaded.append(builder.emit(cpu.LoadOp.get(source, place, kind, mask=mask)))
        for i, column in enumerate(builder.append(TransposeOp.get(loaded))):
            place = address.scalar(packed.place().xreplace({packed.across: across + i, packed.along: rows[0]}))
            builder.append(cpu.StoreOp.get(column, packed.buffer, place))

    def _position(self, index: SSAValue) -> Symbol:
        """Return the symbol of an index that is no index of the kernel."""
        self._address.values[index] = index
        return self._space.symbol(index)
