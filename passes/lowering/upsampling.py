"""Upsampling by whole factors: each element is repeated, and its gradient is a sum."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tilewright.dialects.loop import layout_of
from tilewright.dialects.sym_expr import Expr, FloorDiv, integer
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of, sizes_of
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import copied, nest
from tilewright.passes.lowering.windows import by_rank


def _factors(call: Call, small: Sequence[Expr], large: Sequence[Expr]) -> list[int]:
    """Return by how much sizes grow. Scales given beside the sizes are taken for what follows from these."""
    if any(call.has(name) for name in ("scales", "scales_d", "scales_h", "scales_w")):
        raise NotLoweredError("scales that may differ from the sizes")
    pairs = list(zip(small, large, strict=True))
    if not all(a.is_Integer and b.is_Integer and int(a) > 0 and int(b) % int(a) == 0 for a, b in pairs):
        raise NotLoweredError("a factor that is not whole")
    return [int(b) // int(a) for a, b in pairs]


def _upsample(rank: int) -> Lowering:
    def lower(call: Call) -> Sequence[SSAValue]:
        source = call.tensor("self")
        factors = _factors(call, sizes_of(source)[-rank:], layout_of(call.result).sizes[-rank:])

        def access(index: Index) -> Index:
            at = [FloorDiv(x, integer(k)) for x, k in zip(index[-rank:], factors, strict=True)]
            return [*index[:-rank], *at]

        return copied(call, source, access)

    return lower


def _upsample_backward(rank: int) -> Lowering:
    def lower(call: Call) -> Sequence[SSAValue]:
        grad, out = call.tensor("grad_output"), call.result
        factors = _factors(call, layout_of(out).sizes[-rank:], sizes_of(grad)[-rank:])

        def fill(b: Body, index: Index, destinations: Sequence[Value]) -> None:
            def element(b: Body, a: Index) -> Value:
                place = [x * k + y for x, k, y in zip(index[-rank:], factors, a, strict=True)]
                return b.load_element(grad, [*index[:-rank], *place])

            total = b.reduce_one("sum", [integer(k) for k in factors], element)
            b.store(total, destinations[0], index)

        return nest(call, element_of(grad), layout_of(out).sizes, [out], fill)

    return lower


LOWERINGS: dict[str, Lowering] = {
    **by_rank("upsample_nearest{}d", "123", _upsample),
    **by_rank("upsample_nearest{}d_backward", "123", _upsample_backward),
}
