"""Turn the body of one loop kernel into structured CPU operations; see `passes/convert_loop_to_cpu.py`."""

from __future__ import annotations

from xdsl.dialects import arith, func, scf, vector
from xdsl.dialects.builtin import FunctionType, IntegerAttr, i1, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects import cpu
from tilewright.dialects.access import is_index
from tilewright.dialects.cpu_errors import ERRORS
from tilewright.dialects.cpu_random import RandomOp as RandomRunOp
from tilewright.dialects.cpu_random import run_multiple
from tilewright.dialects.loop import (
    ApplyOp,
    CheckOp,
    CmpOp,
    CombineOp,
    ForOp,
    KernelOp,
    LoadOp,
    Loop,
    NestOp,
    PrefixOp,
    RandomOp,
    ReduceOp,
    ScanOp,
    StoreOp,
    YieldOp,
)
from tilewright.dialects.sym_expr import Expr
from tilewright.dialects.type_guards import is_float_constant, is_integer_constant, is_vector
from tilewright.passes.analysis.index_space import IndexSpace
from tilewright.passes.analysis.legality import is_in_scan
from tilewright.passes.lowering_cpu.address import AddressBuilder, Lanes
from tilewright.passes.lowering_cpu.builder import INDEX, ScopedBuilder
from tilewright.passes.lowering_cpu.checks import CheckBuilder
from tilewright.passes.lowering_cpu.cost import CostModel
from tilewright.passes.lowering_cpu.loops import Body, Carried, LoopBuilder
from tilewright.passes.lowering_cpu.packing import Packed, PackingBuilder
from tilewright.passes.lowering_cpu.reductions import ReductionBuilder
from tilewright.passes.lowering_cpu.scans import ScanBuilder
from tilewright.passes.lowering_cpu.scattered_rows import OwnRows, ScatteredRows, scattered_rows

PARALLEL = "parallel"
"""Marks a loop inside a nest whose iterations threads are meant to share; see `passes/loop_tile.py`."""


