"""The decision which loops of a nest become axes of a block, and how long.

A block is what one program of a GPU computes at a time. Along memory it has long axes, so that threads side by side
access elements side by side; a loop that no access runs along gets what is left of the block.

- Without inner loops, a tile of about a thousand elements; a square where accesses run along two loops.
- Where inner loops run along memory, whole rows (the loops are then persistent: what one of them has loaded, the next
  one need not load again), or tiles of rows that are too long, and several short rows at a time.
- Where reductions run across memory, a tile of columns, and some rows of it at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.dialects.loop import ForOp, LoadOp, Loop, NestOp, ReduceOp, ScanOp, StoreOp
from tilewright.passes.analysis.index_space import IndexSpace
from tilewright.passes.analysis.legality import BLOCKS, dependents, why_not
from tilewright.passes.blocks.runs import UNKNOWN, Axis, Runs, path_to
from tilewright.passes.blocks.sizes import SHORTEST, power_at_least, power_at_most, tile_size
from tilewright.passes.blocks.threads import MOST, THREADS, elements_of_rows, elements_per_thread


@dataclass(frozen=True)
class BlockLimits:
    """How large blocks may be, in elements, and how many programs there should be."""

    tile: int
    """A tile without inner loops, or of short rows."""
    persistent: int
    """A row that is gone through more than once, if one or two tensors of it are kept; see `_row_limit`."""
    looped: int
    """A tile of a longer row."""
    rows: int
    """The rows of a tile that is reduced over rows."""
    columns: int
    """The columns of such a tile."""
    programs: int
    """With fewer programs than this, blocks are made smaller."""


MAX_PROGRAMS = 2**31 - 1
"""How many programs CUDA starts at most along the first dimension of a grid."""

_SMALL = 256
"""Elements below which a block is not made smaller to have more programs."""

_RUN = 128
"""A tile of the only loop of a nest is no shorter: what the last one leaves idle does not count."""

_WINDOW = 16
"""Iterations of a reduction that is rather unrolled in time than padded."""

_STEP = 0.15
"""What it is worth to take a loop in half the steps, as a part of the threads that have an element."""

_AXES = 3
"""How many loops of a nest become axes at most."""


@dataclass
class BlockChooser:
    """Chooses the axes of one nest. The sizes it gives are those of the loops of each operation: 1 for no axis."""

    nest: NestOp
    limits: BlockLimits
    space: IndexSpace = field(default_factory=IndexSpace)
    sizes: dict[Loop, list[int]] = field(default_factory=dict[Loop, "list[int]"])

    def __post_init__(self) -> None:
        self._runs = Runs(self.nest, self.space)
        self._inner = [op for op in self.nest.walk() if isinstance(op, Loop) and op is not self.nest]
        for op in (self.nest, *self._inner):
            self.sizes[op] = [1] * len(op.steps)
        self.per_thread = elements_of_rows(self._runs)
        """How many elements of a small block a thread computes."""
        self.kept = 0
        """How many tensors each thread keeps its elements of, from one loop over whole rows to the next."""
        self.repeated = False
        """Whether several loops go over the same rows tile by tile."""
        if not self._inner:
            threads = 2 * self.limits.programs * THREADS
            self.per_thread = elements_per_thread(self.nest, self._runs, self.space, threads)

    def run(self) -> dict[Loop, list[int]]:
        """Return the sizes of the axes of all loops in the nest."""
        columns = self._columns_of_nest()
        if not self._inner:
            self._tile()
        elif columns and not self._short_rows():
            self._across(columns[0])
        else:
            self._along(columns)
        self._have_enough_programs()
        if self._inner and columns and not self._short_rows():
            self._take_more_rows()
        return self.sizes

    @property
    def fastest(self) -> int | None:
        """The loop of the nest along which programs should follow each other, if it is not the last one.

        Programs that run at the same time then meet in rows of the memory, as far as accesses agree on what these are.
        """
        columns, last = self._runs.along(self.nest), len(self.nest.steps) - 1
        if not columns or self._runs.weight(Axis(self.nest, columns[0])) <= self._runs.weight(Axis(self.nest, last)):
            return None
        return columns[0]

    @property
    def elements(self) -> int:
        """The elements of the largest block in the nest."""
        return max((self._block_of(op) for op in (self.nest, *self._inner)), default=1)

    def _block_of(self, op: Loop) -> int:
        """Return the elements of a block in the body of `op`."""
        around = {a.loop for a in path_to(op)}
        return math.prod(n for loop in (*around, op) for n in self.sizes[loop])

    def _is_legal(self, axis: Axis) -> bool:
        loop = axis.loop
        extent = self._runs.extent(axis)
        if extent is not None and extent <= 1:
            return False
        return why_not(loop, axis.position, dependents(loop, axis.position), BLOCKS) is None

    def _legal(self, loop: Loop, positions: Sequence[int]) -> list[int]:
        return [i for i in positions if self._is_legal(Axis(loop, i))]

    def _columns_of_nest(self) -> list[int]:
        return self._legal(self.nest, self._runs.along(self.nest))

    # Nests without inner loops.

    def _tile(self) -> None:
        extents, sizes = self._runs.extents(self.nest), self.sizes[self.nest]
        columns = self._columns_of_nest()
        wide = [i for i in columns if (UNKNOWN if extents[i] is None else extents[i] or 0) >= _WINDOW]
        budget = self.limits.tile if self.per_thread == MOST else min(self.limits.tile, THREADS * self.per_thread)
        if len(wide) > 1:
            side = 128 // max(2, min(4, self._runs.narrowest))
            budget = side * side
            for i in wide[:2]:
                sizes[i] = tile_size(extents[i], side)
        order = [*columns, *(i for i in self._legal(self.nest, self._runs.by_weight(self.nest)) if i not in columns)]
        for i in order:
            left = budget // math.prod(sizes)
            if sizes[i] == 1 and left > 1 and sum(n > 1 for n in sizes) < _AXES:
                is_column = i in columns or i == order[0]
                sizes[i] = self._tile_of_nest(i, left) if is_column else tile_size(extents[i], left, least=1)

    def _tile_of_nest(self, position: int, most: int) -> int:
        """Return the length of a tile of columns; one of unknown length leaves something for other loops."""
        extents = self._runs.extents(self.nest)
        others = [e for i, e in enumerate(extents) if i != position and e != 1]
        if extents[position] is None and others:
            most = min(most, 256)
        return tile_size(extents[position], most, least=SHORTEST if others else _RUN)

    # Nests whose inner loops run along memory.

    def _short_rows(self) -> bool:
        """Whether all inner loops that run along memory are short, and there are some."""
        rows = [(op, i) for op in self._inner for i in self._runs.along(op)]
        return bool(rows) and all((self._runs.extents(op)[i] or UNKNOWN) <= _WINDOW for op, i in rows)

    def _along(self, columns: Sequence[int]) -> None:
        again = self._read_again()
        limit = self._row_limit(again) if again else self.limits.looped
        for op in self._inner:
            self._choose_columns(op, limit)
        widest = self.elements
        if self._choose_rows(max(1, 4 * self.limits.tile // widest)):
            return
        if self._is_persistent():
            self.kept = again
            positions = self._legal(self.nest, self._runs.by_weight(self.nest))
            sizes, extents = self.sizes[self.nest], self._runs.extents(self.nest)
            for i in [*columns, *(p for p in positions if p not in columns)]:
                left = self.limits.tile * self.per_thread // (MOST * widest * math.prod(sizes))
                if left > 1 and sum(n > 1 for n in sizes) < _AXES - 1:
                    sizes[i] = tile_size(extents[i], left, least=1)
        else:
            self.repeated = again > 0

    def _row_limit(self, kept: int) -> int:
        """Return how long a row may be to be one block, if it is kept of so many tensors.

        A row of one tensor that is only read, as by a cross entropy, may be four times as long: what is kept is all
        that the program moves. (50257 elements of bf16 on an H200: 240 us as one block, 315 tile by tile.)
        """
        along = (loop for loop in self._inner if self._runs.along(loop))
        if kept == 1 and not any(isinstance(op, StoreOp) for loop in along for op in loop.block.ops):
            return 4 * self.limits.persistent
        return min(power_at_most(2 * self.limits.persistent // kept), self.limits.persistent) or self.limits.looped

    def _read_again(self) -> int:
        """Return how many tensors are read along memory by more than one loop, as those of a row that stays in a block.

        A loop over a small part of what another one reads needs nothing kept.
        """
        loops: dict[object, dict[Loop, int]] = {}
        for op in self._inner:
            if self._runs.along(op):
                points = math.prod(UNKNOWN if e is None else e for e in self._runs.extents(op))
                for load in op.block.ops:
                    if isinstance(load, LoadOp):
                        loops.setdefault(load.source, {})[op] = points
        longest = [sorted(found.values())[-2:] for found in loops.values()]
        return sum(len(points) > 1 and 2 * points[0] >= points[1] for points in longest)

    def _choose_columns(self, op: Loop, limit: int) -> None:
        """Give the loops of `op` that run along memory their axes: whole, or tiles where they are too long."""
        extents, sizes = self._runs.extents(op), self.sizes[op]
        along = self._legal(op, self._runs.along(op))
        if not along or self._is_window(op):
            return
        left = max(1, limit // self._block_of(op))
        if isinstance(op, ScanOp):
            (extent,) = extents
            left = min(left, self.limits.looped)
            size = left if extent is None else power_at_least(extent)
            # One block has nothing to hand on to the next one.
            sizes[0] = size if size <= 2 * left else left
            return
        legal = self._legal(op, range(len(extents)))
        known = [e for e in extents if e is not None]
        padded = math.prod(power_at_least(e) for e in known)
        can_be_whole = len(known) == len(extents) and len(legal) == sum(e > 1 for e in known) and padded <= left
        if can_be_whole and (len(legal) == 1 or padded <= 2 * math.prod(known)):
            sizes[:] = [power_at_least(e) for e in known]
            return
        left = min(left, self._looped(op))
        for i in [*along, *(i for i in reversed(legal) if i not in along)]:
            extent = extents[i]
            if left > 1:
                most = min(left, UNKNOWN) if extent is None else left
                sizes[i] = tile_size(extent, most, least=1 if i not in along else SHORTEST, halving=_STEP)
                left //= sizes[i]

    def _looped(self, op: Loop) -> int:
        """Return how many elements of a long row are taken at a time: more where few rows have to keep a GPU busy."""
        programs = self.programs()
        is_long = math.prod(UNKNOWN if e is None else e for e in self._runs.extents(op)) >= 16 * self.limits.looped
        few = programs is not None and programs < 2 * self.limits.programs
        return 2 * self.limits.looped if is_long and few else self.limits.looped

    def _is_window(self, op: Loop) -> bool:
        """Whether `op` is a reduction over few iterations that an axis would be much too long for."""
        extents = [e or 1 for e in self._runs.extents(op)]
        if not isinstance(op, ReduceOp) or None in self._runs.extents(op):
            return False
        count = math.prod(extents)
        return count <= _WINDOW and 2 * math.prod(power_at_least(e) for e in extents) > 3 * count

    def _choose_rows(self, rows: int) -> bool:
        """Give loops across memory `rows` at a time, the same in all trees of the nest. Return whether some are there.

        Of loops in each other, the innermost gets them.
        """
        found = False
        for op in reversed(self._inner):
            across = self._rows_of(op)
            if not across or any(self._rows_of(o) for o in op.walk() if isinstance(o, Loop) and o is not op):
                found |= bool(across)
                continue
            found = True
            extents, sizes = self._runs.extents(op), self.sizes[op]
            left = min(rows, self.limits.rows)
            for i in reversed(across):
                extent = extents[i]
                sizes[i] = left if extent is None else min(left, power_at_least(extent))
                left //= sizes[i]
        return found

    def _rows_of(self, op: Loop) -> list[int]:
        """Return the loops of `op` that can be axes, if no access runs along any of them."""
        if not isinstance(op, (ForOp, ReduceOp)) or self._is_window(op) or any(n > 1 for n in self.sizes[op]):
            return []
        return self._legal(op, range(len(op.steps)))

    def _is_persistent(self) -> bool:
        """Whether no loop in the nest is taken in several steps."""
        return all(
            extent is not None and extent <= size
            for op in self._inner
            for extent, size in zip(self._runs.extents(op), self.sizes[op], strict=True)
            if extent != 1
        )

    # Nests whose own loops run along memory, and inner ones across it.

    def _across(self, column: int) -> None:
        lengths = [self._runs.extents(op)[i] for op in self._inner for i in self._across_of(op)]
        longest = max((UNKNOWN if n is None else n for n in lengths), default=1)
        rows = min(self.limits.rows, power_at_least(longest))
        most = min(self.limits.columns * self.limits.rows // rows, self.limits.tile // 4)
        if any(isinstance(op, ScanOp) for op in self._inner):
            most = self.limits.columns  # one iteration after the other: more programs help, larger ones do not
        self.sizes[self.nest][column] = tile_size(self._runs.extent(Axis(self.nest, column)), most)
        for op in reversed(self._inner):
            if any(self._across_of(o) for o in op.walk() if isinstance(o, Loop) and o is not op):
                continue
            left = rows
            for i in reversed(self._across_of(op)):
                extent = self._runs.extents(op)[i]
                self.sizes[op][i] = left if extent is None else min(left, power_at_least(extent))
                left //= self.sizes[op][i]

    def _take_more_rows(self) -> None:
        """Take more rows at a time where the nest has so few programs that each goes through its rows alone.

        Then nothing else hides how long a load takes, and what counts is how many are under way.
        """
        programs = self.programs()
        if programs is None or programs > self.limits.programs // 8:
            return
        for op in self._inner:
            extents, sizes = self._runs.extents(op), self.sizes[op]
            for i in reversed(self._across_of(op) if isinstance(op, ReduceOp) else []):
                extent = UNKNOWN if extents[i] is None else extents[i] or 0
                while sizes[i] > 1 and sizes[i] < extent and self._block_of(op) < self.limits.looped:
                    sizes[i] *= 2

    def _across_of(self, op: Loop) -> list[int]:
        """Return the loops of `op` that can be axes beside the columns of the nest."""
        if isinstance(op, ScanOp) or self._is_window(op):
            return []
        return self._legal(op, range(len(op.steps)))

    # All nests.

    def programs(self) -> int | None:
        """Return how many programs the nest takes, None if that depends on sizes."""
        count = 1
        for extent, size in zip(self._runs.extents(self.nest), self.sizes[self.nest], strict=True):
            if extent is None:
                return None
            count *= -(-extent // size)
        return count

    def _have_enough_programs(self) -> None:
        """Halve the axes of the nest while there are too few programs, and double them while there are too many."""
        sizes, extents = self.sizes[self.nest], self._runs.extents(self.nest)
        along = self._runs.along(self.nest)
        while sizes and (count := self.programs()) is not None and count < self.limits.programs:
            floors = [32 if i in along else 1 for i in range(len(sizes))]
            wide = [i for i, n in enumerate(sizes) if n > floors[i]]
            if self.elements <= min(_SMALL, THREADS * self.per_thread) or not wide:
                break
            sizes[min(wide, key=lambda i: (floors[i], -sizes[i]))] //= 2
        while sizes and (self.programs() or 0) > MAX_PROGRAMS:
            i = max(range(len(sizes)), key=lambda i: -(-(extents[i] or 1) // sizes[i]))
            if not self._is_legal(Axis(self.nest, i)):
                break
            sizes[i] *= 2
