"""How the operations of `loop` fold, and how a nest loses destinations that nothing reads; see `arith_canonicalize`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    DenseArrayBase,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    i32,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import Rewriter

from tilewright.dialects.arith_canonicalize import (
    Fold,
    Folded,
    float_constant,
    float_of,
    int_of,
    integer_constant,
    is_bool,
)
from tilewright.dialects.loop import AfterOp, ApplyOp, CastOp, CheckOp, CmpOp, LoadOp, NestOp, SelectOp, StoreOp
from tilewright.dialects.loop_nest import nest_properties
from tilewright.dialects.loop_order import is_wanted, waiting
from tilewright.dialects.type_guards import is_integer

_FLOAT_BITS: dict[type[Attribute], tuple[int, int]] = {
    Float64Type: (53, 1023),
    Float32Type: (24, 127),
    BFloat16Type: (8, 127),
    Float16Type: (11, 15),
}
"""Bits of the significand and largest exponent of the float types."""


def _holds_all_of(wide: Attribute, narrow: Attribute) -> bool:
    """Whether every value of `narrow` is one of `wide` and comes back from there unchanged."""
    if is_bool(narrow):
        return isinstance(wide, AnyFloat) or is_integer(wide)
    if isinstance(narrow, AnyFloat) and isinstance(wide, AnyFloat):
        a, b = _FLOAT_BITS.get(type(wide)), _FLOAT_BITS.get(type(narrow))
        return a is not None and b is not None and a[0] >= b[0] and a[1] >= b[1]
    a, b = _width(wide), _width(narrow)
    return a is not None and b is not None and a >= b


def _width(kind: Attribute) -> int | None:
    """Return the bits of an integer type; an index has those of an address."""
    if isinstance(kind, IndexType):
        return 64
    return kind.width.data if is_integer(kind) else None


def _cast(op: Operation) -> Folded:
    assert isinstance(op, CastOp)
    source, target = op.input.type, op.result.type
    if source == target:
        return op.input
    inner = op.input.owner
    if isinstance(inner, CastOp) and inner.input.type == target and _holds_all_of(source, target):
        return inner.input
    real = float_of(op.input)
    if real is not None:
        return _cast_float(real, target)
    number, width = int_of(op.input), _width(source)
    if number is None or width is None:
        return None
    if op.unsigned is not None:
        number &= (1 << width) - 1
    return _cast_integer(number, target)


def _cast_float(number: float, target: Attribute) -> Folded:
    if is_bool(target):
        return integer_constant(number != 0, target)
    if isinstance(target, AnyFloat):
        return float_constant(number, target)
    if not is_integer(target) or not math.isfinite(number):
        return None
    # Out of range, the conversion is the machine's affair.
    whole, limit = int(number), 1 << (target.width.data - 1)
    return integer_constant(whole, target) if -limit <= whole < limit else None


def _cast_integer(number: int, target: Attribute) -> Folded:
    if is_bool(target):
        return integer_constant(number != 0, target)
    if isinstance(target, AnyFloat):
        # A wider integer would be rounded twice, to a double and then to the type.
        return float_constant(float(number), target) if abs(number) <= 1 << 53 else None
    return integer_constant(number, target)


def _select(op: Operation) -> Folded:
    assert isinstance(op, SelectOp)
    if op.if_true is op.if_false:
        return op.if_true
    condition = int_of(op.condition)
    if condition is not None:
        return op.if_true if condition else op.if_false
    if is_bool(op.result.type) and int_of(op.if_true) == 1 and int_of(op.if_false) == 0:
        return op.condition
    return None


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def _cmp(op: Operation) -> Folded:
    assert isinstance(op, CmpOp)
    kind, predicate = op.lhs.type, op.predicate.data
    if op.lhs is op.rhs and _width(kind) is not None:
        return integer_constant(predicate in ("eq", "le", "ge"), op.result.type)
    x, y = float_of(op.lhs), float_of(op.rhs)
    if x is not None and y is not None:
        return integer_constant(_COMPARE[predicate](x, y), op.result.type)
    a, b = int_of(op.lhs), int_of(op.rhs)
    if a is None or b is None or op.unsigned is not None or is_bool(kind):
        return None
    return integer_constant(_COMPARE[predicate](a, b), op.result.type)


def _apply(op: Operation) -> Folded:
    assert isinstance(op, ApplyOp)
    expr = op.expr
    if expr.is_Symbol and op.access.num_dims == 1:
        return op.indices[0]
    return integer_constant(int(expr), op.result.type) if expr.is_Integer else None


def _check(op: Operation) -> Folded:
    """A check that holds is the value it lets pass."""
    assert isinstance(op, CheckOp)
    return op.value if int_of(op.condition) else None


def _load(op: Operation) -> Folded:
    """A load whose mask is false is what stands for the element."""
    assert isinstance(op, LoadOp)
    return op.otherwise if op.mask is not None and int_of(op.mask) == 0 else None


def drop_true_mask(op: Operation) -> None:
    """Take a mask that is true off a load or a store."""
    assert isinstance(op, (LoadOp, StoreOp))
    if op.mask is None or not int_of(op.mask):
        return
    plain = (op.source,) if isinstance(op, LoadOp) else (op.value, op.target)
    segments = (1, len(op.indices), 0, 0) if isinstance(op, LoadOp) else (1, 1, len(op.indices), 0)
    op.operands = [*plain, *op.indices]
    op.properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, segments)


LOOP_FOLDS: dict[type[Operation], Fold] = {
    ApplyOp: _apply,
    CastOp: _cast,
    CheckOp: _check,
    CmpOp: _cmp,
    LoadOp: _load,
    SelectOp: _select,
}
"""How each operation of `loop` that folds does so."""


def drop_unused_outputs(nest: NestOp) -> NestOp:
    """Return `nest` without the results that nothing uses, unless the body itself reads their destinations.

    What waits for such a result waits for another one.
    """
    unused = [
        i
        for i, (result, destination) in enumerate(zip(nest.outputs, nest.destinations, strict=True))
        if not is_wanted(result) and all(_is_store_to(use.operation, destination) for use in destination.uses)
    ]
    if not unused or len(unused) == len(nest.outputs):
        return nest
    gone = [nest.outputs[i] for i in unused]
    kept = [r for r in nest.outputs if r not in gone]
    for after in waiting(gone):
        after.set_before(kept[0] if v in gone else v for v in after.before)
    for i in reversed(unused):
        destination = nest.destinations[i]
        for use in list(destination.uses):
            Rewriter.erase_op(use.operation)
        nest.block.erase_arg(nest.block.args[nest.loop_arguments() + i])
    begins = nest.begins
    left = [i for i in range(len(nest.outputs)) if i not in unused]
    operands, properties = nest_properties(
        nest.loops, nest.masked is not None, {new: begins[old] for new, old in enumerate(left) if old in begins}
    )
    smaller = NestOp.create(
        operands=operands,
        result_types=[r.type for r in kept],
        properties=properties,
        attributes=nest.attributes,
        regions=[nest.detach_region(0)],
        location=nest.location,
    )
    for new, old in zip(smaller.outputs, kept, strict=True):
        new.name_hint = old.name_hint
    Rewriter.replace_op(nest, smaller, _results(nest, kept, smaller))
    return smaller


def drop_idle_order(op: Operation) -> Operation:
    """Let nothing wait for what nobody wants; what waits for nothing is the tensor itself."""
    assert isinstance(op, AfterOp)
    idle = [v for v in op.before if isinstance(v.owner, NestOp) and not any(map(is_wanted, v.owner.results))]
    if idle:
        op.set_before(v for v in op.before if v not in idle)
    if not op.before:
        Rewriter.replace_op(op, [], [op.source])
    return op


def _is_store_to(op: Operation, destination: SSAValue) -> bool:
    return isinstance(op, StoreOp) and op.target is destination


def _results(nest: NestOp, kept: Sequence[SSAValue], smaller: NestOp) -> list[SSAValue | None]:
    new = dict(zip(kept, smaller.outputs, strict=True))
    return [new.get(r) for r in nest.outputs]
