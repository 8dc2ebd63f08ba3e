"""Batch norm and its gradient: sums over a channel in one nest, and the result in another, over all elements.

With two nests the result can join the elementwise operators around it, and each nest can run in the order in which the
elements lie in memory, channels last or not. Statistics are rounded to their own dtype before they are used, as in
eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, Tensor, element_of, sizes_of
from tilewright.passes.lowering.dtypes import is_float
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import nest, temporary
from tilewright.passes.lowering.norms import inverse_deviation
from tilewright.passes.lowering.reductions import Reduction, as_number, mean_and_deviation

Statistic = Callable[[Body, Index], Value]
"""Emit a statistic of the channel that an index of the operand lies in."""


@dataclass(frozen=True)
class _Channels:
    """The operand, its sums per channel, and where statistics and parameters of a channel lie."""

    call: Call
    r: Reduction

    @property
    def source(self) -> SSAValue:
        return self.r.source

    def sums(self, outs: Sequence[Tensor], fill: Callable[[Body, Index, Sequence[Value]], None]) -> Sequence[SSAValue]:
        """Add a nest over the channels."""
        return nest(self.call, element_of(self.source), [sizes_of(self.source)[1]], outs, fill)

    def elements(self, out: Tensor, value: Callable[[Body, Index], Value]) -> SSAValue:
        """Add a nest over all elements of the operand."""

        def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
            b.store(value(b, index), destinations[0], index)

        return nest(self.call, element_of(self.source), sizes_of(self.source), [out], fill)[0]

    def of(self, tensor: SSAValue) -> Statistic:
        """Return what loads an element per channel; it may be wider than the operand."""
        return lambda b, index: b.load_element(tensor, [index[1]], exact=True)

    def optional(self, name: str) -> Statistic | None:
        tensor = self.call.optional_tensor(name)
        return None if tensor is None else self.of(tensor)

    def running(self) -> tuple[Statistic, Statistic]:
        """Return the running mean, and the reciprocal of the deviation by the running variance."""
        mean, variance = self.of(self.call.tensor("running_mean")), self.of(self.call.tensor("running_var"))
        return mean, lambda b, index: inverse_deviation(b, variance(b, index), b.argument("eps"))


def _channels(call: Call) -> _Channels:
    source = call.tensor("input")
    rank = len(sizes_of(source))
    if rank < 2 or not is_float(element_of(source)):
        raise NotLoweredError(f"batch norm of {source.type}")
    return _Channels(call, Reduction(source, (0, *range(2, rank)), keepdim=False))


def _result(c: _Channels, out: Tensor, mean: Statistic, inverse: Statistic) -> SSAValue:
    """Emit `(x - mean) * (inverse * weight) + bias`."""
    weight, bias = c.optional("weight"), c.optional("bias")

    def value(b: Body, index: Index) -> Value:
        scale = inverse(b, index)
        if weight is not None:
            scale = b.mul(scale, weight(b, index))
        result = b.mul(b.sub(b.load_element(c.source, index), mean(b, index)), scale)
        return result if bias is None else b.add(result, bias(b, index))

    return c.elements(out, value)


def _without_training(call: Call) -> Sequence[SSAValue | None]:
    """Normalize by the running statistics. The saved statistics are empty, and nobody asks for them."""
    others = call.op.results[1:]
    if any(result.first_use is not None for result in others):
        raise NotLoweredError("saved or moved statistics of batch norm without training")
    c = _channels(call)
    return [_result(c, call.result, *c.running()), *([None] * len(others))]


def _forward(call: Call) -> Sequence[SSAValue | None]:
    """Normalize by the statistics of the batch; return these and, if there are any, the new running statistics."""
    if not call.flag("training"):
        return _without_training(call)
    c = _channels(call)
    out, *statistics = call.results

    def fill(body: Body, channel: Index, destinations: Sequence[Value]) -> None:
        mean, squares = mean_and_deviation(body, c.r, channel)
        count = body.constant(as_number(c.r.count))
        inverse = inverse_deviation(body, body.div(squares, count), body.argument("eps"))
        values = [mean, inverse]
        if len(destinations) > 2:
            # Of one element per channel eager, too, divides by zero.
            unbiased = body.div(squares, body.sub(count, body.constant(1)))
            values += [_moved(body, call.tensor("running_mean"), mean, channel)]
            values += [_moved(body, call.tensor("running_var"), unbiased, channel)]
        for value, destination in zip(values, destinations, strict=True):
            body.store(value, destination, channel)

    saved = c.sums(statistics, fill)
    return [_result(c, out, c.of(saved[0]), c.of(saved[1])), *saved]


def _moved(b: Body, running: SSAValue, new: Value, channel: Index) -> Value:
    """Emit the running statistic moved towards the new one by `momentum`."""
    momentum = b.argument("momentum")
    old = b.load_element(running, channel, exact=True)
    return b.add(b.mul(momentum, new), b.mul(b.sub(b.constant(1), momentum), old))


def _backward(call: Call) -> Sequence[SSAValue | None]:
    """Differentiate `y = h * weight + bias` with `h = (x - mean) * inverse`.

    With the statistics of the batch, the gradient of the operand is
    `weight * inverse * (g - mean(g) - h * mean(g * h))`; with the running ones it is `weight * inverse * g`.
    """
    c = _channels(call)
    training = call.flag("train")
    if training:
        mean, inverse = c.of(call.tensor("save_mean")), c.of(call.tensor("save_invstd"))
    else:
        mean, inverse = c.running()
    grad = call.tensor("grad_out")

    def normalized(b: Body, index: Index) -> Value:
        return b.mul(b.sub(b.load_element(c.source, index), mean(b, index)), inverse(b, index))

    of_operand, of_weight, of_bias = (call.wanted(i) for i in range(3))
    means = [temporary(c.source, [sizes_of(c.source)[1]])] * 2 if training and of_operand is not None else []
    outs = [out for out in (of_weight, of_bias) if out is not None]

    def fill(body: Body, channel: Index, destinations: Sequence[Value]) -> None:
        def slots(b: Body, inner: Index) -> Sequence[Value]:
            index = c.r.source_index(channel, inner)
            g = b.load_element(grad, index)
            return [b.mul(g, normalized(b, index)), g]

        totals = body.reduce(["sum", "sum"], c.r.sizes, slots)
        count = body.constant(as_number(c.r.count))
        values = [total for total, out in zip(totals, (of_weight, of_bias), strict=True) if out is not None]
        values += [body.div(total, count) for total in totals[: len(means)]]
        for value, destination in zip(values, destinations, strict=True):
            body.store(value, destination, channel)

    sums = list(c.sums([*outs, *means], fill)) if outs or means else []
    loads = [c.of(total) for total in sums[len(outs) :]]
    weight = c.optional("weight")

    def value(b: Body, index: Index) -> Value:
        g = b.load_element(grad, index)
        if loads:
            along, plain = (load(b, index) for load in loads)
            g = b.sub(b.sub(g, plain), b.mul(normalized(b, index), along))
        scale = inverse(b, index)
        return b.mul(g, scale if weight is None else b.mul(scale, weight(b, index)))

    of_parameters = iter(sums[: len(outs)])
    return [
        None if of_operand is None else c.elements(of_operand, value),
        *(None if out is None else next(of_parameters) for out in (of_weight, of_bias)),
    ]


LOWERINGS: dict[str, Lowering] = {
    "aten._native_batch_norm_legit_functional.default": _forward,
    "aten._native_batch_norm_legit.no_stats": _forward,
    "aten._native_batch_norm_legit_no_training.default": _without_training,
    "aten.native_batch_norm_backward.default": _backward,
}
