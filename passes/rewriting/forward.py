"""Use the value that was stored instead of loading it back from a destination of the nest."""

from __future__ import annotations

from xdsl.ir import Block, SSAValue

from tilewright.dialects.loop import LoadOp, Loop, NestOp, StoreOp
from tilewright.dialects.sym_expr import Expr, Ranges
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.analysis.ranges import NamedRanges

Element = tuple[SSAValue, tuple[Expr, ...]]


class StoreForwarder:
    """Replaces loads from destinations by the stored values that reach them.

    Those are of the same element, and stored before in the same iteration of all the loops around the store.
    """

    def __init__(self, names: IndexNames, sizes: Ranges) -> None:
        self._names = names
        self._ranges = NamedRanges(names, sizes)
        self._known: dict[Element, SSAValue] = {}

    def run(self, nest: NestOp) -> None:
        """Forward what can be in `nest`."""
        self._ranges.enter(nest)
        self._visit(nest.block, set(nest.destinations))

    def _visit(self, block: Block, destinations: set[SSAValue]) -> None:
        added: list[Element] = []
        for op in list(block.ops):
            if isinstance(op, Loop):
                self._ranges.enter(op)
                self._visit(op.block, destinations)
            elif isinstance(op, LoadOp) and op.source in destinations and op.mask is None:
                value = self._known.get(self._element(op.source, op))
                if value is not None:
                    op.result.replace_all_uses_with(value)
                    op.detach()
                    op.erase()
            elif isinstance(op, StoreOp) and op.mask is None and op.combine is None:
                element = self._element(op.target, op)
                self._known[element] = op.value
                added.append(element)
        for element in added:
            # A second store of the element would be wrong IR; whichever it was, it is out of scope here.
            self._known.pop(element, None)

    def _element(self, tensor: SSAValue, op: LoadOp | StoreOp) -> Element:
        exprs = self._names.exprs(op.access, op.indices)
        return tensor, tuple(self._ranges.simplify(e) for e in exprs)
