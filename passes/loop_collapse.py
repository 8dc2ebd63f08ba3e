"""Give each kernel the loops that make its accesses linear: split, flatten and merge.

A loop whose index only occurs divided by a constant, as reshapes leave it, splits in two. A loop that is all there is
in another's body joins it. Two loops whose indices only occur as `i * N + k`, with `N` the extent of the second,
become one. What comes out has few loops with long runs of consecutive elements, which is what tiling and
vectorization work on.

Before:
```
loop.kernel @k(%x : memref<?xf32, #sym.layout<[z], [1]>>, %y : memref<?xf32, #sym.layout<[z], [1]>>) symbols [n1, z] {
  loop.nest (%i : n1) {
    loop.for (%k : 1024) {
      %v = loop.load %x[1024 * %i + %k] : memref<?xf32, #sym.layout<[z], [1]>> -> f32
      loop.store %v, %y[1024 * %i + %k] : f32, memref<?xf32, #sym.layout<[z], [1]>>
    }
  }
}
```
After:
```
loop.kernel @k(%x : memref<?xf32, #sym.layout<[z], [1]>>, %y : memref<?xf32, #sym.layout<[z], [1]>>) symbols [n1, z] {
  loop.nest (%i : 1024 * n1) {
    %v = loop.load %x[%i] : memref<?xf32, #sym.layout<[z], [1]>> -> f32
    loop.store %v, %y[%i] : f32, memref<?xf32, #sym.layout<[z], [1]>>
  }
}
```
Loops that an access uses otherwise (a broadcast, a transpose) stay apart, and so do loops with a bound of their own
or a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import sympy
from xdsl.context import Context
from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import ConstantLike

from tilewright.dialects.loop import ApplyOp, ForOp, KernelOp, LoadOp, Loop, LoopDim, ReduceOp, ScanOp, StoreOp
from tilewright.dialects.sym_expr import Expr, Symbol, exact_quotient, integer, simplify
from tilewright.passes.analysis.index_space import IndexSpace, divisions, stride
from tilewright.passes.rewriting.rebuild import set_access, set_loops

_OUTER = sympy.Symbol("%outer", integer=True)
_INNER = sympy.Symbol("%inner", integer=True)

Users = list[tuple[Operation, Sequence[Expr]]]
"""Operations with their index expressions over the index space."""


def _find_users(space: IndexSpace, loop: Loop, values: Sequence[SSAValue]) -> Users | None:
    """Return the operations that use `values`, indices of `loop`; None if one uses them otherwise than as an index."""
    users: Users = []
    using = {use.operation for value in values for use in value.uses}
    for user in (op for op in loop.block.walk() if op in using):
        if isinstance(user, (LoadOp, StoreOp, ApplyOp)):
            users.append((user, space.access(user.access, user.indices)))
        elif isinstance(user, Loop):
            users.append((user, [e for d in space.loops(user) for e in (d.lower, d.upper)]))
        else:
            return None
    return users


def _set_exprs(space: IndexSpace, users: Users) -> None:
    for op, exprs in users:
        if isinstance(op, Loop):
            pairs = zip(exprs[::2], exprs[1::2], op.loops.dims, strict=True)
            set_loops(op, space.bounds_over_operands(LoopDim(low, high, d.step, d.lanes) for low, high, d in pairs))
        else:
            assert isinstance(op, (LoadOp, StoreOp, ApplyOp))
            set_access(op, *space.to_operands(exprs))


def _is_plain(space: IndexSpace, this: LoopDim) -> bool:
    """Whether a loop runs from 0 by 1 to a bound that depends on sizes alone."""
    on_sizes = all(space.value(s) is None for s in this.upper.free_symbols)
    return on_sizes and this.lower == 0 and this.step == 1 and not this.lanes


def _flatten(space: IndexSpace, outer: Loop) -> bool:
    """Move the loops of a `loop.for` that is all of `outer`'s body, but for constants, up to `outer`."""
    inner = outer.block.last_op
    if isinstance(outer, (ReduceOp, ScanOp)) or not isinstance(inner, ForOp) or inner.attributes:
        return False
    if outer.lanes is not None or inner.lanes is not None or any(v in outer.indices for v in inner.bound_operands):
        return False
    if not all(op is inner or op.has_trait(ConstantLike) for op in outer.block.ops):
        return False
    dims = [*space.loops(outer), *space.loops(inner)]
    set_loops(outer, space.bounds_over_operands(dims))
    for index in inner.indices:
        moved = outer.block.insert_arg(IndexType(), len(outer.block.args))
        moved.name_hint = index.name_hint
        index.replace_all_uses_with(moved)
    inner.detach()
    for op in list(inner.block.ops):
        op.detach()
        outer.block.add_op(op)
    inner.erase()
    return True


def _split_points(space: IndexSpace, users: Users, index: Symbol, extent: Expr) -> Iterator[Expr]:
    """Yield divisors of `extent` by which a user divides `index`."""
    seen: list[Expr] = []
    for _, exprs in users:
        for division in (d for e in exprs for d in divisions(e)):
            dividend, by = division.args
            if index in dividend.free_symbols and by not in seen and by != extent:
                seen.append(by)
                if exact_quotient(extent, by) is not None and all(space.value(s) is None for s in by.free_symbols):
                    yield by


