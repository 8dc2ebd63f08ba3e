"""One ATen call that is being lowered: its arguments with defaults, its results, the operations made for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, FloatAttr, IntegerAttr, NoneAttr, StringAttr, TensorType
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.dialects import aten_schema
from tilewright.dialects.aten import CallOp
from tilewright.dialects.aten_schema import Default
from tilewright.dialects.call_syntax import DtypeAttr, OperandAttr
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.sym import ExprAttr, IntsAttr
from tilewright.dialects.sym_expr import Expr, Ranges, integer, simplify
from tilewright.passes.lowering.dtypes import Number
from tilewright.passes.lowering.errors import NotLoweredError

Tensor = TensorType[Attribute]


def tensor_type(value: SSAValue) -> Tensor:
    """Return the type of a tensor."""
    kind: Any = value.type
    return kind


def element_of(value: SSAValue) -> Attribute:
    """Return the dtype of a tensor, as its element type."""
    return tensor_type(value).element_type


def sizes_of(value: SSAValue) -> tuple[Expr, ...]:
    """Return the sizes of a tensor."""
    return layout_of(value.type).sizes


class Call:
    """What a lowering reads of a call, and where it leaves the operations that replace it.

    Arguments are asked for by schema name; one that is not given has the schema's default. Each method raises
    `NotLoweredError` where the argument is of another kind than asked for, so that a lowering only states what it
    handles.
    """

    def __init__(self, op: CallOp, ranges: Ranges) -> None:
        self.op = op
        self.ranges = ranges
        self.ops: list[Operation] = []
        """The operations that replace the call, in order."""
        self.blocks: list[Block] = []
        """The blocks made for them: should no rule be found after all, these are what to take back."""
        self._given: Mapping[str, Attribute] = op.arguments.data

    @property
    def name(self) -> str:
        """The operator without namespace and overload: `add` of `aten.add.Tensor`."""
        return self.op.operator.split(".")[1]

    @property
    def results(self) -> list[Tensor]:
        """The types of the results. Raises `NotLoweredError` if one is not a tensor."""
        kinds: list[Tensor] = []
        for result in self.op.results:
            if not isinstance(result.type, TensorType):
                raise NotLoweredError(f"a result of type {result.type}")
            kinds.append(tensor_type(result))
        return kinds

    @property
    def result(self) -> Tensor:
        """The type of the only, or the first, result."""
        return self.results[0]

    @property
    def on_cuda(self) -> bool:
        """Whether the result is on a CUDA device, whose kernels in eager mode round in other places."""
        return layout_of(self.results[0]).device_kind == "cuda"

    def wanted(self, position: int) -> Tensor | None:
        """Return the type of one result, or None where it is undefined: one that `output_mask` leaves out."""
        result = self.op.results[position]
        return tensor_type(result) if isinstance(result.type, TensorType) else None

    def has(self, name: str) -> bool:
        """Whether an argument is neither left out nor `none`."""
        return not isinstance(self._given.get(name, _NONE), NoneAttr)

    def tensor(self, name: str) -> SSAValue:
        """Return a tensor."""
        return self._tensor(self._given.get(name), name)

    def optional_tensor(self, name: str) -> SSAValue | None:
        """Return a tensor, or None."""
        return self.tensor(name) if self.has(name) else None

    def tensors(self, name: str) -> list[SSAValue | None]:
        """Return a list of tensors, in which `none` is None."""
        value: Any = self._given.get(name)
        if type(value) is not ArrayAttr:
            raise NotLoweredError(f"`{name}` is not a list of tensors")
        items: Sequence[Attribute] = value.data
        return [None if isinstance(v, NoneAttr) else self._tensor(v, name) for v in items]

    def operand(self, name: str) -> SSAValue | Number:
        """Return a tensor, or the number that stands in its place."""
        value = self._given.get(name)
        return self._tensor(value, name) if isinstance(value, OperandAttr) else self.number(name)

    def number(self, name: str) -> Number:
        """Return a number."""
        value = self._given.get(name)
        if value is None:
            value = self._default(name)
        match value:
            case FloatAttr():
                return value.value.data
            case IntegerAttr():
                data = value.value.data
                return bool(data) if value.get_type() == _BOOL else data
            case ExprAttr():
                return int(value.expr) if value.expr.is_Integer else value.expr
            case bool() | int() | float():
                return value
            case _:
                raise NotLoweredError(f"`{name}` is not a number")

    def optional_number(self, name: str) -> Number | None:
        """Return a number, or None."""
        return self.number(name) if self.has(name) else None

    def integer(self, name: str) -> int:
        """Return an integer that is not symbolic."""
        value = self.number(name)
        if not isinstance(value, int):
            raise NotLoweredError(f"`{name}` is not a constant integer")
        return value

    def size(self, name: str) -> Expr:
        """Return an integer, symbolic or not, as an expression."""
        value = self.number(name)
        if isinstance(value, float):
            raise NotLoweredError(f"`{name}` is not an integer")
        return integer(value) if isinstance(value, int) else value

    def flag(self, name: str) -> bool:
        """Return a truth value."""
        return bool(self.integer(name))

    def sizes(self, name: str) -> tuple[Expr, ...] | None:
        """Return a list of integers, or None where it is `none`."""
        value = self._given.get(name)
        if value is None:
            value = self._default(name)
        match value:
            case IntsAttr():
                return value.exprs
            case tuple():
                return tuple(integer(int(v)) for v in value)
            case None | NoneAttr():
                return None
            case IntegerAttr():
                return (integer(value.value.data),)
            case int():
                return (integer(value),)
            case _:
                raise NotLoweredError(f"`{name}` is not a list of integers")

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return a list of integers that are not symbolic, or None where it is `none`."""
        exprs = self.sizes(name)
        if exprs is not None and not all(e.is_Integer for e in exprs):
            raise NotLoweredError(f"`{name}` is symbolic")
        return None if exprs is None else tuple(int(e) for e in exprs)

    def text(self, name: str) -> str | None:
        """Return a string, or None where it is `none`."""
        value = self._given.get(name)
        if value is None:
            value = self._default(name)
        if isinstance(value, StringAttr):
            return value.data
        if value is None or isinstance(value, (str, NoneAttr)):
            return value if isinstance(value, str) else None
        raise NotLoweredError(f"`{name}` is not a string")

    def dtype(self, name: str) -> Attribute | None:
        """Return a dtype as its element type, or None where it is `none`."""
        value = self._given.get(name)
        if value is None or isinstance(value, NoneAttr):
            return None
        if not isinstance(value, DtypeAttr):
            raise NotLoweredError(f"`{name}` is not a dtype")
        return value.element_type

    def dim(self, name: str, rank: int) -> int:
        """Return a dimension, counted from the front. One of a tensor without dimensions counts as 0."""
        return self._in_range(wrap_dim(self.integer(name), rank), rank)

    def dims(self, name: str, rank: int) -> list[int]:
        """Return a list of dimensions in increasing order; all of them where it is empty or `none`."""
        given = self.integers(name) if rank else None
        return sorted(self._in_range(wrap_dim(d, rank), rank) for d in given) if given else list(range(rank))

    def _in_range(self, d: int, rank: int) -> int:
        if not 0 <= d < max(rank, 1):
            raise NotLoweredError(f"dimension {d} of {rank}")
        return d

    def simplify(self, expr: Expr) -> Expr:
        """Return `expr` simplified by the ranges of the size symbols."""
        return simplify(expr, self.ranges)

    def abandon(self) -> None:
        """Take back what was made for the call, so that its operands lose these uses."""
        for block in self.blocks:
            block.drop_all_references()
        for op in self.ops:
            op.drop_all_references()

    def _tensor(self, value: Attribute | None, name: str) -> SSAValue:
        if not isinstance(value, OperandAttr):
            raise NotLoweredError(f"`{name}` is not a tensor")
        return self.op.operands[value.data]

    def _default(self, name: str) -> Default:
        schema = aten_schema.lookup(self.op.operator)
        argument = None if schema is None else schema.argument(name)
        if argument is None:
            raise NotLoweredError(f"`{self.op.operator}` has no argument `{name}`")
        return argument.default


def wrap_dim(d: int, rank: int) -> int:
    """Return a dimension counted from the front."""
    return d + max(rank, 1) if d < 0 else d


Lowering = Callable[[Call], Sequence[SSAValue | None]]
"""Makes the operations that compute a call, in `Call.ops`, and returns what replaces its results: None for one without
uses.

Raises `NotLoweredError` where it has no rule for the call's arguments.
"""

_NONE = NoneAttr()
_BOOL = IntegerAttr.from_bool(True).get_type()
