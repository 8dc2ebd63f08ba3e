"""Random operators of a graph become functions of a seed that the graph draws once, from torch's default generator.

So `torch.manual_seed` makes a program reproducible, two calls differ, and a number that the backward pass needs may be
saved or computed again: this happens before the graph is split into forward and backward (Inductor: replace_random).
The operators of a graph share the seed, and each has a stream of its own. Calls that name a generator, and
distributions that are not listed here, stay calls of ATen.

With `random="eager"` the numbers are those of eager mode: each operator draws from torch's generator, in the order of
the program. Only dropout is written out then, because what tracing gives for it is another operator than eager mode's.

Dropout multiplies what it keeps by a scale that is rounded to the dtype, as in eager mode on a CPU; on CUDA, as there,
the scale is rounded to the type that the product is computed in.

On CUDA the seed is a tensor of the device, drawn from the device's generator by a kernel, so nothing waits for it.
"""

# FX nodes carry values of any type.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import fx

from tilewright.frontends.dropout import kept_scale, scale_on_cuda
from tilewright.frontends.random_rewriter import Rewriter, Rule, memory_order
from tilewright.frontends.torch_internals import find_overload

aten = torch.ops.aten

RandomMode: TypeAlias = Literal["compiled", "eager"]
"""Whose random numbers a program has: the compiler's own, or those of eager mode."""


def replace_random(graph_module: fx.GraphModule, mode: RandomMode) -> None:
    """Rewrite the random operators of a functional graph, whose nodes have traced values, in place."""
    rules = _COMPILED if mode == "compiled" else _EAGER
    graph = graph_module.graph
    nodes = [n for n in graph.nodes if n.op == "call_function" and n.target in rules and "val" in n.meta]
    if not nodes:
        return
    rewriter = Rewriter(graph)
    for node in nodes:
        rewriter.apply(rules[node.target], node)
    graph_module.recompile()


def _is_probability(p: Any) -> bool:
    return isinstance(p, float | int) and 0.0 <= p <= 1.0


def _dropped(r: Rewriter, x: fx.Node, p: float, kept: fx.Node) -> Sequence[fx.Node]:
    """Return the result of dropout and its mask, given which elements are kept as zeros and ones."""
    dtype = r.result(0).dtype
    noise = r.call(aten._to_copy.default, kept, dtype=dtype) if kept.meta["val"].dtype != dtype else kept
    if r.result(0).device.type == "cuda":
        result = r.call(aten.mul.Tensor, r.call(aten.mul.Tensor, x, noise), scale_on_cuda(1.0 - p, dtype))
        return result, r.call(aten.ne.Scalar, kept, 0) if kept.meta["val"].dtype != torch.bool else kept
    noise = r.call(aten.mul.Tensor, noise, kept_scale(1.0 - p, dtype))
    mask = kept if kept.meta["val"].dtype == torch.bool else r.call(aten.ne.Scalar, kept, 0)
    return r.call(aten.mul.Tensor, x, noise), mask


def _dropout(r: Rewriter, *, input: fx.Node, p: float, train: bool | None) -> Sequence[fx.Node] | None:
    if not r.result(0).dtype.is_floating_point or not _is_probability(p):
        return None
    if train is False or p == 0:
        return r.call(aten.clone.default, input), r.call(aten.ones_like.default, input, dtype=torch.bool)
    if p == 1:
        return _dropped(r, input, p, r.call(aten.zeros_like.default, input, dtype=torch.bool))
    return _dropped(r, input, p, r.true_with(1.0 - p, r.result(0)))


def _eager_dropout(r: Rewriter, *, input: fx.Node, p: float, train: bool | None) -> Sequence[fx.Node] | None:
    """Draw as the composite `dropout` does, of the input's dtype; it draws nothing where all elements are dropped.

    On CUDA eager mode has the operator that tracing gives.
    """
    if r.result(0).device.type == "cuda" or not r.result(0).dtype.is_floating_point or not _is_probability(p):
        return None
    if train is False or p in (0, 1):
        return _dropout(r, input=input, p=p, train=train)
    return _dropped(r, input, p, _drawn_in_memory(r, input, 1.0 - p))


def _drawn_in_memory(r: Rewriter, like: fx.Node, p: float) -> fx.Node:
    """Draw as `bernoulli_` does, in the order of memory: `bernoulli` makes a contiguous tensor."""
    order = memory_order(like.meta["val"])
    in_memory = r.call(aten.permute.default, like, order)
    drawn = r.call(aten.bernoulli.p, r.call(aten.empty_like.default, in_memory), p)
    return r.call(aten.permute.default, drawn, [order.index(d) for d in range(len(order))])


