"""Scans: over iterations that carry their prefixes, or over blocks of points, one block after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import i32
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects.loop import LoopDim, PrefixOp, ScanOp
from tilewright.passes.analysis.legality import has_prefixes_only
from tilewright.passes.lowering_tt.builder import TensorBuilder, element_of, shape_of
from tilewright.passes.lowering_tt.combining import CombinerLowering
from tilewright.passes.lowering_tt.dependence import Dependence
from tilewright.passes.lowering_tt.index import IndexBuilder
from tilewright.passes.lowering_tt.loops import Carried, LoopBuilder
from tilewright.passes.lowering_tt.memory import MemoryBuilder
from tilewright.passes.lowering_tt.scope import Extent, Scope


class ScanBuilder:
    """Builds scans. `lower` builds an operation of a body."""

    def __init__(
        self,
        builder: TensorBuilder,
        loops: LoopBuilder,
        index: IndexBuilder,
        scope: Scope,
        memory: MemoryBuilder,
        combiners: CombinerLowering,
        dependence: Dependence,
        lower: Callable[[Operation], None],
    ):
        self._builder = builder
        self._loops = loops
        self._index = index
        self._scope = scope
        self._memory = memory
        self._combiners = combiners
        self._dependence = dependence
        self._lower = lower
        self._before: dict[PrefixOp, Carried] = {}
        """What each prefix of the iteration or block that is being built comes after, and then what it leaves."""
        self._block: int | None = None
        """The size of the block that is being built, of a scan over blocks."""

    def scan(self, op: ScanOp) -> None:
        """Build a scan."""
        blocks = op.blocks
        if blocks is None:
            with self._memory.iterations(op, in_order=True):
                self._loops.serial(op, self._start(op), lambda carried: self._iteration(op, carried))
            return
        _check_independent(op)
        (this,) = self._index.space.loops(op)
        (size,) = blocks
        extent = self._scope.extent(this)
        if self._scope.fits(extent, size):
            self._points(op, this, extent, size, self._start(op) if size == 1 else None)
            return

        def tile(counter: SSAValue, carried: Carried) -> Carried:
            multiple = size if self._index.is_multiple(extent.lower, size) else 1
            part = self._index.add_part(counter, extent.lower, extent.upper - 1, multiple=multiple)
            return self._points(op, this, Extent(part, extent.upper), size, carried)

        begin, end = self._index.scalar(extent.lower), self._index.scalar(extent.upper)
        with self._memory.iterations(op, in_order=False):
            self._loops.counted(begin, end, size, self._start(op), tile)

    def _prefixes(self, op: ScanOp) -> list[PrefixOp]:
        return [p for p in op.block.ops if isinstance(p, PrefixOp)]

    def _start(self, op: ScanOp) -> list[SSAValue]:
        start: list[SSAValue] = []
        for prefix in self._prefixes(op):
            shape = self._scope.shape_of(self._dependence.of(prefix.outputs))
            identity = self._combiners.identity(prefix.combiner.data, [v.type for v in prefix.inputs])
            start += [self._builder.fit(v, shape) for v in identity]
        return start

    def _iteration(self, op: ScanOp, carried: Carried | None) -> Carried:
        """Build the body of a scan, of one iteration or of a block, and return what its prefixes leave.

        Without `carried` nothing comes before or after.
        """
        at = 0
        for prefix in self._prefixes(op):
            self._before[prefix] = () if carried is None else carried[at : at + len(prefix.inputs)]
            at += len(prefix.inputs)
        for inner in op.block.ops:
            self._lower(inner)
        return [v for p in self._prefixes(op) for v in self._before.pop(p)]

    def _points(self, op: ScanOp, this: LoopDim, extent: Extent, size: int, carried: Carried | None) -> Carried:
        """Build the points of a block."""
        if this.step != 1:
            raise PassFailedException(f"`loop.scan` over blocks by a step of {this.step} has no lowering")
        (index,) = op.indices
        self._scope.open(index, extent, size, self._scope.rank)
        self._block = size
        results = self._iteration(op, carried)
        self._block = None
        self._scope.close(index)
        return results

    def prefix(self, op: PrefixOp, values: Sequence[SSAValue]) -> Carried:
        """Combine `values` with those of the points before."""
        before, name = self._before[op], op.combiner.data
        if self._block is None or self._block == 1:
            results = self._combiners.combine(name, before, values)
            results = [self._builder.fit(r, shape_of(b)) for r, b in zip(results, before, strict=True)]
            self._before[op] = results
            return results
        b, axis = self._builder, self._scope.rank - 1
        identity = self._combiners.identity(name, [element_of(v) for v in values])
        scan = op.parent_op()
        assert isinstance(scan, ScanOp)
        mask = self._scope.mask(frozenset(scan.indices))
        if mask is not None:
            values = [b.select(mask, v, n) for v, n in zip(values, identity, strict=True)]
        shape = b.common_shape([*(shape_of(v) for v in values), (*(1 for _ in range(axis)), self._block)])
        scanned = self._combiners.scan(name, [b.fit(v, shape) for v in values], axis)
        if not before:
            return scanned
        results = self._combiners.combine(name, before, scanned)
        last = b.compare_integers("eq", b.along(b.numbers(self._block), axis, axis + 1), b.number(self._block - 1, i32))
        ends = [b.fit(b.select(last, r, n), shape_of(r)) for r, n in zip(results, identity, strict=True)]
        left = self._combiners.reduce([(name, slice(0, len(ends)))], ends, [axis])
        self._before[op] = [b.fit(v, shape_of(w)) for v, w in zip(left, before, strict=True)]
        return results


def _check_independent(op: ScanOp) -> None:
    """Raise `PassFailedException` unless the points of a scan depend on each other by its prefixes alone."""
    if len(op.indices) != 1:
        raise PassFailedException(f"`loop.scan` over {len(op.indices)} loops has `blocks`, expected one loop")
    if not has_prefixes_only(op):
        raise PassFailedException(
            "`loop.scan` has `blocks`, but its iterations have more of each other than a `loop.prefix`, expected none; "
            "established by loop-tile-blocks"
        )
