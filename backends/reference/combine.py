"""Reductions by the operations that each combiner emits, pairwise: the tree keeps float sums accurate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.backends.reference.dtypes import register_dtype
from tilewright.backends.reference.frame import Frame, Space, execute
from tilewright.backends.reference.functions import broadcast
from tilewright.dialects.combiners import COMBINERS, element_type
from tilewright.dialects.type_guards import is_vector

Slots = Sequence[Tensor]


class Combination:
    """One combiner on slots of given types: the operations that it emits, which the interpreter executes."""

    def __init__(self, name: str, kinds: Sequence[Attribute]) -> None:
        arity = len(kinds)
        self._arguments = Block(arg_types=[*kinds, *kinds]).args
        self._lanes = is_vector(kinds[0])
        self._ops: list[Operation] = []
        self._results = COMBINERS[name].combine(self._emit, self._arguments[:arity], self._arguments[arity:])
        constants = COMBINERS[name].identity([element_type(k) for k in kinds])
        self.identity = [
            torch.tensor(c.value.data, dtype=register_dtype(k)) for c, k in zip(constants, kinds, strict=True)
        ]
        """The slots that change nothing, each a single element."""

    def _emit(self, op: Operation) -> SSAValue:
        self._ops.append(op)
        return op.results[0]

    def combine(self, earlier: Slots, later: Slots) -> list[Tensor]:
        """Combine two tuples of slots element by element; all have the same number of dims."""
        rank = max(t.ndim for t in (*earlier, *later))
        frame = Frame(ModuleOp([]), {}, space=Space((1,) * (rank - self._lanes)))
        for argument, value in zip(self._arguments, (*earlier, *later), strict=True):
            frame.set(argument, value)
        for op in self._ops:
            execute(op, frame)
        return [frame.register(r) for r in self._results]

    def across_lanes(self, slots: Slots) -> list[Tensor]:
        """Combine along the last dim, which vanishes: the upper half with the lower, until one lane is left."""
        current = list(slots)
        while (lanes := current[0].shape[-1]) > 1:
            half = lanes // 2
            current = self.combine([t[..., :half] for t in current], [t[..., half:] for t in current])
        return [t[..., 0] for t in current]

    def along(self, slots: Slots, axis: int, init: Slots = (), *, ordered: bool = False) -> list[Tensor]:
        """Combine `init` with all elements along `axis`, which vanishes.

        Neighbours are combined first, and `init` last, as the earlier part; with `ordered`, it goes from the first
        to the last.
        """
        slots = broadcast(*slots)
        length = slots[0].shape[axis]
        empty = [n.expand(*t.shape[:axis], 1, *t.shape[axis + 1 :]) for n, t in zip(self.identity, slots, strict=True)]
        if ordered:
            total = list(init) or [t.select(axis, 0) for t in empty]
            for i in range(length):
                total = self.combine(total, [t.select(axis, i) for t in slots])
            return total
        current = list(slots) if length else empty
        while length > 1:
            pairs = length // 2
            even = [_every_second(t, axis, 0, pairs) for t in current]
            odd = [_every_second(t, axis, 1, pairs) for t in current]
            rest = [t.narrow(axis, 2 * pairs, length - 2 * pairs) for t in current]
            current = [torch.cat(parts, axis) for parts in zip(self.combine(even, odd), rest, strict=True)]
            length -= pairs
        total = [t.select(axis, 0) for t in current]
        return self.combine(init, total) if init else total


def _every_second(slot: Tensor, axis: int, first: int, count: int) -> Tensor:
    return slot[(slice(None),) * axis + (slice(first, 2 * count, 2),)]


@cache
def combination(name: str, kinds: tuple[Attribute, ...]) -> Combination:
    """Return the combiner `name` for slots of types `kinds`."""
    return Combination(name, kinds)
