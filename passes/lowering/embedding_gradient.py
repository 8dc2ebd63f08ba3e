"""The gradient of an embedding: each row of the table gets the sum of the gradients of where it was taken.

In order, which rounds each sum, that is a scatter. Eager's kernels for CUDA round the sum of a row once, so half
precision is summed in f32. A table in f32 beside that in half precision costs as much as three of the latter: written
with zeros, read and written by the sums, and read again. Most rows of a large table are not taken at all, or once.
So there each row finds its first and its last position instead, and

- where these are the same, its gradient is the one at that position;
- where they are not, the last position has a row in a table of sums, that begins as the gradient there and gets the
  others added.

What has been written of the sums is thus no more than what was taken twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import TensorType, i64
from xdsl.ir import SSAValue

from tilewright.dialects.loop import CmpOp, layout_of
from tilewright.dialects.sym import LayoutAttr
from tilewright.dialects.sym_expr import Expr, FloorDiv, Mod, integer, provably_at_most
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, Tensor, element_of, sizes_of
from tilewright.passes.lowering.dtypes import Number, is_half
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import filled, nest, temporary
from tilewright.passes.lowering.positions import Position, check_positions
from tilewright.passes.lowering.scatter import Places, Scatter

LARGE = 1 << 22
"""From how many elements of a table on two more kernels cost less than the table in f32."""


@dataclass(frozen=True)
class _Gradient:
    """One gradient of a table: of what it is made, and how its elements are emitted."""

    call: Call
    grad: SSAValue
    positions: SSAValue
    rows: Expr
    width: Expr
    padding: Expr

    @staticmethod
    def of(call: Call) -> _Gradient:
        positions = call.tensor("indices")
        check_positions(positions)
        if call.flag("scale_grad_by_freq"):
            raise NotLoweredError("gradients scaled by frequency")
        rows, width = layout_of(call.result).sizes
        return _Gradient(call, call.tensor("grad_output"), positions, rows, width, call.size("padding_idx"))

    def place(self, b: Body, k: Index) -> tuple[Value, Value]:
        """Return the row that was taken at `k`, and whether that counts: not for padding or rows beyond the table.

        A row that does not count is row 0.
        """
        place = b.cast(b.load(self.positions, k), element_of(self.positions), i64)
        counts = b.emit(CmpOp.get("lt", place, b.constant(_number(self.rows), i64), unsigned=True))
        if not provably_at_most(self.padding, integer(-1), self.call.ranges):
            counts = b.both(counts, b.compare("ne", place, b.constant(_number(self.padding), i64)))
        return b.select(counts, place, b.constant(0, i64)), counts

    def scattered(self) -> Sequence[SSAValue]:
        """Add each row of the gradient to the row of the table that it was taken from."""
        call = self.call
        may_be_empty = not provably_at_most(integer(1), self.rows, call.ranges)

        def places(b: Body, i: Index, k: Index, j: Index) -> Places:
            place, counts = self.place(b, k)
            return {0: Position(b.as_index(place), counts if may_be_empty else None)}

        def value(b: Body, i: Index, k: Index, j: Index) -> Value:
            return b.select(self.place(b, k)[1], b.load(self.grad, [*k, *j]), b.constant(0, b.element))

        scatter = Scatter((), sizes_of(self.positions), [self.width], places, value)
        # Eager rounds each sum on the CPU, and on CUDA the last one.
        add = scatter.emit_wide if call.on_cuda else scatter.emit
        return add(call, filled(call, call.result, 0), "sum")

    @property
    def is_sparse(self) -> bool:
        """Whether sums in half precision go to few rows of a large table."""
        if not all(s.is_Integer for s in (*sizes_of(self.positions), self.rows, self.width)):
            return False
        element = self.call.result.element_type
        in_half = self.call.on_cuda and is_half(element) and element_of(self.grad) == element
        return in_half and 1 <= self.count <= int(self.rows) and int(self.rows * self.width) >= LARGE

    @property
    def count(self) -> int:
        """The number of positions, where it is no symbol."""
        return prod(int(s) for s in sizes_of(self.positions))

    def gathered(self) -> Sequence[SSAValue]:
        """Give each row of the table the sum of the rows of the gradient that were taken from it; see above."""
        first, last = self._ends()
        sums = self._added(first, last, self._begun(first, last))
        element, call = self.call.result.element_type, self.call

        def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
            row, j = index[:1], index[1:]
            low, high = b.load(first, row), b.load(last, row)
            at = b.as_index(high)
            once, often = b.compare("eq", low, high), b.compare("lt", low, high)
            zero = b.constant(0, element)
            single = b.load(self.grad, [*self._index(at), *j], mask=once, otherwise=zero)
            several = b.load(sums, [at, *j], mask=often, otherwise=b.constant(0))
            total = b.select(once, b.cast(single, element, b.compute), several)
            # A sum that begins with zero is never -0.
            b.store(b.add(b.constant(0), total), destinations[0], index)

        return nest(call, element, [self.rows, self.width], [call.result], fill)

    def _ends(self) -> tuple[SSAValue, SSAValue]:
        """Return the numbers of the first and of the last position of each row; without any the first is the larger."""
        call = self.call
        kind = TensorType(i64, [int(self.rows)], LayoutAttr.contiguous([self.rows], layout_of(call.result).device))

        def fill(b: Body, around: Index, destinations: Sequence[Value]) -> None:
            def store(b: Body, k: Index) -> None:
                place, counts = self.place(b, k)
                row, number = [b.as_index(place)], self._number(b, k)
                b.store_as(number, destinations[0], row, mask=counts, combine="min")
                b.store_as(number, destinations[1], row, mask=counts, combine="max")

            b.scan(sizes_of(self.positions), store)

        def start(b: Body, row: Index, destinations: Sequence[Value]) -> None:
            b.store_as(b.constant(self.count), destinations[0], row)
            b.store_as(b.constant(-1), destinations[1], row)

        starts = nest(call, i64, [self.rows], [kind, kind], start)
        first, last = nest(call, i64, [], [kind, kind], fill, *starts)
        return first, last

    def _begun(self, first: SSAValue, last: SSAValue) -> SSAValue:
        """Return the gradient in f32, of which there is only what is the last of several for a row."""
        kind: Tensor = temporary(self.grad, [integer(self.count), self.width])

        def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
            k, j = index[:-1], index[-1:]
            place, counts = self.place(b, k)
            row, number = [b.as_index(place)], self._number(b, k)
            low, high = b.load(first, row), b.load(last, row)
            begins = b.both(counts, b.both(b.compare("eq", number, high), b.compare("lt", low, high)))
            b.store_as(self._wide(b, [*k, *j], begins), destinations[0], [self._linear(k), *j], mask=begins)

        loops = [*sizes_of(self.positions), self.width]
        (sums,) = nest(self.call, self.call.result.element_type, loops, [kind], fill)
        return sums

    def _added(self, first: SSAValue, last: SSAValue, sums: SSAValue) -> SSAValue:
        """Return `sums` with all positions of a row but the last one added to that."""

        def fill(b: Body, around: Index, destinations: Sequence[Value]) -> None:
            def position(b: Body, k: Index) -> None:
                def column(b: Body, j: Index) -> None:
                    place, counts = self.place(b, k)
                    high = b.load(last, [b.as_index(place)])
                    adds = b.both(counts, b.compare("ne", self._number(b, k), high))
                    value = self._wide(b, [*k, *j], adds)
                    b.store_as(value, destinations[0], [b.as_index(high), *j], mask=adds, combine="sum")

                b.loop([self.width], column)

            b.scan(sizes_of(self.positions), position)

        kind: Tensor = temporary(self.grad, sizes_of(sums))
        (total,) = nest(self.call, self.call.result.element_type, [], [kind], fill, sums)
        return total

    def _wide(self, b: Body, index: Index, mask: Value) -> Value:
        """Return an element of the gradient in f32, zero where the mask is false."""
        element = element_of(self.grad)
        return b.cast(b.load(self.grad, index, mask=mask, otherwise=b.constant(0, element)), element, b.compute)

    def _linear(self, k: Index) -> Expr:
        """Return the number of a position in row-major order."""
        number = integer(0)
        for i, size in zip(k, sizes_of(self.positions), strict=True):
            number = number * size + i
        return number

    def _number(self, b: Body, k: Index) -> Value:
        return b.cast_register(b.index_value(self._linear(k)), i64)

    def _index(self, number: Expr) -> Index:
        """Return the position that has a number in row-major order."""
        index: Index = []
        for size in reversed(sizes_of(self.positions)[1:]):
            index.insert(0, Mod(number, size))
            number = FloorDiv(number, size)
        return [number, *index]


def _number(expr: Expr) -> Number:
    return int(expr) if expr.is_Integer else expr


def _embedding_dense_backward(call: Call) -> Sequence[SSAValue]:
    gradient = _Gradient.of(call)
    return gradient.gathered() if gradient.is_sparse else gradient.scattered()


LOWERINGS: dict[str, Lowering] = {"aten.embedding_dense_backward.default": _embedding_dense_backward}
