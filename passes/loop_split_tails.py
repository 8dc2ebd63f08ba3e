"""Split off the last loop over rows where few of the elements that it computes are read.

A cross entropy reads one element of each row of a log-softmax, whose rows it takes to compute the maximum and the sum.
These, one element per row, are what the nest gives then, and a nest of its own computes the elements from them:
straight-line code, which `loop-fuse` puts where they are read.

Before:
```
!X = tensor<64x512xf32, #sym.layout<[64, 512], [512, 1]>>
!N = tensor<64xi64, #sym.layout<[64], [1]>>
!Y = tensor<64xf32, #sym.layout<[64], [1]>>
func.func @picked(%x : !X, %n : !N) -> !Y {
  %a = loop.nest (%i : 64) outs(%o : !X) {
    %m = loop.reduce "max" (%k : 512) {
      %v = loop.load %x[%i, %k] : !X -> f32
      loop.yield %v : f32
    } : f32
    loop.for (%j : 512) {
      %v = loop.load %x[%i, %j] : !X -> f32
      %d = arith.subf %v, %m : f32
      loop.store %d, %o[%i, %j] : f32, !X
    }
  }
  %y = loop.nest (%i : 64) outs(%o : !Y) {
    %v = loop.load %n[%i] : !N -> i64
    %at = loop.cast %v : i64 to index
    %e = loop.load %a[%i, %at] : !X -> f32
    loop.store %e, %o[%i] : f32, !Y
  }
  func.return %y : !Y
}
```
After:
```
!X = tensor<64x512xf32, #sym.layout<[64, 512], [512, 1]>>
!N = tensor<64xi64, #sym.layout<[64], [1]>>
!Y = tensor<64xf32, #sym.layout<[64], [1]>>
func.func @picked(%x : !X, %n : !N) -> !Y {
  %row = loop.nest (%i : 64) outs(%out : !Y) {
    %m = loop.reduce "max" (%k : 512) {
      %v = loop.load %x[%i, %k] : !X -> f32
      loop.yield %v : f32
    } : f32
    loop.store %m, %out[%i] : f32, !Y
  }
  %a = loop.nest (%i : 64, %j : 512) outs(%o : !X) {
    %m = loop.load %row[%i] : !Y -> f32
    %v = loop.load %x[%i, %j] : !X -> f32
    %d = arith.subf %v, %m : f32
    loop.store %d, %o[%i, %j] : f32, !X
  }
  %y = loop.nest (%i : 64) outs(%o : !Y) {
    %v = loop.load %n[%i] : !N -> i64
    %at = loop.cast %v : i64 to index
    %e = loop.load %a[%i, %at] : !X -> f32
    loop.store %e, %o[%i] : f32, !Y
  }
  func.return %y : !Y
}
```

What a row gives is kept as it is in a register, so nothing is rounded that was not. It leaves alone a tensor that is
returned, or that a call reads, one whose elements are read more often, and one that could not be computed where it is
read, because what it is computed from is overwritten before. A loop that checks stays as well: it checks all elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, IndexType, ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.dialects.loop import Bounds, CheckOp, ForOp, LoadOp, Loop, LoopDim, NestOp, StoreOp, layout_of
from tilewright.dialects.loop_nest import nest_properties
from tilewright.dialects.loop_order import data_uses, waiting
from tilewright.dialects.sym import LayoutAttr
from tilewright.dialects.sym_expr import Expr, dim
from tilewright.passes.analysis.nests import NestInfo
from tilewright.passes.analysis.order import ProgramOrder, statement_of
from tilewright.passes.analysis.sizes import SizeHints
from tilewright.passes.rewriting.clone import backward_slice


@dataclass(frozen=True)
class _Tail:
    """A loop at the end of a nest's iteration that computes all elements of one result."""

    store: StoreOp
    loop: ForOp
    dims: dict[SSAValue, LoopDim]
    """The indices of the nest and of the loop with their loops, in the order of the result's dimensions."""
    rows: list[SSAValue]
    """What it needs of the loops before it."""
    ops: list[Operation]
    """What it computes, with the straight-line code of the nest that it needs besides."""


