"""Find the upsampling that tracing has taken apart into positions and an indexing by them.

torch decomposes `upsample_nearest` while it traces: an arange is scaled, rounded, and used as positions. As such they
are data, which each access computes or loads, checks and counts from the end. Where every size grows by a whole factor
the positions are known: `i floordiv factor`. Then one operator says it all.

Before:
```
!X = tensor<2x3x4xf32, #sym.layout<[2, 3, 4], [12, 4, 1]>>
!Y = tensor<2x3x8xf32, #sym.layout<[2, 3, 8], [24, 8, 1]>>
!P = tensor<8xf32, #sym.layout<[8], [1]>>
!I = tensor<8xi64, #sym.layout<[8], [1]>>
func.func @f(%x : !X) -> !Y {
  %i = aten.call "aten.arange.start_step"(start = 0 : i64, end = 8 : i64, dtype = #aten.dtype<f32>) : () -> !P
  %s = aten.call "aten.mul.Tensor"(self = %i, other = 0.5 : f64) : (!P) -> !P
  %p = aten.call "aten._to_copy.default"(self = %s, dtype = #aten.dtype<i64>) : (!P) -> !I
  %y = aten.call "aten.index.Tensor"(self = %x, indices = [none, none, %p]) : (!X, !I) -> !Y
  func.return %y : !Y
}
```
After:
```
!X = tensor<2x3x4xf32, #sym.layout<[2, 3, 4], [12, 4, 1]>>
!Y = tensor<2x3x8xf32, #sym.layout<[2, 3, 8], [24, 8, 1]>>
!P = tensor<8xf32, #sym.layout<[8], [1]>>
!I = tensor<8xi64, #sym.layout<[8], [1]>>
func.func @f(%x : !X) -> !Y {
  %i = aten.call "aten.arange.start_step"(start = 0 : i64, end = 8 : i64, dtype = #aten.dtype<f32>) : () -> !P
  %s = aten.call "aten.mul.Tensor"(self = %i, other = 0.5 : f64) : (!P) -> !P
  %p = aten.call "aten._to_copy.default"(self = %s, dtype = #aten.dtype<i64>) : (!P) -> !I
  %y = aten.call "aten.upsample_nearest1d.default"(self = %x, output_size = #sym.ints<[8]>) : (!X) -> !Y
  func.return %y : !Y
}
```
The positions are computed here as torch computes them, step by step in their dtype. Other positions are left alone:
those of symbolic sizes or of a factor that is not whole, and those that a graph gets as an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32, f64, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.dialects.aten import CallOp
from tilewright.dialects.call_syntax import OperandAttr
from tilewright.dialects.loop import layout_of
from tilewright.dialects.sym import IntsAttr
from tilewright.passes.lowering.call import Call, element_of, sizes_of
from tilewright.passes.lowering.errors import NotLoweredError

_INDEXING = frozenset({"aten.index.Tensor", "aten._unsafe_index.Tensor"})
_SAME = frozenset({"aten.unsqueeze.default", "aten.view.default"})
_LONGEST = 1 << 14
"""The most positions that are looked at."""

Numbers = Sequence[float]
"""The elements of a tensor, in order."""


@dataclass
class _Progressions:
    """Computes the elements of tensors that are made of an arange by simple arithmetic."""

    known: dict[SSAValue, Numbers | None] = field(default_factory=dict[SSAValue, "Numbers | None"])

    def of(self, value: SSAValue) -> Numbers | None:
        """Return the elements of a tensor, None where they are not known."""
        if value not in self.known:
            op = value.owner
            found = None
            if isinstance(op, CallOp) and element_of(value) in (f32, f64, i64):
                try:
                    found = self._compute(Call(op, {}))
                except NotLoweredError:
                    found = None
            self.known[value] = found
        return self.known[value]

    def _compute(self, call: Call) -> Numbers | None:
        element, sizes = call.result.element_type, layout_of(call.result).sizes
        match call.op.operator:
            case "aten.arange.start_step" | "aten.arange.start" | "aten.arange.default":
                return _arange(call, element)
            case "aten.add.Tensor" | "aten.mul.Tensor":
                return self._arithmetic(call, element)
            case "aten._to_copy.default":
                source = self.of(call.tensor("self"))
                return None if source is None else [_as(element, x) for x in source]
            case name if name in _SAME and all(s.is_Integer for s in sizes):
                return self.of(call.tensor("self"))
            case _:
                return None

    def _arithmetic(self, call: Call, element: Attribute) -> Numbers | None:
        source, other = self.of(call.tensor("self")), call.number("other")
        if source is None or not isinstance(other, (int, float)):
            return None
        if call.name == "mul":
            return [_as(element, x * _as(element, other)) for x in source]
        return [_as(element, x + _as(element, other)) for x in source] if call.number("alpha") == 1 else None


def _arange(call: Call, element: Attribute) -> Numbers | None:
    start = call.number("start") if not call.op.operator.endswith("default") else 0
    step = call.number("step") if call.op.operator.endswith("start_step") else 1
    (length,) = layout_of(call.result).sizes
    if not (length.is_Integer and length <= _LONGEST and isinstance(start, int) and isinstance(step, int)):
        return None
    return [_as(element, start + step * i) for i in range(int(length))]


def _as(element: Attribute, number: float) -> float:
    """Return a number as an element: rounded, or cut to an integer."""
    if element == f32:
        return f32.round(number)
    return float(number) if element == f64 else int(number)


def _recomposed(op: CallOp, progressions: _Progressions) -> CallOp | None:
    """Return the upsampling that an indexing is, or None."""
    call = Call(op, {})
    source, positions = call.tensor("self"), call.tensors("indices")
    sizes, out = sizes_of(source), layout_of(call.result).sizes
    rank = len(sizes) - 2
    if not 1 <= rank <= 3 or len(positions) != len(sizes) or positions[:2] != [None, None] or len(out) != len(sizes):
        return None
    if not all(s.is_Integer for s in (*sizes[2:], *out[2:])):
        return None
    for d, p in enumerate(positions[2:], 2):
        if p is None or not _is_along(p, len(sizes) - d):
            return None
        if not _repeats(progressions.of(p), int(sizes[d]), int(out[d])):
            return None
    arguments = {"self": OperandAttr(0), "output_size": IntsAttr.get(out[2:])}
    return CallOp.get(f"aten.upsample_nearest{rank}d.default", arguments, [source], [op.results[0].type])


def _is_along(positions: SSAValue, from_end: int) -> bool:
    """Whether positions vary along the dimension that is `from_end` dimensions from the end of the result."""
    sizes = sizes_of(positions)
    return len(sizes) == from_end and all(s == 1 for s in sizes[1:])


def _repeats(positions: Numbers | None, size: int, count: int) -> bool:
    """Whether `count` positions name each element of a dimension in order, all of them equally often."""
    if positions is None or len(positions) != count or size == 0 or count % size:
        return False
    return all(x == i // (count // size) for i, x in enumerate(positions))


@dataclass(frozen=True)
class RecomposeUpsamplingPass(ModulePass):
    """Find the upsampling that tracing has taken apart."""

    name = "recompose-upsampling"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in [f for f in op.ops if isinstance(f, FuncOp)]:
            progressions = _Progressions()
            for call in [c for c in function.walk() if isinstance(c, CallOp) and c.operator in _INDEXING]:
                new = _recomposed(call, progressions)
                if new is not None:
                    new.location = call.location
                    new.results[0].name_hint = call.results[0].name_hint
                    Rewriter.replace_op(call, new)
