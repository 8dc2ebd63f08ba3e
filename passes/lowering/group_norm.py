"""Group norm and its gradient: nests over samples and groups, and for the gradients of the parameters over channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from tilewright.dialects.loop import layout_of
from tilewright.dialects.sym_expr import Expr, FloorDiv
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.dtypes import is_float
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import nest, temporary
from tilewright.passes.lowering.norms import inverse_deviation
from tilewright.passes.lowering.reductions import as_number


@dataclass(frozen=True)
class _Groups:
    """The operand `[N, C, ..]`, whose channels are in groups of `channels`."""

    call: Call
    source: SSAValue
    groups: Expr
    channels: Expr

    @property
    def sizes(self) -> tuple[Expr, ...]:
        return sizes_of(self.source)

    @property
    def inner(self) -> tuple[Expr, ...]:
        """The sizes of what a group of one sample holds."""
        return (self.channels, *self.sizes[2:])

    def index(self, outer: Index, inner: Index) -> Index:
        """Return the index of the operand, given sample and group, and place within the group."""
        return [outer[0], self.channel(outer, inner), *inner[1:]]

    def channel(self, outer: Index, inner: Index) -> Expr:
        return outer[1] * self.channels + inner[0]

    def count(self, b: Body) -> Value:
        product = self.channels
        for size in self.sizes[2:]:
            product = product * size
        return b.constant(as_number(product))

    def parameter(self, b: Body, name: str, channel: Expr) -> Value | None:
        """Load the parameter of a channel, which may be wider than the operand."""
        tensor = self.call.optional_tensor(name)
        return None if tensor is None else b.load_element(tensor, [channel], exact=True)


def _groups(call: Call) -> _Groups:
    source = call.tensor("input")
    sizes, groups = sizes_of(source), call.size("group")
    if len(sizes) < 2 or not is_float(element_of(source)):
        raise NotLoweredError(f"group norm of {source.type}")
    if layout_of(source.type).strides[1] == 1 and len(sizes) > 2 and sizes[1] != 1:
        # The elements of a group lie in many short pieces, which eager walks through in another order.
        raise NotLoweredError("group norm with the channels last")
    return _Groups(call, source, groups, call.simplify(FloorDiv(sizes[1], groups)))


def _forward(call: Call) -> Sequence[SSAValue]:
    """Compute `(x - mean) * rstd * weight + bias`, the mean, and rstd of each group of each sample."""
    g = _groups(call)

    def fill(body: Body, outer: Index, destinations: Sequence[Value]) -> None:
        def element(b: Body, inner: Index) -> Value:
            return b.load_element(g.source, g.index(outer, inner))

        count = g.count(body)
        mean = body.div(body.reduce_one("sum", g.inner, element), count)

        def squared(b: Body, inner: Index) -> Value:
            distance = b.sub(element(b, inner), mean)
            return b.mul(distance, distance)

        variance = body.div(body.reduce_one("sum", g.inner, squared), count)
        rstd = inverse_deviation(body, variance, body.argument("eps"))
        body.store(mean, destinations[1], outer)
        body.store(rstd, destinations[2], outer)

        def store(b: Body, inner: Index) -> None:
            channel = g.channel(outer, inner)
            weight, bias = g.parameter(b, "weight", channel), g.parameter(b, "bias", channel)
            scale = rstd if weight is None else b.mul(rstd, weight)
            value = b.mul(b.sub(element(b, inner), mean), scale)
            b.store(value if bias is None else b.add(value, bias), destinations[0], g.index(outer, inner))

        body.loop(g.inner, store)

    return nest(call, element_of(g.source), [g.sizes[0], g.groups], call.results, fill)


def _backward(call: Call) -> Sequence[SSAValue | None]:
    """Differentiate `y = h * weight + bias` with `h = (x - mean) * rstd`.

    All three gradients come of the sums of `grad` and of `grad * h` over the places of a channel of one sample.
    """
    g = _groups(call)
    if any(len(sizes_of(call.tensor(name))) != 2 for name in ("mean", "rstd")):
        raise NotLoweredError("statistics that are not of two dimensions")
    sums = _channel_sums(g)
    return [_of_operand(g, sums), *_of_parameters(g, sums)]


def _normalized(g: _Groups, b: Body, index: Index, outer: Index) -> Value:
    mean, rstd = (b.load_element(g.call.tensor(name), outer, exact=True) for name in ("mean", "rstd"))
    return b.mul(b.sub(b.load_element(g.source, index), mean), rstd)


def _channel_sums(g: _Groups) -> Sequence[SSAValue]:
    """Emit the sums of `grad * h` and of `grad` over the places of each channel of each sample."""
    grad = g.call.tensor("grad_out")

    def fill(body: Body, outer: Index, destinations: Sequence[Value]) -> None:
        sample, channel = outer

        def slots(b: Body, places: Index) -> Sequence[Value]:
            index = [sample, channel, *places]
            d = b.load_element(grad, index)
            return [b.mul(d, _normalized(g, b, index, [sample, FloorDiv(channel, g.channels)])), d]

        for total, destination in zip(body.reduce(["sum", "sum"], g.sizes[2:], slots), destinations, strict=True):
            body.store(total, destination, outer)

    kind = temporary(g.source, g.sizes[:2])
    return nest(g.call, element_of(g.source), g.sizes[:2], [kind, kind], fill)


def _of_operand(g: _Groups, sums: Sequence[SSAValue]) -> SSAValue | None:
    """Emit `rstd * (d - mean(d) - h * mean(d * h))`, where d is the gradient of h."""
    out = g.call.wanted(0)
    if out is None:
        return None

    def scaled(b: Body, value: Value, channel: Expr) -> Value:
        weight = g.parameter(b, "weight", channel)
        return value if weight is None else b.mul(value, weight)

    def fill(body: Body, outer: Index, destinations: Sequence[Value]) -> None:
        def slots(b: Body, inner: Index) -> Sequence[Value]:
            channel = g.channel(outer, inner)
            return [scaled(b, b.load(total, [outer[0], channel]), channel) for total in sums]

        count = g.count(body)
        along, plain = (body.div(t, count) for t in body.reduce(["sum", "sum"], [g.channels], slots))
        rstd = body.load_element(g.call.tensor("rstd"), outer, exact=True)

        def store(b: Body, inner: Index) -> None:
            index = g.index(outer, inner)
            grad = scaled(b, b.load_element(g.call.tensor("grad_out"), index), index[1])
            value = b.sub(b.sub(grad, plain), b.mul(_normalized(g, b, index, outer), along))
            b.store(b.mul(value, rstd), destinations[0], index)

        body.loop(g.inner, store)

    return nest(g.call, element_of(g.source), [g.sizes[0], g.groups], [out], fill)[0]


def _of_parameters(g: _Groups, sums: Sequence[SSAValue]) -> Sequence[SSAValue | None]:
    """Emit the sums of `grad * h` and of `grad` over all samples."""
    wanted = [g.call.wanted(1), g.call.wanted(2)]
    outs = [out for out in wanted if out is not None]
    if not outs:
        return [None, None]
    parts = [total for total, out in zip(sums, wanted, strict=True) if out is not None]

    def fill(body: Body, channel: Index, destinations: Sequence[Value]) -> None:
        def slots(b: Body, sample: Index) -> Sequence[Value]:
            return [b.load(part, [*sample, *channel]) for part in parts]

        totals = body.reduce(["sum"] * len(outs), g.sizes[:1], slots)
        for total, destination in zip(totals, destinations, strict=True):
            body.store(total, destination, channel)

    results = iter(nest(g.call, element_of(g.source), [g.sizes[1]], outs, fill))
    return [None if out is None else next(results) for out in wanted]


LOWERINGS: dict[str, Lowering] = {
    "aten.native_group_norm.default": _forward,
    "aten.native_group_norm_backward.default": _backward,
}