def _divisions_of(users: Users, symbols: Sequence[Symbol]) -> int:
    """Count the divisions of any of `symbols` in the index expressions of `users`."""
    found = (d for _, exprs in users for e in exprs for d in divisions(e))
    return sum(any(s in d.free_symbols for s in symbols) for d in found)


def _split(op: Loop, smallest: int) -> bool:
    """Split the first loop of `op` that removes divisions from index expressions by it."""
    space = IndexSpace()
    for position, this in enumerate(space.loops(op)):
        index = space.symbol(op.indices[position])
        users = _find_users(space, op, [op.indices[position]]) if _is_plain(space, this) else None
        for by in _split_points(space, users, index, this.upper) if users else ():
            if by.is_Integer and by < smallest:
                continue
            count = exact_quotient(this.upper, by)
            assert count is not None
            ranges = {**space.ranges, _OUTER: (integer(0), count - 1), _INNER: (integer(0), by - 1)}
            replacement = {index: by * _OUTER + _INNER}
            changed: Users = [
                (u, [simplify(e.xreplace(replacement), ranges) for e in exprs]) for u, exprs in users or ()
            ]
            if _divisions_of(changed, [_OUTER, _INNER]) < _divisions_of(users or [], [index]):
                _replace_loops(space, op, [position], [LoopDim.extent(count), LoopDim.extent(by)], changed)
                return True
    return False


def _merge_exprs(users: Users, outer: Symbol, inner: Symbol, extent: Expr) -> Users | None:
    """Write one index for `outer * extent + inner` in the expressions of `users`; None where they occur otherwise."""
    changed: Users = []
    for user, exprs in users:
        new_exprs: list[Expr] = []
        for e in exprs:
            outer_stride, inner_stride = stride(e, outer), stride(e, inner)
            if (
                outer_stride is not None
                and inner_stride is not None
                and sympy.expand(outer_stride - extent * inner_stride) != 0
            ):
                return None
            new = sympy.expand(e.xreplace({inner: _OUTER - extent * outer}))
            if outer in new.free_symbols:
                return None
            new_exprs.append(new)
        changed.append((user, new_exprs))
    return changed


def _is_ordered(op: Loop) -> bool:
    return isinstance(op, ScanOp) or (isinstance(op, ReduceOp) and op.ordered is not None)


def _merge(op: Loop) -> bool:
    """Merge the first two loops of `op` that all accesses use as one."""
    space = IndexSpace()
    dims = space.loops(op)
    plain = [i for i, d in enumerate(dims) if _is_plain(space, d)]
    for outer, inner in permutations(plain, 2):
        if _is_ordered(op) and inner != outer + 1:
            continue
        users = _find_users(space, op, [op.indices[outer], op.indices[inner]])
        if users is None:
            continue
        extent = dims[inner].upper
        changed = _merge_exprs(users, space.symbol(op.indices[outer]), space.symbol(op.indices[inner]), extent)
        if changed is not None:
            _replace_loops(
                space, op, [outer, inner], [LoopDim.extent(sympy.expand(dims[outer].upper * extent))], changed
            )
            return True
    return False


def _replace_loops(space: IndexSpace, op: Loop, old: Sequence[int], new: Sequence[LoopDim], users: Users) -> None:
    """Put the loops `new`, called `%outer` and `%inner` in `users`, in the place of the loops `old` of `op`."""
    dims = space.loops(op)
    indices = [op.block.args[i] for i in old]
    at = old[-1] + 1
    replacement: dict[Expr, Expr] = {}
    for i, name in zip(range(len(new)), (_OUTER, _INNER), strict=False):
        index = op.block.insert_arg(IndexType(), at + i)
        index.name_hint = indices[-1].name_hint if i == len(new) - 1 else None
        replacement[name] = space.declare(index)
    _set_exprs(space, [(u, [e.xreplace(replacement) for e in exprs]) for u, exprs in users])
    for index in indices:
        op.block.erase_arg(index)
    before = [d for i, d in enumerate(dims[:at]) if i not in old]
    after = [d for i, d in enumerate(dims) if i >= at and i not in old]
    set_loops(op, space.bounds_over_operands([*before, *new, *after]))


@dataclass(frozen=True)
class LoopCollapsePass(ModulePass):
    """Split, flatten and merge the loops of kernels so that their accesses become linear and their runs long."""

    name = "loop-collapse"

    smallest: int = 8
    """The shortest inner loop that a split may leave, where its length is known."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.walk():
            if isinstance(kernel, KernelOp):
                for loop in [o for o in kernel.walk() if isinstance(o, Loop)]:
                    self._collapse(loop)

    def _collapse(self, loop: Loop) -> None:
        if loop.parent is None:
            return
        while _flatten(IndexSpace(), loop):
            pass
        while _split(loop, self.smallest):
            pass
        while _merge(loop):
            pass