def _eager_bernoulli(r: Rewriter, *, self: fx.Node, p: float, generator: Any) -> fx.Node | None:
    """Draw as eager mode does into a tensor that was made for it: tracing gives this for dropout in place."""
    order = memory_order(self.meta["val"])
    if generator is not None or self.target is not aten.empty_like.default or order == sorted(order):
        return None
    return _drawn_in_memory(r, self, p)


def _bernoulli(r: Rewriter, *, self: fx.Node, p: Any = None, generator: Any = None) -> fx.Node | None:
    if generator is not None or (p is not None and not isinstance(p, fx.Node) and not _is_probability(p)):
        return None
    found = r.true_with(self if p is None else p, r.result())
    return r.call(aten._to_copy.default, found, dtype=r.result().dtype)


def _filled(distribution: str) -> Rule:
    """Return the rule of an operator that makes a tensor of random numbers of its dtype."""

    def rule(r: Rewriter, *, generator: Any = None, pin_memory: Any = None, **_: Any) -> fx.Node | None:
        like = r.result()
        if generator is not None or pin_memory or like.dtype not in _FLOATS:
            return None
        return r.random(distribution, like)

    return rule


def _integers(
    r: Rewriter, *, high: Any, low: Any = 0, generator: Any = None, pin_memory: Any = None, **_: Any
) -> fx.Node | None:
    bounds = [b.meta["val"] if isinstance(b, fx.Node) else b for b in (low, high)]
    if generator is not None or pin_memory or any(isinstance(b, torch.Tensor) for b in bounds):
        return None
    known = [b for b in bounds if isinstance(b, int)]
    if len(known) == 2 and not 0 < bounds[1] - bounds[0] < 2**63:
        return None  # eager mode has the error
    return r.integers(low, high)


def _uniform(r: Rewriter, *, self: fx.Node, to: Any, generator: Any, **bounds: Any) -> fx.Node | None:
    low = bounds["from"]
    if generator is not None or r.result().dtype not in _FLOATS or not low <= to:
        return None
    numbers = r.random("uniform", r.result())
    return numbers if (low, to) == (0, 1) else _scaled(r, numbers, to - low, low)


def _scaled(r: Rewriter, numbers: fx.Node, scale: Any, shift: Any) -> fx.Node:
    return r.call(aten.add.Tensor, r.call(aten.mul.Tensor, numbers, scale), shift)


def _normal(r: Rewriter, *, mean: Any = 0.0, std: Any = 1.0, generator: Any = None, **_: Any) -> fx.Node | None:
    like = r.result()
    if generator is not None or like.dtype not in _FLOATS or (not isinstance(std, fx.Node) and not std >= 0):
        return None
    return _scaled(r, r.random("normal", like), std, mean)


def _exponential(r: Rewriter, *, self: fx.Node, lambd: float, generator: Any) -> fx.Node | None:
    if generator is not None or r.result().dtype not in _FLOATS or not lambd > 0:
        return None
    numbers = r.random("exponential", r.result())
    return numbers if lambd == 1 else r.call(aten.div.Tensor, numbers, lambd)


def _rrelu(
    r: Rewriter, *, self: fx.Node, noise: fx.Node, lower: float, upper: float, training: bool, generator: Any
) -> Sequence[fx.Node] | None:
    like = r.result(0)
    if generator is not None or not training or like.dtype not in _FLOATS:
        return None
    slopes = _scaled(r, r.random("uniform", like), upper - lower, lower)
    one = r.call(aten.full.default, [], 1.0, dtype=like.dtype, device=like.device)
    chosen = r.call(aten.where.self, r.call(aten.le.Scalar, self, 0), slopes, one)
    return r.call(aten.mul.Tensor, self, chosen), chosen


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_UNIFORM, _STANDARD_NORMAL = _filled("uniform"), _filled("normal")

_BY_NAME: Mapping[str, Rule] = {
    "native_dropout.default": _dropout,
    **dict.fromkeys(("bernoulli.default", "bernoulli.p", "bernoulli.Tensor"), _bernoulli),
    **dict.fromkeys(("rand.default", "rand_like.default"), _UNIFORM),
    **dict.fromkeys(("randn.default", "randn_like.default"), _STANDARD_NORMAL),
    **dict.fromkeys(("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype"), _integers),
    "uniform.default": _uniform,
    "normal_functional.default": _normal,
    **dict.fromkeys(
        ("normal.float_float", "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor"), _normal
    ),
    "exponential.default": _exponential,
    "rrelu_with_noise_functional.default": _rrelu,
}


def _by_overload(rules: Mapping[str, Rule]) -> dict[Any, Rule]:
    found = {find_overload(f"aten.{name}"): rule for name, rule in rules.items()}
    return {overload: rule for overload, rule in found.items() if overload is not None}


_COMPILED = _by_overload(_BY_NAME)
_EAGER = _by_overload({"native_dropout.default": _eager_dropout, "bernoulli.p": _eager_bernoulli})
