"""Nests that only copy: all elements of one buffer into another, or into a part of it."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue

from tilewright.dialects import loop
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.sym import LayoutAttr, MapAttr
from tilewright.dialects.sym_expr import Expr, Ranges, dim
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.analysis.layouts import view_layout


@dataclass(frozen=True)
class Copy:
    """A nest that stores to `target`, at each point of its loops, an element of `source`.

    `read` and `written` are the indices over the points; at least one of them reaches each element of its buffer once.
    """

    source: SSAValue
    target: SSAValue
    read: tuple[Expr, ...]
    written: tuple[Expr, ...]
    extents: dict[Expr, Expr]
    """The loops' symbols and lengths."""

    @property
    def is_whole(self) -> bool:
        """Whether element by element the two buffers are the same afterwards."""
        layout = layout_of(self.source.type)
        same = self.read == self.written and layout.sizes == layout_of(self.target.type).sizes
        return same and self._covers(self.read, layout)

    def written_layout(self, ranges: Ranges) -> LayoutAttr | None:
        """Return the layout, in the target's storage, of the elements that those of `source` are copied to.

        None if not all of `source` is copied, or if the target's addresses are not linear in its indices.
        """
        return self._layout(self.target, self.written, self.source, self.read, ranges)

    def read_layout(self, ranges: Ranges) -> LayoutAttr | None:
        """Return the layout, in the source's storage, of the elements that those of `target` are copied from.

        None if not all of `target` is stored, or if the source's addresses are not linear in its indices.
        """
        return self._layout(self.source, self.read, self.target, self.written, ranges)

    def _layout(
        self, other: SSAValue, at: tuple[Expr, ...], whole: SSAValue, over: tuple[Expr, ...], ranges: Ranges
    ) -> LayoutAttr | None:
        layout = layout_of(whole.type)
        if not self._covers(over, layout):
            return None
        places = {e: dim(d) for d, e in enumerate(over) if e in self.extents}
        access = MapAttr.get(len(over), [e.xreplace(places) for e in at])
        return view_layout(layout_of(other.type), access, layout, ranges)

    def _covers(self, exprs: tuple[Expr, ...], layout: LayoutAttr) -> bool:
        """Whether `exprs` are the loops' indices, one each, and the loops as long as the dims of `layout`."""
        used = [e for e in exprs if e in self.extents]
        if len(set(used)) != len(used) or len(used) != len(self.extents):
            return False
        return all(
            size == self.extents[e] if e in self.extents else e == 0 and size == 1
            for e, size in zip(exprs, layout.sizes, strict=True)
        )


def copy_of(nest: loop.NestOp) -> Copy | None:
    """Return what a nest copies, None if it does anything else."""
    match list(nest.block.ops):
        case [loop.LoadOp(mask=None) as load, loop.StoreOp(mask=None, combine=None) as store]:
            pass
        case _:
            return None
    bounds = nest.loops.dims
    plain = all(d.lower == 0 and d.step == 1 for d in bounds) and not nest.bound_operands
    if store.value is not load.result or not plain:
        return None
    names = IndexNames()
    extents: dict[Expr, Expr] = {names.symbol(v): d.upper for v, d in zip(nest.indices, bounds, strict=True)}
    read, written = names.exprs(load.access, load.indices), names.exprs(store.access, store.indices)
    return Copy(load.source, store.target, read, written, extents)
