"""Turn the body of one loop kernel into structured CPU operations; see `passes/convert_loop_to_cpu.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy
from xdsl.dialects import arith, func, scf, vector
from xdsl.dialects.builtin import FloatAttr, FunctionType, IntegerAttr, VectorType, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects import cpu
from tilewright.dialects.access import is_index
from tilewright.dialects.combiners import COMBINERS, Emit, Slots, element_type
from tilewright.dialects.loop import (
    ApplyOp,
    CastOp,
    CombineOp,
    ForOp,
    KernelOp,
    LoadOp,
    Loop,
    LoopDim,
    NestOp,
    ReduceOp,
    SelectOp,
    StoreOp,
    YieldOp,
)
from tilewright.dialects.sym_expr import Expr, FloorDiv
from tilewright.passes.lowering_cpu.address import AddressBuilder, Lanes
from tilewright.passes.lowering_cpu.builder import INDEX, ScopedBuilder
from tilewright.passes.lowering_cpu.cost import CostModel
from tilewright.passes.lowering_cpu.index_space import IndexSpace, stride
from tilewright.passes.lowering_cpu.legality import slot_groups

Carried = Sequence[SSAValue]
"""The values that a loop carries from one iteration to the next."""

Body = Callable[[Carried], Carried]
"""Builds one iteration from the values carried into it, and returns those carried out."""


class KernelLowering:
    """Builds the function of one kernel."""

    def __init__(self, kernel: KernelOp, grain_cycles: int):
        self.kernel = kernel
        self.grain_cycles = grain_cycles
        self.space = IndexSpace()
        self.cost = CostModel(self.space)
        kinds = [*(b.type for b in kernel.buffers), *(i64 for _ in kernel.symbols)]
        self.block = Block(arg_types=kinds)
        self.builder = ScopedBuilder(self.block)
        buffers = len(kernel.buffers)
        self.sizes = dict(zip(kernel.symbol_names, self.block.args[buffers:], strict=True))
        self.address = AddressBuilder(self.space, self.builder, self.size)
        self.values: dict[SSAValue, SSAValue] = {}
        for old, new in zip(kernel.buffers, self.block.args[:buffers], strict=True):
            new.name_hint = old.name_hint
            self.values[old] = new
        for name, argument in self.sizes.items():
            argument.name_hint = name

    def lower(self) -> func.FuncOp:
        """Return the function."""
        for op in self.kernel.block.ops:
            if isinstance(op, NestOp):
                self.lower_nest(op)
            else:
                self.lower_op(op)
        self.builder.append(func.ReturnOp())
        kind = FunctionType.from_lists([a.type for a in self.block.args], [])
        function = func.FuncOp(self.kernel.sym_name.data, kind, Region(self.block))
        function.attributes.update(self.kernel.attributes)
        return function

    def size(self, name: str) -> SSAValue:
        argument = self.sizes[name]
        return self.builder.hoisted("size", (argument,), lambda: arith.IndexCastOp(argument, INDEX))

    def trips(self, this: LoopDim) -> Expr:
        """Return how many iterations a loop has."""
        return self.space.simplify(FloorDiv(this.upper - this.lower + (this.step - 1), this.step))

    def lower_nest(self, nest: NestOp) -> None:
        """Run the iterations of a nest, by several threads if there is enough to do."""
        dims = self.space.loops(nest)
        total = sympy.Mul(*(self.trips(d) for d in dims))
        cycles = self.cost.cost_of_body(nest.block)
        if total.is_Integer and int(total) * cycles <= self.grain_cycles:
            self.lower_loops(nest, 0, (), lambda _: self.lower_body(nest))
            return
        grain = max(1, round(self.grain_cycles / cycles))
        region = cpu.ParallelOp.get(self.address.scalar(total), grain)
        begin, end = region.block.args
        self.builder.push(region.block, floor=True)
        self.lower_units(nest, 0, begin, end)
        self.builder.pop()
        self.builder.append(region)

    def lower_units(self, nest: NestOp, position: int, begin: SSAValue, end: SSAValue) -> None:
        """Run the iterations `begin` to `end` of the loops of a nest from `position` on, counted over all of these loops.

        Each loop but the last runs over the part of its range that the iterations touch, and passes on to the loops inside
        which part of theirs is meant. So no iteration divides to find out its indices.
        """
        dims = self.space.loops(nest)
        if self.trips(dims[position]) == 1 and position + 1 < len(dims):
            self.bind(nest, position, self.address.scalar(dims[position].lower))
            self.lower_units(nest, position + 1, begin, end)
            return
        inner = sympy.Mul(*(self.trips(d) for d in dims[position + 1 :]))
        if inner == 1:
            self.counted_loop(begin, end, lambda i: self.lower_unit(nest, position, i))
            return
        size, builder = self.address.scalar(inner), self.builder
        size = size if inner.is_Integer else builder.binary(arith.MaxSIOp, size, builder.constant(1))
        first = builder.binary(arith.DivUIOp, begin, size)
        beyond = builder.binary(arith.SubiOp, builder.binary(arith.AddiOp, end, size), builder.constant(1))
        last = builder.binary(arith.DivUIOp, beyond, size)

        def part(i: SSAValue) -> None:
            start = builder.binary(arith.MuliOp, i, size)
            inner_begin = builder.binary(arith.MaxSIOp, builder.binary(arith.SubiOp, begin, start), builder.constant(0))
            inner_end = builder.binary(arith.MinSIOp, builder.binary(arith.SubiOp, end, start), size)
            self.bind_number(nest, position, i)
            self.lower_units(nest, position + 1, inner_begin, inner_end)

        self.counted_loop(first, last, part)

    def lower_unit(self, nest: NestOp, position: int, number: SSAValue) -> None:
        self.bind_number(nest, position, number)
        for i, d in enumerate(self.space.loops(nest)):
            if i > position:
                self.bind(nest, i, self.address.scalar(d.lower))
        self.lower_body(nest)

    def counted_loop(self, begin: SSAValue, end: SSAValue, body: Callable[[SSAValue], None]) -> None:
        block = Block(arg_types=[INDEX])
        self.builder.push(block)
        body(block.args[0])
        self.builder.append(scf.YieldOp())
        self.builder.pop()
        self.builder.append(scf.ForOp(begin, end, self.builder.constant(1), (), Region(block)))

    def bind_number(self, op: Loop, position: int, number: SSAValue) -> None:
        """Let a loop be in its iteration `number`."""
        this = self.space.loops(op)[position]
        start = self.builder.binary(arith.MuliOp, number, self.builder.constant(this.step)) if this.step != 1 else number
        if this.lower != 0:
            start = self.builder.binary(arith.AddiOp, start, self.address.scalar(this.lower))
        self.bind(op, position, start)

    def bind(self, op: Loop, position: int, start: SSAValue) -> None:
        """Let the index of a loop be `start`, or count lanes from there."""
        this = self.space.loops(op)[position]
        hint = op.indices[position].name_hint
        if start.name_hint is None:
            start.name_hint = hint
        self.address.values[op.indices[position]] = Lanes(start, 1, this.step) if this.lanes else start
        if this.lanes and op.mask is not None:
            end = self.address.scalar(this.upper)
            mask = self.builder.hoisted(("mask", this.step), (start, end), lambda: cpu.TailMaskOp.get(start, end, this.step))
            self.values[op.mask] = mask

    def lower_loops(self, op: Loop, position: int, carried: Carried, body: Body) -> Carried:
        """Run the loops of `op` from `position` on, with `body` inside them all."""
        dims = self.space.loops(op)
        if position == len(dims):
            return body(carried)
        this = dims[position]
        trips = self.trips(this)
        if trips.is_Integer and trips <= 0:
            return carried
        if trips == 1:
            self.bind(op, position, self.address.scalar(this.lower))
            return self.lower_loops(op, position + 1, carried, body)
        bounds = [self.address.scalar(e) for e in (this.lower, this.upper)]
        step = self.builder.constant(this.step)
        block = Block(arg_types=[INDEX, *(v.type for v in carried)])
        self.builder.push(block)
        self.bind(op, position, block.args[0])
        results = self.lower_loops(op, position + 1, block.args[1:], body)
        self.builder.append(scf.YieldOp(*results))
        self.builder.pop()
        return self.builder.append(scf.ForOp(*bounds, step, carried, Region(block)))

    def lower_body(self, op: Loop) -> Carried:
        for inner in op.block.ops:
            self.lower_op(inner)
        return ()

    def lower_op(self, op: Operation) -> None:
        results: Carried = ()
        match op:
            case ApplyOp() | YieldOp():
                # An index expression is evaluated where it is used.
                return
            case ForOp():
                self.lower_loops(op, 0, (), lambda _: self.lower_body(op))
            case ReduceOp():
                results = self.lower_reduce(op)
            case LoadOp():
                results = [self.lower_load(op)]
            case StoreOp():
                self.lower_store(op)
            case CombineOp():
                results = self.lower_combine(op)
            case arith.ConstantOp():
                results = [self.constant(op)]
            case vector.BroadcastOp():
                assert isinstance(op.vector.type, VectorType)
                results = [self.builder.broadcast(self.value(op.source), op.vector.type.get_shape()[0])]
            case _:
                results = self.builder.append(self.copy(op))
        for old, new in zip(op.results, results, strict=True):
            new.name_hint = new.name_hint or old.name_hint
            self.values[old] = new
            if is_index(old):
                self.address.values[old] = new

    def constant(self, op: arith.ConstantOp) -> SSAValue:
        attribute = op.value
        assert isinstance(attribute, (IntegerAttr, FloatAttr))
        return self.builder.constant(attribute)

    def copy(self, op: Operation) -> Operation:
        if op.regions:
            raise PassFailedException(f"`{op.name}` inside a loop kernel has no lowering to the `cpu` dialect")
        return type(op).create(
            operands=[self.value(v) for v in op.operands],
            result_types=[r.type for r in op.results],
            properties=op.properties.copy(),
            attributes=op.attributes.copy(),
        )

    def value(self, old: SSAValue) -> SSAValue:
        """Return what a value of the kernel has become, an index in each lane as a vector."""
        if old in self.values:
            return self.values[old]
        return self.address.materialize(self.address.evaluate(self.space.expr(old)))

    def optional(self, old: SSAValue | None) -> SSAValue | None:
        return None if old is None else self.value(old)

    def lower_load(self, op: LoadOp) -> SSAValue:
        kind, mask, otherwise = op.result.type, self.optional(op.mask), self.optional(op.otherwise)
        load, offset = self.offset(op, kind)
        access = cpu.GatherOp if load else cpu.LoadOp
        return self.builder.emit(access.get(self.value(op.source), offset, kind, mask=mask, otherwise=otherwise))

    def lower_store(self, op: StoreOp) -> None:
        value, mask = self.value(op.value), self.optional(op.mask)
        scattered, offset = self.offset(op, value.type)
        access = cpu.ScatterOp if scattered else cpu.StoreOp
        combine = None if op.combine is None else op.combine.data
        self.builder.append(access.get(value, self.value(op.target), offset, mask=mask, combine=combine))

    def offset(self, op: LoadOp | StoreOp, kind: Attribute) -> tuple[bool, SSAValue]:
        """Return whether the elements of an access lie apart, and the offset of the first or of each."""
        (expr,) = self.space.access(op.access, op.indices)
        index = self.address.evaluate(expr)
        if not isinstance(kind, VectorType):
            return False, self.address.materialize(index)
        if isinstance(index, Lanes) and index.stride == 1:
            return False, index.base
        offsets = self.address.materialize(index)
        if not isinstance(offsets.type, VectorType):
            offsets = self.builder.broadcast(offsets, kind.get_shape()[0])
        return True, offsets

    def lower_reduce(self, op: ReduceOp) -> Carried:
        kinds = [r.type for r in op.results_]
        start: list[SSAValue] = [self.value(v) for v in op.init]
        combines: list[Callable[[Emit, Slots, Slots], list[SSAValue]]] = []
        for name, slots in slot_groups(op):
            combiner = COMBINERS[name]
            rising = combiner.extend is not None and self.index_rises(op, op.yielded.values[slots][1])
            combines.append(combiner.extend if combiner.extend is not None and rising else combiner.combine)
            if not op.init:
                start += self.identity(name, kinds[slots], rising)

        def body(carried: Carried) -> Carried:
            self.lower_body(op)
            results: list[SSAValue] = []
            for combine, (_, slots) in zip(combines, slot_groups(op), strict=True):
                new = [self.value(v) for v in op.yielded.values[slots]]
                results += combine(self.builder.emit, carried[slots], new)
            mask = self.optional(op.mask)
            if mask is None:
                return results
            return [self.builder.emit(SelectOp.get(mask, r, c)) for r, c in zip(results, carried, strict=True)]

        return self.lower_loops(op, 0, start, body)

    def identity(self, name: str, kinds: Sequence[Attribute], rising: bool) -> list[SSAValue]:
        """Return the neutral values of a combiner; with `rising`, index zero, which then is the first, is neutral too."""
        constants = list(COMBINERS[name].identity([element_type(k) for k in kinds]))
        if rising:
            constants[1] = IntegerAttr(0, element_type(kinds[1]))
        values = [self.builder.constant(c) for c in constants]
        return [
            self.builder.broadcast(v, k.get_shape()[0]) if isinstance(k, VectorType) else v
            for v, k in zip(values, kinds, strict=True)
        ]

    def index_rises(self, op: ReduceOp, index: SSAValue) -> bool:
        """Whether `index` grows from each iteration of a reduction to the next, from zero if nothing came before."""
        dims = self.space.loops(op)
        if len(dims) != 1 or not isinstance(index.owner, CastOp) or not is_index(index.owner.input):
            return False
        loop_index = self.space.expr(op.indices[0])
        expr = self.space.expr(index.owner.input)
        by = stride(expr, loop_index)
        if by is None or not by.is_Integer or by <= 0:
            return False
        return bool(op.init) or expr.xreplace({loop_index: dims[0].lower}) == 0

    def lower_combine(self, op: CombineOp) -> Carried:
        vectors = [self.value(v) for v in op.inputs]
        name = op.combiner.data
        if len(vectors) == 1:
            return [self.builder.emit(cpu.ReduceOp.get(name, vectors[0]))]
        kind = vectors[0].type
        assert isinstance(kind, VectorType)
        lanes = [[self.builder.emit(cpu.ExtractOp.get(v, i)) for v in vectors] for i in range(kind.get_shape()[0])]
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [COMBINERS[name].combine(self.builder.emit, lanes[i], lanes[i + half]) for i in range(half)]
        return lanes[0]
