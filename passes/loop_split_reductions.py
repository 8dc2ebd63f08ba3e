"""Split reductions that leave a GPU idle into partial results, and a reduction of these.

A sum over all elements would be the work of one program, a sum over a batch that of a few; a GPU runs hundreds. A nest
of its own computes partial results, one more dimension of them, and the reduction that was there combines them. Each
reduction of a nest is split for itself, and what it needs of those before it is computed again from their partial
results. But the squared distances from a mean are those of groups from their own means, and of these from the mean of
all, so one nest computes the partial results of both, and reads what is reduced once (`rewriting/moments.py`). Before
fusion, so that what the reduction reads is computed where it is read.

Before:
```
!X = tensor<8192x1024xf32, #sym.layout<[8192, 1024], [1024, 1], device "cuda:0">>
!Y = tensor<1024xf32, #sym.layout<[1024], [1], device "cuda:0">>
func.func @sum(%x : !X) -> !Y {
  %y = loop.nest (%i : 1024) outs(%o : !Y) {
    %s = loop.reduce "sum" (%k : 8192) {
      %v = loop.load %x[%k, %i] : !X -> f32
      loop.yield %v : f32
    } : f32
    loop.store %s, %o[%i] : f32, !Y
  }
  func.return %y : !Y
}
```
After:
```
!X = tensor<8192x1024xf32, #sym.layout<[8192, 1024], [1024, 1], device "cuda:0">>
!Y = tensor<1024xf32, #sym.layout<[1024], [1], device "cuda:0">>
!P = tensor<32x1024xf32, #sym.layout<[32, 1024], [1024, 1], device "cuda:0">>
func.func @sum(%x : !X) -> !Y {
  %partial = loop.nest (%g : 32, %i : 1024) outs(%out : !P) {
    %s = loop.reduce "sum" (%k : 256) {
      %v = loop.load %x[256 * %g + %k, %i] : !X -> f32
      loop.yield %v : f32
    } : f32
    loop.store %s, %out[%g, %i] : f32, !P
  }
  %y = loop.nest (%i : 1024) outs(%o : !Y) {
    %s = loop.reduce "sum" (%g : 32) {
      %0 = loop.load %partial[%g, %i] : !P -> f32
      loop.yield %0 : f32
    } : f32
    loop.store %s, %o[%i] : f32, !Y
  }
  func.return %y : !Y
}
```
Where no loop has iterations for as many groups as are wanted, as of images with the channels last, each iteration of
the first loops has groups of its own.

Tensors on a CPU are left alone, and so are `ordered` reductions, those that store as they go, and nests that also have
other loops: a softmax goes through its row again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from tilewright.dialects.loop import Bounds, LoadOp, Loop, NestOp, ReduceOp, StoreOp, YieldOp, layout_of
from tilewright.dialects.sym_expr import Expr, FloorDiv, dim, integer
from tilewright.passes.analysis.deviations import deviations_of
from tilewright.passes.analysis.sizes import SizeHints
from tilewright.passes.rewriting.moments import split_moments
from tilewright.passes.rewriting.partial_results import PartialNest, Split

_FEW = 8
"""A reduction that cannot fall into as many parts as this is over before another kernel has begun."""


def _is_plain(bounds: Bounds) -> bool:
    return not bounds.operands and all(d.lower == 0 and d.step == 1 and not d.lanes for d in bounds.dims)


def _runs_along(op: ReduceOp) -> bool:
    """Whether loads in a reduction run through memory along its own loops."""
    for load in (o for o in op.body.walk() if isinstance(o, LoadOp)):
        layout = layout_of(load.source.type)
        for expr, stride in zip(load.access.exprs, layout.strides, strict=True):
            if stride == 1 and any(i in op.indices and dim(n) in expr.free_symbols for n, i in enumerate(load.indices)):
                return True
    return False


def _needed_by(op: Operation, block: Block) -> list[Operation]:
    """Return the operations of `block` that `op` depends on, in order."""
    needed: set[Operation] = set()
    pending = [op]
    while pending:
        for inner in pending.pop().walk():
            for value in inner.operands:
                owner = value.owner
                if isinstance(owner, Operation) and owner.parent is block and owner not in needed:
                    needed.add(owner)
                    pending.append(owner)
    return [o for o in block.ops if o in needed]


def _divisor_near(extent: int, groups: int) -> int | None:
    """Return the divisor of `extent` nearest to `groups`, within a factor of two of it; None if there is none."""
    found = [n for n in range(max(2, -(-groups // 2)), min(2 * groups, extent) + 1) if extent % n == 0]
    return min(found, key=lambda n: abs(log(n / groups)), default=None)


def _outer(extents: Sequence[Expr], groups: int) -> tuple[Expr, ...]:
    """Return the first loops that together have few enough iterations for two groups, or more, of each; not all."""
    found: list[Expr] = []
    for extent in extents[:-1]:
        if not extent.is_Integer or 2 * prod((*map(int, found), int(extent))) > groups:
            break
        found.append(extent)
    return tuple(found) if extents[len(found)].is_Integer else ()


@dataclass
class _Splitter:
    """Splits the reductions of one nest."""

    nest: NestOp
    hints: SizeHints
    limits: LoopSplitReductionsPass
    made: set[Operation] = field(default_factory=set[Operation])
    """The reductions of partial results."""

    def run(self) -> None:
        nest = self.nest
        loops = [op for op in nest.block.ops if isinstance(op, Loop)]
        on_gpu = bool(nest.outputs) and layout_of(nest.outputs[0].type).device_kind == "cuda"
        if not on_gpu or nest.starts is not None or not _is_plain(nest.loops):
            return
        if not all(isinstance(op, ReduceOp) and op.ordered is None and _is_plain(op.loops) for op in loops):
            return
        for op in loops:
            assert isinstance(op, ReduceOp)
            if op.parent is None:
                continue  # split with the one before that it needs
            before = _needed_by(op, nest.block)
            split = self._plan(op)
            if split is None or not self._is_apart([*before, op]):
                continue
            deviations = deviations_of(op)
            if deviations is None:
                self._split(op, before, split)
            else:
                self.made.update(split_moments(nest, deviations, before, split, self.hints))

    def _is_apart(self, ops: Sequence[Operation]) -> bool:
        """Whether another nest can do `ops`, the last of which is to be split, the others again at little cost."""
        own = set(self.nest.destinations)
        inner = [o for op in ops for o in op.walk()]
        repeated = [op for op in ops[:-1] if isinstance(op, Loop) and op not in self.made]
        return not repeated and not any(isinstance(o, StoreOp) or any(v in own for v in o.operands) for o in inner)

    def _plan(self, op: ReduceOp) -> Split | None:
        """Return how to split a reduction, None if it is better left whole."""
        extents = [d.upper for d in op.loops.dims]
        lengths = [self.hints.value(e) for e in extents]
        points, count = prod(self.hints.value(d.upper) for d in self.nest.loops.dims), prod(lengths)
        across = not _runs_along(op)
        programs = -(-points // self.limits.columns) if across and self.nest.loops.dims else points
        shortest = self.limits.rows if across else self.limits.elements
        if not lengths or programs >= self.limits.programs or points * count < self.limits.least:
            return None
        most = count // shortest
        groups = min(2 * self.limits.programs // max(1, programs), most)
        if most < _FEW or groups < 2:
            return None
        fit = [i for i, n in enumerate(lengths) if 2 * n >= groups]
        position = fit[0] if fit else max(range(len(lengths)), key=lambda i: lengths[i])
        outer = () if fit else _outer(extents, groups)
        if outer:
            position = len(outer)
            groups //= prod(lengths[:position])
        extent, groups = extents[position], min(groups, lengths[position])
        if not extent.is_Integer:
            return Split(position, integer(groups), FloorDiv(extent + (groups - 1), integer(groups)), False, across)
        divisor = _divisor_near(int(extent), groups)
        length = -(-int(extent) // groups) if divisor is None else int(extent) // divisor
        count = -(-int(extent) // length)
        return Split(position, integer(count), integer(length), divisor is not None, across, outer)

    def _split(self, op: ReduceOp, before: Sequence[Operation], split: Split) -> None:
        kinds = [r.type for r in op.results_]
        partial = PartialNest(self.nest, op, kinds, split)
        partial.copy(before)
        reduce, values = partial.reduction(op, op.names, kinds)
        reduce.block.add_ops([o.clone(values) for o in op.block.ops])
        partial.shift_index(reduce)
        partial.store(reduce.results)
        Rewriter.insert_op(partial.op, InsertPoint.before(self.nest))
        combine = ReduceOp.get(op.names, Bounds.extents([split.groups]), kinds, init=op.init)
        combine.location = op.location
        combine.indices[0].name_hint = "g"
        loads = [partial.load(i, self.nest.indices, combine.indices[0]) for i in range(len(kinds))]
        combine.block.add_ops([*loads, YieldOp.get(*(load.result for load in loads))])
        for old, part, new in zip(op.results, reduce.results, combine.results, strict=True):
            part.name_hint = new.name_hint = old.name_hint
        self.made.add(combine)
        Rewriter.replace_op(op, combine)


@dataclass(frozen=True)
class LoopSplitReductionsPass(ModulePass):
    """Split reductions on GPUs that have few programs into partial results, and a reduction of these."""

    name = "loop-split-reductions"

    programs: int = 264
    """Programs that are enough for all processors of a GPU."""

    columns: int = 64
    """Elements of the result that one program computes, where these are side by side in memory."""

    elements: int = 2048
    """What a partial result is of at least, along memory."""

    rows: int = 64
    """What a partial result is of at least, across memory."""

    least: int = 1 << 17
    """Elements below which a second kernel takes longer than it saves."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in [f for f in op.ops if isinstance(f, FuncOp)]:
            hints = SizeHints(function)
            for nest in [n for n in function.walk() if isinstance(n, NestOp)]:
                _Splitter(nest, hints, self).run()
