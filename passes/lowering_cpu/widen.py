"""Run several iterations of a loop at a time, as the lanes of vectors."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith, vector
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IntegerAttr, VectorType, i1
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tilewright.dialects.combiners import COMBINERS
from tilewright.dialects.loop import (
    ApplyOp,
    Bounds,
    CheckOp,
    CombineOp,
    ForOp,
    LoadOp,
    Loop,
    LoopDim,
    NestOp,
    RandomOp,
    ReduceOp,
    ScanOp,
    StoreOp,
    YieldOp,
)
from tilewright.passes.analysis.index_space import IndexSpace
from tilewright.passes.analysis.legality import slot_groups


def widen(space: IndexSpace, loop: Loop, position: int, lanes: int) -> None:
    """Replace `loop` by one that takes `lanes` iterations of its loop `position` at a time, and a masked one for what
    is left.

    The loop with lanes becomes the innermost. That lanes are legal there (`legality.why_not`) is the caller's to know.
    """
    dims = space.loops(loop)
    this = dims[position]
    middle = space.round_down(this.upper, this.lower, lanes)
    order = [*(i for i in range(len(dims)) if i != position), position]
    outside: dict[SSAValue, SSAValue] = {}
    made: list[Loop] = []
    for lower, upper, masked in ((this.lower, middle, False), (middle, this.upper, True)):
        if space.simplify(upper - lower) == 0:
            continue
        lane_loop = LoopDim(lower, upper, lanes, lanes=True)
        bounds = space.bounds_over_operands([*(dims[i] for i in order[:-1]), lane_loop])
        previous = made[-1].results if made else ()
        made.append(_Widener(loop, lanes, outside).widen(bounds, order, previous, masked))
        Rewriter.insert_op(made[-1], InsertPoint.before(loop))
    if isinstance(loop, ReduceOp):
        for result, combined in zip(loop.results_, _combine_lanes(loop, made[-1].results), strict=True):
            combined.name_hint = result.name_hint
            result.replace_all_uses_with(combined)
    Rewriter.erase_op(loop)


def _combine_lanes(loop: ReduceOp, vectors: Sequence[SSAValue]) -> list[SSAValue]:
    """Insert before `loop` what makes its results of the vectors that hold them."""

    def emit(op: Operation) -> SSAValue:
        Rewriter.insert_op(op, InsertPoint.before(loop))
        return op.results[0]

    results: list[SSAValue] = []
    for name, slots in slot_groups(loop):
        combine = CombineOp.get(name, vectors[slots])
        Rewriter.insert_op(combine, InsertPoint.before(loop))
        values: list[SSAValue] = list(combine.results)
        if loop.init:
            values = COMBINERS[name].combine(emit, loop.init[slots], values)
        results += values
    return results


def _zero(kind: Attribute) -> FloatAttr | IntegerAttr:
    return FloatAttr(0.0, kind) if isinstance(kind, AnyFloat) else IntegerAttr(0, kind)  # pyright: ignore[reportArgumentType, reportCallIssue]


class _Widener:
    """Copies the body of a loop with vectors for all that differs between lanes.

    Vectors of values from outside are made before the loop, once for all its copies: `outside` has those made so far.
    """

    def __init__(self, loop: Loop, lanes: int, outside: dict[SSAValue, SSAValue]):
        self.loop = loop
        self.lanes = lanes
        self.outside = outside
        self.values: dict[SSAValue, SSAValue] = {}
        self.mask: SSAValue | None = None
        self.blocks: list[tuple[Block, dict[SSAValue, SSAValue]]] = []

    def widen(self, bounds: Bounds, order: Sequence[int], init: Sequence[SSAValue], masked: bool) -> Loop:
        """Return a copy of the loop that runs `bounds`, whose loops are those of `order` in the old one."""
        loop = self.loop
        if isinstance(loop, ReduceOp):
            slots = [self.vector_type(r.type) for r in loop.results_]
            new = ReduceOp.get(loop.names, bounds, slots, init=init, masked=masked)
        else:
            new = (NestOp if isinstance(loop, NestOp) else ForOp).get(bounds, masked=masked)
        new.attributes = dict(loop.attributes)
        self.mask = new.mask
        self.map_indices([loop.indices[i] for i in order], new)
        self.blocks.append((new.block, {}))
        self.copy_body(loop.block)
        if isinstance(loop, ReduceOp):
            self.append(YieldOp.get(*(self.as_vector(v) for v in loop.yielded.values)))
        return new

    def vector_type(self, kind: Attribute) -> VectorType:
        return VectorType(kind, [self.lanes])

    def append(self, op: Operation) -> None:
        self.blocks[-1][0].add_op(op)

    def map_indices(self, old: Sequence[SSAValue], new: Loop) -> None:
        for index, copy in zip(old, new.indices, strict=True):
            copy.name_hint = index.name_hint
            self.values[index] = copy

    def value(self, old: SSAValue) -> SSAValue:
        """Return what `old` has become: itself if it comes from outside the loop."""
        return self.values.get(old, old)

    def as_vector(self, old: SSAValue) -> SSAValue:
        """Return what `old` has become, in all lanes if it is one value."""
        new = self.value(old)
        if isinstance(new.type, VectorType):
            return new
        if old not in self.values:
            made = self.outside.get(new)
            if made is None:
                made = self.outside[new] = self.broadcast(new, InsertPoint.before(self.loop))
            return made
        for _, known in self.blocks:
            if new in known:
                return known[new]
        made = self.blocks[-1][1][new] = self.broadcast(new, InsertPoint.at_end(self.blocks[-1][0]))
        return made

    def broadcast(self, value: SSAValue, at: InsertPoint) -> SSAValue:
        op = vector.BroadcastOp(value, self.vector_type(value.type))
        op.results[0].name_hint = value.name_hint
        Rewriter.insert_op(op, at)
        return op.results[0]

    def is_vector(self, values: Sequence[SSAValue]) -> bool:
        return any(isinstance(self.value(v).type, VectorType) for v in values)

    def copy_body(self, block: Block) -> None:
        """Copy all operations of `block` but a `loop.yield`."""
        for op in block.ops:
            if isinstance(op, YieldOp):
                continue
            new = self.copy(op)
            for old_result, new_result in zip(op.results, new.results, strict=True):
                new_result.name_hint = old_result.name_hint
                self.values[old_result] = new_result
            self.append(new)

    def copy(self, op: Operation) -> Operation:
        match op:
            case LoadOp():
                return self.copy_load(op)
            case StoreOp():
                return self.copy_store(op)
            case ApplyOp():
                return ApplyOp.get(op.expr, [self.value(v) for v in op.indices])
            case CheckOp() if self.mask is not None and self.is_vector(op.operands):
                return self.copy_check(op, self.mask)
            case RandomOp() if self.is_vector([op.element]):
                return self.copy_random(op)
            case ReduceOp():
                return self.copy_reduce(op)
            case Loop():
                new = (ScanOp if isinstance(op, ScanOp) else ForOp).get(self.inner_bounds(op))
                self.copy_inner(op, new)
                self.blocks.pop()
                return new
            case _:
                return self.copy_lanewise(op)

    def copy_lanewise(self, op: Operation) -> Operation:
        kinds = [r.type for r in op.results]
        operands = [self.value(v) for v in op.operands]
        if self.is_vector(op.operands):
            kinds = [self.vector_type(k) for k in kinds]
            operands = [self.as_vector(v) for v in op.operands]
        return type(op).create(
            operands=operands, result_types=kinds, properties=op.properties.copy(), attributes=op.attributes.copy()
        )

    def copy_random(self, op: RandomOp) -> Operation:
        kind = self.vector_type(op.result.type)
        seed, stream, element = (self.value(v) for v in op.operands)
        return RandomOp.get(op.distribution.data, seed, stream, element, kind)

    def combined_mask(self, mask: SSAValue | None) -> SSAValue | None:
        """Return the lanes of an access that are within the loop's bounds and for which `mask` holds."""
        if mask is None or self.mask is None:
            return self.mask if mask is None else self.as_vector(mask)
        both = arith.AndIOp(self.as_vector(mask), self.mask)
        self.append(both)
        return both.result

    def copy_load(self, op: LoadOp) -> Operation:
        indices = [self.value(v) for v in op.indices]
        if not self.is_vector(op.indices):
            mask = None if op.mask is None else self.value(op.mask)
            otherwise = None if op.otherwise is None else self.value(op.otherwise)
            return LoadOp.get(op.source, op.access.exprs, indices, mask=mask, otherwise=otherwise)
        mask, otherwise = self.combined_mask(op.mask), None
        if op.otherwise is not None:
            otherwise = self.as_vector(op.otherwise)
        elif mask is not None:
            otherwise = self.zeros(op.result.type)
        return LoadOp.get(op.source, op.access.exprs, indices, mask=mask, otherwise=otherwise)

    def zeros(self, kind: Attribute) -> SSAValue:
        zero = arith.ConstantOp(_zero(kind))
        self.append(zero)
        return self.broadcast(zero.result, InsertPoint.at_end(self.blocks[-1][0]))

    def copy_store(self, op: StoreOp) -> Operation:
        indices = [self.value(v) for v in op.indices]
        mask = self.combined_mask(op.mask)
        combine = None if op.combine is None else op.combine.data
        return StoreOp.get(self.as_vector(op.value), op.target, op.access.exprs, indices, mask=mask, combine=combine)

    def copy_check(self, op: CheckOp, mask: SSAValue) -> Operation:
        """Copy a check such that it always holds in lanes beyond the loop's bounds."""
        true = arith.ConstantOp(IntegerAttr(1, i1))
        self.append(true)
        beyond = arith.XOrIOp(mask, self.broadcast(true.result, InsertPoint.at_end(self.blocks[-1][0])))
        either = arith.OrIOp(self.as_vector(op.condition), beyond.result)
        for new in (beyond, either):
            self.append(new)
        return CheckOp.get(either.result, self.as_vector(op.value), op.error.data)

    def inner_bounds(self, op: Loop) -> Bounds:
        loops = op.loops
        return Bounds(loops.dims, tuple(self.value(v) for v in loops.operands))

    def copy_inner(self, op: Loop, new: Loop) -> None:
        """Copy the body of a loop inside, and leave its block the current one."""
        new.attributes = dict(op.attributes)
        self.map_indices(op.indices, new)
        self.blocks.append((new.block, {}))
        self.copy_body(op.block)

    def copy_reduce(self, op: ReduceOp) -> Operation:
        """Copy a reduction inside the loop. It gives vectors for combiners with a slot that differs between lanes."""
        bounds = self.inner_bounds(op)
        frame = ForOp.get(bounds)
        self.copy_inner(op, frame)
        yielded, init = list[SSAValue](), list[SSAValue]()
        wide = list[bool]()
        for _, slots in slot_groups(op):
            group, start = op.yielded.values[slots], op.init[slots]
            in_lanes = self.is_vector((*group, *start))
            wide += [in_lanes] * len(group)
            yielded += [self.as_vector(v) if in_lanes else self.value(v) for v in group]
        self.append(YieldOp.get(*yielded))
        self.blocks.pop()
        if op.init:
            init = [self.as_vector(v) if w else self.value(v) for v, w in zip(op.init, wide, strict=True)]
        kinds = [v.type for v in yielded]
        new = ReduceOp.get(op.names, bounds, kinds, init=init, ordered=op.ordered is not None)
        new.attributes = dict(op.attributes)
        new.body.detach_block(new.block)
        new.body.add_block(frame.body.detach_block(frame.block))
        return new