def _tail(info: NestInfo, destination: SSAValue) -> _Tail | None:
    """Return the loop that computes a destination, None if there is none whose elements can be computed one by one."""
    use = destination.get_unique_use()
    store = None if use is None else use.operation
    if not isinstance(store, StoreOp) or store.mask is not None or store.combine is not None:
        return None
    loop = store.parent_op()
    if not isinstance(loop, ForOp) or loop.parent is not info.nest.block or not _is_plain(loop.loops):
        return None
    dims = _in_order(store, {**_dims(info.nest), **_dims(loop)})
    if dims is None:
        return None
    inner = backward_slice(store)
    rows, outer = _outside(info.nest, [*inner, store])
    own = set(info.nest.destinations)
    ops = [*outer, *inner]
    if not rows or any(isinstance(r.type, IndexType) for r in rows):
        return None
    if any(isinstance(op, CheckOp) or op.regions or any(v in own for v in op.operands) for op in ops):
        return None
    return _Tail(store, loop, dims, rows, ops)


def _is_plain(bounds: Bounds) -> bool:
    return not bounds.operands and all(d.lower == 0 and d.step == 1 and not d.lanes for d in bounds.dims)


def _dims(loop: Loop) -> dict[SSAValue, LoopDim]:
    return dict(zip(loop.indices, loop.loops.dims, strict=True))


def _in_order(store: StoreOp, dims: Mapping[SSAValue, LoopDim]) -> dict[SSAValue, LoopDim] | None:
    """Return `dims` in the order in which `store` uses them, None unless each is an index of its own there."""
    places: dict[Expr, SSAValue] = {dim(n): index for n, index in enumerate(store.indices)}
    indices = [places[e] for e in store.access.exprs if e in places]
    constant = sum(not e.free_symbols for e in store.access.exprs)
    if len(indices) + constant != len(store.access.exprs) or len(set(indices)) != len(indices):
        return None
    return {i: dims[i] for i in indices} if set(indices) == set(dims) else None


def _outside(nest: NestOp, ops: Sequence[Operation]) -> tuple[list[SSAValue], list[Operation]]:
    """Return what `ops`, in a loop of `nest`, use of its block: values that need a loop, and other operations."""
    rows: dict[SSAValue, None] = {}
    needed: set[Operation] = set()
    looping = _looping(nest)
    pending = [v for op in ops for v in op.operands]
    while pending:
        value = pending.pop(0)
        owner = value.owner
        if not isinstance(owner, Operation) or owner.parent is not nest.block or owner in needed:
            continue
        if owner in looping:
            rows[value] = None
        else:
            needed.add(owner)
            pending += owner.operands
    return list(rows), [op for op in nest.block.ops if op in needed]


def _looping(nest: NestOp) -> set[Operation]:
    """Return the operations of a nest's block that are loops or depend on some."""
    found: set[Operation] = set()
    for op in nest.block.ops:
        if op.regions or any(v.owner in found for v in op.operands):
            found.add(op)
    return found


@dataclass
class _Splitter:
    """Splits what is worth it in one block."""

    order: ProgramOrder
    hints: SizeHints
    few: int

    def run(self) -> None:
        """Decide on the block as it is, then split."""
        found: list[_Tail] = []
        for nest in [op for op in self.order.block.ops if isinstance(op, NestOp)]:
            info = NestInfo.of(nest)
            if info.extents is None or info.is_flat:
                continue
            for result, destination in zip(nest.outputs, nest.destinations, strict=True):
                tail = _tail(info, destination) if self._is_seldom_read(nest, result) else None
                if tail is not None and self._rows_are_small(nest, tail):
                    found.append(tail)
        for tail in found:
            _split(tail)

    def _is_seldom_read(self, nest: NestOp, result: SSAValue) -> bool:
        """Whether only nests load from `result`, few of its elements, and where these could still be computed."""
        count = 0
        for use in data_uses(result):
            load = use.operation
            if not isinstance(load, LoadOp) or not self.order.may_run_at(nest, statement_of(load, self.order.block)):
                return False
            count += self.hints.iterations(load)
        return count > 0 and count * self.few <= self.hints.elements(result.type)

    def _rows_are_small(self, nest: NestOp, tail: _Tail) -> bool:
        rows = len(tail.rows) * prod(self.hints.value(d.upper) for d in nest.loops.dims)
        return rows * self.few <= self.hints.elements(tail.store.target.type)


