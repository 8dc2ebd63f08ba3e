"""Emit index arithmetic where it belongs: in the outermost block that has its operands, and once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import arith, vector
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, VectorType
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.dialects import cpu

INDEX = IndexType()


@dataclass
class _Scope:
    block: Block
    floor: int
    known: dict[Hashable, SSAValue] = field(default_factory=dict[Hashable, SSAValue])


class ScopedBuilder:
    """Builds nested blocks, innermost at the end of `scopes`.

    A block's operation (a loop) is added to the block around it only once the block is complete. So what is appended
    to an outer block meanwhile comes before the loop, and is computed once instead of once per iteration. Nothing
    moves out of the `floor` scope, the body of a parallel region.
    """

    def __init__(self, block: Block):
        self._scopes = [_Scope(block, 0)]
        self._depth: dict[SSAValue, int] = dict.fromkeys(block.args, 0)
        self._properties: dict[type[Operation], dict[str, Attribute]] = {}

    def push(self, block: Block, *, floor: bool = False) -> None:
        """Start building `block`, inside the one that was built so far; with `floor`, nothing moves out of it."""
        position = len(self._scopes)
        self._scopes.append(_Scope(block, position if floor else self._floor))
        for argument in block.args:
            self._depth[argument] = position

    def pop(self) -> None:
        """Go back to the block around."""
        self._scopes.pop()

    @property
    def _floor(self) -> int:
        return self._scopes[-1].floor

    def depth(self, value: SSAValue) -> int:
        """Return how many blocks are around `value`."""
        return max(self._depth.get(value, 0), self._floor)

    def append(self, op: Operation) -> Sequence[SSAValue]:
        """Add `op` to the innermost block and return its results."""
        self._scopes[-1].block.add_op(op)
        for result in op.results:
            self._depth[result] = len(self._scopes) - 1
        return op.results

    def emit(self, op: Operation) -> SSAValue:
        """Add `op` to the innermost block and return its result."""
        return self.append(op)[0]

    def hoisted(self, key: Hashable, operands: Sequence[SSAValue], make: Callable[[], Operation]) -> SSAValue:
        """Return the result of a pure operation on `operands`; `key` and they identify it."""
        depth = max((self.depth(v) for v in operands), default=self._floor)
        scope = self._scopes[depth]
        full_key = (key, *operands)
        found = scope.known.get(full_key)
        if found is None:
            op = make()
            scope.block.add_op(op)
            found = scope.known[full_key] = op.results[0]
            self._depth[found] = depth
        return found

    def on_entry(self, key: Hashable, make: Callable[[], Operation]) -> SSAValue:
        """Return the result of an operation that runs once, at the start of the function or of a thread's share."""
        scope = self._scopes[self._floor]
        if key not in scope.known:
            op, first = make(), scope.block.first_op
            if first is None:
                scope.block.add_op(op)
            else:
                scope.block.insert_op_before(op, first)
            scope.known[key] = op.results[0]
            self._depth[op.results[0]] = self._floor
        return scope.known[key]

    def is_constant(self, value: SSAValue) -> bool:
        """Whether `value` is a constant, which has one name wherever it is used."""
        return isinstance(value.owner, arith.ConstantOp)

    def is_zero(self, value: SSAValue) -> bool:
        """Whether `value` is the constant index zero."""
        return isinstance(value.owner, arith.ConstantOp) and value.owner.value == IntegerAttr(0, INDEX)

    def constant(self, value: int | FloatAttr | IntegerAttr) -> SSAValue:
        """Return a constant; an int is an index."""
        attribute = IntegerAttr(value, INDEX) if isinstance(value, int) else value
        return self.hoisted(("constant", attribute), (), lambda: arith.ConstantOp(attribute))

    def broadcast(self, value: SSAValue, lanes: int) -> SSAValue:
        """Return a vector with `value` in all lanes."""
        kind = VectorType(value.type, [lanes])
        return self.hoisted(("broadcast", lanes), (value,), lambda: vector.BroadcastOp(value, kind))

    def step(self, lanes: int) -> SSAValue:
        """Return the numbers of the lanes."""
        return self.hoisted(("step", lanes), (), lambda: cpu.StepOp.get(lanes))

    def binary(self, kind: type[Operation], a: SSAValue, b: SSAValue) -> SSAValue:
        """Return the result of an `arith` operation on two indices, or vectors of them."""
        return self.hoisted(kind.name, (a, b), lambda: self._make_binary(kind, a, b))

    def _make_binary(self, kind: type[Operation], a: SSAValue, b: SSAValue) -> Operation:
        properties = self._properties.get(kind)
        if properties is None:
            op = kind(a, b)  # pyright: ignore[reportCallIssue]
            self._properties[kind] = op.properties
            return op
        # Several times as fast as the constructor, which works out all that is the same for each.
        return kind.create(operands=(a, b), result_types=(a.type,), properties=properties.copy())
