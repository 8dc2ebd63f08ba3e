"""Puts scalar operations into loop nests: copies, elementwise nests, and the index arithmetic of broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from xdsl.dialects.builtin import DYNAMIC_INDEX, ArrayAttr, StringAttr, TensorType
from xdsl.ir import Attribute, SSAValue

from tilewright.dialects.loop import Bounds, NestOp, layout_of
from tilewright.dialects.sym import LayoutAttr
from tilewright.dialects.sym_expr import Expr, dim, integer
from tilewright.passes.lowering.body import Body, Index, Value, name_indices
from tilewright.passes.lowering.call import Call, Tensor, element_of, sizes_of
from tilewright.passes.lowering.dtypes import Number, compute_type

ZERO = integer(0)


def nest(
    call: Call,
    element: Attribute,
    sizes: Sequence[Expr],
    outs: Sequence[Tensor],
    fill: Callable[[Body, Index, Sequence[Value]], None],
    *starts: SSAValue,
) -> Sequence[SSAValue]:
    """Add a nest of loops over `sizes` that computes tensors of types `outs`, and return them.

    `fill` gets a body for operands that meet in dtype `element`, the indices of the loops, and the destinations to
    store to; the first of these begin as `starts`.
    """
    op = NestOp.get(Bounds.extents(sizes), outs, initial=dict(enumerate(starts)))
    op.location = call.op.location
    op.attributes["origin"] = _origin(call.name)
    call.ops.append(op)
    indices = op.indices
    name_indices(indices, 0)
    for destination in op.destinations:
        destination.name_hint = "out"
    fill(Body(call, element, op.block, indices), [dim(i) for i in range(len(indices))], op.destinations)
    return op.results


def temporary(like: SSAValue, sizes: Sequence[Expr]) -> Tensor:
    """Return the type of a contiguous tensor on the device of `like`, with elements of its compute type."""
    shape = [int(s) if s.is_Integer else DYNAMIC_INDEX for s in sizes]
    layout = LayoutAttr.contiguous(sizes, layout_of(like.type).device)
    return TensorType(compute_type(element_of(like)), shape, layout)


def gathered(call: Call, value: Callable[[Body, Index], Value]) -> Sequence[SSAValue]:
    """Add a nest that gives each element of the result as a value of the result's own dtype, by no arithmetic."""
    out = call.result

    def fill(body: Body, index: Index, destinations: Sequence[Value]) -> None:
        body.store_as(value(body, index), destinations[0], index)

    return nest(call, out.element_type, layout_of(out).sizes, [out], fill)


def filled(call: Call, kind: Tensor, number: Number) -> SSAValue:
    """Add a nest that gives a tensor of type `kind` with the same number everywhere."""

    def fill(body: Body, index: Index, destinations: Sequence[Value]) -> None:
        body.store_as(body.constant(number, kind.element_type), destinations[0], index)

    return nest(call, kind.element_type, layout_of(kind).sizes, [kind], fill)[0]


def with_element(kind: Tensor, element: Attribute) -> Tensor:
    """Return the type of a tensor like one of type `kind`, with elements of another type."""
    return TensorType(element, kind.get_shape(), layout_of(kind))


def converted(call: Call, source: SSAValue, kind: Tensor) -> SSAValue:
    """Add a nest that copies `source` to a tensor of type `kind`, which may have other elements."""

    def fill(body: Body, index: Index, destinations: Sequence[Value]) -> None:
        value = body.cast(body.load(source, index), element_of(source), kind.element_type)
        body.store_as(value, destinations[0], index)

    return nest(call, kind.element_type, layout_of(kind).sizes, [kind], fill)[0]


def copied(call: Call, source: SSAValue, access: Callable[[Index], Index]) -> Sequence[SSAValue]:
    """Add a nest whose element at an index is that of `source` at `access` of it, converted to the result's dtype."""
    kind, target = element_of(source), call.result.element_type
    return gathered(call, lambda b, i: b.cast(b.load(source, access(i)), kind, target))


def broadcast(value: SSAValue, index: Index) -> Index:
    """Return the index of a tensor whose dimensions align with the last ones of `index`; a size of one repeats."""
    sizes = sizes_of(value)
    aligned = index[len(index) - len(sizes) :]
    return [ZERO if size == 1 else i for size, i in zip(sizes, aligned, strict=True)]


@lru_cache(maxsize=1024)
def _origin(name: str) -> Attribute:
    return ArrayAttr([StringAttr(name)])
