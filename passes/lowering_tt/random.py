"""Random numbers: Philox4x32-10 (`dialects/philox.py`) in words of 32 bits."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, f32, i32, i64
from xdsl.ir import Attribute, Operation, SSAValue

from tilewright.dialects import arith_tensor, tt
from tilewright.dialects.loop import RandomOp
from tilewright.dialects.philox import KEY_STEPS, MULTIPLIERS, ROUNDS, uniform_digits
from tilewright.passes.lowering_tt.builder import TensorBuilder, element_of
from tilewright.passes.lowering_tt.casts import width_of
from tilewright.passes.lowering_tt.intrinsics import call

Values = Sequence[SSAValue]


class RandomBuilder:
    """Emits random numbers by `builder`."""

    def __init__(self, builder: TensorBuilder):
        self._builder = builder

    def lower(self, op: RandomOp, seed: SSAValue, stream: SSAValue, element: SSAValue) -> SSAValue:
        """Return the numbers of elements, each of which has words of a block of four."""
        kind, distribution = op.result.type, op.distribution.data
        number = self._operate(arith.ShRUIOp, element, 1 if op.is_wide else 2)
        words = self._words(number, stream, seed)
        if op.is_wide:
            pairs = [self._pair(*words[:2]), self._pair(*words[2:])]
            return self._distribute(distribution, kind, self._choose(element, 0, *pairs))
        first, second = (self._choose(element, 1, words[i], words[i + 2]) for i in range(2))
        if distribution == "normal":
            return self._choose(element, 0, *self._points(first, second))
        return self._distribute(distribution, kind, self._choose(element, 0, first, second))

    def _operate(self, kind: type[Operation], value: SSAValue, constant: int) -> SSAValue:
        return self._builder.apply(kind, value, self._builder.number(constant, element_of(value)))

    def _halves(self, value: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Return the low and the high word of an integer that is not negative."""
        if element_of(value) == i32:
            return value, self._builder.number(0, i32)
        high = self._operate(arith.ShRUIOp, value, 32)
        low, high = (self._builder.apply(arith_tensor.TruncIOp, v, result=i32) for v in (value, high))
        return low, high

    def _words(self, number: SSAValue, stream: SSAValue, seed: SSAValue) -> list[SSAValue]:
        """Return the four words of blocks."""
        b = self._builder
        (c0, c1), (c2, c3), (k0, k1) = self._halves(number), self._halves(stream), self._halves(seed)
        first, second = (b.number(m, i32) for m in MULTIPLIERS)
        for number_of_round in range(ROUNDS):
            if number_of_round:
                k0, k1 = (self._operate(arith.AddiOp, k, s) for k, s in zip((k0, k1), KEY_STEPS, strict=True))
            low, low_high = b.apply(arith.MuliOp, c0, first), b.apply(tt.MulhiUIOp, c0, first)
            high, high_high = b.apply(arith.MuliOp, c2, second), b.apply(tt.MulhiUIOp, c2, second)
            c0, c1, c2, c3 = self._mix(high_high, c1, k0), high, self._mix(low_high, c3, k1), low
        return [c0, c1, c2, c3]

    def _mix(self, x: SSAValue, y: SSAValue, key: SSAValue) -> SSAValue:
        return self._builder.apply(arith.XOrIOp, self._builder.apply(arith.XOrIOp, x, y), key)

    def _pair(self, low: SSAValue, high: SSAValue) -> SSAValue:
        """Return 64 bits made of two words."""
        wide = [self._builder.apply(arith_tensor.ExtUIOp, v, result=i64) for v in (low, high)]
        return self._builder.apply(arith.OrIOp, self._operate(arith.ShLIOp, wide[1], 32), wide[0])

    def _choose(self, element: SSAValue, bit: int, unset: SSAValue, chosen: SSAValue) -> SSAValue:
        """Return `chosen` where a bit of `element` is set, else `unset`."""
        b = self._builder
        bits, zero = b.fit_all([self._operate(arith.AndIOp, element, 1 << bit), b.number(0, element_of(element))])
        return b.select(b.emit(arith_tensor.CmpiOp(bits, zero, "ne")), chosen, unset)

    def _points(self, radius: SSAValue, angle: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Return the coordinates of points in the plane that are normally distributed."""
        b = self._builder
        number = b.apply(arith_tensor.UIToFPOp, radius, result=f32)
        share = self._scale(b.apply(arith.AddfOp, number, b.number(0.5, f32)), 2.0**-32)
        length = b.apply(tt.PreciseSqrtOp, self._scale(call(b, "log", share), -2.0))
        turn = self._scale(self._distribute("uniform", f32, angle), 2.0 * pi)
        return b.apply(arith.MulfOp, length, call(b, "cos", turn)), b.apply(arith.MulfOp, length, call(b, "sin", turn))

    def _scale(self, value: SSAValue, factor: float) -> SSAValue:
        return self._builder.apply(arith.MulfOp, value, self._builder.number(factor, element_of(value)))

    def _distribute(self, distribution: str, kind: Attribute, bits: SSAValue) -> SSAValue:
        """Turn random bits into numbers of type `kind`."""
        if distribution == "bits":
            return bits
        width, digits = uniform_digits(wide=width_of(kind) == 64)
        assert element_of(bits) == IntegerType(width)
        high = self._operate(arith.ShRUIOp, bits, width - digits)
        return self._scale(self._builder.apply(arith_tensor.SIToFPOp, high, result=kind), 2.0**-digits)
