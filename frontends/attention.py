"""Attention that a program writes out, `softmax(q @ k.T * scale) @ v`, becomes the operator that has a fused kernel.

This is done to the graph that Dynamo captured, before autograd: so the gradient is the fused operator's as well, there
is one pattern for inference and training, and torch chooses the kernel as it does for a program that calls
`scaled_dot_product_attention` itself. (Inductor: fuse_attention, one pattern for each direction.)

The fused kernels keep what the program rounds, the scores and their softmax, in f32, so results are closer to exact
ones. What they do not share with a softmax is what becomes of a row that is masked altogether: it is zero, where the
program has NaN, or, where the mask is a finite number, the mean of all values. That is added. Where it cannot be told,
as of numbers that the program adds to the scores, attention stays as it is; so it does with dropout, which draws other
numbers in the fused kernels, and where something in between may write to a tensor.
"""

# FX nodes carry values of any type.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from tilewright.frontends.attention_masks import Causal, Filled, Mask, read_mask
from tilewright.frontends.fx_calls import Order, calls, is_static, is_traced, traced
from tilewright.frontends.torch_internals import find_overload, integer_hint, is_backed, operators_of

_PRODUCTS = frozenset({operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm", "__matmul__"})
_SOFTMAX = frozenset({torch.softmax, F.softmax, "softmax"})
_TIMES = frozenset({operator.mul, operator.imul, torch.mul, "mul", "mul_"})
_BY = frozenset({operator.truediv, operator.itruediv, torch.div, torch.true_divide, "div", "div_"})
_CONVERSIONS = frozenset({"to", "type", "type_as", "float", "half", "bfloat16"})
_DROPOUT = frozenset({F.dropout, torch.dropout})

_FUSED = frozenset(
    overload
    for name in ("flash_attention", "flash_attention_for_cpu", "cudnn_attention")
    if (overload := find_overload(f"aten._scaled_dot_product_{name}.default"))
)
"""Operators whose kernels are faster than products and a softmax. On CUDA the others are not, gradients included."""


@dataclass(frozen=True)
class _Attention:
    """Attention as it is written: `output = softmax(mask(query @ key * scale)) @ value`."""

    output: fx.Node
    query: fx.Node
    key: fx.Node
    """Transposed: its last dimension is the one that the softmax is along."""
    value: fx.Node
    scale: float
    mask: Mask | None
    nodes: tuple[fx.Node, ...]
    """What is computed in between and used for nothing else, last first."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the scores, in which the products are computed."""
        return traced(self.nodes[-1]).dtype

    @property
    def kind(self) -> object:
        """What kernels go by, equal for the attention of equal layers."""
        tensors = [traced(n) for n in (self.query, self.key, self.value, self.output)]
        return (
            type(self.mask),
            self.dtype,
            *((str(t.shape), str(t.stride()), t.dtype, t.requires_grad) for t in tensors),
        )


def fuse_attention(graph_module: fx.GraphModule) -> None:
    """Rewrite a graph that Dynamo captured, whose nodes have traced values, and the graphs that it calls, in place."""
    for module in graph_module.modules():
        if isinstance(module, fx.GraphModule) and any(calls(node, _SOFTMAX) for node in module.graph.nodes):
            _fuse(module.graph)
            module.recompile()


def _fuse(graph: fx.Graph) -> None:
    order = Order(graph)
    better: dict[Any, bool] = {}
    for node in order.position:
        attention = _read(node, order)
        if attention is None:
            continue
        kind = attention.kind
        if kind not in better:
            better[kind] = _is_better(attention)
        if better[kind]:
            _rewrite(graph, attention)


def _read(output: fx.Node, order: Order) -> _Attention | None:
    """Return the attention of which a node is the last product, or None."""
    pair = _pair(output, _PRODUCTS)
    if pair is None:
        return None
    weights, value = pair
    path: list[fx.Node] = []
    softmax = _source(weights, path)
    scores = _softmax_operand(softmax)
    if scores is None:
        return None
    path.append(softmax)
    node = _source(scores, path)
    mask = read_mask(node, order)
    if mask is not None:
        path.append(node)
        node = _source(mask.scores, path)
    scale = 1.0
    while (scaled := _scaled(node)) is not None:
        path.append(node)
        node, scale = _source(scaled[0], path), scale * scaled[1]
    pair = _pair(node, _PRODUCTS)
    if pair is None or not 0 < scale < math.inf:
        return None
    path.append(node)
    attention = _Attention(output, *pair, value, scale, mask, tuple(path))
    return attention if _is_sound(attention, order) else None


def _pair(node: fx.Node, targets: frozenset[Any]) -> tuple[fx.Node, fx.Node] | None:
    """Return the two operands of a call that has nothing else."""
    if not calls(node, targets) or len(node.args) != 2 or node.kwargs:
        return None
    left, right = node.args
    if not (isinstance(left, fx.Node) and isinstance(right, fx.Node) and is_traced(left) and is_traced(right)):
        return None
    return left, right


def _source(node: fx.Node, path: list[fx.Node]) -> fx.Node:
    """Return what conversions and dropout that is off were applied to, and add these to `path`."""
    while _is_conversion(node) or _is_off(node):
        path.append(node)
        (node, *_) = node.all_input_nodes
    return node


def _is_conversion(node: fx.Node) -> bool:
    """Whether a node is a tensor as another dtype, at the same place."""
    if not calls(node, _CONVERSIONS) or not is_traced(node.args[0]):
        return False
    before, after = traced(node.all_input_nodes[0]), traced(node)
    return before.shape == after.shape and before.device == after.device


def _is_off(node: fx.Node) -> bool:
    """Whether a node is dropout that changes nothing."""
    if not calls(node, _DROPOUT):
        return False
    given = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
    return given.get("training", given.get("train", True)) is False or given.get("p", 0.5) in (0, 0.0)


def _softmax_operand(node: fx.Node) -> fx.Node | None:
    """Return what a softmax along the last dimension is of."""
    if not calls(node, _SOFTMAX) or not 1 <= len(node.args) <= 2 or not node.kwargs.keys() <= _SOFTMAX_OPTIONS:
        return None
    dim = node.args[1] if len(node.args) == 2 else node.kwargs.get("dim")
    source = node.args[0]
    return source if isinstance(source, fx.Node) and is_traced(source) and dim in (-1, traced(node).ndim - 1) else None


_SOFTMAX_OPTIONS = frozenset({"dim", "dtype", "_stacklevel"})


def _scaled(node: fx.Node) -> tuple[fx.Node, float] | None:
    """Return what is multiplied by a number, and the number."""
    if not calls(node, _TIMES | _BY) or len(node.args) != 2 or node.kwargs:
        return None
    left, right = node.args
    if isinstance(left, fx.Node) and isinstance(right, int | float) and right != 0:
        return left, float(right) if calls(node, _TIMES) else 1.0 / right
    if isinstance(right, fx.Node) and isinstance(left, int | float) and calls(node, _TIMES):
        return right, float(left)
    return None


def _is_sound(attention: _Attention, order: Order) -> bool:
    """Whether the fused operator takes such tensors, and computes at the place of the last product what was written."""
    q, k, v, out = (traced(n) for n in (attention.query, attention.key, attention.value, attention.output))
    if not (q.ndim == k.ndim == v.ndim == out.ndim and q.ndim in (3, 4)) or q.device.type not in ("cpu", "cuda"):
        return False
    if not (q.shape[:-2] == k.shape[:-2] == v.shape[:-2]) or 0 in out.shape or 0 in k.shape:
        return False
    dtype = attention.dtype
    if out.dtype != dtype or not all(
        torch.promote_types(traced(n).dtype, dtype) == traced(n).dtype for n in attention.nodes
    ):
        return False
    if any(len(node.users) != 1 for node in attention.nodes):
        return False
    return not order.may_write(attention.nodes[-1], attention.output, attention.nodes)


_LEAST_SCORES = 1 << 20
_LEAST_SCORES_IN_TRAINING = 1 << 21
"""How many scores in f32 a head has at least for the CPU's fused kernel to be faster: from 1.2 to 2 times at these."""
_LEAST_ROWS = 8
"""How many queries in half precision: there, products on a CPU are slow, but not those with few rows."""


def _is_better(attention: _Attention) -> bool:
    """Whether there is a fused kernel, and it is faster."""
    if torch.are_deterministic_algorithms_enabled() or not _has_kernel(attention):
        return False
    q, k = traced(attention.query), traced(attention.key)
    if q.device.type == "cuda":
        return True
    rows = integer_hint(q.shape[-2])
    if attention.dtype in (torch.float16, torch.bfloat16):
        return rows >= _LEAST_ROWS
    trains = torch.is_grad_enabled() and traced(attention.output).requires_grad
    return rows * integer_hint(k.shape[-1]) >= (_LEAST_SCORES_IN_TRAINING if trains else _LEAST_SCORES)


def _has_kernel(attention: _Attention) -> bool:
    q, k, v = (traced(n) for n in (attention.query, attention.key, attention.value))
    masked = isinstance(attention.mask, Filled)
    if not (is_static(q) and is_static(k)) and (masked or not is_backed(q, k, v)):
        return False  # what kernels want of a mask's sizes would become guards

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.to(attention.dtype) for x in (q, k.transpose(-2, -1), v))
        if q.ndim == 3:
            q, k, v = (x.unsqueeze(1) for x in (q, k, v))
        mask = q.new_empty((q.shape[-2], k.shape[-2])) if masked else None
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=isinstance(attention.mask, Causal))

    with torch.autocast(q.device.type, enabled=False):
        return not _FUSED.isdisjoint(operators_of(fused, q, k, v))


