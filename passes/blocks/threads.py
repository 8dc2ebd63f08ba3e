"""How many elements of a small block each thread computes.

Of short rows it takes more than usual where each element has few bytes, so that enough of them are on their way.

In a nest without inner loops a thread takes elements side by side, to access them as one. What it accesses otherwise,
with another stride than 1 or from odd positions on, it takes one by one, and with each of these accesses the threads of
a warp are as far apart as a thread has elements: the cache then gives more lines for the same elements. Where that
takes longer than the memory, as it does for the windows of a pooling, threads compute fewer elements each; and where
there are few elements in all, each thread computes one, since the others would have none.
"""

from __future__ import annotations

from math import prod

from tilewright.dialects.loop import LoadOp, NestOp, StoreOp, layout_of
from tilewright.dialects.sym_expr import Expr
from tilewright.passes.analysis.index_space import IndexSpace, stride
from tilewright.passes.blocks.runs import Runs, width_of
from tilewright.passes.blocks.sizes import power_at_most

MOST = 8
"""The elements that a thread computes of a small block."""

THREADS = 128
"""The threads of a program whose threads compute fewer."""

_WIDEST = 16
"""The elements that a thread computes at most, where these are few bytes."""

_BYTES = 32
"""The bytes that a thread should have on their way."""

_ACCESS = 16
"""The most bytes that a thread accesses at a time."""

_WARP = 32

_LINE = 128
"""The bytes that the cache of a multiprocessor gives at a time."""

_BYTES_PER_LINE = 32
"""The bytes for each line that let the memory be busy, twice what it gives in that time: on an H200, 4.2 TB/s for 132
multiprocessors at 2 GHz."""

_FEW = 2
"""The elements that a thread computes if there are enough for all."""


def elements_per_thread(nest: NestOp, runs: Runs, space: IndexSpace, threads: int) -> int:
    """Return how many elements a thread computes, a power of two, where there are `threads` to share them."""
    extents, columns = runs.extents(nest), runs.along(nest)
    if None in extents or not columns:
        return MOST
    points = prod(e or 0 for e in extents)
    lines = _Lines(nest, space, columns[0])
    memory = lines.bytes_per_point(points)
    best = count = max(1, min(MOST, power_at_most(points // threads)))
    while count > _FEW and lines.per_point(best) * _BYTES_PER_LINE > memory:
        count //= 2
        if lines.per_point(count) < lines.per_point(best):
            best = count
    return best


def elements_of_rows(runs: Runs) -> int:
    """Return how many elements of short rows a thread computes: more than of others, if each moves few bytes."""
    elements = MOST
    while elements < _WIDEST and 0.0 < elements * runs.bytes_per_element < _BYTES:
        elements *= 2
    return elements


class _Lines:
    """Counts the lines that the cache gives for each point of a nest, if threads have elements along `column`."""

    def __init__(self, nest: NestOp, space: IndexSpace, column: int):
        self._space = space
        self._column = space.symbol(nest.indices[column])
        self._indices = [space.symbol(i) for i in nest.indices]
        self._accesses = [op for op in nest.block.ops if isinstance(op, (LoadOp, StoreOp))]
        self._vector = min((_ACCESS // width_of(op) for op in self._accesses), default=1)

    def bytes_per_point(self, points: int) -> float:
        """Return how much memory is read and written for each point, if the cache keeps what is read again."""
        accessed: dict[object, float] = {}
        sizes: dict[object, float] = {}
        for op in self._accesses:
            buffer = op.source if isinstance(op, LoadOp) else op.target
            accessed[buffer] = accessed.get(buffer, 0.0) + width_of(op)
            size = layout_of(buffer.type).sizes[0]
            sizes[buffer] = int(size) * width_of(op) / max(points, 1) if size.is_Integer else accessed[buffer]
        return sum(min(count, sizes[buffer]) for buffer, count in accessed.items())

    def per_point(self, count: int) -> float:
        """Return the lines for each point where a thread has `count` elements."""
        return sum(self._of(op, count) for op in self._accesses)

    def _of(self, op: LoadOp | StoreOp, count: int) -> float:
        (expr,) = self._space.access(op.access, op.indices)
        width = width_of(op)
        if self._is_wide(expr):
            return width / _LINE
        step = stride(expr, self._column)
        if step is None or not step.is_Integer:
            return 0.0
        apart = abs(int(step)) * min(count, self._vector) * width
        return min(_WARP, max(1.0, _WARP * apart / _LINE)) / _WARP

    def _is_wide(self, expr: Expr) -> bool:
        """Whether an access meets elements side by side, along some loop, that a thread can access as one."""
        return any(stride(expr, s) == 1 and self._space.is_multiple(expr - s, 2) for s in self._indices)
