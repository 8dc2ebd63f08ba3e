"""Split a loop where a comparison of its index with a constant changes.

`cat` and padding are written as masked loads: which source an element comes from is decided by comparing an index with
the sources' extents. Each part of the loop between two such extents knows the outcome, so that no mask is left in it,
once `loop-simplify-index` and `canonicalize` have drawn the conclusions.

Before:
```
loop.kernel @k(%x : memref<?xf32, #sym.layout<[z], [1]>>, %y : memref<?xf32, #sym.layout<[z], [1]>>) symbols [n0, z] {
  loop.nest (%i : n0, %k : 1024) {
    %c = arith.constant 512 : index
    %p = loop.cmp "lt" %k, %c : index
    %w = loop.cast %p : i1 to f32
    loop.store %w, %y[1024 * %i + %k] : f32, memref<?xf32, #sym.layout<[z], [1]>>
  }
}
```
After:
```
loop.kernel @k(%x : memref<?xf32, #sym.layout<[z], [1]>>, %y : memref<?xf32, #sym.layout<[z], [1]>>) symbols [n0, z] {
  loop.nest (%i : n0) {
    loop.for (%k : 512) {
      %c = arith.constant 512 : index
      %p = loop.cmp "lt" %k, %c : index
      %w = loop.cast %p : i1 to f32
      loop.store %w, %y[1024 * %i + %k] : f32, memref<?xf32, #sym.layout<[z], [1]>>
    }
    loop.for (%k = 512 to 1024) {
      %c = arith.constant 512 : index
      %p = loop.cmp "lt" %k, %c : index
      %w = loop.cast %p : i1 to f32
      loop.store %w, %y[1024 * %i + %k] : f32, memref<?xf32, #sym.layout<[z], [1]>>
    }
  }
}
```
It leaves alone the outermost loop of a nest, which would no longer be divided among threads; loops that would fall into
short or too many parts; and comparisons of anything but an index of the loop with a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dialects.loop import ApplyOp, Bounds, CmpOp, ForOp, LoopDim, NestOp
from tilewright.dialects.sym_expr import dim, integer
from tilewright.passes.analysis.kernels import nests_for
from tilewright.passes.rewriting.rebuild import set_loops

_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _constant(value: SSAValue) -> int | None:
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return owner.value.value.data
    return None


def _offset(value: SSAValue, index: SSAValue) -> int | None:
    """Return `c` where `value` is `index + c`, otherwise None."""
    if value is index:
        return 0
    owner = value.owner
    if isinstance(owner, ApplyOp) and tuple(owner.indices) == (index,):
        difference = owner.expr - dim(0)
        return int(difference) if difference.is_Integer else None
    return None


def _cut(op: CmpOp, index: SSAValue) -> int | None:
    """Return the value of `index` from which on the outcome of a comparison is another, if there is one."""
    for lhs, rhs, predicate in (
        (op.lhs, op.rhs, op.predicate.data),
        (op.rhs, op.lhs, _SWAPPED.get(op.predicate.data, "")),
    ):
        bound, offset = _constant(rhs), _offset(lhs, index)
        if bound is not None and offset is not None:
            if predicate in ("lt", "ge"):
                return bound - offset
            if predicate in ("le", "gt"):
                return bound - offset + 1
    return None


def _users(index: SSAValue) -> Iterator[CmpOp]:
    """Yield the comparisons of an index, or of an index plus a constant."""
    for use in index.uses:
        if isinstance(use.operation, CmpOp):
            yield use.operation
        elif isinstance(use.operation, ApplyOp):
            yield from (u.operation for u in use.operation.result.uses if isinstance(u.operation, CmpOp))


def _parts(nest: NestOp, position: int, shortest: int, most: int) -> list[tuple[int, int]]:
    """Return the parts into which the loop at `position` falls; fewer than two if it should stay whole."""
    this = nest.loops.dims[position]
    if this.lower != 0 or this.step != 1 or this.lanes or not this.upper.is_Integer:
        return []
    extent = int(this.upper)
    cuts = {_cut(op, nest.indices[position]) for op in _users(nest.indices[position])}
    inside = sorted(c for c in cuts if c is not None and 0 < c < extent)
    edges = [0, *inside, extent]
    parts = list(pairwise(edges))
    return parts if len(parts) <= most and all(high - low >= shortest for low, high in parts) else []


def _split(nest: NestOp, position: int, parts: list[tuple[int, int]]) -> None:
    """Keep the loops before `position` in the nest, and put a loop over each part, with the loops after it, inside."""
    dims = nest.loops.dims
    made: list[Operation] = []
    for low, high in parts:
        loop = ForOp.get(Bounds((LoopDim(integer(low), integer(high)), *dims[position + 1 :])))
        mapped: dict[SSAValue, SSAValue] = {}
        for old, new in zip(nest.indices[position:], loop.indices, strict=True):
            new.name_hint = old.name_hint
            mapped[old] = new
        loop.block.add_ops([op.clone(mapped) for op in nest.block.ops])
        made.append(loop)
    for op in reversed(list(nest.block.ops)):
        nest.block.erase_op(op)
    for index in reversed(nest.block.args[position : len(dims)]):
        nest.block.erase_arg(index)
    set_loops(nest, Bounds(dims[:position]))
    nest.block.add_ops(made)


@dataclass(frozen=True)
class LoopSplitRangesPass(ModulePass):
    """Split the inner loops of kernels at the constants that their indices are compared with."""

    name = "loop-split-ranges"

    shortest: int = 32
    """No part is shorter than this many iterations."""

    most: int = 8
    """No loop falls into more parts than this."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for nest in nests_for(op, "cpu"):
            for position in range(1, len(nest.loops.dims)):
                parts = _parts(nest, position, self.shortest, self.most)
                if len(parts) > 1:
                    _split(nest, position, parts)
                    break
