"""Nests that share outer loops become one tree: a producer with its consumer, nests side by side that read the same.

A producer's element is then a value in the consumer, or is read back from a cache, and a nest that is only needed
inside is never stored. Which loops are shared, and that it is legal, `match` and `ProgramOrder` say; here it is decided
what is worth it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from xdsl.ir import Attribute, Operation, SSAValue

from tilewright.dialects.loop import LoadOp, NestOp, layout_of
from tilewright.dialects.loop_canonicalize import drop_unused_outputs
from tilewright.dialects.sym_expr import Expr, Ranges
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.analysis.nests import NestInfo
from tilewright.passes.analysis.order import ProgramOrder
from tilewright.passes.analysis.sizes import SizeHints
from tilewright.passes.canonicalize import simplify_block
from tilewright.passes.fusion.held import HeldMemory
from tilewright.passes.fusion.match import LoopMatch, match_producer, match_sibling
from tilewright.passes.fusion.outputs import share_equal_outputs
from tilewright.passes.fusion.siblings import merge_sibling_loops
from tilewright.passes.rewriting.forward import StoreForwarder
from tilewright.passes.rewriting.loops import split_outer_loop
from tilewright.passes.rewriting.trees import merge_nests

_BESIDE_SCALARS = 256
"""Iterations of a GPU's nest that are computed by one program, together with a few scalars that they need. More have a
launch of their own: the updates of all parameters are one, and the counters of their steps another."""


@dataclass(frozen=True)
class TreeLimits:
    """How large a nest may grow, and how much parallelism a producer may give up."""

    max_ops: int
    max_buffers: int
    min_parallel: int
    small: int
    """Iterations up to which a nest is too small for its parallelism to matter, or to be worth a kernel."""
    programs: int
    """As `min_parallel`, on a GPU."""
    cached: int
    """Bytes of a tensor that the caches of a CPU may keep from one nest to the next."""
    work: int
    """Iterations of a nest on a GPU that one program may do, if there are fewer programs."""
    horizontal: bool
    siblings: bool


@dataclass
class TreeMerger:
    """Merges the nests of one block."""

    order: ProgramOrder
    names: IndexNames
    hints: SizeHints
    sizes: Ranges
    limits: TreeLimits
    held: HeldMemory
    _merged: set[Operation] = field(default_factory=set[Operation])
    _infos: dict[Operation, NestInfo] = field(default_factory=dict[Operation, NestInfo])

    def run(self) -> None:
        """Merge, first to last: a producer has taken in its own producers before a consumer takes it in."""
        nests = [op for op in self.order.block.ops if isinstance(op, NestOp)]
        for nest in nests:
            self._merge_producers(nest)
        if self.limits.horizontal:
            self._merge_siblings()
        for nest in [op for op in self.order.block.ops if isinstance(op, NestOp)]:
            self._tidy(nest)

    def _tidy(self, nest: NestOp) -> None:
        if nest in self._merged:
            simplify_block(nest.block)
            share_equal_outputs(nest)
        elif self.limits.siblings and not self._info(nest).is_flat and merge_sibling_loops(nest, self.names):
            StoreForwarder(self.names, self.sizes).run(nest)

    def _info(self, nest: NestOp) -> NestInfo:
        info = self._infos.get(nest)
        if info is None:
            info = self._infos[nest] = NestInfo.of(nest)
        return info

    def _merge_producers(self, nest: NestOp) -> None:
        merged: NestOp | None = nest
        while merged is not None:
            nest, merged = merged, None
            for producer, edges in self._producers(nest):
                merged = self._try_producer(producer, nest, edges)
                if merged is not None:
                    break

    def _producers(self, nest: NestOp) -> list[tuple[NestOp, dict[SSAValue, list[LoadOp]]]]:
        """Return the nests that `nest` reads, those first that save most, and what it reads of them."""
        found: dict[NestOp, dict[SSAValue, list[LoadOp]]] = {}
        for source, loads in self._info(nest).sources().items():
            owner = source.owner
            if isinstance(owner, NestOp) and owner.parent is self.order.block:
                found.setdefault(owner, {})[source] = loads

        def saved(item: tuple[NestOp, dict[SSAValue, list[LoadOp]]]) -> tuple[int, int]:
            return sum(self.hints.bytes_of(r.type) for r in item[1]), self.order.position(item[0])

        return sorted(found.items(), key=saved, reverse=True)

    def _try_producer(self, producer: NestOp, consumer: NestOp, edges: dict[SSAValue, list[LoadOp]]) -> NestOp | None:
        one, other = self._info(producer), self._info(consumer)
        if not self._fits(one, other):
            return None
        match = match_producer(one, other, edges, self.names, self.sizes)
        if match is not None and match.splits and other.is_flat and self._is_worth_splitting(edges):
            self._split(consumer, match)
            other = self._info(consumer)
            match = match_producer(one, other, edges, self.names, self.sizes)
        if match is None or not self._is_worth_it(one, other, match):
            return None
        if self.held.is_excessive(producer, one.sources(), consumer):
            return None
        return self._merge(producer, consumer, match)

    def _is_worth_splitting(self, edges: Mapping[SSAValue, list[LoadOp]]) -> bool:
        """Whether what is read through `edges` would not be in a cache anyway.

        A loop that is split computes in its inner part what belongs to a group alone, where caches save the rest.
        """
        results = list(edges)
        on_gpu = any(layout_of(r.type).device_kind == "cuda" for r in results)
        return on_gpu or sum(self.hints.bytes_of(r.type) for r in results) >= self.limits.cached

    def _split(self, consumer: NestOp, match: LoopMatch) -> None:
        """Split loops of a consumer as its producer has them; `loop-collapse` joins them where fusion declines."""
        for index, (groups, size) in match.splits.items():
            position = next(i for i, v in enumerate(consumer.indices) if self.names.symbol(v) == index)
            split_outer_loop(consumer, position, groups, size, self.names)
        del self._infos[consumer]

    def _fits(self, one: NestInfo, other: NestInfo) -> bool:
        if _device(one.nest) != _device(other.nest) or one.ops + other.ops > self.limits.max_ops:
            return False
        buffers = {*one.sources(), *other.sources(), *one.nest.outputs, *other.nest.outputs}
        return len(buffers) <= self.limits.max_buffers

    def _is_worth_it(self, one: NestInfo, other: NestInfo, match: LoopMatch) -> bool:
        if match.first and match.second and not match.shared.exprs:
            return False
        if not _may_sink(one, match.first, match.sunk_first, self.names):
            return False
        if not _may_sink(other, match.second, match.sunk_second, self.names):
            return False
        parallel = self._product(match.extents)
        lost = max(self._product(match.first.values()), self._product(match.second.values()))
        if layout_of(one.nest.outputs[0].type).device_kind == "cuda":
            if one.is_flat and not match.first and lost > _BESIDE_SCALARS:
                return False
            return parallel >= min(lost, self.limits.programs) or lost <= self.limits.work * parallel
        return parallel >= min(lost, self.limits.min_parallel) or lost <= self.limits.small

    def _product(self, extents: Iterable[Expr]) -> int:
        return prod(self.hints.value(extent) for extent in extents)

    def _merge(self, first: NestOp, second: NestOp, match: LoopMatch) -> NestOp | None:
        """Merge two nests unless the order of the program forbids it."""
        movers = self.order.movers(first, second)
        if movers is None:
            return None
        self.order.move_behind(movers, first, second)
        merged = merge_nests(first, second, match.shared.exprs, match.shared.covered, self.names)
        if self.limits.siblings:
            merge_sibling_loops(merged, self.names)
        StoreForwarder(self.names, self.sizes).run(merged)
        merged = drop_unused_outputs(merged)
        self.order.join(first, second, merged)
        self._merged -= {first, second}
        self._merged.add(merged)
        return merged

    def _merge_siblings(self) -> None:
        """Merge nests with equal loops that read the same elements, or that are too small to be worth a kernel each.

        On a GPU, small ones that do the same can be one launch nevertheless, and run side by side.
        """
        latest: dict[Hashable, NestOp] = {}
        for nest in [op for op in self.order.block.ops if isinstance(op, NestOp)]:
            keys = self._meeting_places(nest)
            for key in keys:
                earlier = latest.get(key)
                merged = None if earlier is None else self._try_sibling(earlier, nest)
                if merged is not None:
                    nest, keys = merged, self._meeting_places(merged)
                    break
            latest.update(dict.fromkeys(keys, nest))

    def _meeting_places(self, nest: NestOp) -> list[Hashable]:
        info = self._info(nest)
        space = info.extents, _device(nest)
        if info.extents is None:
            return []
        is_small = info.is_flat and self._product(info.extents) <= self.limits.small
        return [*((space, source) for source in info.sources()), *([space] if is_small else [])]

    def _try_sibling(self, first: NestOp, second: NestOp) -> NestOp | None:
        one, other = self._info(first), self._info(second)
        if first.parent is None or any(source.owner is first for source in other.sources()):
            return None
        match = match_sibling(one, other, self.names)
        if match is None or not self._fits(one, other):
            return None
        is_small = one.is_flat and other.is_flat and self._product(match.extents) <= self.limits.small
        if is_small and _device(first) not in (None, "cpu") and _content(first) == _content(second):
            is_small = False
        if not is_small and not self._reads_alike(one, other, match):
            return None
        return self._merge(first, second, match)

    def _reads_alike(self, one: NestInfo, other: NestInfo, match: LoopMatch) -> bool:
        """Whether both read some tensor at the same outer indices, each of which counts."""
        sources = other.sources()
        for source, loads in one.sources().items():
            mine = {self._outer(load, match.shared.exprs, match.second) for load in loads}
            if mine & {self._outer(load, {}, match.second) for load in sources.get(source, ())} - {None}:
                return True
        return False

    def _outer(
        self, load: LoadOp, rules: Mapping[Expr, Expr], indices: Mapping[Expr, Expr]
    ) -> tuple[Expr | None, ...] | None:
        """Return where `load` reads, but for what inner loops decide; None if it does not depend on all `indices`."""
        exprs = [e.xreplace(rules) for e in self.names.exprs(load.access, load.indices)]
        used = {s for e in exprs for s in e.free_symbols}
        if not indices.keys() <= used:
            return None
        inner = [s for s in used if self.names.is_index(s) and s not in indices]
        return tuple(None if e.has(*inner) else e for e in exprs) if inner else tuple(exprs)


def _may_sink(info: NestInfo, extents: Mapping[Expr, Expr], sunk: list[Expr], names: IndexNames) -> bool:
    """Whether the loops `sunk` may become inner ones: the last ones of straight-line code, which go along memory."""
    if not sunk:
        return True
    return info.is_flat and list(extents)[-len(sunk) :] == sunk and not _goes_across(info, extents, sunk, names)


def _goes_across(info: NestInfo, extents: Mapping[Expr, Expr], sunk: list[Expr], names: IndexNames) -> bool:
    """Whether elements side by side in memory belong to iterations of an outer loop that is not among `sunk`."""
    for store in info.stores:
        layout = layout_of(store.target.type)
        places = zip(names.exprs(store.access, store.indices), layout.sizes, layout.strides, strict=True)
        dense = [index for index, size, stride in places if stride == 1 and size != 1]
        if any(index in extents and index not in sunk for index in dense):
            return True
    return False


def _content(nest: NestOp) -> list[tuple[str, dict[str, Attribute]]]:
    """Return what equal kernels have in common."""
    return [(op.name, op.properties) for op in nest.block.walk()]


def _device(nest: NestOp) -> str | None:
    return layout_of(nest.outputs[0].type).device if nest.outputs else None
