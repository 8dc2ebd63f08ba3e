"""New tensors: constants, counts, and the triangle and diagonal masks that are made of indices."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import f64, i64
from xdsl.ir import SSAValue

from tilewright.dialects.loop import layout_of
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, Lowering, element_of
from tilewright.passes.lowering.dtypes import Number, is_float
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import gathered


def _refuse_pinned(call: Call) -> None:
    if call.has("pin_memory") and call.flag("pin_memory"):
        raise NotLoweredError("pinned memory")


def _constant(b: Body, number: Number) -> Value:
    """Emit a number as a value of the body's own dtype."""
    return b.constant(number, b.element, rounded=True)


def _filled(number: Number | str) -> Lowering:
    """Return the lowering of an operator that fills its result with a number, or with its argument of that name."""

    def lower(call: Call) -> Sequence[SSAValue]:
        _refuse_pinned(call)
        value = call.number(number) if isinstance(number, str) else number
        return gathered(call, lambda b, i: _constant(b, value))

    return lower


def _fill_with_tensor(call: Call) -> Sequence[SSAValue]:
    value, target = call.tensor("value"), call.result.element_type
    return gathered(call, lambda b, i: b.cast(b.load(value, []), element_of(value), target))


def _integers(call: Call, first: Number, by: Number) -> Sequence[SSAValue]:
    if isinstance(first, float) or isinstance(by, float):
        raise NotLoweredError("a progression of integers with a float")

    def value(b: Body, index: Index) -> Value:
        place = b.cast_register(b.index_value(index[0] * by + first), i64)
        return b.cast(place, i64, call.result.element_type)

    return gathered(call, value)


def _arange(start: str | None, step: str | None) -> Lowering:
    """Return the lowering of a progression, whose start and step are the given arguments, or 0 and 1.

    Eager computes floats in f64 and rounds the results.
    """

    def lower(call: Call) -> Sequence[SSAValue]:
        _refuse_pinned(call)
        first = call.number(start) if start is not None else 0
        by = call.number(step) if step is not None else 1
        target = call.result.element_type
        if not is_float(target):
            return _integers(call, first, by)

        def value(b: Body, index: Index) -> Value:
            place = b.cast(b.cast_register(b.index_value(index[0]), i64), i64, f64)
            scaled = place if by == 1 else b.mul(b.constant(by, f64), place)
            return b.cast(scaled if first == 0 else b.add(b.constant(first, f64), scaled), f64, target)

        return gathered(call, value)

    return lower


def _eye(call: Call) -> Sequence[SSAValue]:
    _refuse_pinned(call)

    def value(b: Body, index: Index) -> Value:
        on_diagonal = b.compare("eq", b.index_value(index[0]), b.index_value(index[1]))
        return b.select(on_diagonal, _constant(b, 1), _constant(b, 0))

    return gathered(call, value)


def _triangle(predicate: str) -> Lowering:
    """Return the lowering of an operator that keeps the elements whose column minus row compares so with `diagonal`."""

    def lower(call: Call) -> Sequence[SSAValue]:
        source, diagonal = call.tensor("self"), call.size("diagonal")
        if len(layout_of(source.type).sizes) < 2:
            raise NotLoweredError("a triangle of less than two dimensions")

        def value(b: Body, index: Index) -> Value:
            row, column = index[-2:]
            above = b.index_value(column - row - diagonal)
            return b.select(b.compare(predicate, above, 0), b.load(source, index), _constant(b, 0))

        return gathered(call, value)

    return lower


LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(("aten.full.default", "aten.full_like.default", "aten.new_full.default"), _filled("fill_value")),
    **dict.fromkeys(
        ("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default", "aten.zero.default"), _filled(0)
    ),
    **dict.fromkeys(("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default"), _filled(1)),
    "aten.scalar_tensor.default": _filled("s"),
    "aten.fill.Scalar": _filled("value"),
    "aten.fill.Tensor": _fill_with_tensor,
    "aten.arange.default": _arange(None, None),
    "aten.arange.start": _arange("start", None),
    "aten.arange.start_step": _arange("start", "step"),
    "prims.iota.default": _arange("start", "step"),
    "aten.eye.default": _eye,
    "aten.eye.m": _eye,
    "aten.tril.default": _triangle("le"),
    "aten.triu.default": _triangle("ge"),
}
