"""The gradients of the norms over the last dimensions.

The gradient of the operand takes two sums over each row; those of the parameters are sums over all rows, per column.
Where both are asked for, one nest computes them in blocks of rows: the second walk, down the columns, then finds the
block in the cache, and what is left to sum is one row per block. A gradient that is not asked for has no loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from tilewright.dialects.loop import layout_of
from tilewright.dialects.sym_expr import Expr, FloorDiv, integer
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, Tensor, element_of, sizes_of
from tilewright.passes.lowering.nest import nest, temporary
from tilewright.passes.lowering.norms import trailing
from tilewright.passes.lowering.reductions import Reduction, as_number

_ROWS = 64
"""The rows of a block, at most."""
_BLOCKS = 256
"""How many blocks a GPU needs to be busy."""
_BLOCK_BYTES = 1 << 18
"""What a block may take in the cache, at most, of the operand and of the gradient together."""

Element = Callable[[Body, Index, Index], Value]
"""Emit a value that belongs to an element of the operand, given its row and its place in the row."""


@dataclass(frozen=True)
class _Gradients:
    """What the gradients of `y = h * weight + bias` are made of, with `h = (x - mean) * rstd` or `h = x * rstd`."""

    call: Call
    r: Reduction
    centred: bool

    @property
    def rows(self) -> tuple[Expr, ...]:
        sizes = sizes_of(self.r.source)
        return tuple(sizes[d] for d in self.r.kept)

    def statistic(self, b: Body, name: str, outer: Index) -> Value:
        """Load a statistic of a row, which may be wider than the operand."""
        return b.load_element(self.call.tensor(name), self.r.result_index(outer), exact=True)

    def grad(self, b: Body, outer: Index, inner: Index) -> Value:
        return b.load_element(self.call.tensor("grad_out"), self.r.source_index(outer, inner))

    def scaled(self, b: Body, outer: Index, inner: Index) -> Value:
        """Emit the gradient of h."""
        value, weight = self.grad(b, outer, inner), self.call.optional_tensor("weight")
        return value if weight is None else b.mul(value, b.load_element(weight, inner, exact=True))

    def normalized(self, b: Body, outer: Index, inner: Index) -> Value:
        """Emit h."""
        x = b.load_element(self.r.source, self.r.source_index(outer, inner))
        if self.centred:
            x = b.sub(x, self.statistic(b, "mean", outer))
        return b.mul(x, self.statistic(b, "rstd", outer))

    def row(self, body: Body, outer: Index, destination: Value) -> None:
        """Store `rstd * (g - mean(g) - h * mean(g * h))` of a row, g the gradient of h; mean(g) only if `centred`."""

        def slots(b: Body, inner: Index) -> Sequence[Value]:
            g = self.scaled(b, outer, inner)
            along = b.mul(g, self.normalized(b, outer, inner))
            return [along, g] if self.centred else [along]

        count = body.constant(as_number(self.r.count))
        means = [body.div(t, count) for t in body.reduce(["sum"] * (1 + self.centred), self.r.sizes, slots)]
        scale = self.statistic(body, "rstd", outer)

        def store(b: Body, inner: Index) -> None:
            value = self.scaled(b, outer, inner)
            if self.centred:
                value = b.sub(value, means[1])
            value = b.sub(value, b.mul(self.normalized(b, outer, inner), means[0]))
            b.store(b.mul(value, scale), destination, self.r.source_index(outer, inner))

        body.loop(self.r.sizes, store)

    def _most(self) -> int:
        """Return how many rows a block should have at most: they fit in a cache, or there are blocks enough."""
        if layout_of(self.r.source.type).device_kind != "cuda":
            return _BLOCK_BYTES // (8 * max(1, int(self.r.count)))
        return max(4, math.prod(int(n) for n in self.rows if n.is_Integer) // _BLOCKS)

    def block(self) -> int | None:
        """Return how many rows make a block, or None where the rows do not divide into blocks of a fair size."""
        last = self.rows[-1] if self.rows else integer(1)
        if not (last.is_Integer and self.r.count.is_Integer):
            return None
        most = min(_ROWS, self._most())
        return next((n for n in range(most, 3, -1) if last % n == 0), None)


def _layer_norm_backward(call: Call) -> Sequence[SSAValue | None]:
    gradients = _Gradients(call, trailing(call, call.tensor("input")), centred=True)
    return _gradients(gradients, [call.wanted(1), call.wanted(2)])


def _rms_norm_backward(call: Call) -> Sequence[SSAValue | None]:
    gradients = _Gradients(call, trailing(call, call.tensor("input")), centred=False)
    return _gradients(gradients, [call.wanted(1)])


def _gradients(g: _Gradients, parameters: Sequence[Tensor | None]) -> Sequence[SSAValue | None]:
    of_operand, block = g.call.wanted(0), g.block()
    outs = [out for out in parameters if out is not None]

    def terms(b: Body, outer: Index, inner: Index) -> Sequence[Value]:
        grad = g.grad(b, outer, inner)
        values = (b.mul(grad, g.normalized(b, outer, inner)), grad)
        return [value for value, out in zip(values, parameters, strict=False) if out is not None]

    rows, result, element = g.rows, None, element_of(g.r.source)
    if of_operand is not None and outs and block is not None:
        rows, (result, *sums) = _in_blocks(g, of_operand, len(outs), block, terms)

        def summed(b: Body, outer: Index, inner: Index) -> Sequence[Value]:
            return [b.load(total, [*outer, *inner]) for total in sums]
    else:
        summed = terms
        if of_operand is not None:
            (result,) = nest(g.call, element, rows, [of_operand], lambda b, i, outs: g.row(b, i, outs[0]))

    def fill(body: Body, inner: Index, destinations: Sequence[Value]) -> None:
        totals = body.reduce(["sum"] * len(outs), rows, lambda b, outer: summed(b, outer, inner))
        for total, destination in zip(totals, destinations, strict=True):
            body.store(total, destination, inner)

    results = iter(nest(g.call, element, g.r.sizes, outs, fill) if outs else ())
    return [result, *(None if out is None else next(results) for out in parameters)]


def _in_blocks(
    g: _Gradients, out: Tensor, count: int, block: int, terms: Callable[[Body, Index, Index], Sequence[Value]]
) -> tuple[tuple[Expr, ...], Sequence[SSAValue]]:
    """Add a nest over blocks of rows, for the gradient of the operand and the sums of `terms` over each block.

    Return the sizes of the blocks, and these tensors.
    """
    blocks = (*g.rows[:-1], FloorDiv(g.rows[-1], integer(block)))

    def fill(body: Body, index: Index, destinations: Sequence[Value]) -> None:
        def row(k: Index) -> Index:
            return [*index[:-1], index[-1] * block + k[0]]

        def column(b: Body, inner: Index) -> None:
            totals = b.reduce(["sum"] * count, [integer(block)], lambda b, k: terms(b, row(k), inner))
            for total, destination in zip(totals, destinations[1:], strict=True):
                b.store(total, destination, [*index, *inner])

        body.loop([integer(block)], lambda b, k: g.row(b, row(k), destinations[0]))
        body.loop(g.r.sizes, column)

    partial = temporary(g.r.source, [*blocks, *g.r.sizes])
    return blocks, nest(g.call, element_of(g.r.source), blocks, [out, *[partial] * count], fill)


LOWERINGS: dict[str, Lowering] = {
    "aten.native_layer_norm_backward.default": _layer_norm_backward,
    "aten._fused_rms_norm_backward.default": _rms_norm_backward,
}
