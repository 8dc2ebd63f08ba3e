"""Softmax, its logarithm, and their gradients: one nest each, with reductions and a loop over the dimension inside.

The exponentials are written twice, in the sum and in the result: whether to keep or to compute them again is a question
of the target, and not asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import math
from xdsl.ir import SSAValue

from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.nest import nest
from tilewright.passes.lowering.reductions import Reduction

Load = Callable[[Body, Index], Value]
"""Emit the element at an index along the softmax's dimension."""


def _rows(
    call: Call, sources: Sequence[str], make: Callable[..., Callable[[Body, Index], Value]]
) -> Sequence[SSAValue]:
    """Add a nest over all dimensions but `dim`, in which the results along `dim` are computed.

    `make(body, r, *loads)` emits what a row has in common, and returns what emits one element of the result.
    """
    tensors = [call.tensor(name) for name in sources]
    sizes = sizes_of(tensors[0])
    r = Reduction(tensors[0], (call.dim("dim", len(sizes)),) if sizes else (), keepdim=False)

    def fill(body: Body, outer: Index, destinations: Sequence[Value]) -> None:
        def load_from(tensor: SSAValue) -> Load:
            return lambda b, inner: b.load_element(tensor, r.source_index(outer, inner))

        element = make(body, r, *map(load_from, tensors))

        def store(b: Body, inner: Index) -> None:
            b.store(element(b, inner), destinations[0], r.source_index(outer, inner))

        body.loop(r.sizes, store)

    return nest(call, element_of(tensors[0]), [sizes[d] for d in r.kept], [call.result], fill)


def _exp(b: Body, x: Value) -> Value:
    return b.math(math.ExpOp, x)


def _softmax(body: Body, r: Reduction, load: Load) -> Load:
    highest = body.reduce_one("max", r.sizes, load)
    total = body.reduce_one("sum", r.sizes, lambda b, k: _exp(b, b.sub(load(b, k), highest)))
    scale = body.reciprocal(total)
    return lambda b, k: b.mul(_exp(b, b.sub(load(b, k), highest)), scale)


def _log_softmax(body: Body, r: Reduction, load: Load) -> Load:
    highest = body.reduce_one("max", r.sizes, load)
    total = body.reduce_one("sum", r.sizes, lambda b, k: _exp(b, b.sub(load(b, k), highest)))
    # Eager's kernel for the CPU and the last dimension, unlike the others, keeps both of these in the operand's dtype.
    along_last = r.dims == (len(sizes_of(r.source)) - 1,)
    logarithm = body.math(math.LogOp, body.round_on_cpu(total) if along_last else total)
    if along_last:
        logarithm = body.round_on_cpu(logarithm)
    return lambda b, k: b.sub(b.sub(load(b, k), highest), logarithm)


def _safe_softmax(body: Body, r: Reduction, load: Load) -> Load:
    """Softmax, but 0 in a row that is all minus infinity."""
    masked = body.reduce_one("all", r.sizes, lambda b, k: b.compare("eq", load(b, k), float("-inf")))
    element = _softmax(body, r, load)
    return lambda b, k: b.select(masked, b.constant(0), element(b, k))


def _softmax_backward(body: Body, r: Reduction, grad: Load, output: Load) -> Load:
    total = body.reduce_one("sum", r.sizes, lambda b, k: b.mul(grad(b, k), output(b, k)))
    return lambda b, k: b.mul(b.sub(grad(b, k), total), output(b, k))


def _log_softmax_backward(body: Body, r: Reduction, grad: Load, output: Load) -> Load:
    total = body.reduce_one("sum", r.sizes, grad)
    return lambda b, k: b.sub(grad(b, k), b.mul(_exp(b, output(b, k)), total))


def _lowering(make: Callable[..., Load], *sources: str) -> Lowering:
    return lambda call: _rows(call, sources, make)


LOWERINGS: dict[str, Lowering] = {
    "aten._softmax.default": _lowering(_softmax, "self"),
    "aten._log_softmax.default": _lowering(_log_softmax, "self"),
    "aten._safe_softmax.default": _lowering(_safe_softmax, "self"),
    "aten._softmax_backward_data.default": _lowering(_softmax_backward, "grad_output", "output"),
    "aten._log_softmax_backward_data.default": _lowering(_log_softmax_backward, "grad_output", "output"),
}
