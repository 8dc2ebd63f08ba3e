"""How the loops of a producer correspond to those of a consumer that loads what it stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from tilewright.dialects.loop import LoadOp
from tilewright.dialects.sym_expr import Expr, Ranges
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
    for result, loads in edges.items():
        places = _places(producer, result, first, names)
        for load in loads:
            exprs = names.exprs(load.access, load.indices)
            for index in first:
                found = ranges.simplify(exprs[places[index]]) if index in places else None
                if found is None or candidates.setdefault(index, found) != found or _has_others(found, second, names):
                    refused.add(index)
    agreed = {i: e for i, e in candidates.items() if i not in refused}
    return LoopMatch(first, second, one_to_one(agreed, first, second, ranges.ranges))


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


def _places(producer: NestInfo, result: SSAValue, indices: Mapping[Expr, Expr], names: IndexNames) -> dict[Expr, int]:
    """Return the dimensions of `result` where all stores have an outer index alone: which iteration they are in."""
    stores = producer.stores_to(producer.destination(result))
    if any(s.combine is not None for s in stores):
        return {}
    rows = [names.exprs(s.access, s.indices) for s in stores]
    same = [d for d in range(len(rows[0])) if rows[0][d] in indices and all(row[d] == rows[0][d] for row in rows)]
    return {rows[0][d]: d for d in reversed(same)}


def _has_others(expr: Expr, indices: Mapping[Expr, Expr], names: IndexNames) -> bool:
    """Whether `expr` depends on index values other than `indices`: inner loops, loaded indices."""
    return any(names.is_index(s) and s not in indices for s in expr.free_symbols)
