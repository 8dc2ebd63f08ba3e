"""What the pass `canonicalize` asks of any operation: what it folds to, and what it sheds.

New dialects add their tables here.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.arith import ConstantOp
from xdsl.ir import Attribute, Operation

from tilewright.dialects.arith_canonicalize import ARITH_FOLDS, Fold, Folded
from tilewright.dialects.loop import AfterOp, LoadOp, NestOp, StoreOp
from tilewright.dialects.loop_canonicalize import LOOP_FOLDS, drop_idle_order, drop_true_mask, drop_unused_outputs
from tilewright.dialects.type_guards import is_float_constant, is_integer_constant

FOLDS: dict[type[Operation], Fold] = {**ARITH_FOLDS, **LOOP_FOLDS}


def _prune_nest(op: Operation) -> Operation:
    assert isinstance(op, NestOp)
    return drop_unused_outputs(op)


SIMPLIFY: dict[type[Operation], Callable[[Operation], None]] = {LoadOp: drop_true_mask, StoreOp: drop_true_mask}
"""How an operation becomes a simpler one of its kind, in place."""

PRUNE: dict[type[Operation], Callable[[Operation], Operation]] = {AfterOp: drop_idle_order, NestOp: _prune_nest}
"""How to make an operation without those of its results, or operands, that nobody wants."""

SCOPES: frozenset[type[Operation]] = frozenset({NestOp})
"""Operations that do not take scalars from outside: a nest becomes a kernel, whose arguments are buffers."""


def fold(op: Operation) -> Folded:
    """Return what the one result of `op` is equal to, or None."""
    rule = FOLDS.get(type(op))
    return None if rule is None else rule(op)


def constant(value: Attribute) -> Operation:
    """Return an operation that gives the scalar constant `value`."""
    assert is_float_constant(value) or is_integer_constant(value)
    return ConstantOp.create(result_types=[value.type], properties={"value": value})
