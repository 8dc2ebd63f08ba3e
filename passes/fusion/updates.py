"""What may be computed inside an update: a nest that overwrites part of the tensor that its destination begins as.

An iteration may read there the element that it is about to store, and no other one that the update stores: it might be
overwritten already. With a producer inside that reads others, the whole tensor would have to be copied first; computed
before the update, the producer costs a tensor as large as the part.
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import SSAValue

from tilewright.dialects.loop import AfterOp, NestOp, ViewOp
from tilewright.dialects.sym_expr import Expr
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.analysis.nests import NestInfo
from tilewright.passes.analysis.ranges import NamedRanges

Element = tuple[SSAValue, tuple[Expr, ...]]
"""An element of a tensor, by named index values."""


def memory_of(value: SSAValue) -> SSAValue:
    """Return the first tensor in the memory of `value`, if all updates are done in memory."""
    while True:
        match value.owner:
            case AfterOp() | ViewOp() as same:
                value = same.source
            case NestOp() as nest if (start := nest.begins.get(nest.results.index(value))) is not None:
                value = start
            case _:
                return value


def may_read_start(update: NestOp, sources: Iterable[SSAValue]) -> bool:
    """Whether some of `sources` may lie in memory that `update` overwrites."""
    starts = {memory_of(start) for start in update.begins.values()}
    return any(memory_of(source) in starts for source in sources)


def reads_only_its_own(update: NestOp, reads: Iterable[Element], names: IndexNames) -> bool:
    """Whether of the memory that `update` overwrites, `reads` have only what the same iteration stores afterwards."""
    ranges = NamedRanges(names, {})
    ranges.enter(update)
    info = NestInfo.of(update)
    stored: dict[SSAValue, set[Element]] = {}
    for number, start in update.begins.items():
        stores = info.stores_to(update.destinations[number])
        elements = (_element(start, names.exprs(s.access, s.indices), ranges) for s in stores)
        stored.setdefault(memory_of(start), set()).update(elements)
    for source, exprs in reads:
        own = stored.get(memory_of(source))
        if own is not None and own != {_element(source, exprs, ranges)}:
            return False
    return True


def _element(value: SSAValue, exprs: tuple[Expr, ...], ranges: NamedRanges) -> Element:
    """Return an element of a view as one of the tensor that is viewed."""
    owner = value.owner
    while isinstance(owner, (AfterOp, ViewOp)):
        value, exprs = owner.source, owner.access.apply(exprs) if isinstance(owner, ViewOp) else exprs
        owner = value.owner
    return value, tuple(ranges.simplify(e) for e in exprs)
