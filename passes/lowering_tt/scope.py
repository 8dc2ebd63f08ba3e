"""The loops around what is being built: axes of tensors, and masks of the points that are there."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from xdsl.ir import SSAValue
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects.loop import LoadOp, Loop, LoopDim, StoreOp
from tilewright.dialects.sym_expr import Expr, FloorDiv, Min, Symbol, integer
from tilewright.passes.analysis.index_space import stride
from tilewright.passes.lowering_tt.builder import Shape, TensorBuilder
from tilewright.passes.lowering_tt.dependence import Dependence, Indices, shape_by
from tilewright.passes.lowering_tt.index import IndexBuilder, Repeats


@dataclass(frozen=True)
class Extent:
    """A loop over parts: where it begins, and what its index stays below, each of several limits."""

    lower: Expr
    upper: Expr

    @property
    def limits(self) -> Sequence[Expr]:
        return self.upper.args if isinstance(self.upper, Min) else (self.upper,)


class Scope:
    """The axes and masks around what is being built."""

    def __init__(self, builder: TensorBuilder, index: IndexBuilder, dependence: Dependence):
        self._builder = builder
        self._index = index
        self._dependence = dependence
        self._axes: dict[SSAValue, int] = {}
        """The sizes of the axes, in the order of dims."""
        self._masks: dict[SSAValue, SSAValue] = {}
        self._extents: dict[Symbol, tuple[SSAValue, Extent]] = {}
        """For the positions along an axis, the index that they belong to, and what masks it."""

    @property
    def shape(self) -> Shape:
        """The shape of a value that depends on all axes."""
        return tuple(self._axes.values())

    @property
    def rank(self) -> int:
        return len(self._axes)

    def shape_of(self, indices: Indices) -> Shape:
        """Return the shape of a value that depends on `indices`."""
        return shape_by(indices, self._axes)

    def mask(self, indices: Indices | None = None) -> SSAValue | None:
        """Return where the points are there that `indices` are of, or all of them; None if they all are."""
        total: SSAValue | None = None
        for index, mask in self._masks.items():
            if indices is None or index in indices:
                total = self._builder.both(total, mask)
        return total

    def mask_of(self, values: Sequence[SSAValue]) -> SSAValue | None:
        """Return where the points are there that values of the kernel belong to."""
        return self.mask(self._dependence.of(values))

    def mask_of_rows(self, values: Sequence[SSAValue], repeats: Repeats) -> SSAValue | None:
        """Return `mask_of` over rows of points with the same element: where the first point of a row is there."""
        index, extent = self._extents[repeats.axis]
        indices = self._dependence.of(values)
        total = self.mask(indices - {index})
        for limit in extent.limits if index in indices and index in self._masks else ():
            rows = self._index.over_parts(FloorDiv(limit - extent.lower + (repeats.by - 1), integer(repeats.by)))
            total = self._builder.both(total, self._index.below(repeats.number, rows))
        return total

    def extent(self, this: LoopDim) -> Extent:
        """Return a loop, given over the index space, over parts."""
        return Extent(self._index.over_parts(this.lower), self._index.over_parts(this.upper))

    @contextmanager
    def axes(self, op: Loop, sizes: Sequence[int]) -> Generator[Sequence[int]]:
        """Let the points of a loop be axes of these sizes while building its body; give their places among the dims.

        Raises `PassFailedException` unless the sizes are at least the loops' extents.
        """
        opened: list[SSAValue] = []
        places = self.places(op, sizes)
        for this, index, size in zip(self._index.space.loops(op), op.indices, sizes, strict=True):
            extent = self.extent(this)
            if this.step != 1 or not self.fits(extent, size):
                raise PassFailedException(
                    f"`{op.name}` has a block of {size} points, which its loop from {this.lower} to {this.upper} "
                    f"by {this.step} may exceed; established by loop-tile-blocks"
                )
            place = places[sum(n > 1 for n in sizes[: len(opened)])] if size > 1 else 0
            self.open(index, extent, size, place)
            opened.append(index)
        yield places
        for index in reversed(opened):
            self.close(index)

    def places(self, op: Loop, sizes: Sequence[int]) -> Sequence[int]:
        """Return the places among the dims of the axes that a loop of these sizes becomes.

        They come before the axes that there are if those lie closer together in memory. So a tile of rows and columns
        is a tensor of rows and columns, whichever of the two is inside the other.
        """
        first = 0 if self._comes_first(op) else self.rank
        return range(first, first + sum(n > 1 for n in sizes))

    def _comes_first(self, op: Loop) -> bool:
        if not self._axes:
            return False
        space, votes = self._index.space, 0
        inner, outer = space.symbol(op.indices[-1]), space.symbol(next(reversed(self._axes)))
        for access in op.walk():
            if isinstance(access, (LoadOp, StoreOp)):
                (expr,) = space.access(access.access, access.indices)
                steps = [stride(expr, s) for s in (inner, outer)]
                votes += (steps[1] == 1 and steps[0] not in (0, 1)) - (steps[0] == 1 and steps[1] not in (0, 1))
        return votes > 0

    def open(self, index: SSAValue, extent: Extent, size: int, place: int) -> None:
        """Let `index` be an axis, the dim at `place`; of one point it is a scalar."""
        meaning = extent.lower
        if size > 1:
            self._builder.open_axis(place)
            axes = [*self._axes.items()]
            self._axes = dict([*axes[:place], (index, size), *axes[place:]])
            positions = self._index.add_axis(size, place, self.rank, index.name_hint)
            meaning = self._index.over_parts(extent.lower + positions)
            self._extents[positions] = index, extent
        self._index.define(index, meaning)
        mask: SSAValue | None = None
        for limit in extent.limits:
            if not self._reaches(extent.lower, size, limit):
                mask = self._builder.both(mask, self._index.below(meaning, limit))
        if mask is not None:
            self._masks[index] = mask

    def close(self, index: SSAValue) -> None:
        """End what `open` began last."""
        if self._axes.pop(index, None) is not None:
            self._builder.close_axis()
        self._masks.pop(index, None)

    def fits(self, extent: Extent, size: int) -> bool:
        """Whether a loop has provably at most `size` points."""
        return any(self._index.at_most(limit - extent.lower, integer(size)) for limit in extent.limits)

    def _reaches(self, lower: Expr, size: int, limit: Expr) -> bool:
        """Whether all points of a block are provably below a limit."""
        return self._index.at_most(lower + size, limit) or (
            self._index.is_multiple(lower, size)
            and self._index.is_multiple(limit, size)
            and self._index.at_most(lower + 1, limit)
        )
