"""What the pass `canonicalize` may ask of any operation: what it folds to, and what it sheds. New dialects add their tables here."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.ir import Attribute, Operation

from tilewright.dialects.arith_canonicalize import ARITH_FOLDS, Fold, Folded
from tilewright.dialects.loop import NestOp
from tilewright.dialects.loop_canonicalize import LOOP_FOLDS, drop_unused_outputs

FOLDS: dict[type[Operation], Fold] = {**ARITH_FOLDS, **LOOP_FOLDS}

PRUNE: dict[type[Operation], Callable[[Operation], Operation]] = {NestOp: drop_unused_outputs}
"""For an operation with several results: how to make one without those that have no uses."""

SCOPES: frozenset[type[Operation]] = frozenset({NestOp})
"""Operations that do not take scalars from outside: a nest becomes a kernel, whose arguments are buffers."""


def fold(op: Operation) -> Folded:
    """Return what the one result of `op` is equal to, or None."""
    rule = FOLDS.get(type(op))
    return None if rule is None else rule(op)


def constant(value: Attribute) -> Operation:
    """Return an operation that gives the scalar constant `value`."""
    assert isinstance(value, (FloatAttr, IntegerAttr))
    return ConstantOp.create(result_types=[value.type], properties={"value": value})
