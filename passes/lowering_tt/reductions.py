"""Reductions: over axes of a block, over iterations that carry their results, and over blocks one after the other.

A reduction whose body is nothing but a reduction over a block combines the blocks element by element, and the elements
of what comes out of it once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects.loop import ApplyOp, Loop, ReduceOp, YieldOp
from tilewright.passes.analysis.legality import slot_groups
from tilewright.passes.lowering_tt.builder import Shape, TensorBuilder, shape_of
from tilewright.passes.lowering_tt.combining import CombinerLowering, depends_on_order
from tilewright.passes.lowering_tt.dependence import Dependence
from tilewright.passes.lowering_tt.loops import Carried, LoopBuilder
from tilewright.passes.lowering_tt.memory import MemoryBuilder
from tilewright.passes.lowering_tt.scope import Scope


class ReductionBuilder:
    """Builds reductions. `value` says what a value of the kernel has become, `lower` builds an operation."""

    def __init__(
        self,
        builder: TensorBuilder,
        loops: LoopBuilder,
        scope: Scope,
        memory: MemoryBuilder,
        combiners: CombinerLowering,
        dependence: Dependence,
        value: Callable[[SSAValue], SSAValue],
        lower: Callable[[Operation], None],
    ):
        self._builder = builder
        self._loops = loops
        self._scope = scope
        self._memory = memory
        self._combiners = combiners
        self._dependence = dependence
        self._value = value
        self._lower = lower

    def lower(self, op: ReduceOp) -> list[SSAValue]:
        """Build a reduction and return its results."""
        blocks = op.blocks
        if blocks is not None:
            self._check_order(op)
            with self._scope.axes(op, blocks) as places:
                values = self._body(op, places)
            return self._with_init(op, self._reduce(op, values, places))
        inner = self._whole_body(op)
        return self._serial(op) if inner is None else self._with_init(op, self._blockwise(op, inner))

    def _check_order(self, op: ReduceOp) -> None:
        if op.ordered is None:
            return
        kinds = [r.type for r in op.results_]
        for name, slots in slot_groups(op):
            if depends_on_order(name, kinds[slots]):
                raise PassFailedException(
                    f"`loop.reduce ordered` of {kinds[slots.start]} by `{name}` over a block has no lowering, expected "
                    "a loop without `blocks`; established by loop-tile-blocks"
                )

    def _whole_body(self, op: ReduceOp) -> ReduceOp | None:
        """Return the reduction over a block that is all that each iteration of `op`, or of loops in it, does."""
        inner = op.yielded.values[0].owner
        if not isinstance(inner, ReduceOp) or inner.parent is not op.block or tuple(op.yielded.values) != inner.results:
            return None
        if inner.names != op.names or inner.init or (op.ordered is not None and self._rounds(op)):
            return None
        if any(isinstance(o, Loop) and o is not inner for o in op.block.ops):
            return None
        if inner.blocks is not None:
            return inner
        return self._whole_body(inner)

    def _rounds(self, op: ReduceOp) -> bool:
        kinds = [r.type for r in op.results_]
        return any(depends_on_order(name, kinds[slots]) for name, slots in slot_groups(op))

    def _serial(self, op: ReduceOp) -> list[SSAValue]:
        """Reduce one iteration after the other."""
        start: list[SSAValue] = []
        kinds = [r.type for r in op.results_]
        for name, slots in slot_groups(op):
            given = [self._value(v) for v in op.init[slots]] or self._combiners.identity(name, kinds[slots])
            shape = self._builder.common_shape([self._shape(op, slots), *(shape_of(v) for v in given)])
            start += [self._builder.fit(v, shape) for v in given]
        self._name(op, start)

        def iteration(carried: Carried) -> Carried:
            self._lower_body(op)
            results: list[SSAValue] = []
            for name, slots in slot_groups(op):
                new = [self._value(v) for v in op.yielded.values[slots]]
                results += self._fitted(self._combiners.combine(name, carried[slots], new), carried[slots])
            self._name(op, results)
            return results

        with self._memory.iterations(op, in_order=False):
            return list(self._loops.serial(op, start, iteration))

    def _shape(self, op: ReduceOp, slots: slice) -> Shape:
        """Return the shape of the results of one combiner."""
        return self._scope.shape_of(self._dependence.of(op.results_[slots]))

    def _fitted(self, values: Sequence[SSAValue], like: Sequence[SSAValue]) -> list[SSAValue]:
        return [self._builder.fit(v, shape_of(w)) for v, w in zip(values, like, strict=True)]

    def _name(self, op: ReduceOp, values: Sequence[SSAValue]) -> None:
        """Let what is carried be called by what it is."""
        for name, slots in slot_groups(op):
            for value in values[slots]:
                if not isinstance(value.owner, arith.ConstantOp):
                    value.name_hint = name

    def _blockwise(self, op: ReduceOp, inner: ReduceOp) -> list[SSAValue]:
        """Combine block after block, element by element."""
        blocks = inner.blocks
        assert blocks is not None
        own, places = [n for n in blocks if n > 1], self._scope.places(inner, blocks)
        start: list[SSAValue] = []
        kinds = [r.type for r in op.results_]
        for name, slots in slot_groups(op):
            outer = self._shape(op, slots) or (1,) * self._scope.rank
            shape = (*own, *outer) if places and places[0] == 0 else (*outer, *own)
            start += [self._builder.fit(v, shape) for v in self._combiners.identity(name, kinds[slots])]
        self._name(op, start)

        def iteration(carried: Carried) -> Carried:
            return self._block(op, inner, carried)

        with self._memory.iterations(op, in_order=False):
            return self._reduce(op, self._chain(op, inner, start, iteration), places)

    def _chain(self, op: ReduceOp, inner: ReduceOp, carried: Carried, body: Callable[[Carried], Carried]) -> Carried:
        """Run the loops of `op` and of those in it down to `inner`, around `body`."""

        def iteration(values: Carried) -> Carried:
            below: ReduceOp | None = None
            for o in op.block.ops:
                if isinstance(o, ReduceOp):
                    below = o
                elif not isinstance(o, (YieldOp, ApplyOp)):
                    self._lower(o)
            assert below is not None
            return body(values) if below is inner else self._chain(below, inner, values, body)

        return self._loops.serial(op, carried, iteration)

    def _block(self, op: ReduceOp, inner: ReduceOp, carried: Carried) -> Carried:
        blocks = inner.blocks
        assert blocks is not None
        with self._scope.axes(inner, blocks) as places:
            new = self._body(inner, places)
        results: list[SSAValue] = []
        for name, slots in slot_groups(op):
            results += self._fitted(self._combiners.combine(name, carried[slots], new[slots]), carried[slots])
        self._name(op, results)
        return results

    def _lower_body(self, op: ReduceOp) -> None:
        for inner in op.block.ops:
            self._lower(inner)

    def _body(self, op: ReduceOp, places: Sequence[int]) -> list[SSAValue]:
        """Build the body of a reduction over axes, and return what it yields, neutral where points are not there."""
        self._lower_body(op)
        mask = self._scope.mask(frozenset(op.indices))
        shape = tuple(n if i in places else 1 for i, n in enumerate(self._scope.shape))
        kinds = [r.type for r in op.results_]
        results: list[SSAValue] = []
        for name, slots in slot_groups(op):
            values = [self._value(v) for v in op.yielded.values[slots]]
            if mask is not None:
                neutral = self._combiners.identity(name, kinds[slots])
                values = [self._builder.select(mask, v, n) for v, n in zip(values, neutral, strict=True)]
            whole = self._builder.common_shape([*(shape_of(v) for v in values), shape])
            results += [self._builder.fit(v, whole) for v in values]
        return results

    def _reduce(self, op: ReduceOp, values: Sequence[SSAValue], places: Sequence[int]) -> list[SSAValue]:
        """Combine the elements along axes, which are not open any more."""
        found = self._combiners.reduce(list(slot_groups(op)), values, places)
        return [self._builder.scalar_of(v) if all(n == 1 for n in shape_of(v)) else v for v in found]

    def _with_init(self, op: ReduceOp, values: list[SSAValue]) -> list[SSAValue]:
        if not op.init:
            return values
        results: list[SSAValue] = []
        for name, slots in slot_groups(op):
            init = [self._value(v) for v in op.init[slots]]
            results += self._combiners.combine(name, init, values[slots])
        return results
