"""Let the sums over rows that a backward pass makes for parameters join the nest that goes over these rows anyway.

The gradient of what a norm reads takes its rows one by one, that of its weight sums up columns; both read everything.
A GPU has such a sum of columns in groups of rows (`loop-split-reductions`). With groups that are as small as the
programs of the other nest may be, one program does both: its rows, then their sums.

Before:
```
!X = tensor<16384x1024xf32, #sym.layout<[16384, 1024], [1024, 1], device "cuda:0">>
!W = tensor<1024xf32, #sym.layout<[1024], [1], device "cuda:0">>
!P = tensor<32x1024xf32, #sym.layout<[32, 1024], [1024, 1], device "cuda:0">>
func.func @backward(%x : !X) -> (!X, !W) {
  %partial = loop.nest (%g : 32, %c : 1024) outs(%o : !P) {
    %s = loop.reduce "sum" (%j : 512) {
      %v = loop.load %x[512 * %g + %j, %c] : !X -> f32
      loop.yield %v : f32
    } : f32
    loop.store %s, %o[%g, %c] : f32, !P
  }
  %w = loop.nest (%c : 1024) outs(%o : !W) {
    %s = loop.reduce "sum" (%g : 32) {
      %v = loop.load %partial[%g, %c] : !P -> f32
      loop.yield %v : f32
    } : f32
    loop.store %s, %o[%c] : f32, !W
  }
  %y = loop.nest (%r : 16384) outs(%o : !X) {
    %s = loop.reduce "sum" (%k : 1024) {
      %v = loop.load %x[%r, %k] : !X -> f32
      loop.yield %v : f32
    } : f32
    loop.for (%k : 1024) {
      %v = loop.load %x[%r, %k] : !X -> f32
      %d = arith.subf %v, %s : f32
      loop.store %d, %o[%r, %k] : f32, !X
    }
  }
  func.return %y, %w : !X, !W
}
```
After:
```
!X = tensor<16384x1024xf32, #sym.layout<[16384, 1024], [1024, 1], device "cuda:0">>
!W = tensor<1024xf32, #sym.layout<[1024], [1], device "cuda:0">>
!P = tensor<256x1024xf32, #sym.layout<[256, 1024], [1024, 1], device "cuda:0">>
func.func @backward(%x : !X) -> (!X, !W) {
  %partial, %y = loop.nest (%r : 256) outs(%o : !P, %o_1 : !X) {
    loop.for (%r_1 : 64) {
      %s = loop.reduce "sum" (%k : 1024) {
        %v = loop.load %x[64 * %r + %r_1, %k] : !X -> f32
        loop.yield %v : f32
      } : f32
      loop.for (%k : 1024) {
        %v = loop.load %x[64 * %r + %r_1, %k] : !X -> f32
        %d = arith.subf %v, %s : f32
        loop.store %d, %o_1[64 * %r + %r_1, %k] : f32, !X
      }
    }
    loop.for (%c : 1024) {
      %s = loop.reduce "sum" (%j : 64) {
        %v = loop.load %x[64 * %r + %j, %c] : !X -> f32
        loop.yield %v : f32
      } : f32
      loop.store %s, %o[%r, %c] : f32, !P
    }
  }
  %w = loop.nest (%c : 1024) outs(%o : !W) {
    %s = loop.reduce "sum" (%g : 256) {
      %v = loop.load %partial[%g, %c] : !P -> f32
      loop.yield %v : f32
    } : f32
    loop.store %s, %o[%c] : f32, !W
  }
  func.return %y, %w : !X, !W
}
```
It leaves alone sums of other tensors than the rows are of, those that the rows need or that need the rows, and rows
that are too few to make groups of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import sympy
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.dialects.loop import Bounds, LoadOp, LoopDim, NestOp, ReduceOp, StoreOp, layout_of
from tilewright.dialects.sym import LayoutAttr
from tilewright.dialects.sym_expr import Expr, dim, integer
from tilewright.dialects.type_guards import is_tensor
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.analysis.layouts import element_bytes
from tilewright.passes.analysis.nests import NestInfo
from tilewright.passes.analysis.order import ProgramOrder
from tilewright.passes.rewriting.indices import IndexRewriter
from tilewright.passes.rewriting.loops import move_ops, split_outer_loop
from tilewright.passes.rewriting.rebuild import set_access
from tilewright.passes.rewriting.trees import merge_nests

_SHORTEST = 8
"""With fewer rows in a group, its partial results would take a good part of the time that the rows do."""


@dataclass(frozen=True)
class _Columns:
    """A nest over groups of rows, and over columns, with a reduction over the rows of a group."""

    nest: NestOp
    reduce: ReduceOp
    stores: Sequence[StoreOp]
    combine: ReduceOp
    """The reduction of the partial results."""
    rows: tuple[int, ...]
    """The numbers of rows along each of their loops, all groups together."""
    split: int
    """The loop over rows that goes over groups, too."""

    @property
    def columns(self) -> tuple[Expr, ...]:
        return tuple(d.upper for d in self.nest.loops.dims[1:])

    @property
    def sources(self) -> set[SSAValue]:
        """The tensors that are read with all rows and columns."""
        count = prod(self.rows) * prod(int(n) for n in self.columns)
        loads = [op for op in self.reduce.block.ops if isinstance(op, LoadOp)]
        return {o.source for o in loads if _elements(o.source) >= count}


def _elements(tensor: SSAValue) -> int:
    """Return how many elements a tensor has, 0 if that is not known."""
    sizes = layout_of(tensor.type).sizes
    return prod(int(n) for n in sizes) if all(n.is_Integer for n in sizes) else 0


def _columns(nest: NestOp, names: IndexNames) -> _Columns | None:
    """Return `nest` as partial results of columns, None if it is something else."""
    info = NestInfo.of(nest)
    if info.extents is None or len(info.extents) < 2 or not all(e.is_Integer for e in info.extents):
        return None
    reduces = [op for op in nest.block.ops if isinstance(op, ReduceOp)]
    if len(reduces) != 1 or reduces[0].init or reduces[0].ordered is not None:
        return None
    (reduce,) = reduces
    dims = reduce.loops.dims
    if reduce.bound_operands or not all(d == LoopDim.extent(d.upper) and d.upper.is_Integer for d in dims):
        return None
    if any(op is not reduce and op.regions for op in nest.block.ops) or any(op.regions for op in reduce.block.ops):
        return None
    split = _split_loop(nest, reduce, names)
    combine = None if split is None else _combination(nest)
    if split is None or combine is None:
        return None
    stores = [op for op in nest.block.ops if isinstance(op, StoreOp)]
    expected = [dim(i) for i in range(len(info.extents))]
    if len(stores) != len(nest.outputs) or any(
        list(s.access.exprs) != expected or list(s.indices) != list(nest.indices) or s.mask is not None for s in stores
    ):
        return None
    rows = tuple(int(d.upper) * (int(info.extents[0]) if i == split else 1) for i, d in enumerate(dims))
    return _Columns(nest, reduce, stores, combine, rows, split)


def _split_loop(nest: NestOp, reduce: ReduceOp, names: IndexNames) -> int | None:
    """Return which loop of `reduce` goes on where that of the group before ends; None if groups are something else."""
    group = nest.indices[0]
    for position, (index, this) in enumerate(zip(reduce.indices, reduce.loops.dims, strict=True)):
        one, other = names.symbol(index), names.symbol(group)
        joined: Mapping[Expr, Expr] = {one: one - this.upper * other}
        uses = [use.operation for value in (group, *reduce.indices) for use in value.uses]
        loads = [op for op in uses if op.parent is reduce.block]
        if any(
            not isinstance(op, LoadOp) and (op.parent is reduce.block or not isinstance(op, StoreOp)) for op in uses
        ):
            return None
        exprs = [e for op in loads if isinstance(op, LoadOp) for e in names.exprs(op.access, op.indices)]
        if not any(sympy.expand(e.xreplace(joined)).has(other) for e in exprs):
            return position
    return None


def _combination(nest: NestOp) -> ReduceOp | None:
    """Return the reduction that alone reads what `nest` gives, and reads it group by group."""
    found: set[Operation | None] = set()
    for result in nest.outputs:
        for use in result.uses:
            load = use.operation
            if not isinstance(load, LoadOp):
                return None
            found.add(load.parent_op())
    (combine, *others) = found or {None}
    if others or not isinstance(combine, ReduceOp) or combine.ordered is not None or len(combine.indices) != 1:
        return None
    (group,) = combine.indices
    for use in group.uses:
        load = use.operation
        if not isinstance(load, LoadOp) or load.source.owner is not nest or load.indices[0] is not group:
            return None
        if load.access.exprs[0] != dim(0) or any(e.has(dim(0)) for e in load.access.exprs[1:]):
            return None
    return combine


def _block_of(rows: Sequence[int], programs: int, most: int) -> int | None:
    """Return how many rows of the last loop make a group, None where they make no groups of a fair size."""
    longest = min(most, max(prod(rows) // programs, 1))
    return next((n for n in range(longest, _SHORTEST - 1, -1) if rows[-1] % n == 0), None)


def _fits(info: NestInfo, columns: _Columns) -> bool:
    """Whether a nest goes over the rows of `columns`, and reads at least half of what that reads."""
    if info.is_flat or info.extents is None or info.nest is columns.nest:
        return False
    if info.extents != tuple(integer(n) for n in columns.rows):
        return False
    inner = [op for op in info.nest.block.ops if isinstance(op, ReduceOp)]
    if not any(tuple(d.upper for d in op.loops.dims) == columns.columns for op in inner):
        return False
    shared = columns.sources & info.sources().keys()
    return 2 * sum(map(_width, shared)) >= sum(map(_width, columns.sources)) > 0


def _width(tensor: SSAValue) -> int:
    kind = tensor.type
    assert is_tensor(kind)
    return element_bytes(kind.element_type)


class _Joiner:
    """Joins the nests of one block."""

    def __init__(self, block: Block, programs: int, rows: int) -> None:
        self._block = block
        self._names = IndexNames()
        self._programs = programs
        self._rows = rows

    def run(self) -> None:
        for nest in self._nests():
            columns = _columns(nest, self._names)
            block = None if columns is None else _block_of(columns.rows, self._programs, self._rows)
            if columns is None or block is None:
                continue
            for other in self._nests():
                if _fits(NestInfo.of(other), columns) and self._join(columns, other, block):
                    break

    def _nests(self) -> Iterator[NestOp]:
        for op in list(self._block.ops):
            if isinstance(op, NestOp) and op.outputs and layout_of(op.outputs[0].type).device_kind == "cuda":
                yield op

    def _join(self, columns: _Columns, rows: NestOp, block: int) -> bool:
        """Make one nest of both unless one needs the other; return whether it was done."""
        order = ProgramOrder(self._block)
        nest = columns.nest
        first, second = (nest, rows) if order.distance(nest, rows) > 0 else (rows, nest)
        movers = order.movers(first, second)
        if movers is None or any(v.owner is first for op in second.walk() for v in op.operands):
            return False
        order.move_behind(movers, first, second)
        sums = self._regroup(columns, block)
        split_outer_loop(rows, len(columns.rows) - 1, integer(columns.rows[-1] // block), integer(block), self._names)
        first, second = (sums, rows) if first is nest else (rows, sums)
        count = len(columns.rows)
        symbols = [[self._names.symbol(v) for v in n.indices[:count]] for n in (first, second)]
        rules: dict[Expr, Expr] = dict(zip(*symbols, strict=True))
        merged = merge_nests(first, second, rules, set(symbols[1]), self._names)
        loop = merged.block.first_op
        if first is sums and loop is not None:
            # No store of the sums comes between the two passes over the rows, which `tt-merge-loops` makes one.
            loop.detach()
            merged.block.add_op(loop)
        return True

    def _regroup(self, columns: _Columns, block: int) -> NestOp:
        """Let the nest have groups of `block` of the last loop's rows instead, each a point of all loops over rows."""
        nest, reduce, names = columns.nest, columns.reduce, self._names
        groups = [integer(n) for n in (*columns.rows[:-1], columns.rows[-1] // block)]
        sizes = [*groups, *columns.columns]
        layout = LayoutAttr.contiguous(sizes, layout_of(nest.outputs[0].type).device)
        kinds = [TensorType(r.type.element_type, [int(n) for n in sizes], layout) for r in nest.outputs]
        made = NestOp.get(Bounds.extents(sizes), kinds)
        made.attributes.update(nest.attributes)
        made.location = nest.location
        partial = ReduceOp.get(reduce.names, Bounds.extents([integer(block)]), [r.type for r in reduce.results_])
        partial.location = reduce.location
        old = [*nest.indices[1:], *nest.destinations]
        new = [*made.indices[len(groups) :], *made.destinations]
        for before, after in zip(old, new, strict=True):
            after.name_hint = before.name_hint
            before.replace_all_uses_with(after)
        places: list[Expr] = [names.symbol(v) for v in made.indices[: len(groups)]]
        places[-1] = block * places[-1] + names.symbol(partial.indices[0])
        places[columns.split] -= reduce.loops.dims[columns.split].upper * names.symbol(nest.indices[0])
        rules: dict[Expr, Expr] = {names.symbol(v): e for v, e in zip(reduce.indices, places, strict=True)}
        rewriter = IndexRewriter(names, rules, partial.block)
        for index in reduce.indices:
            rewriter.replace(index)
        partial.indices[0].name_hint = reduce.indices[-1].name_hint
        move_ops(reduce.block.ops, partial.block)
        Rewriter.replace_op(reduce, partial)
        for store in columns.stores:
            set_access(store, [dim(i) for i in range(len(sizes))], made.indices)
        move_ops(nest.block.ops, made.block)
        self._combine(columns.combine, groups)
        Rewriter.replace_op(nest, made)
        return made

    def _combine(self, combine: ReduceOp, groups: Sequence[Expr]) -> None:
        """Let a reduction go over `groups`, of several loops."""
        made = ReduceOp.get(
            combine.names, Bounds.extents(groups), [r.type for r in combine.results_], init=combine.init
        )
        made.location = combine.location
        for load in [use.operation for use in combine.indices[0].uses]:
            assert isinstance(load, LoadOp)
            count = len(groups)
            later: dict[Expr, Expr] = {dim(i): dim(i + count - 1) for i in range(1, len(load.indices))}
            exprs = [*(dim(i) for i in range(count)), *(e.xreplace(later) for e in load.access.exprs[1:])]
            set_access(load, exprs, [*made.indices, *load.indices[1:]])
        move_ops(combine.block.ops, made.block)
        for index in made.indices:
            index.name_hint = combine.indices[0].name_hint
        for before, after in zip(combine.results, made.results, strict=True):
            after.name_hint = before.name_hint
        Rewriter.replace_op(combine, made)


@dataclass(frozen=True)
class LoopJoinColumnsPass(ModulePass):
    """Let sums over rows on GPUs join the nest that goes over these rows anyway."""

    name = "loop-join-columns"

    programs: int = 256
    """How many groups of rows there should be."""

    rows: int = 64
    """The rows of a group, at most."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, FuncOp) and len(function.body.blocks) == 1:
                _Joiner(function.body.block, self.programs, self.rows).run()
