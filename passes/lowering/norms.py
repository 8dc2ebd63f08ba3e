"""Normalizations over the last dimensions: one nest each, whose parallel loops are over the others.

On 16-bit floats statistics and result are computed in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import math
from xdsl.ir import SSAValue

from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.dtypes import compute_type
from tilewright.passes.lowering.nest import nest
from tilewright.passes.lowering.reductions import Reduction, as_number, mean_and_deviation

_EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52}


def trailing(call: Call, source: SSAValue) -> Reduction:
    """Return the reduction over as many last dimensions as `normalized_shape` has, kept with size one."""
    rank = len(sizes_of(source))
    first = rank - len(call.sizes("normalized_shape") or ())
    return Reduction(source, tuple(range(first, rank)), keepdim=True)


def inverse_deviation(b: Body, variance: Value, eps: Value) -> Value:
    """Emit `1 / sqrt(variance + eps)`, as eager's kernels on each device compute it."""
    return b.math(math.RsqrtOp, b.add(variance, eps))


def _layer_norm(call: Call) -> Sequence[SSAValue]:
    """Compute `(x - mean) * rstd * weight + bias`, the mean, and rstd: the reciprocal of the standard deviation."""
    source = call.tensor("input")
    weight, bias = call.optional_tensor("weight"), call.optional_tensor("bias")
    r = trailing(call, source)

    def fill(body: Body, outer: Index, destinations: Sequence[Value]) -> None:
        mean, squares = mean_and_deviation(body, r, outer)
        variance = body.div(squares, body.constant(as_number(r.count)))
        rstd = inverse_deviation(body, variance, body.argument("eps"))
        for value, destination in ((mean, destinations[1]), (rstd, destinations[2])):
            body.store(value, destination, r.result_index(outer))

        def store(b: Body, inner: Index) -> None:
            index = r.source_index(outer, inner)
            x = b.mul(b.sub(b.load_element(source, index), mean), rstd)
            b.store(affine(b, x, weight, bias, inner), destinations[0], index)

        body.loop(r.sizes, store)

    return _rows(call, r, fill)


def _rms_norm(call: Call) -> Sequence[SSAValue]:
    """Compute `x * rstd * weight`, and rstd: the reciprocal of the root of the mean square."""
    source = call.tensor("input")
    weight = call.optional_tensor("weight")
    r = trailing(call, source)
    eps = call.optional_number("eps")

    def fill(body: Body, outer: Index, destinations: Sequence[Value]) -> None:
        def squared(b: Body, inner: Index) -> Value:
            x = b.load_element(source, r.source_index(outer, inner))
            return b.mul(x, x)

        mean = body.div(body.reduce_one("sum", r.sizes, squared), body.constant(as_number(r.count)))
        default = _EPSILON[str(compute_type(element_of(source)))]
        rstd = inverse_deviation(body, mean, body.constant(default if eps is None else eps))
        body.store(rstd, destinations[1], r.result_index(outer))

        def store(b: Body, inner: Index) -> None:
            index = r.source_index(outer, inner)
            x = b.mul(b.load_element(source, index), rstd)
            b.store(affine(b, x, weight, None, inner), destinations[0], index)

        body.loop(r.sizes, store)

    return _rows(call, r, fill)


def _rows(call: Call, r: Reduction, fill: Callable[[Body, Index, Sequence[Value]], None]) -> Sequence[SSAValue]:
    sizes = sizes_of(r.source)
    return nest(call, element_of(r.source), [sizes[d] for d in r.kept], call.results, fill)


def affine(b: Body, x: Value, weight: SSAValue | None, bias: SSAValue | None, index: Index) -> Value:
    """Emit `x * weight + bias` with the elements at an index within a row. Parameters may be wider than the input."""
    if weight is not None:
        x = b.mul(x, b.load_element(weight, index, exact=True))
    return x if bias is None else b.add(x, b.load_element(bias, index, exact=True))


LOWERINGS: dict[str, Lowering] = {
    "aten.native_layer_norm.default": _layer_norm,
    "aten._fused_rms_norm.default": _rms_norm,
}
