"""On which loops the values of a kernel depend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects.loop import KernelOp, Loop, PrefixOp, ReduceOp, ScanOp
from tilewright.passes.analysis.legality import slot_groups

Indices = frozenset[SSAValue]
_NONE: Indices = frozenset()


class Dependence:
    """For each value of a kernel the indices of the loops around it that it depends on.

    Where the bounds of a loop depend on another one, so does whatever depends on that loop.
    """

    def __init__(self, kernel: KernelOp):
        self._found: dict[SSAValue, Indices] = {}
        self._visit(kernel.block)

    def of(self, values: Iterable[SSAValue]) -> Indices:
        """Return the indices that some of `values` depends on."""
        return _NONE.union(*(self._found.get(v, _NONE) for v in values))

    def _visit(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, Loop):
                self._visit_loop(op)
                continue
            found = self.of(op.operands)
            if isinstance(op, PrefixOp):
                found = found.union(_scan_of(op).indices)
            for result in op.results:
                self._found[result] = found

    def _visit_loop(self, op: Loop) -> None:
        around = self.of(op.bound_operands)
        for index in op.indices:
            self._found[index] = around | {index}
        self._visit(op.block)
        if not isinstance(op, ReduceOp):
            return
        for _, slots in slot_groups(op):
            found = self.of((*op.yielded.values[slots], *op.init[slots])) | around
            for result in op.results_[slots]:
                self._found[result] = found.difference(op.indices)


def _scan_of(op: Operation) -> ScanOp:
    scan = op.parent_op()
    assert isinstance(scan, ScanOp)
    return scan


def shape_by(indices: Indices, axes: Mapping[SSAValue, int]) -> tuple[int, ...]:
    """Return the shape of a value that depends on `indices`; `axes` are the sizes of the axes around it."""
    if not indices.intersection(axes):
        return ()
    return tuple(size if index in indices else 1 for index, size in axes.items())
