"""Whether a destination may be the very memory of the tensor that it begins as."""

from __future__ import annotations

from functools import cached_property

from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tilewright.dialects import loop
from tilewright.passes.analysis.aliasing import AliasSets, tensor_alias_sets
from tilewright.passes.analysis.in_place import accesses, can_overwrite


class Takeovers:
    """The tensors of a program, and which operation uses the memory of each last. Looked at when first asked for."""

    def __init__(self, block: Block) -> None:
        self._block = block

    @cached_property
    def _sets(self) -> AliasSets:
        return tensor_alias_sets(self._block)

    @cached_property
    def _last(self) -> dict[int, Operation]:
        """The operation that uses each set of tensors last."""
        last: dict[int, Operation] = {}
        for op in self._block.ops:
            inner = (o for region in op.regions for i in region.walk() for o in i.operands)
            for value in (*op.operands, *inner):
                if value in self._sets:
                    last[id(self._sets.members(value))] = op
        return last

    def is_possible(self, nest: loop.NestOp, number: int) -> bool:
        """Whether destination `number` of a nest may overwrite what it begins as: nothing reads that afterwards, in the
        nest or behind it, and it is no argument."""
        start = nest.begins[number]
        members = self._sets.members(start)
        if self._last[id(members)] is not nest or any(isinstance(m, BlockArgument) for m in members):
            return False
        if sum(self._sets.may_alias(v, start) for v in nest.initial) > 1:
            return False
        found = accesses(nest)
        loads = [a for a in found if isinstance(a.op, loop.LoadOp) and self._shares(a.buffer, start)]
        stores = [a for a in found if isinstance(a.op, loop.StoreOp) and a.buffer is nest.destinations[number]]
        return all(load.buffer is start for load in loads) and can_overwrite(loads, stores)

    def _shares(self, buffer: SSAValue, start: SSAValue) -> bool:
        return buffer in self._sets and self._sets.may_alias(buffer, start)
