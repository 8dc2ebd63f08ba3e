"""Emit operations on scalars and blocks of them, each where it belongs and once.

A value is a scalar or a tensor whose dims are the axes around it, outermost first; along an axis that it does not
depend on its size is 1, and axes that are opened further inside are missing. `fit` makes of it a tensor of
any shape that it broadcasts to. Scalars stay scalars until an operation with a tensor needs them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IntegerAttr, TensorType, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import IRDLOperation

from tilewright.dialects import arith_tensor, tt
from tilewright.dialects.type_guards import is_integer, is_tensor

Shape = tuple[int, ...]
Properties = Mapping[str, Attribute]
_NONE: Properties = MappingProxyType({})


def shape_of(value: SSAValue) -> Shape:
    """Return the shape of a tensor, `()` of a scalar."""
    kind = value.type
    return kind.get_shape() if is_tensor(kind) else ()


def element_of(value: SSAValue) -> Attribute:
    """Return the type of one element of a value."""
    return arith_tensor.element_of(value.type)


def shaped(element: Attribute, shape: Shape) -> Attribute:
    """Return the type of a value of the given shape."""
    return TensorType(element, shape) if shape else element


@cache
def _defaults(kind: type[Operation]) -> Properties:
    """Return the properties that operations of a class have unless told otherwise: no flags."""
    if not issubclass(kind, IRDLOperation):
        return _NONE
    found = {name: p.default_value for name, p in kind.get_irdl_definition().properties.items()}
    return MappingProxyType({name: value for name, value in found.items() if value is not None})


@dataclass
class _Scope:
    block: Block
    floor: int = 0
    known: dict[Hashable, SSAValue] = field(default_factory=dict[Hashable, SSAValue])


class TensorBuilder:
    """Builds nested blocks, the innermost at the end of its scopes.

    A block's operation (a loop) is added to the block around it only once the block is complete. So what is appended
    to an outer block meanwhile comes before the loop, and is computed once instead of once per iteration.
    """

    def __init__(self, block: Block):
        self._scopes = [_Scope(block)]
        self._depth: dict[SSAValue, int] = dict.fromkeys(block.args, 0)
        self._places: list[int] = []

    def push(self, block: Block, *, closed: bool = False) -> None:
        """Start building `block`, inside the one that was built so far; with `closed`, nothing moves out of it."""
        self._scopes.append(_Scope(block, len(self._scopes) if closed else self._scopes[-1].floor))
        for argument in block.args:
            self._depth[argument] = len(self._scopes) - 1

    def pop(self) -> None:
        """Go back to the block around."""
        self._scopes.pop()

    def open_axis(self, place: int) -> None:
        """Let values have a dim more from here on, before dim `place` of those that there are."""
        self._places.append(place)

    def close_axis(self) -> None:
        """Do away with the dim that was opened last."""
        self._places.pop()

    def depth(self, value: SSAValue) -> int:
        """Return how many blocks are around `value`."""
        return self._depth.get(value, 0)

    def append(self, op: Operation) -> Sequence[SSAValue]:
        """Add `op` to the innermost block and return its results."""
        self._scopes[-1].block.add_op(op)
        for result in op.results:
            self._depth[result] = len(self._scopes) - 1
        return op.results

    def emit(self, op: Operation, hint: str | None = None) -> SSAValue:
        """Add `op` to the innermost block and return its result."""
        (result,) = self.append(op)
        result.name_hint = hint
        return result

    def shared(
        self,
        kind: type[Operation],
        operands: Sequence[SSAValue],
        result: Attribute,
        properties: Properties | None = None,
        hint: str | None = None,
    ) -> SSAValue:
        """Return the result of a pure operation in the outermost block that has its operands, where it is made once."""
        depth = max((self.depth(v) for v in operands), default=0)
        scope = self._scopes[max(depth, self._scopes[-1].floor)]
        if properties is None:
            properties = _defaults(kind)
        key = (kind, result, *properties.items(), *operands)
        found = scope.known.get(key)
        if found is None:
            op = kind.create(operands=operands, result_types=[result], properties=dict(properties))
            scope.block.add_op(op)
            found = scope.known[key] = op.results[0]
            self._depth[found] = max(depth, self._scopes[-1].floor)
            found.name_hint = hint
        return found

    def constant(self, attribute: FloatAttr | IntegerAttr) -> SSAValue:
        """Return a scalar constant."""
        return self.shared(arith.ConstantOp, (), attribute.type, {"value": attribute})

    def number(self, value: float, kind: Attribute) -> SSAValue:
        """Return a scalar constant of type `kind`."""
        if isinstance(kind, AnyFloat):
            return self.constant(FloatAttr(float(value), kind))
        assert is_integer(kind)
        return self.constant(IntegerAttr(int(value), kind, truncate_bits=True))

    def true(self) -> SSAValue:
        """Return the constant true."""
        return self.constant(IntegerAttr.from_bool(True))

    def insert_dim(self, value: SSAValue, axis: int, hint: str | None = None) -> SSAValue:
        """Return a tensor with one dim of size 1 more, at `axis`."""
        shape = shape_of(value)
        kind = shaped(element_of(value), (*shape[:axis], 1, *shape[axis:]))
        return self.shared(tt.ExpandDimsOp, [value], kind, {"axis": IntegerAttr(axis, i32)}, hint or value.name_hint)

    def fit(self, value: SSAValue, shape: Shape) -> SSAValue:
        """Return `value` as a tensor of a shape that it broadcasts to."""
        found = shape_of(value)
        if found == shape:
            return value
        kind = shaped(element_of(value), shape)
        if not found:
            return self.shared(tt.SplatOp, [value], kind, _NONE, value.name_hint)
        for place in self._places[len(found) : len(shape)]:
            value = self.insert_dim(value, place)
        if shape_of(value) == shape:
            return value
        return self.shared(tt.BroadcastOp, [value], kind, _NONE, value.name_hint)

    def scalar_of(self, value: SSAValue) -> SSAValue:
        """Return the only element of a tensor, or a scalar itself."""
        return self.emit(tt.UnsplatOp.get(value), value.name_hint) if shape_of(value) else value

    def common_shape(self, shapes: Iterable[Shape]) -> Shape:
        """Return the shape that values of these shapes broadcast to."""
        shapes = list(shapes)
        rank = max(map(len, shapes), default=0)
        found = [1] * rank
        for shape in filter(None, shapes):
            found = [max(pair) for pair in zip(found, self.lifted(shape, rank), strict=True)]
        return tuple(found)

    def lifted(self, shape: Shape, rank: int) -> Shape:
        """Return the shape of a tensor once it has `rank` dims."""
        sizes = list(shape)
        for place in self._places[len(shape) : rank]:
            sizes.insert(place, 1)
        return tuple(sizes)

    def fit_all(self, values: Sequence[SSAValue]) -> list[SSAValue]:
        """Return values as tensors of the shape that they all broadcast to, or as they are if they are scalars."""
        shape = self.common_shape(shape_of(v) for v in values)
        return [self.fit(v, shape) for v in values]

    def numbers(self, size: int, hint: str | None = None) -> SSAValue:
        """Return the numbers from 0 to `size` (exclusive), in i32 and of one dim."""
        properties = {"start": IntegerAttr(0, i32), "end": IntegerAttr(size, i32)}
        return self.shared(tt.MakeRangeOp, (), TensorType(i32, [size]), properties, hint)

    def along(self, value: SSAValue, axis: int, rank: int, hint: str | None = None) -> SSAValue:
        """Return a value of one dim as one of `rank` dims, all but `axis` of size 1."""
        for _ in range(axis):
            value = self.insert_dim(value, 0, hint)
        for place in range(axis + 1, rank):
            value = self.insert_dim(value, place, hint)
        return value

    def apply(
        self,
        kind: type[Operation],
        *operands: SSAValue,
        result: Attribute | None = None,
        properties: Properties | None = None,
        hint: str | None = None,
    ) -> SSAValue:
        """Add an elementwise operation here; the result has the element type `result`, or that of the last operand."""
        values = self.fit_all(operands)
        last = values[-1]
        kind_of_result = last.type if result is None else shaped(result, shape_of(last))
        given = dict(_defaults(kind) if properties is None else properties)
        op = kind.create(operands=values, result_types=[kind_of_result], properties=given)
        return self.emit(op, hint)

    def apply_shared(
        self, kind: type[Operation], *operands: SSAValue, result: Attribute | None = None, hint: str | None = None
    ) -> SSAValue:
        """Add an elementwise operation without properties where its operands are; see `shared`."""
        values = self.fit_all(operands)
        last = values[-1]
        return self.shared(kind, values, last.type if result is None else shaped(result, shape_of(last)), None, hint)

    def compare_integers(self, predicate: str, a: SSAValue, b: SSAValue, hint: str | None = None) -> SSAValue:
        """Return the comparison of two indices, where they are; see `shared`."""
        a, b = self.fit_all([a, b])
        op = arith_tensor.CmpiOp(a, b, predicate)
        properties = dict(op.properties)
        kind = op.result.type
        op.erase()
        return self.shared(arith_tensor.CmpiOp, [a, b], kind, properties, hint)

    def both(self, a: SSAValue | None, b: SSAValue | None) -> SSAValue | None:
        """Return the conjunction of two masks; None is one that is always true."""
        if a is None or b is None or a is b:
            return b if a is None else a
        return self.apply_shared(arith.AndIOp, a, b, hint="mask")

    def select(self, condition: SSAValue, if_true: SSAValue, if_false: SSAValue, hint: str | None = None) -> SSAValue:
        """Choose element by element."""
        return self.apply(arith_tensor.SelectOp, condition, if_true, if_false, hint=hint)