class KernelLowering:
    """Builds the function of one kernel."""

    def __init__(self, kernel: KernelOp, grain_cycles: int):
        self.kernel = kernel
        self.grain_cycles = grain_cycles
        self.space = IndexSpace()
        # Rather long than short: a thread woken for little costs less than one that sleeps while there is much to do.
        self.cost = CostModel(self.space, unknown=512)
        kinds = [*(b.type for b in kernel.buffers), *(i64 for _ in kernel.symbols)]
        self.block = Block(arg_types=kinds)
        self.builder = ScopedBuilder(self.block)
        buffers = len(kernel.buffers)
        self.sizes = dict(zip(kernel.symbol_names, self.block.args[buffers:], strict=True))
        self.address = AddressBuilder(self.space, self.builder, self.size)
        self.values: dict[SSAValue, SSAValue] = {}
        self.loops = LoopBuilder(self.address, self.values.__setitem__)
        self.reductions = ReductionBuilder(self.loops, self.address, self.value, self.lower_body)
        self.scans = ScanBuilder(self.loops, self.address, self.lower_body)
        self.packing = PackingBuilder(self.loops, self.address)
        self.packed: dict[Operation, Packed] = {}
        """The loads that take their elements from a copy."""
        self.checks = CheckBuilder(kernel, self.builder)
        self.rows: OwnRows | None = None
        """In a scan that threads share by the rows that it writes, what is this thread's."""
        self.shared = False
        """Whether what is being built runs in several threads already."""
        for old, new in zip(kernel.buffers, self.block.args[:buffers], strict=True):
            new.name_hint = old.name_hint
            self.values[old] = new
        for name, argument in self.sizes.items():
            argument.name_hint = name

    def lower(self) -> func.FuncOp:
        """Return the function."""
        self.checks.begin()
        for op in self.kernel.block.ops:
            if isinstance(op, NestOp):
                self.lower_nest(op)
            else:
                self.lower_op(op)
        self.checks.end()
        kind = FunctionType.from_lists([a.type for a in self.block.args], self.checks.result_types)
        function = func.FuncOp(self.kernel.sym_name.data, kind, Region(self.block))
        function.attributes.update(self.kernel.attributes)
        if self.checks.errors.data:
            function.attributes[ERRORS] = self.checks.errors
        return function

    def size(self, name: str) -> SSAValue:
        argument = self.sizes[name]
        return self.builder.hoisted("size", (argument,), lambda: arith.IndexCastOp(argument, INDEX))

    def lower_nest(self, nest: NestOp) -> None:
        """Run the iterations of a nest, by several threads if it has several and there is enough to do."""
        total = self.loops.total(nest)
        cycles = self.cost.cost_of_body(nest.block)
        rows = scattered_rows(self.space, nest) if total == 1 and cycles > self.grain_cycles else None
        if rows is not None:
            self.share_rows(nest, rows, cycles)
        elif total.is_Integer and (total <= 1 or int(total) * cycles <= self.grain_cycles or _shares_inside(nest)):
            self.loops.serial(nest, (), self.once(nest))
        else:
            self.share(nest, total, cycles)

    def share(self, op: Loop, total: Expr, cycles: float) -> None:
        """Run the iterations of a parallel loop by several threads, none with too little to do."""

        def chunk(begin: SSAValue, end: SSAValue) -> None:
            self.loops.part(op, begin, end, (), self.once(op))

        self.shared = True
        self.loops.parallel(self.address.scalar(total), self.grain(cycles), chunk)
        self.shared = False

    def share_rows(self, nest: NestOp, rows: ScatteredRows, cycles: float) -> None:
        """Let several threads do the scan that `nest` is, each writing only the rows of its own."""
        count = rows.count

        def chunk(begin: SSAValue, end: SSAValue) -> None:
            self.rows = OwnRows(rows, begin, end)
            self.loops.serial(nest, (), self.once(nest))
            self.rows = None

        parts = max(1, int(cycles // self.grain_cycles))
        grain = max(1, -(-int(count) // parts)) if count.is_Integer else 1
        self.shared = True
        self.loops.parallel(self.address.scalar(count), grain, chunk)
        self.shared = False

    def lower_own(self, op: ForOp | StoreOp, rows: OwnRows) -> None:
        """Do `op` if the row that it writes is one of the thread's own."""
        row, emit = self.value(rows.rows.row), self.builder.emit
        below, above = emit(CmpOp.get("ge", row, rows.begin)), emit(CmpOp.get("lt", row, rows.end))
        own = emit(arith.AndIOp(below, above))
        block = Block()
        self.builder.push(block)
        if isinstance(op, ForOp):
            self.lower_for(op)
        else:
            self.lower_store(op)
        self.builder.append(scf.YieldOp())
        self.builder.pop()
        self.builder.append(scf.IfOp(own, [], Region(block)))

    def grain(self, cycles: float) -> int:
        """Return how many iterations of so many cycles are worth a thread."""
        return max(1, round(self.grain_cycles / cycles))

    def lower_for(self, op: ForOp) -> None:
        for load in op.block.ops:
            packed = self.packing.pack(op, load, self.value(load.source)) if isinstance(load, LoadOp) else None
            if packed is not None:
                self.packed[load] = packed
        if self.shared or PARALLEL not in op.attributes:
            self.loops.serial(op, (), self.once(op))
        else:
            self.share(op, self.loops.total(op), self.cost.cost_of_body(op.block))

    def lower_reduce(self, op: ReduceOp) -> Carried:
        if self.shared or PARALLEL not in op.attributes:
            return self.reductions.serial(op)
        self.shared = True
        results = self.reductions.parallel(op, self.grain(self.cost.cost_of_body(op.block)))
        self.shared = False
        return results

    def lower_body(self, op: Loop) -> None:
        """Build the operations in the body of `op`."""
        for inner in op.block.ops:
            self.lower_op(inner)

    def once(self, op: Loop) -> Body:
        """Return how to build an iteration of a loop that carries nothing."""

        def body(carried: Carried) -> Carried:
            self.lower_body(op)
            return carried

        return body

    def lower_op(self, op: Operation) -> None:
        results: Carried = ()
        match op:
            case ApplyOp() | YieldOp():
                # An index expression is evaluated where it is used.
                return
            case ForOp() | StoreOp() if self.rows is not None and op.parent_op() is self.rows.rows.scan:
                self.lower_own(op, self.rows)
            case ForOp():
                self.lower_for(op)
            case ReduceOp():
                results = self.lower_reduce(op)
            case ScanOp():
                self.scans.scan(op)
            case PrefixOp():
                results = self.scans.prefix(op, [self.value(v) for v in op.inputs])
            case LoadOp():
                results = [self.lower_load(op)]
            case StoreOp():
                self.lower_store(op)
            case CombineOp():
                results = self.reductions.combine(op)
            case CheckOp():
                results = [self.checks.lower(op, self.value(op.condition), self.value(op.value))]
            case CmpOp() if (mask := self.lane_bound(op)) is not None:
                results = [mask]
            case RandomOp() if (first := self.first_element(op)) is not None:
                run = RandomRunOp.get(
                    op.distribution.data, self.value(op.seed), self.value(op.stream), first, op.result.type
                )
                results = [self.builder.emit(run)]
            case arith.ConstantOp():
                results = [self.constant(op)]
            case vector.BroadcastOp():
                kind = op.vector.type
                assert is_vector(kind)
                results = [self.builder.broadcast(self.value(op.source), kind.get_shape()[0])]
            case _:
                results = self.builder.append(self.copy(op))
        for old, new in zip(op.results, results, strict=True):
            new.name_hint = new.name_hint or old.name_hint
            self.values[old] = new
            if is_index(old):
                self.address.values[old] = new

    def constant(self, op: arith.ConstantOp) -> SSAValue:
        attribute = op.value
        if is_float_constant(attribute) or is_integer_constant(attribute):
            return self.builder.constant(attribute)
        raise PassFailedException(f"`arith.constant` of {op.result.type} has no lowering, expected a scalar")

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

    def lane_bound(self, op: CmpOp) -> SSAValue | None:
        """Return the mask of lanes before or after a point, if that is what a comparison of indices gives."""
        bound = op.rhs.owner
        if op.unsigned is not None or not is_index(op.lhs) or not isinstance(bound, vector.BroadcastOp):
            return None
        moving = self.address.values.get(op.lhs) or self.address.evaluate(self.space.expr(op.lhs))
        below, strict = op.predicate.data in ("lt", "le"), op.predicate.data in ("lt", "ge")
        if not isinstance(moving, Lanes) or moving.stride != 1 or op.predicate.data in ("eq", "ne"):
            return None
        end, count = self.value(bound.source), moving.count
        if not strict:
            end = self.builder.binary(arith.AddiOp, end, self.builder.constant(1))
        mask = self.builder.emit(cpu.TailMaskOp.get(moving.base, end, count))
        if below:
            return mask
        true = self.builder.broadcast(self.builder.constant(IntegerAttr(1, i1)), count)
        return self.builder.emit(arith.XOrIOp(mask, true))

    def first_element(self, op: RandomOp) -> SSAValue | None:
        """Return the element of the first lane where those of the lanes are in a row, in whole blocks."""
        if not is_vector(op.result.type) or op.result.type.get_shape()[0] % run_multiple(op.distribution.data):
            return None
        element = self.address.values.get(op.element) or self.address.evaluate(self.space.expr(op.element))
        return element.base if isinstance(element, Lanes) and element.stride == 1 else None

    def optional(self, old: SSAValue | None) -> SSAValue | None:
        return None if old is None else self.value(old)

    def lower_load(self, op: LoadOp) -> SSAValue:
        kind, mask, otherwise = op.result.type, self.optional(op.mask), self.optional(op.otherwise)
        packed = self.packed.get(op)
        if packed is not None:
            place = self.address.evaluate(packed.place())
            assert isinstance(place, Lanes)
            return self.builder.emit(cpu.LoadOp.get(packed.buffer, place.base, kind, mask=mask, otherwise=otherwise))
        apart, offset = self.offset(op, kind)
        access = cpu.GatherOp if apart else cpu.LoadOp
        return self.builder.emit(access.get(self.value(op.source), offset, kind, mask=mask, otherwise=otherwise))

    def lower_store(self, op: StoreOp) -> None:
        value, mask = self.value(op.value), self.optional(op.mask)
        scattered, offset = self.offset(op, value.type)
        target = self.value(op.target)
        combine = None if op.combine is None else op.combine.data
        if combine is not None and is_in_scan(op):
            self.scans.combining_store(combine, value, target, offset, mask, apart=scattered)
            return
        access = cpu.ScatterOp if scattered else cpu.StoreOp
        self.builder.append(access.get(value, target, offset, mask=mask, combine=combine))

    def offset(self, op: LoadOp | StoreOp, kind: Attribute) -> tuple[bool, SSAValue]:
        """Return whether the elements of an access lie apart, and the offset of the first or of each."""
        (expr,) = self.space.access(op.access, op.indices)
        index = self.address.evaluate(expr)
        if not is_vector(kind):
            return False, self.address.materialize(index)
        if isinstance(index, Lanes) and index.stride == 1:
            return False, index.base
        offsets = self.address.materialize(index)
        if not is_vector(offsets.type):
            offsets = self.builder.broadcast(offsets, kind.get_shape()[0])
        return True, offsets


def _shares_inside(nest: NestOp) -> bool:
    return any(PARALLEL in op.attributes for op in nest.walk())
