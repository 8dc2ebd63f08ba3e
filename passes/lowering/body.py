"""Emits the scalar operations of one block of a loop nest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import isfinite, isnan
from typing import Any, TypeAlias

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, IntegerType, f32, i1, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.dialects.loop import (
    ApplyOp,
    Bounds,
    CastOp,
    CheckOp,
    CmpOp,
    ForOp,
    IntrinsicOp,
    LoadOp,
    LoopDim,
    PrefixOp,
    ReduceOp,
    ScanOp,
    SelectOp,
    StoreOp,
    YieldOp,
    register_type,
)
from tilewright.dialects.sym_expr import Expr, dim
from tilewright.passes.lowering.call import Call, element_of
from tilewright.passes.lowering.dtypes import (
    Number,
    category,
    compute_type,
    holds_exactly,
    is_bool,
    is_float,
    is_half,
    is_unsigned,
    round_to_half,
)
from tilewright.passes.lowering.errors import NotLoweredError

Value: TypeAlias = SSAValue
"""A scalar in a register."""

Index: TypeAlias = list[Expr]
"""One index per dimension of a tensor, in terms of the index values in scope of a body (`Body.indices`)."""

_NO_FLAGS: Mapping[str, Attribute] = {"fastmath": arith.FastMathFlagsAttr("none")}
_NO_OVERFLOW: Mapping[str, Attribute] = {"overflowFlags": arith.IntegerOverflowAttr("none")}
_ON_INTEGERS = frozenset({"floordiv", "fmod", "powi", "remainder", "sign", "truncdiv"})
_DIVISIONS = frozenset({"floordiv", "fmod", "remainder", "truncdiv"})
_INDEX_NAMES = "ijklmnpq"


class Body:
    """Emits operations at the end of one block, on behalf of one call.

    `element` is the dtype that the call's operands meet in; `compute` the one that arithmetic is done in. Integer
    operations take their operands as unsigned if `element` is. Arithmetic on i1 is torch's on bools: a sum is `or`, a
    product `and`.
    """

    def __init__(self, call: Call, element: Attribute, block: Block, indices: Sequence[SSAValue]) -> None:
        self.call = call
        self.element = element
        self.compute = compute_type(element)
        self.register = register_type(self.compute)
        self.indices = list(indices)
        """The index values in scope: `dim(i)` in an index expression is `indices[i]`."""
        self._block = block
        self._constants: dict[Attribute, Value] = {}
        self._index_values: dict[Expr, Value] = {}
        call.blocks.append(block)

    def emit(self, op: Operation) -> Value:
        """Add an operation and return its result."""
        self._block.add_op(op)
        return op.results[0]

    def constant(self, value: Number, kind: Attribute | None = None, *, rounded: bool = False) -> Value:
        """Return a number as a value of dtype `kind`, by default the compute type.

        It is `rounded` to `element` first where eager does that. One that does not fit wraps around or rounds.
        """
        kind = self.compute if kind is None else kind
        if rounded and is_half(self.element) and isinstance(value, (bool, int, float)):
            value = round_to_half(float(value), self.element)
        if isinstance(value, float) and not is_float(kind) and not isfinite(value):
            raise NotLoweredError(f"{value} as an integer")
        if not isinstance(value, (bool, int, float)):
            return self.cast(self.cast_register(self.index_value(value), i64), i64, kind)
        number = float(value) if is_float(kind) else value != 0 if is_bool(kind) else int(value)
        attribute = _constant(number, kind)
        found = self._constants.get(attribute)
        if found is None:
            op = arith.ConstantOp.create(result_types=(register_type(kind),), properties={"value": attribute})
            found = self._constants[attribute] = self.emit(op)
        return found

    def argument(self, name: str, *, rounded: bool = False) -> Value:
        """Return a number argument of the call in the compute type, perhaps `rounded` to `element` first."""
        return self.constant(self.call.number(name), rounded=rounded)

    def load(self, source: Value, index: Index, *, mask: Value | None = None, otherwise: Value | None = None) -> Value:
        """Load an element as it is. With a `mask`, the value is `otherwise` where it is false."""
        return self.emit(LoadOp.get(source, index, self.indices, mask=mask, otherwise=otherwise))

    def load_element(self, source: Value, index: Index, *, exact: bool = False) -> Value:
        """Load an element in the compute type, rounded to `element` on the way unless `exact`."""
        return self.widen(self.load(source, index), element_of(source), exact=exact)

    def store(self, value: Value, target: Value, index: Index) -> None:
        """Store a value of the compute type as an element of `target`."""
        self.store_as(self.cast(value, self.compute, element_of(target)), target, index)

    def store_as(
        self, value: Value, target: Value, index: Index, *, mask: Value | None = None, combine: str | None = None
    ) -> None:
        """Store a value that has the target's dtype, where the `mask` holds, or `combine` it with what is there."""
        self._block.add_op(StoreOp.get(value, target, index, self.indices, mask=mask, combine=combine))

    def cast(self, value: Value, source: Attribute, target: Attribute) -> Value:
        """Convert from one dtype to another, as torch does: to and from the 16-bit floats by way of f32.

        Raises `NotLoweredError` for dtypes that loops move but do not compute with.
        """
        if source == target:
            return value
        for element in (source, target):
            category(element)  # raises for one that registers do not hold as it is
        if (is_half(source) or is_half(target)) and f32 not in (source, target):
            return self.cast(self.cast(value, source, f32), f32, target)
        unsigned = is_unsigned(target if is_float(source) else source) and not is_bool(target)
        return self.cast_register(value, register_type(target), unsigned=unsigned)

    def cast_register(self, value: Value, kind: Attribute, *, unsigned: bool = False) -> Value:
        """Convert to another register type; integers are taken as signed unless `unsigned`."""
        return value if value.type == kind else self.emit(CastOp.get(value, kind, unsigned=unsigned))

    def widen(self, value: Value, source: Attribute, *, exact: bool = False) -> Value:
        """Convert a value of dtype `source` to the compute type, rounded to `element` on the way unless `exact`."""
        if not exact and is_half(self.element) and not holds_exactly(self.element, source):
            value, source = self.cast(value, source, self.element), self.element
        return self.cast(value, source, self.compute)

    def round(self, value: Value) -> Value:
        """Round a value of the compute type to `element`, where eager rounds within an operator."""
        return self.cast(self.cast(value, self.compute, self.element), self.element, self.compute)

    def round_on_cpu(self, value: Value) -> Value:
        """Round a value to `element` where eager's kernel for the CPU does, and that for CUDA goes on in f32."""
        return value if self.call.on_cuda else self.round(value)

    def neg(self, x: Value) -> Value:
        if _is_integer(x):
            return self.sub(self.constant_like(0, x), x)
        return self.emit(arith.NegfOp.create(operands=(x,), result_types=(x.type,), properties=_NO_FLAGS))

    def add(self, x: Value, y: Value) -> Value:
        return self._binary(arith.AddfOp, arith.AddiOp, arith.OrIOp, x, y, _NO_OVERFLOW)

    def sub(self, x: Value, y: Value) -> Value:
        return self._binary(arith.SubfOp, arith.SubiOp, arith.XOrIOp, x, y, _NO_OVERFLOW)

    def mul(self, x: Value, y: Value) -> Value:
        return self._binary(arith.MulfOp, arith.MuliOp, arith.AndIOp, x, y, _NO_OVERFLOW)

    def add_product(self, x: Value, y: Value, z: Value) -> Value:
        """Return `x + y * z`: of floats rounded once on CUDA, since eager's kernels are compiled that way."""
        fused = self.call.on_cuda and is_float(x.type)
        return self.math(math.FmaOp, y, z, x) if fused else self.add(x, self.mul(y, z))

    def div(self, x: Value, y: Value) -> Value:
        """Divide floats."""
        return self.math(arith.DivfOp, x, y)

    def maximum(self, x: Value, y: Value) -> Value:
        """The larger one; NaN if either is."""
        on_integer = arith.MaxUIOp if self._is_unsigned(x) else arith.MaxSIOp
        return self._binary(arith.MaximumfOp, on_integer, arith.OrIOp, x, y)

    def minimum(self, x: Value, y: Value) -> Value:
        """The smaller one; NaN if either is."""
        on_integer = arith.MinUIOp if self._is_unsigned(x) else arith.MinSIOp
        return self._binary(arith.MinimumfOp, on_integer, arith.AndIOp, x, y)

    def clamp(self, x: Value, low: Value | None, high: Value | None) -> Value:
        """Limit x to a range; NaN if it or a bound is. Unlike `maximum`, a bound that is equal leaves it its sign."""
        x = x if low is None else self._limit("lt", x, low)
        return x if high is None else self._limit("gt", x, high)

    def _limit(self, beyond: str, x: Value, bound: Value) -> Value:
        if not is_float(x.type) or not _is_number(bound):
            return self.maximum(x, bound) if beyond == "lt" else self.minimum(x, bound)
        return self.select(self.compare(beyond, x, bound), bound, x)

    def math(self, op: type[Operation], *operands: Value) -> Value:
        """Apply an operation of the math or arith dialects on floats. Raises `NotLoweredError` for other operands."""
        if not is_float(operands[0].type):
            raise NotLoweredError(f"`{op.name}` of {operands[0].type}")
        return self._operate(op, operands, _NO_FLAGS)

    def integer_op(self, op: type[Operation], *operands: Value) -> Value:
        """Apply an operation of the math or arith dialects on integers that has no properties.

        Raises `NotLoweredError` for other operands.
        """
        if not _is_integer(operands[0]):
            raise NotLoweredError(f"`{op.name}` of {operands[0].type}")
        return self._operate(op, operands, {})

    def intrinsic(self, name: str, *operands: Value) -> Value:
        """Apply a function that arith and math lack (`INTRINSICS` in `dialects/loop_scalar.py`).

        The program fails, as eager does, where integers are divided by zero. Raises `NotLoweredError` for integers
        where it takes floats only.
        """
        if _is_integer(operands[0]) and name not in _ON_INTEGERS:
            raise NotLoweredError(f"`{name}` of {operands[0].type}")
        if _is_integer(operands[0]) and name in _DIVISIONS:
            x, y = operands
            not_zero = self.emit(CmpOp.get("ne", y, self.constant_like(0, y)))
            operands = (x, self.check(not_zero, y, "RuntimeError: ZeroDivisionError"))
        return self.emit(IntrinsicOp.get(name, *operands, unsigned=self._is_unsigned(operands[0])))

    def reciprocal(self, x: Value) -> Value:
        return self.div(self.constant(1), x)

    def compare(self, predicate: str, x: Value, y: Value | Number) -> Value:
        """Return `x predicate y`, with predicates eq, ne, lt, le, gt, ge."""
        y = y if isinstance(y, SSAValue) else self.constant_like(y, x)
        return self.emit(CmpOp.get(predicate, x, y, unsigned=self._is_unsigned(x)))

    def check(self, condition: Value, value: Value, error: str) -> Value:
        """Return `value` where the condition holds, else zero: then the program fails with `error` (`loop.check`)."""
        return self.emit(CheckOp.get(condition, value, error))

    def select(self, condition: Value, x: Value, y: Value) -> Value:
        """Return x where the condition holds, else y."""
        return self.emit(SelectOp.get(condition, x, y))

    def either(self, x: Value, y: Value) -> Value:
        """Return `x or y` of truth values, or bit by bit."""
        return self.integer_op(arith.OrIOp, x, y)

    def both(self, x: Value, y: Value) -> Value:
        """Return `x and y` of truth values, or bit by bit."""
        return self.integer_op(arith.AndIOp, x, y)

    def differ(self, x: Value, y: Value) -> Value:
        """Return `x xor y` of truth values, or bit by bit."""
        return self.integer_op(arith.XOrIOp, x, y)

    def invert(self, x: Value) -> Value:
        """Return the complement of a truth value, or of each bit."""
        return self.differ(x, self.constant_like(-1, x))

    def constant_like(self, number: Number, x: Value) -> Value:
        """Return a number as a constant of the type of `x`."""
        return self.constant(number, x.type)

    def index_value(self, expr: Expr) -> Value:
        """Return the value of an index expression."""
        for number, value in enumerate(self.indices):
            if expr == dim(number):
                return value
        found = self._index_values.get(expr)
        if found is None:
            found = self._index_values[expr] = self.emit(ApplyOp.get(expr, self.indices))
        return found

    def as_index(self, value: Value) -> Expr:
        """Make an integer usable in index expressions."""
        self.indices.append(self.cast_register(value, IndexType()))
        return dim(len(self.indices) - 1)

    def loop(self, sizes: Sequence[Expr], fill: Callable[[Body, Index], None]) -> None:
        """Add parallel loops over `sizes`, whose body `fill` emits; none at all if there are no sizes."""
        if sizes:
            self._loop(ForOp.get(Bounds.extents(sizes)), fill)
        else:
            fill(self, [])

    def scan(self, sizes: Sequence[Expr], fill: Callable[[Body, Index], None]) -> None:
        """Add loops over `sizes` that run in order, whose body `fill` emits."""
        self._loop(ScanOp.get(Bounds.extents(sizes)), fill)

    def _loop(self, op: ForOp | ScanOp, fill: Callable[[Body, Index], None]) -> None:
        op.location = self.call.op.location
        fill(*self._nested(op.block))
        self._block.add_op(op)

    def prefix(self, combiner: str, *values: Value) -> Sequence[Value]:
        """Combine values, one per slot, with those of all earlier iterations of the scan that this is the body of."""
        op = PrefixOp.get(combiner, values)
        self._block.add_op(op)
        return op.results

    def reduce(
        self, combiners: Sequence[str], sizes: Sequence[Expr], value: Callable[[Body, Index], Sequence[Value]]
    ) -> Sequence[Value]:
        """Combine what `value` emits over all points of loops over `sizes`; one value per slot of the combiners.

        A reduction over no dimensions is the value itself.
        """
        return self.reduce_over(combiners, [LoopDim.extent(size) for size in sizes], value)

    def reduce_over(
        self,
        combiners: Sequence[str],
        dims: Sequence[LoopDim],
        value: Callable[[Body, Index], Sequence[Value]],
        *,
        ordered: bool = False,
    ) -> Sequence[Value]:
        """Do as `reduce` over loops whose bounds may depend on the indices in scope; if `ordered`, in their order."""
        if not dims:
            return value(self, [])
        bounds = Bounds(tuple(dims), tuple(self.indices))
        block = Block(arg_types=bounds.index_types())
        slots = value(*self._nested(block))
        block.add_op(YieldOp.get(*slots))
        op = ReduceOp.get(combiners, bounds, [v.type for v in slots], ordered=ordered, block=block)
        op.location = self.call.op.location
        self._block.add_op(op)
        return op.results

    def reduce_one(self, combiner: str, sizes: Sequence[Expr], value: Callable[[Body, Index], Value]) -> Value:
        """Combine one value over all points of loops over `sizes`."""
        return self.reduce([combiner], sizes, lambda b, k: [value(b, k)])[0]

    def _nested(self, block: Block) -> tuple[Body, Index]:
        first = len(self.indices)
        body = Body(self.call, self.element, block, (*self.indices, *block.args))
        name_indices(block.args, first)
        return body, [dim(first + i) for i in range(len(block.args))]

    def _is_unsigned(self, x: Value) -> bool:
        return x.type == self.register and is_unsigned(self.element)

    def _binary(
        self,
        on_float: type[Operation],
        on_integer: type[Operation],
        on_bool: type[Operation],
        x: Value,
        y: Value,
        integer_properties: Mapping[str, Attribute] = {},
    ) -> Value:
        if not _is_integer(x):
            return self._operate(on_float, (x, y), _NO_FLAGS)
        if x.type == i1:
            return self._operate(on_bool, (x, y), {})
        return self._operate(on_integer, (x, y), integer_properties)

    def _operate(self, op: type[Operation], operands: tuple[Value, ...], properties: Mapping[str, Attribute]) -> Value:
        return self.emit(op.create(operands=operands, result_types=(operands[0].type,), properties=properties))


