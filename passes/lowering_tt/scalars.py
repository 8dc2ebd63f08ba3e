"""The scalar operations of kernels on scalars and tensors: those of `arith` and `math` and of `loop`."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import Float32Type, IndexType, IntegerType, f32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects import arith_tensor, libdevice, tt
from tilewright.dialects.loop import CastOp, CmpOp, IntrinsicOp, SelectOp
from tilewright.passes.lowering_tt.builder import TensorBuilder, element_of
from tilewright.passes.lowering_tt.casts import convert, convert_integer, is_half
from tilewright.passes.lowering_tt.intrinsics import call, compare, divide, intrinsic, population_count

Values = Sequence[SSAValue]

_NATIVE: frozenset[type[Operation]] = frozenset(
    {
        arith.AddfOp,
        arith.SubfOp,
        arith.MulfOp,
        arith.MaximumfOp,
        arith.MinimumfOp,
        arith.MaxnumfOp,
        arith.MinnumfOp,
        arith.AddiOp,
        arith.SubiOp,
        arith.MuliOp,
        arith.DivSIOp,
        arith.DivUIOp,
        arith.RemSIOp,
        arith.RemUIOp,
        arith.AndIOp,
        arith.OrIOp,
        arith.XOrIOp,
        arith.ShLIOp,
        arith.ShRSIOp,
        arith.ShRUIOp,
        arith.MaxSIOp,
        arith.MinSIOp,
        arith.MaxUIOp,
        arith.MinUIOp,
        math.AbsFOp,
        math.AbsIOp,
        math.CeilOp,
        math.FloorOp,
        math.FmaOp,
    }
)
"""What Triton has as it is."""

_FROM_INTEGER: dict[type[Operation], type[Operation]] = {
    arith.SIToFPOp: arith_tensor.SIToFPOp,
    arith.UIToFPOp: arith_tensor.UIToFPOp,
}
_TO_INTEGER: dict[type[Operation], type[Operation]] = {
    arith.FPToSIOp: arith_tensor.FPToSIOp,
    arith.FPToUIOp: arith_tensor.FPToUIOp,
}
_RESIZE_INTEGER: dict[type[Operation], type[Operation]] = {
    arith.ExtSIOp: arith_tensor.ExtSIOp,
    arith.ExtUIOp: arith_tensor.ExtUIOp,
    arith.TruncIOp: arith_tensor.TruncIOp,
}
_PLAIN = {ours: theirs for theirs, ours in arith_tensor.REPLACED.items()}


class ScalarLowering:
    """Emits scalar operations by `builder`; index values are integers of type `index`."""

    def __init__(self, builder: TensorBuilder, index: IntegerType):
        self._builder = builder
        self._index = index

    def element(self, kind: Attribute) -> Attribute:
        """Return the type that a scalar of a kernel has in Triton IR."""
        return self._index if isinstance(kind, IndexType) else kind

    def lower(self, op: Operation, values: Values) -> SSAValue:
        """Emit `op` on operands that have become `values`. Raises `PassFailedException` if there is no code for it."""
        halves = [is_half(element_of(v)) for v in values]
        if any(halves) and not isinstance(op, (CastOp, SelectOp, arith.SelectOp, arith.ExtFOp, arith.BitcastOp)):
            wide = [convert(self._builder, v, f32) if half else v for v, half in zip(values, halves, strict=True)]
            return convert(self._builder, self._lower(op, wide), op.results[0].type)
        return self._lower(op, values)

    def _lower(self, op: Operation, values: Values) -> SSAValue:
        b, kind = self._builder, _PLAIN.get(type(op), type(op))
        if kind in _NATIVE:
            return b.apply(kind, *values, properties=op.properties)
        if kind in libdevice.MATH:
            return call(b, libdevice.MATH[kind], *values)
        match op:
            case CastOp():
                return convert(b, values[0], self.element(op.result.type), unsigned=op.unsigned is not None)
            case CmpOp():
                return compare(b, op.predicate.data, *values, unsigned=op.unsigned is not None)
            case IntrinsicOp():
                return intrinsic(b, op.function.data, values, unsigned=op.unsigned is not None)
            case SelectOp() | arith.SelectOp():
                return b.select(values[0], values[1], values[2])
            case arith.DivfOp():
                return divide(b, *values)
            case arith.NegfOp():
                # Triton 3.6 has no negation, and to subtract from zero gives zero the wrong sign.
                return b.apply(arith.MulfOp, values[0], b.number(-1, element_of(values[0])))
            case math.SqrtOp():
                exact = tt.PreciseSqrtOp if isinstance(element_of(values[0]), Float32Type) else math.SqrtOp
                return b.apply(exact, *values)
            case math.CtPopOp():
                return population_count(b, values[0])
            case _:
                return self._convert(op, kind, values)

    def _convert(self, op: Operation, kind: type[Operation], values: Values) -> SSAValue:
        """Emit the conversions of `arith`, and comparisons that have predicates of their own."""
        b = self._builder
        if isinstance(op, arith.CmpiOp):
            x, y = b.fit_all(values)
            return b.emit(arith_tensor.CmpiOp(x, y, op.predicate.value.data))
        if isinstance(op, arith.CmpfOp):
            x, y = b.fit_all(values)
            return b.emit(arith_tensor.CmpfOp(x, y, op.predicate.value.data))
        target = self.element(op.results[0].type) if len(op.results) == 1 else None
        if len(values) != 1 or target is None:
            raise PassFailedException(f"`{op.name}` has no lowering to `tt`")
        if isinstance(op, (arith.ExtFOp, arith.TruncFOp)):
            return convert(b, values[0], target)
        if isinstance(op, arith.IndexCastOp):
            return convert_integer(b, values[0], target)
        if isinstance(op, arith.BitcastOp):
            return b.emit(tt.BitcastOp.get(values[0], target))
        if kind in _FROM_INTEGER and not is_half(target):
            return b.apply(_FROM_INTEGER[kind], *values, result=target)
        if kind in _FROM_INTEGER:
            return convert(b, b.apply(_FROM_INTEGER[kind], *values, result=f32), target)
        replacement = _TO_INTEGER.get(kind) or _RESIZE_INTEGER.get(kind)
        if replacement is None:
            raise PassFailedException(f"`{op.name}` has no lowering to `tt`")
        return b.apply(replacement, *values, result=target)
