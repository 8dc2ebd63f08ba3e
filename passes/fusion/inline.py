"""Pointwise producers computed where their elements are used, instead of being stored.

A producer goes where computing it again costs nothing (each element is used once) or little, and all its uses are loads
in nests. A value that is needed in memory anyway, because it is returned or an extern call takes it, is left to the
merging of trees. So is one that frees more memory than it takes, such as a sum of products, where its consumer stands
behind a call: what it reads would stay alive until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Operation, SSAValue

from tilewright.dialects.loop import CastOp, LoadOp, NestOp, StoreOp
from tilewright.dialects.loop_order import data_uses, is_wanted
from tilewright.dialects.sym_expr import Expr
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.analysis.nests import NestInfo
from tilewright.passes.analysis.order import ProgramOrder, statement_of
from tilewright.passes.analysis.sizes import SizeHints
from tilewright.passes.fusion.held import HeldMemory
from tilewright.passes.fusion.updates import Element, may_read_start, reads_only_its_own
from tilewright.passes.rewriting.clone import backward_slice, inline_at, may_trap
from tilewright.passes.rewriting.origins import merge_origins


@dataclass(frozen=True)
class InlineLimits:
    """How much of a producer may be computed again, and how large a nest may grow."""

    max_ops: int
    recompute_ops: int


@dataclass
class _Producer:
    """A result that a flat nest stores once, at indices that tell its iterations apart."""

    nest: NestOp
    result: SSAValue
    store: StoreOp
    places: dict[Expr, int]
    """For each index of the nest the dimension of the result that it is."""
    ops: list[Operation]


@dataclass
class _Cost:
    """What one element of a nest costs, with what is inlined into it."""

    ops: int
    heavy: int
    bytes_read: int
    sources: dict[SSAValue, None]
    """The tensors that are read."""
    nests: dict[NestOp, None]
    """The nests whose work that is."""


def _producer(info: NestInfo, result: SSAValue, names: IndexNames) -> _Producer | None:
    """Return how `result` is computed, or None if its elements cannot be computed one by one."""
    destination = info.destination(result)
    stores = info.stores_to(destination)
    if not info.is_flat or info.extents is None or len(stores) != 1:
        return None
    (store,) = stores
    if store.mask is not None or store.combine is not None:
        return None
    dims = {e: d for d, e in enumerate(names.exprs(store.access, store.indices))}
    indices = [names.symbol(v) for v in info.nest.indices]
    ops = backward_slice(store)
    reads_own = any(isinstance(op, LoadOp) and op.source in info.nest.destinations for op in ops)
    if reads_own or any(i not in dims for i in indices):
        return None
    return _Producer(info.nest, result, store, {i: dims[i] for i in indices}, ops)


@dataclass
class ProducerInliner:
    """Inlines what is worth it in the nests of one block."""

    order: ProgramOrder
    names: IndexNames
    sizes: SizeHints
    limits: InlineLimits
    held: HeldMemory
    _chosen: dict[SSAValue, _Producer] = field(default_factory=dict[SSAValue, _Producer])
    _costs: dict[SSAValue, _Cost] = field(default_factory=dict[SSAValue, _Cost])

    def run(self) -> bool:
        """Inline; return whether anything was."""
        block = self.order.block
        nests = [op for op in block.ops if isinstance(op, NestOp)]
        # First to last, since what a producer costs depends on what is inlined into it.
        for nest in nests:
            self._choose(NestInfo.of(nest))
        # Last to first, so that each producer is still as it was when its consumers copy it.
        for nest in reversed(nests):
            if nest.outputs and all(not is_wanted(r) and r in self._chosen for r in nest.outputs):
                self.order.forget(nest)
                block.erase_op(nest)
            else:
                self._inline_into(nest)
        return bool(self._chosen)

    def _choose(self, info: NestInfo) -> None:
        cost = _Cost(info.ops, info.heavy, 0, {}, {info.nest: None})
        for load in info.loads:
            inlined = self._costs.get(load.source)
            if inlined is None:
                cost.bytes_read += self.sizes.bytes_read(load)
                cost.sources[load.source] = None
            else:
                cost.ops += inlined.ops
                cost.heavy += inlined.heavy
                cost.bytes_read += inlined.bytes_read
                cost.sources |= inlined.sources
                cost.nests |= inlined.nests
        for result in info.nest.outputs:
            producer = _producer(info, result, self.names)
            if producer is not None and self._is_worth_it(producer, cost):
                self._chosen[result] = producer
                self._costs[result] = cost

    def _is_worth_it(self, producer: _Producer, cost: _Cost) -> bool:
        loads = _loads_of(producer.result)
        if not loads or cost.ops > self.limits.max_ops:
            return False
        block = self.order.block
        consumers = list(dict.fromkeys(statement_of(load, block) for load in loads))
        if not all(self.order.may_run_at(nest, c) for nest in cost.nests for c in consumers):
            return False
        if any(load.mask is not None for load in loads) and may_trap(producer.ops):
            return False
        if not all(self._may_update(c, producer, cost, loads) for c in consumers if isinstance(c, NestOp)):
            return False
        last = max(consumers, key=self.order.position)
        if self.held.is_excessive(producer.nest, cost.sources, last):
            return False
        if self._evaluations(loads) <= self.sizes.elements(producer.result.type):
            return True
        if cost.heavy or cost.ops > self.limits.recompute_ops or any(_rounds(op) for op in producer.ops):
            return False
        return len(consumers) == 1 or cost.bytes_read <= self.sizes.bytes_of(producer.result.type)

    def _reads(self, producer: _Producer, at: Sequence[Expr]) -> Iterator[Element]:
        """Yield which elements, of which tensors, element `at` of a producer takes when it is computed in its place."""
        rules = {index: at[d] for index, d in producer.places.items()}
        for op in producer.ops:
            if not isinstance(op, LoadOp):
                continue
            exprs = tuple(e.xreplace(rules) for e in self.names.exprs(op.access, op.indices))
            inner = self._chosen.get(op.source)
            if inner is None:
                yield op.source, exprs
            else:
                yield from self._reads(inner, exprs)

    def _may_update(self, update: NestOp, producer: _Producer, cost: _Cost, loads: list[LoadOp]) -> bool:
        """Whether `update` can do its work in memory with the producer in it, if it could without."""
        if update.starts is None or not may_read_start(update, cost.sources):
            return True
        mine = (self.names.exprs(load.access, load.indices) for load in loads if update.is_ancestor(load))
        return reads_only_its_own(update, [e for at in mine for e in self._reads(producer, at)], self.names)

    def _evaluations(self, loads: list[LoadOp]) -> int:
        """Return how many elements all the copies would compute; equal loads in one block become one copy."""
        sites = {(load.parent, self.names.exprs(load.access, load.indices)): load for load in loads}
        return sum(self.sizes.iterations(load) for load in sites.values())

    def _inline_into(self, nest: NestOp) -> None:
        absorbed: dict[NestOp, None] = {}
        pending = [op for op in nest.body.walk() if isinstance(op, LoadOp)]
        while pending:
            load = pending.pop()
            producer = self._chosen.get(load.source)
            if producer is None:
                continue
            absorbed[producer.nest] = None
            exprs = self.names.exprs(load.access, load.indices)
            rules = {index: exprs[d] for index, d in producer.places.items()}
            pending += inline_at(load, producer.store, producer.ops, rules, self.names)
        for source in sorted(absorbed, key=self.order.position, reverse=True):
            self.order.absorb(source, nest)
            merge_origins(nest, source)


def _rounds(op: Operation) -> bool:
    """Whether `op` makes a float an integer, a position for instance, which vectors are slow at."""
    return isinstance(op, CastOp) and isinstance(op.input.type, AnyFloat) and not isinstance(op.result.type, AnyFloat)


def _loads_of(value: SSAValue) -> list[LoadOp]:
    """Return the loads from `value`, or nothing if it has other uses."""
    loads: list[LoadOp] = []
    for use in data_uses(value):
        if not isinstance(use.operation, LoadOp) or use.index != 0:
            return []
        loads.append(use.operation)
    return loads
