"""Gradients of the losses that pick an element: one nest, whose elements are zero but for those that were picked.

The losses themselves are decomposed while AOTAutograd traces, and so are the gradients that are elementwise formulas.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import SSAValue

from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import nest

_MEAN = 1
"""torch's code for the reduction of a loss to its mean; 0 is none, 2 the sum."""


def _nll_loss_backward(call: Call) -> Sequence[SSAValue]:
    """Give `-weight[target] * grad` to each picked element, divided by the total weight for a mean.

    The classes are the dimension after that of the samples, or the only one.
    """
    source, target, grad = call.tensor("self"), call.tensor("target"), call.tensor("grad_output")
    weight, reduction = call.optional_tensor("weight"), call.integer("reduction")
    sizes = sizes_of(source)
    d = min(len(sizes) - 1, 1)
    if element_of(target) != i64 or len(sizes_of(target)) not in (len(sizes) - 1, len(sizes)):
        raise NotLoweredError(f"targets of type {target.type}")
    per_sample = bool(sizes_of(grad))
    if reduction and per_sample:
        raise NotLoweredError("a gradient per sample of a reduced loss")

    def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
        # A lone sample may come with its target as [1].
        sample = [*index[:d], *index[d + 1 :]] if len(sizes) > 1 else [index[0] * 0] * len(sizes_of(target))
        picked = b.load(target, sample)
        counts = b.compare("ne", picked, b.constant(call.number("ignore_index"), i64))
        # One comparison per element, of 32 bits where these suffice: they take half as many registers.
        kind = i32 if sizes[d].is_Integer and sizes[d] < 1 << 31 else i64
        wanted = b.select(counts, picked, b.constant(-1, i64))
        place = b.cast_register(b.index_value(index[d]), kind)
        is_target = b.compare("eq", b.cast_register(wanted, kind), place)
        share = b.load_element(grad, sample if per_sample else [])
        if reduction == _MEAN:
            share = b.round(b.div(share, b.load_element(call.tensor("total_weight"), [])))
        share = b.neg(share)
        if weight is not None:
            share = b.mul(share, b.load_element(weight, [index[d]]))
        b.store(b.select(is_target, share, b.constant(0)), destinations[0], index)

    return nest(call, element_of(source), sizes, [call.result], fill)


LOWERINGS: dict[str, Lowering] = {
    "aten.nll_loss_backward.default": _nll_loss_backward,
    "aten.nll_loss2d_backward.default": _nll_loss_backward,
}
