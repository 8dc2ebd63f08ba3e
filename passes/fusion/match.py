"""How the loops of a producer correspond to those of a consumer that loads what it stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from tilewright.dialects.loop import LoadOp, Loop, NestOp, StoreOp
from tilewright.dialects.sym_expr import Expr, FloorDiv, Ranges, integer
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.analysis.nests import NestInfo
from tilewright.passes.analysis.ranges import NamedRanges
from tilewright.passes.analysis.spaces import SpaceMap, one_to_one

Edges = Mapping[SSAValue, Sequence[LoadOp]]
"""For each result of the producer that the consumer reads, its loads."""


@dataclass(frozen=True)
class LoopMatch:
    """Which outer loops two nests share, such that one iteration of these reads only what the same iteration stored."""

    first: Mapping[Expr, Expr]
    """The extent of each outer index of the producer."""
    second: Mapping[Expr, Expr]
    """The extent of each outer index of the consumer."""
    shared: SpaceMap
    splits: Mapping[Expr, tuple[Expr, Expr]] = field(default_factory=dict[Expr, tuple[Expr, Expr]])
    """Indices of the consumer that would match as two: the extents of a producer's index and of what it stores there.

    A group norm has rows that are groups of channels, where what reads it has channels.
    """

    @property
    def extents(self) -> list[Expr]:
        """The extents of the shared loops, in the consumer's order."""
        return [extent for index, extent in self.second.items() if index in self.shared.covered]

    @property
    def sunk_first(self) -> list[Expr]:
        """The producer's outer indices that are not shared."""
        return [index for index in self.first if index not in self.shared.exprs]

    @property
    def sunk_second(self) -> list[Expr]:
        """The consumer's outer indices that are not shared."""
        return [index for index in self.second if index not in self.shared.covered]


def match_producer(
    producer: NestInfo, consumer: NestInfo, edges: Edges, names: IndexNames, sizes: Ranges
) -> LoopMatch | None:
    """Return the loops that a producer shares with a consumer; None if either of them does not count plainly."""
    first, second = _extents(producer, names), _extents(consumer, names)
    if first is None or second is None:
        return None
    ranges = NamedRanges(names, sizes)
    ranges.enter(consumer.nest)
    candidates: dict[Expr, Expr] = {}
    refused: set[Expr] = set()
    groups: dict[Expr, Expr] = {}
    for result, loads in edges.items():
        places = _places(producer, result, first, names, ranges)
        groups.update((index, place.size) for index, place in places.items() if place.size != 1)
        for load in loads:
            exprs = names.exprs(load.access, load.indices)
            for index in first:
                place = places.get(index)
                found = None if place is None else ranges.simplify(place.of(exprs))
                if found is None or candidates.setdefault(index, found) != found or _has_others(found, second, names):
                    refused.add(index)
    agreed = {i: e for i, e in candidates.items() if i not in refused}
    shared = one_to_one(agreed, first, second, ranges.ranges)
    splits: dict[Expr, tuple[Expr, Expr]] = {}
    for index, expr in agreed.items():
        size = groups.get(index)
        if size is None or index in shared.exprs or not isinstance(expr, FloorDiv) or expr.args[0] not in second:
            continue
        if expr.args[1] == size and second[expr.args[0]] == first[index] * size:
            splits[expr.args[0]] = first[index], size
    return LoopMatch(first, second, shared, splits)


def match_sibling(one: NestInfo, other: NestInfo, names: IndexNames) -> LoopMatch | None:
    """Return the match of two nests with equal outer loops, loop by loop; None if they are not equal."""
    first, second = _extents(one, names), _extents(other, names)
    if first is None or second is None or list(first.values()) != list(second.values()):
        return None
    return LoopMatch(first, second, SpaceMap(dict(zip(first, second, strict=True)), frozenset(second)))


def _extents(info: NestInfo, names: IndexNames) -> dict[Expr, Expr] | None:
    if info.extents is None:
        return None
    return {names.symbol(v): extent for v, extent in zip(info.nest.indices, info.extents, strict=True)}


@dataclass(frozen=True)
class _Place:
    """Where an index of a producer is found in what it stores: in which dimension, and how many elements for each."""

    dimension: int
    size: Expr

    def of(self, exprs: Sequence[Expr]) -> Expr:
        """Return the index that an element belongs to."""
        return exprs[self.dimension] if self.size == 1 else FloorDiv(exprs[self.dimension], self.size)


def _places(
    producer: NestInfo, result: SSAValue, indices: Mapping[Expr, Expr], names: IndexNames, ranges: NamedRanges
) -> dict[Expr, _Place]:
    """Return the dimensions of `result` where all stores have one outer index: which iteration they are in."""
    stores = producer.stores_to(producer.destination(result))
    if any(s.combine is not None for s in stores):
        return {}
    rows = [names.exprs(s.access, s.indices) for s in stores]
    found: dict[Expr, _Place] = {}
    for d in range(len(rows[0])):
        if rows[0][d] in indices:
            if all(row[d] == rows[0][d] for row in rows):
                found.setdefault(rows[0][d], _Place(d, integer(1)))
            continue
        group = _group(rows[0][d], stores[0], indices, ranges)
        if group is not None and all(
            _group(row[d], s, indices, ranges) == group for row, s in zip(rows, stores, strict=True)
        ):
            found.setdefault(group[0], _Place(d, group[1]))
    return found


def _group(expr: Expr, store: StoreOp, indices: Mapping[Expr, Expr], ranges: NamedRanges) -> tuple[Expr, Expr] | None:
    """Return the outer index and how many positions belong to it, if a store goes through these with inner loops."""
    for index in indices:
        size = expr.coeff(index)
        rest = expr - size * index
        loop = store.parent_op()
        if not (size.is_Integer and size > 1) or not isinstance(loop, Loop) or not isinstance(loop.parent_op(), NestOp):
            continue  # of loops in each other, what reads the elements could not join the inner one
        for value, this in zip(loop.indices, loop.loops.dims, strict=True):
            if ranges.name(value) == rest and (this.lower, this.upper) == (0, size):
                return index, size
    return None


def _has_others(expr: Expr, indices: Mapping[Expr, Expr], names: IndexNames) -> bool:
    """Whether `expr` depends on index values other than `indices`: inner loops, loaded indices."""
    return any(names.is_index(s) and s not in indices for s in expr.free_symbols)