def name_indices(arguments: Sequence[SSAValue], first: int) -> None:
    """Name index values i, j, k, .. by how many enclose them."""
    for number, argument in enumerate(arguments, first):
        argument.name_hint = _INDEX_NAMES[number] if number < len(_INDEX_NAMES) else f"i{number}"


def _is_integer(x: Value) -> bool:
    return isinstance(x.type, (IntegerType, IndexType))


def _is_number(x: Value) -> bool:
    """Whether a value is a constant other than NaN."""
    value = x.owner.value if isinstance(x.owner, arith.ConstantOp) else None
    return isinstance(value, FloatAttr) and not isnan(value.value.data)


@lru_cache(maxsize=4096)
def _float_constant(text: str, kind: Any) -> Attribute:
    return FloatAttr(float.fromhex(text), kind)


@lru_cache(maxsize=4096)
def _integer_constant(value: int, kind: Any) -> Attribute:
    if isinstance(kind, IndexType):
        return IntegerAttr(value, kind)
    width = kind.width.data
    if width == 1:
        return IntegerAttr.from_bool(value != 0)
    half = 1 << (width - 1)
    return IntegerAttr((value + half) % (2 * half) - half, IntegerType(width))


def _constant(value: float | int, kind: Attribute) -> Attribute:
    # By text, since 0.0 and -0.0 are equal, and so are 1 and 1.0.
    return _float_constant(value.hex(), kind) if isinstance(value, float) else _integer_constant(value, kind)
