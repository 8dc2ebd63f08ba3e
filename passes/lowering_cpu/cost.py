"""A model of what loops cost on a CPU core, in cycles, and the choice of the loops that become lanes.

The figures are rough ones for a core with 512-bit vectors; only their proportions matter. A size that is not known is
taken as `UNKNOWN_TRIPS`. Reading the costs: for each loop nest the model compares running it element by element,
giving lanes to one of its own loops, and giving lanes to loops further inside, and takes the cheapest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from xdsl.dialects.builtin import AnyFloat, IndexType
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.traits import ConstantLike

from tilewright.dialects.combiners import COMBINERS, element_type
from tilewright.dialects.loop import (
    ApplyOp,
    ForOp,
    LoadOp,
    Loop,
    LoopDim,
    NestOp,
    RandomOp,
    ReduceOp,
    StoreOp,
    YieldOp,
)
from tilewright.dialects.sym_expr import Expr, Symbol
from tilewright.dialects.type_guards import is_integer, is_vector
from tilewright.passes.analysis.heavy import is_heavy
from tilewright.passes.analysis.index_space import IndexSpace, stride
from tilewright.passes.analysis.legality import MIN_LANES, dependents, is_leaf, slot_groups, why_not

UNKNOWN_TRIPS = 128
"""How many iterations a loop with a symbolic extent is taken to have, where little is lost if it has more."""

_SLOW_ARITH = frozenset({"arith.divf", "math.sqrt", "math.rsqrt"})
_DIVISIONS = frozenset(
    {"arith.divsi", "arith.divui", "arith.remsi", "arith.remui", "arith.floordivsi", "arith.ceildivsi"}
)
_LOOP_OVERHEAD = 1.0


def takes_long(op: Operation) -> bool:
    """Whether `op` is a call of an elementary function or an integer division, which takes tens of cycles."""
    return op.name in _DIVISIONS or (is_heavy(op) and op.name not in _SLOW_ARITH)


def _scalar_cost(op: Operation) -> float:
    """Return what one element of `op` costs."""
    if isinstance(op, (ApplyOp, YieldOp)) or op.has_trait(ConstantLike):
        return 0.0
    if takes_long(op):
        return 15.0
    if op.name in _SLOW_ARITH:
        return 3.0
    return 1.0 if isinstance(op, StoreOp) else 0.5


def _vector_cost(op: Operation) -> float:
    """Return what a register full of elements of `op` costs, other than a load or store."""
    if isinstance(op, (ApplyOp, YieldOp)) or op.has_trait(ConstantLike):
        return 0.0
    if takes_long(op):
        return 20.0
    return 10.0 if op.name in _SLOW_ARITH else 0.5


def _width(kind: Attribute) -> int:
    """Return the bytes of an element in a register; a buffer has none there."""
    element = element_type(kind)
    if isinstance(element, IndexType):
        return 8
    if is_integer(element):
        return max(1, element.width.data // 8)
    return element.bitwidth // 8 if isinstance(element, AnyFloat) else 0


@dataclass(frozen=True)
class Choice:
    """A loop that is to run `lanes` iterations at a time."""

    loop: Loop
    position: int
    lanes: int


@dataclass(frozen=True)
class Plan:
    """What running a loop costs, with the loops inside it (or itself) that take lanes."""

    cycles: float
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class CostModel:
    """Costs of the loops of one kernel; `lanes` f32 fill a vector register."""

    space: IndexSpace
    lanes: int = 16
    unroll: int = 4
    """By how much cheap loops may exceed one register per value."""
    unknown: int = UNKNOWN_TRIPS
    """How many iterations a loop whose extent depends on sizes is taken to have."""
    _plans: dict[Loop, Plan] = field(default_factory=dict[Loop, "Plan"])

    def trips(self, this: LoopDim) -> int:
        """Return how many iterations a loop has, or is taken to have. The bounds are over the space."""
        most = self.space.largest_extent(this)
        return max(1, -(-(self.unknown if most is None else most) // this.step))

    def all_trips(self, loop: Loop) -> int:
        """Return the number of iterations of all loops of `loop` together."""
        count = 1
        for this in self.space.loops(loop):
            count *= self.trips(this)
        return count

    def best(self, loop: Loop) -> Plan:
        """Return the cheapest way to run `loop` once."""
        plan = self._plans.get(loop)
        if plan is None:
            plans = [self._element_by_element(loop), *(self._widened(loop, i) for i in range(len(loop.loops.dims)))]
            plan = self._plans[loop] = min((p for p in plans if p is not None), key=lambda p: p.cycles)
        return plan

    def _element_by_element(self, loop: Loop) -> Plan:
        """Return the plan that gives no lanes to the loops of `loop` itself."""
        cycles, choices = _LOOP_OVERHEAD, list[Choice]()
        for op in loop.block.ops:
            if isinstance(op, Loop):
                inner = self.best(op)
                cycles += inner.cycles
                choices += inner.choices
            else:
                cycles += self.cost_as_typed(op)
        return Plan(cycles * self.all_trips(loop), tuple(choices))

    def _widened(self, loop: Loop, position: int) -> Plan | None:
        found = dependents(loop, position)
        if why_not(loop, position, found) is not None:
            return None
        dims = self.space.loops(loop)
        index = self.space.symbol(loop.indices[position])
        lanes = self._lane_count(loop, dims[position], found, index)
        if lanes is None:
            return None
        trips = -(-self.trips(dims[position]) // lanes)
        for i, d in enumerate(dims):
            trips *= 1 if i == position else self.trips(d)
        cycles = trips * (_LOOP_OVERHEAD + self._block_cost(loop.block, found, index, lanes))
        if isinstance(loop, ReduceOp):
            cycles += sum(8.0 if COMBINERS[n].arity == 1 else 4.0 * lanes for n in loop.names)
        return Plan(cycles, (Choice(loop, position, lanes),))

    def _block_cost(self, block: Block, found: AbstractSet[SSAValue], index: Symbol, lanes: int) -> float:
        total = 0.0
        for op in block.ops:
            if isinstance(op, Loop):
                inner = _LOOP_OVERHEAD + self._block_cost(op.block, found, index, lanes)
                total += self.all_trips(op) * inner
            elif not any(v in found for v in (*op.operands, *op.results)):
                total += _scalar_cost(op)
            elif isinstance(op, (LoadOp, StoreOp)):
                total += self._access_cost(op, found, index, lanes)
            else:
                total += _vector_cost(op) * self._registers(op, lanes)
        return total

    def _registers(self, op: Operation, lanes: int) -> float:
        """Return how many registers `op` on `lanes` elements takes."""
        width = max((_width(v.type) for v in (*op.operands, *op.results)), default=4)
        return max(1.0, lanes * width / (4 * self.lanes))

    def _access_cost(self, op: LoadOp | StoreOp, found: AbstractSet[SSAValue], index: Symbol, lanes: int) -> float:
        """Return what an access of `lanes` elements costs."""
        kind = access_kind(self.space, op, found, index)
        if kind == 0:
            return 0.5
        if kind == 1:
            return (1.5 if isinstance(op, StoreOp) else 1.0) * self._registers(op, lanes)
        if isinstance(op, StoreOp):
            return (3.0 if op.combine is None else 5.0) * lanes
        return (0.8 if self._lies_across(op) else 2.0) * lanes

    def _lies_across(self, op: LoadOp) -> bool:
        """Whether the elements of a load are side by side along another loop of the operation that it is in."""
        around = op.parent_op()
        if not isinstance(around, (NestOp, ForOp)):
            return False
        (expr,) = self.space.access(op.access, op.indices)
        return any(stride(expr, self.space.symbol(i)) == 1 for i in around.indices)

    def cost_as_typed(self, op: Operation) -> float:
        """Return what `op` costs with the types that it has."""
        if isinstance(op, Loop):
            return self.all_trips(op) * self.cost_of_body(op.block)
        vector = next((v.type for v in (*op.results, *op.operands) if is_vector(v.type)), None)
        if vector is None:
            return _scalar_cost(op)
        lanes = vector.get_shape()[0]
        if isinstance(op, (LoadOp, StoreOp)):
            return 1.5 * self._registers(op, lanes)
        return _vector_cost(op) * self._registers(op, lanes)

    def cost_of_body(self, block: Block) -> float:
        """Return what one iteration of a loop costs with the types that it has."""
        return _LOOP_OVERHEAD + sum(self.cost_as_typed(op) for op in block.ops)

    def _is_gather(self, op: Operation, found: AbstractSet[SSAValue], index: Symbol) -> bool:
        return isinstance(op, (LoadOp, StoreOp)) and access_kind(self.space, op, found, index) is None

    def _lane_count(self, loop: Loop, this: LoopDim, found: AbstractSet[SSAValue], index: Symbol) -> int | None:
        """Return how many lanes suit a loop, None if it is too short for any."""
        inside = [op for op in loop.block.walk() if any(v in found for v in (*op.operands, *op.results))]
        results = [v.type for op in inside for v in op.results if v in found]
        width = max((_width(t) for t in results if not _is_index_or_bool(t)), default=4)
        register = min(max(self.lanes * 4 // width, self.lanes // 2), 4 * self.lanes)
        reductions = [op for op in (loop, *inside) if isinstance(op, ReduceOp)]
        if any(COMBINERS[name].arity > 1 for op in reductions for name, _ in slot_groups(op)):
            register, factor = self.lanes, 1
        elif any(isinstance(op, RandomOp) for op in inside):
            # An evaluation of the generator gives four numbers, of 32 bits in lanes of 64.
            factor = 4 if not any(takes_long(op) and not isinstance(op, RandomOp) for op in inside) else 2
        elif any(takes_long(op) or self._is_gather(op, found, index) for op in inside):
            factor = 1
        else:
            most = _largest_leaf(loop, inside)
            factor = self.unroll if most <= 8 else 2 if most <= 16 else 1
        lanes = min(register * factor, 4 * self.lanes)
        return _fit(lanes, register, self.space.simplify(this.upper - this.lower))


def _largest_leaf(loop: Loop, inside: Sequence[Operation]) -> int:
    """Return how many of the operations `inside` a loop are together in one innermost loop, where the time goes.

    A reduction over columns has few there and keeps a sum in few registers, whatever is computed of the sums.
    """
    counts = Counter(op.parent for op in inside)
    leaves = [op.block for op in loop.walk() if isinstance(op, Loop) and is_leaf(op)]
    return max((counts[block] for block in leaves), default=len(inside))


def _fit(lanes: int, smallest: int, extent: Expr) -> int | None:
    """Reduce `lanes` to what a loop over `extent` elements has use for."""
    if not extent.is_Integer:
        return lanes
    length = int(extent)
    if length < MIN_LANES:
        return None
    while lanes // 2 >= length:
        lanes //= 2
    while lanes > smallest and length % lanes and length < 4 * lanes:
        lanes //= 2
    return lanes


def _is_index_or_bool(kind: Attribute) -> bool:
    element = element_type(kind)
    return isinstance(element, IndexType) or (is_integer(element) and element.width.data == 1)


def access_kind(space: IndexSpace, op: LoadOp | StoreOp, found: AbstractSet[SSAValue], index: Symbol) -> int | None:
    """Return how an access moves from lane to lane: 0 not at all, 1 to the next element, None otherwise."""
    moving = [v for v in op.indices if v in found]
    if not moving:
        return 0
    (expr,) = space.access(op.access, op.indices)
    by = stride(expr, index)
    others = (space.value(s) for s in expr.free_symbols if s != index)
    if by is None or any(v in found for v in others if v is not None):
        return None
    return int(by) if by in (0, 1) else None
