"""Along which loops the accesses of a nest run through memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Operation, SSAValue

from tilewright.dialects.loop import LoadOp, Loop, NestOp, StoreOp, element_in_register
from tilewright.dialects.type_guards import is_integer
from tilewright.passes.analysis.index_space import IndexSpace, stride

UNKNOWN = 1024
"""How many iterations a loop is taken to have whose extent depends on sizes."""

_RUN = 32
"""How many elements side by side make an access efficient; a shorter run goes on along the next loop."""

_MINOR = 8
"""A loop belongs to those that run through memory if it has one part in this many of what the first of them has, of the
accesses in its body."""


@dataclass(frozen=True)
class Axis:
    """One loop of an operation."""

    loop: Loop
    position: int


@dataclass(frozen=True)
class _Stride:
    """How far apart the elements of an access are along one loop."""

    axis: Axis
    step: int
    extent: int


class Runs:
    """For each loop of a nest, how much memory is gone through along it: the loops that want long blocks.

    What counts for the loops of one operation are the accesses in its body.
    """

    def __init__(self, nest: NestOp, space: IndexSpace) -> None:
        self._space = space
        self._extents: dict[Loop, list[int | None]] = {}
        self._votes: dict[Loop, dict[Axis, float]] = {}
        self._moving: set[Axis] = set()
        self._narrowest = 8
        self._moved: dict[SSAValue, tuple[int, int]] = {}
        """For each buffer the elements that are accessed, and their bytes."""
        for op in nest.walk():
            if isinstance(op, (LoadOp, StoreOp)):
                self._vote(op)

    def extents(self, loop: Loop) -> list[int | None]:
        """Return how many points each loop of an operation has at most; None where that depends on sizes."""
        found = self._extents.get(loop)
        if found is None:
            found = self._extents[loop] = [self._space.largest_extent(d) for d in self._space.loops(loop)]
        return found

    def extent(self, axis: Axis) -> int | None:
        """Return how many points a loop has at most, None where that depends on sizes."""
        return self.extents(axis.loop)[axis.position]

    def weight(self, axis: Axis) -> float:
        """Return how many bytes the accesses have that run along a loop."""
        return self._votes.get(axis.loop, {}).get(axis, 0.0)

    def along(self, loop: Loop) -> list[int]:
        """Return the loops of an operation along which accesses run, those with the most bytes first.

        If there are no accesses but only values, all loops are as good.
        """
        axes = [Axis(loop, i) for i in range(len(loop.steps)) if self.extents(loop)[i] != 1]
        if self._moving.isdisjoint(axes):
            return [a.position for a in reversed(axes)]
        most = max(self._votes.get(loop, {}).values(), default=0.0)
        return [a.position for a in self._heaviest_first(axes) if self.weight(a) * _MINOR >= most > 0.0]

    def by_weight(self, loop: Loop) -> list[int]:
        """Return all loops of an operation, those with the most bytes first, inner ones before outer ones."""
        return [a.position for a in self._heaviest_first([Axis(loop, i) for i in range(len(loop.steps))])]

    def _heaviest_first(self, axes: Sequence[Axis]) -> list[Axis]:
        return sorted(axes, key=lambda a: (-self.weight(a), -a.position))

    @property
    def narrowest(self) -> int:
        """The bytes of the smallest elements that are gone through, between 1 and 8."""
        return self._narrowest

    @property
    def bytes_per_element(self) -> float:
        """How many bytes are loaded and stored for each element of the largest buffer, if each is loaded once."""
        most = max((count for count, _ in self._moved.values()), default=1)
        return sum(count * width for count, width in self._moved.values()) / most

    def _vote(self, op: LoadOp | StoreOp) -> None:
        (expr,) = self._space.access(op.access, op.indices)
        values = [self._space.value(s) for s in expr.free_symbols]
        loaded = {a for v in values if v is not None and isinstance(v.owner, Operation) for a in path_to(v.owner)}
        path = path_to(op)
        count, strides, last = 1, list[_Stride](), None
        for axis in path:
            symbol = self._space.symbol(axis.loop.indices[axis.position])
            if symbol not in expr.free_symbols and axis not in loaded:
                continue
            extent = self.extent(axis)
            known = UNKNOWN if extent is None else max(1, extent)
            self._moving.add(axis)
            count, last = count * known, axis
            step = stride(expr, symbol)
            if isinstance(step, sympy.Integer):
                strides.append(_Stride(axis, abs(int(step)), known))
        if last is None:
            return
        width = width_of(op)
        self._narrowest = min(self._narrowest, width)
        buffer = op.source if isinstance(op, LoadOp) else op.target
        self._moved[buffer] = max((count, width), self._moved.get(buffer, (0, 0)))
        votes = _run(strides) or {last: 0.25}
        for loop in dict.fromkeys(axis.loop for axis in path):
            totals = self._votes.setdefault(loop, {})
            for axis, share in votes.items():
                totals[axis] = totals.get(axis, 0.0) + share * count * width


def path_to(op: Operation) -> list[Axis]:
    """Return the loops around an operation, outermost first."""
    found: list[Axis] = []
    around = op.parent_op()
    while isinstance(around, Loop):
        found[:0] = [Axis(around, i) for i in range(len(around.steps))]
        around = around.parent_op()
    return found


def _run(strides: Sequence[_Stride]) -> dict[Axis, float]:
    """Return the loops along which an access meets elements side by side, and how much each counts."""
    reach, votes = 1, dict[Axis, float]()
    for found in sorted((s for s in strides if s.step and s.extent > 1), key=lambda s: s.step):
        if found.step > reach:
            break
        votes[found.axis] = 1.0
        reach = max(reach, found.step * found.extent)
        if reach >= _RUN:
            break
    if not votes and strides:
        nearest = min((s for s in strides if s.step), key=lambda s: s.step, default=None)
        return {} if nearest is None else {nearest.axis: 0.25}
    return votes


def width_of(op: LoadOp | StoreOp) -> int:
    """Return the bytes of the element of an access."""
    kind = element_in_register((op.source if isinstance(op, LoadOp) else op.target).type)
    if is_integer(kind):
        return max(1, kind.width.data // 8)
    return kind.bitwidth // 8 if isinstance(kind, AnyFloat) else 8
