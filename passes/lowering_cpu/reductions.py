"""Reductions as loops that carry their results, by one thread or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, SSAValue

from tilewright.dialects import cpu
from tilewright.dialects.access import is_index
from tilewright.dialects.combiners import COMBINERS, Emit, Slots, element_type
from tilewright.dialects.loop import CastOp, CombineOp, Loop, ReduceOp, SelectOp
from tilewright.dialects.sym_expr import Expr, FloorDiv, Max, integer
from tilewright.dialects.type_guards import is_vector
from tilewright.passes.analysis.index_space import IndexSpace, stride
from tilewright.passes.analysis.legality import slot_groups
from tilewright.passes.lowering_cpu.address import AddressBuilder
from tilewright.passes.lowering_cpu.loops import Carried, LoopBuilder

Combine = Callable[[Emit, Slots, Slots], list[SSAValue]]

MAX_PARTS = 64
"""The most parts that a reduction is split into: a constant, so that sums don't depend on the number of threads."""


@dataclass(frozen=True)
class _Slot:
    """The part of a reduction that one combiner makes up."""

    name: str
    slots: slice
    combine: Combine
    start: Sequence[SSAValue]


class ReductionBuilder:
    """Builds reductions. `value` says what a value of the kernel has become, `body` builds the body of a reduction."""

    def __init__(
        self,
        loops: LoopBuilder,
        address: AddressBuilder,
        value: Callable[[SSAValue], SSAValue],
        body: Callable[[ReduceOp], None],
    ):
        self._loops = loops
        self._address = address
        self._builder = address.builder
        self._space = address.space
        self._value = value
        self._body = body

    def serial(self, op: ReduceOp) -> Carried:
        """Reduce one iteration after the other."""
        parts = self._parts(op)
        start = [v for p in parts for v in p.start]
        return self._loops.serial(op, start, lambda carried: self._iteration(op, parts, carried))

    def parallel(self, op: ReduceOp, iterations_per_part: int) -> Carried:
        """Reduce parts of at least so many iterations, each by one thread, and then their results in order."""
        parts = self._parts(op)
        kinds = [r.type for r in op.results_]
        total = self._loops.total(op)
        length = Max(integer(iterations_per_part), FloorDiv(total + (MAX_PARTS - 1), integer(MAX_PARTS)))
        scratch = [self._scratch(op, i, kind) for i, kind in enumerate(kinds)]
        count = self._address.scalar(FloorDiv(total + length - 1, length))

        def chunk(begin: SSAValue, end: SSAValue) -> None:
            self._loops.counted(begin, end, (), lambda number, _: self._store_part(op, number, total, length, scratch))

        self._loops.parallel(count, 1, chunk)

        def iteration(number: SSAValue, carried: Carried) -> Carried:
            found = [
                self._builder.emit(cpu.LoadOp.get(s, self._place(number, k), k))
                for s, k in zip(scratch, kinds, strict=True)
            ]
            return [v for p in parts for v in p.combine(self._builder.emit, carried[p.slots], found[p.slots])]

        start = [v for p in parts for v in p.start]
        return self._loops.counted(self._builder.constant(0), count, start, iteration)

    def _store_part(
        self, op: ReduceOp, number: SSAValue, total: Expr, length: Expr, scratch: Sequence[SSAValue]
    ) -> Carried:
        """Reduce one part and store its results."""
        builder = self._builder
        size = self._address.scalar(length)
        begin = builder.binary(arith.MuliOp, number, size)
        end = builder.binary(arith.AddiOp, begin, size)
        end = builder.binary(arith.MinSIOp, end, self._address.scalar(total))
        parts = self._parts(op, neutral=True)
        start = [v for p in parts for v in p.start]
        results = self._loops.part(op, begin, end, start, lambda carried: self._iteration(op, parts, carried))
        for target, result in zip(scratch, results, strict=True):
            builder.append(cpu.StoreOp.get(result, target, self._place(number, result.type)))
        return ()

    def _scratch(self, op: ReduceOp, slot: int, kind: Attribute) -> SSAValue:
        """Return memory for the results of all parts, on the stack of the kernel."""
        lanes = kind.get_shape()[0] if is_vector(kind) else 1
        key = ("scratch", op, slot)
        return self._builder.on_entry(key, lambda: memref.AllocaOp.get(element_type(kind), 64, [MAX_PARTS * lanes]))

    def _place(self, number: SSAValue, kind: Attribute) -> SSAValue:
        if not is_vector(kind):
            return number
        return self._builder.binary(arith.MuliOp, number, self._builder.constant(kind.get_shape()[0]))

    def _iteration(self, op: ReduceOp, parts: Sequence[_Slot], carried: Carried) -> Carried:
        """Build the body and combine what it yields with what was carried in, in lanes that take part."""
        self._body(op)
        results: list[SSAValue] = []
        for part in parts:
            new = [self._value(v) for v in op.yielded.values[part.slots]]
            results += part.combine(self._builder.emit, carried[part.slots], new)
        if op.mask is None:
            return results
        mask = self._value(op.mask)
        return [self._builder.emit(SelectOp.get(mask, r, c)) for r, c in zip(results, carried, strict=True)]

    def _parts(self, op: ReduceOp, *, neutral: bool = False) -> list[_Slot]:
        """Return how each combiner of `op` starts and goes on; from nothing if `neutral`, whatever the `init`."""
        parts: list[_Slot] = []
        kinds = [r.type for r in op.results_]
        for name, slots in slot_groups(op):
            combiner = COMBINERS[name]
            combine: Combine = combiner.combine
            first = None if combiner.extend is None else first_index(self._space, op, op.yielded.values[slots][1])
            if first is not None and combiner.extend is not None:
                combine = combiner.extend
            start: Sequence[SSAValue] = [self._value(v) for v in op.init[slots]]
            if neutral or not start:
                start = self._identity(name, kinds[slots], first)
            parts.append(_Slot(name, slots, combine, start))
        return parts

    def _identity(self, name: str, kinds: Sequence[Attribute], first: Expr | None) -> list[SSAValue]:
        """Return the neutral values of a combiner. Where indices rise, `first` is as good as the largest index."""
        constants = COMBINERS[name].identity([element_type(k) for k in kinds])
        values = [self._builder.constant(c) for c in constants]
        if first is not None and element_type(kinds[1]) == i64:
            index = self._address.scalar(first)
            values[1] = self._builder.hoisted("first", (index,), lambda: arith.IndexCastOp(index, i64))
        return [
            self._builder.broadcast(v, k.get_shape()[0]) if is_vector(k) else v
            for v, k in zip(values, kinds, strict=True)
        ]

    def combine(self, op: CombineOp) -> Carried:
        """Combine the lanes of vectors."""
        vectors = [self._value(v) for v in op.inputs]
        name, kind, emit = op.combiner.data, vectors[0].type, self._builder.emit
        assert is_vector(kind)
        if len(vectors) == 1:
            return [emit(cpu.ReduceOp.get(name, vectors[0]))]
        count = kind.get_shape()[0]
        while count > 1:
            count //= 2
            lower, upper = ([emit(cpu.ExtractOp.get(v, first, count)) for v in vectors] for first in (0, count))
            vectors = COMBINERS[name].combine(emit, lower, upper)
        return vectors


def first_index(space: IndexSpace, op: Loop, index: SSAValue) -> Expr | None:
    """Return the value of `index` in the first iteration of `op` if it grows from each one to the next, else None."""
    dims = space.loops(op)
    if len(dims) != 1 or not isinstance(index.owner, CastOp) or not is_index(index.owner.input):
        return None
    symbol = space.symbol(op.indices[0])
    expr = space.expr(index.owner.input)
    by = stride(expr, symbol)
    if by is None or not by.is_Integer or by <= 0:
        return None
    return expr.xreplace({symbol: dims[0].lower})
