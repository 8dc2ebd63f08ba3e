"""Turn the body of one loop kernel into a function of Triton IR; see `passes/convert_loop_to_tt.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, IntegerType, StringAttr, i32, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects import tt
from tilewright.dialects.access import is_index
from tilewright.dialects.loop import (
    ApplyOp,
    CastOp,
    CheckOp,
    CmpOp,
    ForOp,
    IntrinsicOp,
    KernelOp,
    LoadOp,
    Loop,
    NestOp,
    PrefixOp,
    RandomOp,
    ReduceOp,
    ScanOp,
    SelectOp,
    StoreOp,
    YieldOp,
)
from tilewright.dialects.loop_kernel import DEVICE, RANGES
from tilewright.dialects.sym import ExprAttr
from tilewright.dialects.sym_expr import Expr, integer, symbol
from tilewright.dialects.type_guards import is_float_constant, is_integer_constant
from tilewright.passes.analysis.index_space import IndexSpace
from tilewright.passes.analysis.legality import is_in_scan
from tilewright.passes.lowering_tt.builder import TensorBuilder, element_of
from tilewright.passes.lowering_tt.combining import CombinerLowering
from tilewright.passes.lowering_tt.dependence import Dependence
from tilewright.passes.lowering_tt.divisors import DIVISOR, sizes_to_divide
from tilewright.passes.lowering_tt.index import IndexBuilder
from tilewright.passes.lowering_tt.loops import Carried, LoopBuilder
from tilewright.passes.lowering_tt.memory import MemoryBuilder, pointer_to
from tilewright.passes.lowering_tt.random import RandomBuilder
from tilewright.passes.lowering_tt.reductions import ReductionBuilder
from tilewright.passes.lowering_tt.scalars import ScalarLowering
from tilewright.passes.lowering_tt.scans import ScanBuilder
from tilewright.passes.lowering_tt.scope import Scope

_ALIGNMENT: dict[str, Attribute] = {"tt.divisibility": IntegerAttr(DIVISOR, i32)}
_DEFAULTS = {"num_warps": IntegerAttr(4, i32), "num_stages": IntegerAttr(1, i32)}
_CANONICAL = re.compile(r"[a-z]?[0-9]*")
_TYPE_OF_ARITH = re.compile(r"(?<=[a-z]{2})[fi]$|(?<=max)[su]i$|(?<=min)[su]i$")


class KernelLowering:
    """Builds the function of one kernel."""

    def __init__(self, kernel: KernelOp, space: IndexSpace, kind: IntegerType):
        """`kind` is the type of indices."""
        self.kernel = kernel
        pointers = [pointer_to(b) for b in kernel.buffers]
        sizes = [i64 for _ in kernel.symbols]
        even = sizes_to_divide(kernel, space)
        self.function = tt.FuncOp.get(
            kernel.sym_name.data,
            [*pointers, *sizes],
            argument_attributes=[
                *(_ALIGNMENT for _ in pointers),
                *(_ALIGNMENT if name in even else {} for name in kernel.symbol_names),
            ],
        )
        self.builder = TensorBuilder(self.function.block)
        self.index = IndexBuilder(space, self.builder, kind)
        self.values: dict[SSAValue, SSAValue] = {}
        dependence = Dependence(kernel)
        self.scope = Scope(self.builder, self.index, dependence)
        self.scalars = ScalarLowering(self.builder, kind)
        self.loops = LoopBuilder(self.builder, self.index)
        self.memory = MemoryBuilder(self.builder, self.index, self.scope)
        self.random = RandomBuilder(self.builder)
        combiners = CombinerLowering(self.builder, self.scalars)
        self.combiners = combiners
        self.reductions = ReductionBuilder(
            self.builder, self.loops, self.scope, self.memory, combiners, dependence, self.value, self.lower_op
        )
        self.scans = ScanBuilder(
            self.builder, self.loops, self.index, self.scope, self.memory, combiners, dependence, self.lower_op
        )
        for old, new in zip(kernel.buffers, self.function.args, strict=False):
            new.name_hint = old.name_hint
            self.memory.add_buffer(old, new)
        for name, new in zip(kernel.symbol_names, self.function.args[len(pointers) :], strict=True):
            new.name_hint = name
            self.index.add_size(symbol(name), self.index.convert(new))

    def lower(self) -> tt.FuncOp:
        """Return the function."""
        grid: Expr | None = None
        for op in self.kernel.block.ops:
            if not isinstance(op, NestOp):
                self.lower_op(op)
                continue
            if grid is not None:
                raise PassFailedException(f"kernel `{self.kernel.sym_name.data}` has several nests, expected one")
            grid = self.loops.grid(op)
            self.lower_body(op)
        self.builder.append(tt.ReturnOp.get())
        attributes: dict[str, Attribute] = {"grid": ExprAttr(integer(1) if grid is None else grid)}
        if self.kernel.symbols.data:
            attributes["symbols"] = ArrayAttr([StringAttr(s) for s in self.kernel.symbol_names])
        given = self.kernel.attributes
        attributes.update({name: given.get(name, value) for name, value in _DEFAULTS.items()})
        others = {name: value for name, value in given.items() if name not in (*attributes, DEVICE, RANGES)}
        self.function.attributes.update({**attributes, **others})
        return self.function

    def lower_body(self, op: Loop) -> None:
        """Build the operations in the body of `op`."""
        for inner in op.block.ops:
            self.lower_op(inner)

    def lower_for(self, op: ForOp) -> None:
        blocks = op.blocks
        if blocks is not None:
            with self.scope.axes(op, blocks):
                self.lower_body(op)
            return

        def body(carried: Carried) -> Carried:
            self.lower_body(op)
            return carried

        with self.memory.iterations(op, in_order=False):
            self.loops.serial(op, (), body)

    def lower_op(self, op: Operation) -> None:
        if isinstance(op, Loop) and op.lanes is not None:
            raise PassFailedException(f"`{op.name}` has lanes, expected `blocks` on this target")
        results: Sequence[SSAValue] = ()
        match op:
            case ApplyOp() | YieldOp():
                # An index expression is evaluated where it is used.
                return
            case ForOp():
                self.lower_for(op)
            case ReduceOp():
                results = self.reductions.lower(op)
            case ScanOp():
                self.scans.scan(op)
            case PrefixOp():
                results = self.scans.prefix(op, [self.value(v) for v in op.inputs])
            case LoadOp():
                results = [self.memory.load(op, self.optional(op.mask), self.optional(op.otherwise))]
            case StoreOp():
                self.lower_store(op)
            case CheckOp():
                results = [self.lower_check(op)]
            case RandomOp():
                results = [self.random.lower(op, self.value(op.seed), self.value(op.stream), self.value(op.element))]
            case arith.ConstantOp():
                results = [self.constant(op)]
            case _:
                results = [self.scalar(op)]
        for old, new in zip(op.results, results, strict=True):
            if not isinstance(op, (LoadOp, arith.ConstantOp)) or not _CANONICAL.fullmatch(old.name_hint or ""):
                new.name_hint = _name(op, old, new)
            self.values[old] = new
            if is_index(old):
                self.index.define_value(old, new)

    def scalar(self, op: Operation) -> SSAValue:
        if op.regions or len(op.results) != 1:
            raise PassFailedException(f"`{op.name}` inside a loop kernel has no lowering to `tt`")
        return self.scalars.lower(op, [self.value(v) for v in op.operands])

    def constant(self, op: arith.ConstantOp) -> SSAValue:
        attribute = op.value
        if is_float_constant(attribute) or is_integer_constant(attribute):
            if is_index(op.result):
                return self.index.constant(attribute.value.data)  # pyright: ignore[reportArgumentType]
            return self.builder.constant(attribute)
        raise PassFailedException(f"`arith.constant` of {op.result.type} has no lowering, expected a scalar")

    def value(self, old: SSAValue) -> SSAValue:
        """Return what a value of the kernel has become."""
        if old in self.values:
            return self.values[old]
        return self.index.value(self.index.over_parts(self.index.space.expr(old)))

    def optional(self, old: SSAValue | None) -> SSAValue | None:
        return None if old is None else self.value(old)

    def lower_store(self, op: StoreOp) -> None:
        value, mask = self.value(op.value), self.optional(op.mask)
        if op.combine is None:
            self.memory.store(op, value, mask)
        elif is_in_scan(op):
            self.memory.store(op, self.combined(op, value, mask), mask)
        else:
            self.memory.combine(op, value, mask)

    def combined(self, op: StoreOp, value: SSAValue, mask: SSAValue | None) -> SSAValue:
        """Return `value` combined with what is where it goes: in a scan, stores take turns."""
        assert op.combine is not None
        load = LoadOp.get(op.target, op.access.exprs, op.indices)
        old = self.memory.load(load, self.builder.both(self.scope.mask(), mask), None)
        load.erase()
        return self.combiners.combine(op.combine.data, [old], [value])[0]

    def lower_check(self, op: CheckOp) -> SSAValue:
        """End the program unless the condition holds at the points that are there; give zero where it does not."""
        b = self.builder
        condition, value = self.value(op.condition), self.value(op.value)
        present, holds = self.scope.mask_of(op.operands), condition
        if present is not None:
            holds = b.apply(arith.OrIOp, condition, b.apply(arith.XOrIOp, present, b.true()))
        b.append(tt.AssertOp.get(holds, op.error.data))
        return b.select(condition, value, b.number(0, element_of(value)))


def _name(op: Operation, old: SSAValue, new: SSAValue) -> str | None:
    """Return what to call the result of an operation: its own name, or what the operation does."""
    if old.name_hint is not None and not _CANONICAL.fullmatch(old.name_hint):
        return old.name_hint
    match op:
        case ReduceOp():
            return op.names[0] if len(op.names) == len(op.results_) == 1 else new.name_hint
        case PrefixOp():
            return f"running_{op.combiner.data}"
        case CastOp() | CheckOp():
            return new.name_hint
        case CmpOp():
            return op.predicate.data
        case IntrinsicOp():
            return op.function.data
        case SelectOp():
            return "where"
        case RandomOp():
            return op.distribution.data
        case _:
            return _TYPE_OF_ARITH.sub("", op.name.rpartition(".")[2])
