"""Masks of attention that a program writes out: which scores they take away, and how."""

# FX nodes carry values of any type.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from tilewright.frontends.fx_calls import Order, calls, is_static, is_traced, traced
from tilewright.frontends.torch_internals import without_modes

_LOW = -1e4
"""What takes a score away: its exponential is zero beside that of any score that is not as low itself."""

_FILL = frozenset({torch.masked_fill, "masked_fill", "masked_fill_"})
_WHERE = frozenset({torch.where})
_PLUS = frozenset({operator.add, operator.iadd, torch.add, "add", "add_"})


@dataclass(frozen=True)
class Causal:
    """A mask that leaves each query the keys up to its own place."""

    scores: fx.Node


@dataclass(frozen=True)
class Filled:
    """A mask by which scores are replaced by `value` where a tensor of bools is true, or, if it `keeps`, is not."""

    scores: fx.Node
    where: fx.Node
    keeps: bool
    value: float


Mask: TypeAlias = Causal | Filled


def read_mask(node: fx.Node, order: Order) -> Mask | None:
    """Return the mask that a node is of scores, None for other nodes and for masks whose effect is not known."""
    filled = _filled(node)
    if filled is not None:
        if not is_traced(filled.where) or traced(filled.where).dtype != torch.bool or not filled.value <= _LOW:
            return None
        known = _constant(filled.where, node, order)
        if known is None:
            return filled if traced(filled.where).ndim <= traced(node).ndim else None
        return Causal(filled.scores) if _is_causal(known != filled.keeps, traced(node)) else filled
    if calls(node, _PLUS) and len(node.args) == 2 and not node.kwargs:
        for scores, added in (node.args, node.args[::-1]):
            if isinstance(scores, fx.Node) and isinstance(added, fx.Node) and _is_causal_bias(added, node, order):
                return Causal(scores)
    return None


def _filled(node: fx.Node) -> Filled | None:
    """Return the mask that replaces scores by a number."""
    if node.kwargs or len(node.args) != 3:
        return None
    if calls(node, _FILL):
        scores, where, value = node.args
        keeps = False
    elif calls(node, _WHERE):
        where, scores, value = node.args
        keeps = isinstance(scores, fx.Node)
        scores, value = (scores, value) if keeps else (value, scores)
    else:
        return None
    if not isinstance(scores, fx.Node) or not isinstance(where, fx.Node) or not isinstance(value, int | float):
        return None
    return Filled(scores, where, keeps, float(value))


def _is_causal(masked: Tensor, scores: Tensor) -> bool:
    """Whether a mask, true where scores are taken away, leaves the lower triangle of square scores."""
    rows, columns = scores.shape[-2:]
    if rows != columns or masked.numel() != rows * columns or masked.shape[-2:] != (rows, columns):
        return False
    return torch.equal(masked.reshape(rows, columns), torch.ones(rows, columns, dtype=torch.bool).triu(1))


def _is_causal_bias(added: fx.Node, sum_: fx.Node, order: Order) -> bool:
    """Whether it is known of a tensor that is added to scores that it takes away those above the diagonal, and is zero
    for all others."""
    known = _constant(added, sum_, order)
    if known is None or not bool(((known == 0) | (known <= _LOW)).all()):
        return False
    return _is_causal(known != 0, traced(sum_))


_MADE = frozenset({torch.ones, torch.zeros, torch.full, torch.arange})
_COMPUTED = frozenset(
    (
        *(torch.tril, torch.triu, torch.logical_not, torch.where, torch.unsqueeze, torch.masked_fill),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.invert),
        *(operator.mul, operator.add, operator.sub, operator.neg, operator.getitem, torch.eq, torch.ones_like),
        *("tril", "triu", "bool", "float", "half", "bfloat16", "logical_not", "eq", "ne", "masked_fill"),
        *("unsqueeze", "view", "reshape", "expand", "to"),
    )
)
_MOST_ELEMENTS = 1 << 22
_MOST_NODES = 16


def _constant(node: fx.Node, user: fx.Node, order: Order) -> Tensor | None:
    """Return the value that a tensor has at its user, the same in each call; None where that is not known."""
    needed: dict[fx.Node, None] = {}
    pending = [node]
    while pending and len(needed) < _MOST_NODES:
        one = pending.pop()
        if not calls(one, _MADE | _COMPUTED) or not is_static(traced(one)):
            return None
        if traced(one).numel() > _MOST_ELEMENTS:
            return None
        needed.pop(one, None)
        needed[one] = None
        pending += one.all_input_nodes
    if pending or order.may_write(min(needed, key=order.position.__getitem__), user, needed):
        return None
    known: dict[fx.Node, Tensor] = {}
    try:
        with without_modes(), torch.no_grad():
            for one in reversed(needed):
                known[one] = _evaluated(one, known)
    except (TypeError, ValueError, RuntimeError):  # it is no constant then
        return None
    return known[node]


def _evaluated(node: fx.Node, known: dict[fx.Node, Tensor]) -> Tensor:
    """Return the value of a call on values that are known, on the CPU."""
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    kwargs = {name: value for name, value in kwargs.items() if name != "device"}
    target: Any = node.target
    if isinstance(target, str):
        target = getattr(torch.Tensor, target)
        args = tuple(a for a in args if not isinstance(a, torch.device) and not isinstance(a, str))
    return target(*args, **kwargs)
