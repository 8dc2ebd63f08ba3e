"""Memory effects of the `loop` dialect: on tensors only stores to a destination have one, on buffers all accesses."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind, RecursiveMemoryEffect


class LoadEffect(MemoryEffect):
    """A load reads memory; from a tensor it is pure."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        if isinstance(op.operands[0].type, MemRefType):
            return {EffectInstance(MemoryEffectKind.READ)}
        return set()


class StoreEffect(MemoryEffect):
    """A store writes, to a buffer or to the destination of the nest around it."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        return {EffectInstance(MemoryEffectKind.WRITE)}


class PrefixEffect(MemoryEffect):
    """What `loop.prefix` gives depends on the iterations before: it is neither shared, nor moved out of its scan."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        return {EffectInstance(MemoryEffectKind.READ)}


class NestEffect(RecursiveMemoryEffect):
    """A loop has the effects of its body, except that a nest's stores to its own destinations stay inside."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance] | None:
        if op.results and op.name == "loop.nest":
            return set()
        return super().get_effects(op)