def _split(tail: _Tail) -> None:
    """Put a tail into a nest of its own, behind the one that it is in, which gives the rows instead."""
    nest, store = tail.loop.parent_op(), tail.store
    assert isinstance(nest, NestOp)
    destination = store.target
    gone = nest.outputs[list(nest.destinations).index(destination)]
    kept = [r for r in nest.outputs if r is not gone]
    kinds = [_row_type(nest, row, layout_of(gone.type).device) for row in tail.rows]
    operands, properties = nest_properties(nest.loops, masked=False, initial={})
    giving = NestOp.create(
        operands=operands,
        result_types=[*(r.type for r in kept), *kinds],
        properties=properties,
        attributes=nest.attributes,
        regions=[nest.detach_region(0)],
        location=nest.location,
    )
    given = giving.outputs[len(kept) :]
    elements = _elements(tail, giving, given, gone.type)
    _give_rows(tail, giving, given)
    assert isinstance(destination, BlockArgument)
    giving.block.erase_arg(destination)
    values: dict[SSAValue, SSAValue] = {gone: elements.outputs[0], **dict(zip(kept, giving.outputs, strict=False))}
    for old, new in values.items():
        new.name_hint = old.name_hint
    behind = waiting(nest.results)
    Rewriter.replace_op(nest, [giving, elements], [values[r] for r in nest.outputs])
    for op in behind:
        op.set_before([*op.before, given[0], elements.outputs[0]])


def _row_type(nest: NestOp, row: SSAValue, device: str) -> TensorType[Attribute]:
    sizes = [d.upper for d in nest.loops.dims]
    shape = [int(s) if s.is_Integer else DYNAMIC_INDEX for s in sizes]
    return TensorType(row.type, shape, LayoutAttr.contiguous(sizes, device))


def _give_rows(tail: _Tail, giving: NestOp, given: Sequence[SSAValue]) -> None:
    """Let `giving` store the rows, and compute no longer what only the tail needed."""
    block = giving.block
    Rewriter.erase_op(tail.store)
    if not any(isinstance(op, StoreOp) for op in tail.loop.body.walk()):
        Rewriter.erase_op(tail.loop)
    for op in reversed([op for op in tail.ops if op.parent is block]):
        if not any(r.uses for r in op.results):
            Rewriter.erase_op(op)
    for row, result in zip(tail.rows, given, strict=True):
        destination = block.insert_arg(result.type, len(block.args))
        destination.name_hint, result.name_hint = "out", "row"
        block.add_op(StoreOp.get(row, destination, _all_dims(giving), giving.indices))


def _elements(tail: _Tail, giving: NestOp, given: Sequence[SSAValue], kind: Attribute) -> NestOp:
    """Return a nest that computes the elements of a result of type `kind` one by one, from the rows `given`."""
    elements = NestOp.get(Bounds(tuple(tail.dims.values())), [kind])
    elements.attributes.update(giving.attributes)
    elements.location = giving.location
    values: dict[SSAValue, SSAValue] = dict(zip(tail.dims, elements.indices, strict=True))
    values[tail.store.target] = elements.destinations[0]
    indices = [values[i] for i in giving.indices]
    for row, tensor in zip(tail.rows, given, strict=True):
        load = LoadOp.get(tensor, _all_dims(giving), indices)
        elements.block.add_op(load)
        values[row] = load.result
    for old, new in values.items():
        new.name_hint = old.name_hint
    elements.block.add_ops([op.clone(values) for op in (*tail.ops, tail.store)])
    return elements


def _all_dims(nest: NestOp) -> list[Expr]:
    return [dim(i) for i in range(len(nest.indices))]


@dataclass(frozen=True)
class LoopSplitTailsPass(ModulePass):
    """Split off the last loop over rows where few of the elements that it computes are read."""

    name = "loop-split-tails"

    few: int = 8
    """How many times as many elements as are read, and as there are results of rows, a tensor has at least."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, FuncOp) and len(function.body.blocks) == 1:
                block = function.body.block
                _Splitter(ProgramOrder(block), SizeHints(function), self.few).run()
