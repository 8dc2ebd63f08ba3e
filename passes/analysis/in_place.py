"""Whether a nest may compute one buffer in the memory of another that it reads.

That is so if no element is read after it has been overwritten. Iterations of parallel loops run in any order, so each
load of an element has to come before its store in program order *and* in the same iteration of all the loops around
both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from xdsl.ir import Block, SSAValue

from tilewright.dialects import loop
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.loop_base import Loop
from tilewright.dialects.sym import LayoutAttr, MapAttr
from tilewright.dialects.sym_expr import Expr, bounds, integer, provably_less, simplify
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.analysis.layouts import address
from tilewright.passes.analysis.ranges import NamedRanges


@dataclass(frozen=True)
class Access:
    """A load or store in a nest, with the loops around it, outermost first, and its place in the body of each."""

    op: loop.LoadOp | loop.StoreOp
    path: tuple[tuple[Loop, int], ...]

    @property
    def buffer(self) -> SSAValue:
        return self.op.source if isinstance(self.op, loop.LoadOp) else self.op.target


def accesses(nest: loop.NestOp) -> list[Access]:
    """Return the loads and stores of a nest in program order."""
    return list(_accesses(nest.block, ()))


def _accesses(block: Block, path: tuple[tuple[Loop, int], ...]) -> Iterator[Access]:
    owner = block.parent_op()
    assert isinstance(owner, Loop)
    for number, op in enumerate(block.ops):
        here = (*path, (owner, number))
        if isinstance(op, (loop.LoadOp, loop.StoreOp)):
            yield Access(op, here)
        elif isinstance(op, Loop):
            yield from _accesses(op.block, here)


def can_overwrite(
    loads: Sequence[Access], stores: Sequence[Access], place: Callable[[SSAValue], LayoutAttr] | None = None
) -> bool:
    """Whether the buffer of `stores` may be the memory of that of `loads`: all accesses of one nest to the two.

    `place` gives the layout of each buffer in the storage that they would share; without it, they would start at one
    address.
    """
    return all(_in_order(load, store, place) for store in stores for load in loads)


def _in_order(load: Access, store: Access, place: Callable[[SSAValue], LayoutAttr] | None) -> bool:
    """Whether an element that `load` reads is only ever overwritten by `store` later in the same iteration.

    So it is where the two never meet. Else take the dims in which the store's index depends on the shared loops, and on
    them only. Each element is stored once, so these indices tell the iterations of the shared loops apart: a load with
    the same indices in these dims reads elements that its own iteration stores, wherever it reads in the other dims.
    """
    assert isinstance(store.op, loop.StoreOp)
    names = IndexNames()
    written, read = names.exprs(*_map(store)), names.exprs(*_map(load))
    source, target = ((place or _layout)(access.buffer) for access in (load, store))
    if source != target:
        offset = integer(0) if place is None else target.offset - source.offset
        written = (simplify(address(target, written) + offset, {}),)
        read = (simplify(address(source, read), {}),)
    return _in_own_iteration(load, store, read, written, names) or _are_apart((read, load), (written, store), names)


def _in_own_iteration(
    load: Access, store: Access, read: Sequence[Expr], written: Sequence[Expr], names: IndexNames
) -> bool:
    assert isinstance(store.op, loop.StoreOp)
    shared = _shared_loops(load, store)
    if shared is None or store.op.mask is not None or store.op.combine is not None:
        return False
    loops = [index for owner, _ in store.path for index in owner.indices]
    if not set(store.op.indices) <= set(loops):
        return False
    common = {names.symbol(index) for outer in shared for index in outer.indices}
    private = {names.symbol(index) for index in loops} - common
    for mine, theirs in zip(read, written, strict=True):
        used = theirs.free_symbols
        if used & common and (used & private or mine != theirs):
            return False
    return True


def _are_apart(one: tuple[Sequence[Expr], Access], other: tuple[Sequence[Expr], Access], names: IndexNames) -> bool:
    """Whether two accesses never meet, whatever the iterations: in some dim all of one lies before all of the other."""
    bounded = [_bounds(exprs, access, names) for exprs, access in (one, other)]
    for (low, high), (other_low, other_high) in zip(*bounded, strict=True):
        if high is not None and other_low is not None and provably_less(high, other_low, {}):
            return True
        if other_high is not None and low is not None and provably_less(other_high, low, {}):
            return True
    return False


def _bounds(exprs: Sequence[Expr], access: Access, names: IndexNames) -> list[tuple[Expr | None, Expr | None]]:
    """Return the bounds of each index, in terms of sizes."""
    ranges = NamedRanges(names, {})
    for owner, _ in access.path:
        ranges.enter(owner)
    loaded = {names.symbol(v): (None, None) for v in access.op.indices if not ranges.is_bounded(v)}
    return [bounds(e, {**ranges.ranges, **loaded}) for e in exprs]


def _layout(buffer: SSAValue) -> LayoutAttr:
    return layout_of(buffer.type)


def _shared_loops(load: Access, store: Access) -> list[Loop] | None:
    """Return the loops around both accesses, if the load comes first in each iteration of them, else None."""
    shared: list[Loop] = []
    for (owner, number), (other, other_number) in zip(load.path, store.path, strict=False):
        assert owner is other
        shared.append(owner)
        if number != other_number:
            return shared if number < other_number else None
    raise AssertionError("one operation is both a load and a store")


def _map(access: Access) -> tuple[MapAttr, Sequence[SSAValue]]:
    return access.op.access, access.op.indices
