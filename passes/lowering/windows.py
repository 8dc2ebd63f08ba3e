"""The windows that pooling takes of the last dimensions of a tensor: where they lie, and which of them hold an element.

Where a window is small, what is done with its elements is written out; a large one is a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from xdsl.ir import SSAValue

from tilewright.dialects.loop import LoopDim, layout_of
from tilewright.dialects.sym_expr import Expr, FloorDiv, Max, Min, Ranges, integer, provably_at_most
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.dtypes import Number
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import ZERO

FEW = 25
"""The most elements of a window that are written out."""


@dataclass(frozen=True)
class Axis:
    """The windows along one dimension: window `o` has the elements `o * stride - padding + a * dilation`."""

    size: Expr
    """Of the dimension that the windows are taken of."""
    count: Expr
    """Of the windows."""
    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def reach(self) -> int:
        """How many elements lie between the ends of a window, these included."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def overlap(self) -> int:
        """The most windows that hold an element."""
        return -(-self.reach // self.stride)

    def start(self, window: Expr) -> Expr:
        return window * self.stride - self.padding

    def may_leave(self, offset: int, ranges: Ranges) -> tuple[bool, bool]:
        """Return whether the place at `offset` from the start of some window may lie before, or behind, the tensor."""
        return offset < self.padding, not provably_at_most(self.start(self.count - 1) + offset, self.size - 1, ranges)

    def inside(self, b: Body, x: Expr, offset: int, ranges: Ranges) -> Value | None:
        """Test whether `x`, the place at `offset` from the start of some window, is in the tensor; None if all are."""
        below, above = self.may_leave(offset, ranges)
        return between(b, x, ZERO if below else None, self.size if above else None)

    def clamp(self, x: Expr, offset: int, ranges: Ranges) -> Expr:
        """Return the place of the tensor that is nearest to `x`, the place at `offset` from the start of a window."""
        below, above = self.may_leave(offset, ranges)
        x = Max(x, ZERO) if below else x
        return Min(x, self.size - 1) if above else x


def between(b: Body, index: Expr, low: Expr | None, high: Expr | None) -> Value | None:
    """Test whether an index is at least `low` and below `high`; None where there is nothing to test."""
    above = None if low is None else b.compare("ge", b.index_value(index), b.index_value(low))
    below = None if high is None else b.compare("lt", b.index_value(index), b.index_value(high))
    return b.both(above, below) if above is not None and below is not None else above or below


@dataclass(frozen=True)
class Windows:
    """The windows of the last dimensions of a tensor."""

    axes: tuple[Axis, ...]
    ranges: Ranges

    @staticmethod
    def of(call: Call, source: SSAValue, counts: Sequence[Expr], rank: int, *, dilated: bool) -> Windows:
        """Return the windows of the last `rank` dimensions of `source` that a call's arguments describe."""
        sizes = sizes_of(source)
        if len(sizes) <= rank:
            raise NotLoweredError("windows of a tensor without channels")

        def given(name: str) -> tuple[int, ...] | None:
            values = call.integers(name)
            return values * rank if values and len(values) == 1 else values or None

        kernel = given("kernel_size")
        if kernel is None or any(k < 1 for k in kernel):
            raise NotLoweredError("windows without elements")
        stride, padding = given("stride") or kernel, given("padding") or (0,) * rank
        dilation = (given("dilation") or (1,) * rank) if dilated else (1,) * rank
        axes = zip(sizes[-rank:], counts[-rank:], kernel, stride, padding, dilation, strict=True)
        return Windows(tuple(Axis(*axis) for axis in axes), call.ranges)

    @property
    def are_few(self) -> bool:
        """Whether a window's elements are few enough to be written out."""
        return prod(a.kernel for a in self.axes) <= FEW

    @property
    def starts(self) -> bool:
        """Whether no window begins before the tensor."""
        return all(a.padding == 0 for a in self.axes)

    def offsets(self) -> list[tuple[int, ...]]:
        """Return where the elements of a window lie from its start, in row-major order."""
        return list(product(*(range(0, a.reach, a.dilation) for a in self.axes)))

    def at(self, windows: Index, offset: Sequence[int | Expr]) -> Index:
        """Return the place of an element of a window."""
        return [a.start(o) + x for a, o, x in zip(self.axes, windows, offset, strict=True)]

    def inside(self, b: Body, place: Index, offset: Sequence[int]) -> Value | None:
        """Test whether the place at `offset` from the start of a window is one of the tensor; None where all are."""
        return conjunction(
            b, [a.inside(b, x, by, self.ranges) for a, x, by in zip(self.axes, place, offset, strict=True)]
        )

    def clamp(self, place: Index, offset: Sequence[int]) -> Index:
        """Return the place of the tensor that is nearest to that at `offset` from the start of a window."""
        return [a.clamp(x, by, self.ranges) for a, x, by in zip(self.axes, place, offset, strict=True)]

    def within(self, windows: Index) -> list[LoopDim]:
        """Return loops over the steps `a` of a window whose elements `start + a * dilation` are in the tensor."""
        dims: list[LoopDim] = []
        for a, o in zip(self.axes, windows, strict=True):
            start, d = a.start(o), a.dilation
            lower = FloorDiv(Max(ZERO, -start) + (d - 1), integer(d)) if a.padding else ZERO
            upper: Expr = integer(a.kernel)
            if not provably_at_most(a.start(a.count - 1) + a.reach, a.size, self.ranges):
                upper = Max(lower, Min(upper, FloorDiv(a.size - start + (d - 1), integer(d))))
            dims.append(LoopDim(lower, upper))
        return dims

    def holding(self, place: Index) -> list[Index]:
        """Return the windows that may hold the element at a place, in row-major order; not all of them may exist."""
        last = [FloorDiv(x + a.padding, integer(a.stride)) for a, x in zip(self.axes, place, strict=True)]
        backs = product(*(range(a.overlap - 1, -1, -1) for a in self.axes))
        return [[o - back for o, back in zip(last, by, strict=True)] for by in backs]

    def exists(self, b: Body, windows: Index) -> Value | None:
        """Test whether a window exists that may hold an element; None where it does for sure."""
        tests: list[Value | None] = []
        for a, o in zip(self.axes, windows, strict=True):
            back = a.overlap - 1 if a.overlap > 1 else 0
            end = FloorDiv(a.size - 1 + a.padding, integer(a.stride))
            beyond = not provably_at_most(end, a.count - 1, self.ranges)
            tests.append(between(b, o, ZERO if back else None, a.count if beyond else None))
        return conjunction(b, tests)


def conjunction(b: Body, tests: Sequence[Value | None]) -> Value | None:
    """Return whether all tests hold; None where there is none."""
    result: Value | None = None
    for test in tests:
        if test is not None:
            result = test if result is None else b.both(result, test)
    return result


def flat(index: Index, sizes: Sequence[Expr]) -> Expr:
    """Return the place of an index in row-major order."""
    place = ZERO
    for i, size in zip(index, sizes, strict=True):
        place = place * size + i
    return place


def is_channels_last(value: SSAValue, rank: int) -> bool:
    """Whether the channels, the dimension before the last `rank`, lie side by side in memory."""
    layout = layout_of(value.type)
    channels = len(layout.sizes) - rank - 1
    return layout.strides[channels] == 1 and layout.sizes[channels] != 1


def load_masked(b: Body, source: SSAValue, index: Index, mask: Value | None, otherwise: Number) -> Value:
    """Load an element in the compute type; where the mask is false it is `otherwise`."""
    if mask is None:
        return b.load_element(source, index)
    element = element_of(source)
    return b.widen(b.load(source, index, mask=mask, otherwise=b.constant(otherwise, element)), element)


def adaptive_window(size: Expr, count: Expr, o: Expr) -> LoopDim:
    """Return the elements of window `o` of `count` that share a dimension of `size` as evenly as they can."""
    return LoopDim(FloorDiv(o * size, count), FloorDiv((o + 1) * size + count - 1, count))


def adaptive_windows(call: Call, source: SSAValue, out_sizes: Sequence[Expr], at: Index) -> list[LoopDim]:
    rank = len(at)
    dims = zip(sizes_of(source)[-rank:], out_sizes[-rank:], at, strict=True)
    return [adaptive_window(size, count, o) for size, count, o in dims]


def by_rank(name: str, ranks: str, lowering: Callable[[int], Lowering]) -> dict[str, Lowering]:
    return {f"aten.{name.format(rank)}.default": lowering(int(rank)) for rank in ranks}
