"""Rectangles of elements that lie across the lanes, turned into ones that lie along them.

In a loop over a small rectangle `(%t, %n lanes)`, a load whose address moves by one along `%t` would gather an element
from another row for each lane. Here such a rectangle is first copied to the stack, a square of registers at a time,
with the elements of each vector side by side. Every cache line is then read once, whatever the distance of the rows:
rows a power of two apart share few places in a cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import VectorType
from xdsl.ir import Attribute, Block, Region, SSAValue

from tilewright.dialects import cpu
from tilewright.dialects.combiners import element_type
from tilewright.dialects.cpu_transpose import TransposeOp
from tilewright.dialects.loop import CmpOp, ForOp, LoadOp, SelectOp, StoreOp
from tilewright.dialects.sym_expr import Expr, Symbol
from tilewright.passes.lowering_cpu.address import AddressBuilder
from tilewright.passes.lowering_cpu.index_space import IndexSpace, stride
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


Span: TypeAlias = tuple[SSAValue, SSAValue]
"""An index and the end of the rectangle along it."""


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

        def rows(t: SSAValue, carried: Carried) -> Carried:
            def columns(n: SSAValue, carried: Carried) -> Carried:
                self._square(packed, source, expr, (t, bottom), (n, right))
                return carried

            return self._loops.counted(left, right, carried, columns, SIDE)

        self._loops.counted(top, bottom, (), rows, SIDE)
        return packed

    def _square(self, packed: Packed, source: SSAValue, expr: Expr, t: Span, n: Span) -> None:
        """Copy the square at `t` and `n`, each given with its end."""
        builder = self._builder
        side = builder.constant(SIDE)
        whole = [builder.emit(CmpOp.get("le", builder.binary(arith.AddiOp, start, side), end)) for start, end in (t, n)]
        condition = builder.emit(arith.AndIOp(whole[0], whole[1]))
        regions: list[Region] = []
        for masked in (False, True):
            block = Block()
            builder.push(block)
            self._copy(packed, source, expr, t, n, masked)
            builder.append(scf.YieldOp())
            builder.pop()
            regions.append(Region(block))
        builder.append(scf.IfOp(condition, (), regions[0], regions[1]))

    def _copy(
        self,
        packed: Packed,
        source: SSAValue,
        expr: Expr,
        t: Span,
        n: Span,
        masked: bool,
    ) -> None:
        builder, address = self._builder, self._address
        element = packed.element
        at = {s: self._position(v[0]) for s, v in ((packed.across, t), (packed.along, n))}
        kind = VectorType(element, [SIDE])
        rows: list[SSAValue] = []
        for j in range(SIDE):
            moved = {packed.across: at[packed.across], packed.along: at[packed.along] + j}
            mask = self._row_mask(t, n, j) if masked else None
            rows.append(builder.emit(cpu.LoadOp.get(source, address.scalar(expr.xreplace(moved)), kind, mask=mask)))
        columns = builder.append(TransposeOp.get(rows))
        for i, column in enumerate(columns):
            moved = {packed.across: at[packed.across] + i, packed.along: at[packed.along]}
            place = address.scalar(packed.place().xreplace(moved))
            builder.append(cpu.StoreOp.get(column, packed.buffer, place))

    def _position(self, index: SSAValue) -> Symbol:
        """Return the symbol of an index that is no index of the kernel."""
        self._address.values[index] = index
        return self._space.symbol(index)

    def _row_mask(self, t: Span, n: Span, j: int) -> SSAValue:
        """Return which elements of row `j` of a square are within the rectangle."""
        builder = self._builder
        row = builder.binary(arith.AddiOp, n[0], builder.constant(j))
        exists = builder.emit(CmpOp.get("lt", row, n[1]))
        end = builder.emit(SelectOp.get(exists, t[1], t[0]))
        return builder.emit(cpu.TailMaskOp.get(t[0], end, SIDE))
