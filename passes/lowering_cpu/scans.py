"""Scans as loops that carry their prefixes, and the stores in them that combine: a load, the combination, a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import AnyFloat, BFloat16Type, Float16Type, FloatAttr, IntegerAttr, f32
from xdsl.ir import Attribute, SSAValue

from tilewright.dialects import cpu
from tilewright.dialects.combiners import COMBINERS, element_type
from tilewright.dialects.loop import CastOp, PrefixOp, ScanOp
from tilewright.dialects.type_guards import is_vector
from tilewright.passes.lowering_cpu.address import AddressBuilder
from tilewright.passes.lowering_cpu.loops import Carried, LoopBuilder
from tilewright.passes.lowering_cpu.reductions import first_index


class ScanBuilder:
    """Builds scans. `body` builds the body of one."""

    def __init__(self, loops: LoopBuilder, address: AddressBuilder, body: Callable[[ScanOp], None]):
        self._loops = loops
        self._builder = address.builder
        self._space = address.space
        self._body = body
        self._before: dict[PrefixOp, Carried] = {}
        """What each prefix of the iteration that is being built comes after."""

    def scan(self, op: ScanOp) -> None:
        """Run the iterations one after the other."""
        prefixes = [p for p in op.block.ops if isinstance(p, PrefixOp)]

        def iteration(carried: Carried) -> Carried:
            at = 0
            for prefix in prefixes:
                self._before[prefix] = carried[at : at + len(prefix.inputs)]
                at += len(prefix.inputs)
            self._body(op)
            return [v for p in prefixes for v in self._before.pop(p)]

        self._loops.serial(op, [v for p in prefixes for v in self._identity(p)], iteration)

    def prefix(self, op: PrefixOp, values: Sequence[SSAValue]) -> Carried:
        """Combine `values` with those of the iterations before."""
        combiner, scan = COMBINERS[op.combiner.data], op.parent_op()
        assert isinstance(scan, ScanOp)
        combine = combiner.combine
        if combiner.extend is not None and first_index(self._space, scan, op.inputs[1]) is not None:
            combine = combiner.extend
        results = combine(self._builder.emit, self._before[op], values)
        self._before[op] = results
        return results

    def combining_store(
        self, combine: str, value: SSAValue, target: SSAValue, offset: SSAValue, mask: SSAValue | None, *, apart: bool
    ) -> None:
        """Combine `value` with what is at `offset`, or in each lane at its own where the elements lie `apart`."""
        kind, emit = value.type, self._builder.emit
        otherwise = None if mask is None else self._splat(_zero(element_type(kind)), kind)
        load, store = (cpu.GatherOp, cpu.ScatterOp) if apart else (cpu.LoadOp, cpu.StoreOp)
        old = emit(load.get(target, offset, kind, mask=mask, otherwise=otherwise))
        half = isinstance(element_type(kind), (BFloat16Type, Float16Type))
        if half:
            old, value = (emit(CastOp.get(v, f32)) for v in (old, value))
        (new,) = COMBINERS[combine].combine(emit, [old], [value])
        if half:
            new = emit(CastOp.get(new, element_type(kind)))
        self._builder.append(store.get(new, target, offset, mask=mask))

    def _identity(self, op: PrefixOp) -> Carried:
        kinds = [v.type for v in op.inputs]
        constants = COMBINERS[op.combiner.data].identity([element_type(k) for k in kinds])
        return [self._splat(c, k) for c, k in zip(constants, kinds, strict=True)]

    def _splat(self, constant: FloatAttr | IntegerAttr, kind: Attribute) -> SSAValue:
        value = self._builder.constant(constant)
        return self._builder.broadcast(value, kind.get_shape()[0]) if is_vector(kind) else value


def _zero(kind: Attribute) -> FloatAttr | IntegerAttr:
    return FloatAttr(0.0, kind) if isinstance(kind, AnyFloat) else IntegerAttr(0, kind)  # pyright: ignore[reportArgumentType, reportCallIssue]
