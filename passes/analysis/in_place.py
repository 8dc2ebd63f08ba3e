"""Whether a nest may compute one buffer in the memory of another that it reads.

That is so if no element is read after it has been overwritten. Iterations of parallel loops run in any order, so each
load of an element has to come before its store in program order *and* in the same iteration of all the loops around
both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.ir import Block, SSAValue

from tilewright.dialects import loop
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.loop_nest import Loop
from tilewright.dialects.sym import LayoutAttr, MapAttr
from tilewright.dialects.sym_expr import simplify
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.analysis.layouts import address


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


def can_overwrite(loads: Sequence[Access], stores: Sequence[Access], place: LayoutAttr | None = None) -> bool:
    """Whether the buffer of `stores` may be the memory of that of `loads`: all accesses of one nest to the two.

    Both then start at one address; or, if `place` is given, `stores` go to that layout in the storage in which the
    layouts of the buffers of `loads` count.
    """
    return all(_in_order(load, store, place) for store in stores for load in loads)


def _in_order(load: Access, store: Access, place: LayoutAttr | None) -> bool:
    """Whether an element that `load` reads is only ever overwritten by `store` later in the same iteration.

    Take the dims in which the store's index depends on the shared loops, and on them only. Each element is stored once,
    so these indices tell the iterations of the shared loops apart: a load with the same indices in these dims reads
    elements that its own iteration stores, wherever it reads in the other dims.
    """
    assert isinstance(store.op, loop.StoreOp)
    shared = _shared_loops(load, store)
    if shared is None or store.op.mask is not None or store.op.combine is not None:
        return False
    loops = [index for owner, _ in store.path for index in owner.indices]
    if not set(store.op.indices) <= set(loops):
        return False
    names = IndexNames()
    common = {names.symbol(index) for outer in shared for index in outer.indices}
    written, read = names.exprs(*_map(store)), names.exprs(*_map(load))
    source, target = layout_of(load.buffer.type), layout_of(store.buffer.type) if place is None else place
    if source != target:
        first = 0 if place is None else place.offset - source.offset
        written = (simplify(address(target, written) + first, {}),)
        read = (simplify(address(source, read), {}),)
    private = {names.symbol(index) for index in loops} - common
    for mine, theirs in zip(read, written, strict=True):
        used = theirs.free_symbols
        if used & common and (used & private or mine != theirs):
            return False
    return True


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