def _rewrite(graph: fx.Graph, attention: _Attention) -> None:
    """Replace attention by the fused operator."""
    with graph.inserting_before(attention.output):
        new = _Builder(graph, attention).fused()
    attention.output.replace_all_uses_with(new)
    new.meta = dict(attention.output.meta)
    for node in (attention.output, *attention.nodes):
        graph.erase_node(node)


@dataclass(frozen=True)
class _Builder:
    """Adds the calls that replace attention."""

    graph: fx.Graph
    attention: _Attention

    def fused(self) -> fx.Node:
        """Add the fused operator, and what makes of its result what the program has: a product is contiguous."""
        a, options = self.attention, dict[str, Any](scale=self.attention.scale)
        is_3d = traced(a.query).ndim == 3
        if isinstance(a.mask, Causal):
            options["is_causal"] = True
        elif a.mask is not None:
            options["attn_mask"] = self.with_heads(self.bias(a.mask), traced(a.mask.where).ndim if is_3d else 4)
        tensors = [self.prepared(n) for n in (a.query, self.call("transpose", a.key, -2, -1), a.value)]
        ndim = traced(a.query).ndim
        result = self.function(F.scaled_dot_product_attention, *(self.with_heads(t, ndim) for t in tensors), **options)
        result = self.call("squeeze", result, 1) if is_3d else result
        if isinstance(a.mask, Filled):
            result = self.function(operator.add, result, self.masked_rows(a.mask, tensors[2]))
        return self.call("contiguous", result)

    def prepared(self, tensor: fx.Node) -> fx.Node:
        """Add a conversion to the dtype of the scores: autocast has converted for the product."""
        value = tensor.meta.get("example_value")
        if isinstance(value, Tensor) and value.dtype == self.attention.dtype:
            return tensor
        return self.call("to", tensor, self.attention.dtype)

    def with_heads(self, tensor: fx.Node, ndim: int) -> fx.Node:
        """Add the dimension of heads to a tensor of a batch of matrices."""
        return self.call("unsqueeze", tensor, 1) if ndim == 3 else tensor

    def bias(self, mask: Filled) -> fx.Node:
        """Add what is added to the scores: minus infinity where they are masked."""
        numbers = (0.0, -math.inf) if mask.keeps else (-math.inf, 0.0)
        return self.call("to", self.function(torch.where, mask.where, *numbers), self.attention.dtype)

    def masked_rows(self, mask: Filled, value: fx.Node) -> fx.Node:
        """Add what rows without any scores give, zero for others: the fused operator leaves these rows zero.

        Equal scores give the mean of all values; those of minus infinity NaN, and NaN as the gradient of all values.
        """
        if mask.keeps:
            dead = self.call("logical_not", self.call("any", mask.where, -1, keepdim=True))
        else:
            dead = self.call("all", mask.where, -1, keepdim=True)
        weight = self.function(torch.where, dead, math.nan if mask.value == -math.inf else 1.0, 0.0)
        mean = self.call("mean", value, -2, keepdim=True)
        return self.function(operator.mul, self.call("to", weight, self.attention.dtype), mean)

    def call(self, method: str, *args: Any, **kwargs: Any) -> fx.Node:
        return self.described(self.graph.call_method(method, args, kwargs))

    def function(self, function: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return self.described(self.graph.call_function(function, args, kwargs))

    def described(self, node: fx.Node) -> fx.Node:
        node.meta = {k: v for k, v in self.attention.output.meta.items() if k != "example_value"}
        return node
