"""Index expressions as operations: what an address is for one element, and how it moves from lane to lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import sympy
from xdsl.dialects import arith
from xdsl.ir import Operation, SSAValue

from tilewright.dialects.sym import format_expr
from tilewright.dialects.sym_expr import Expr, FloorDiv, Max, Min, Mod, integer, provably_at_most
from tilewright.dialects.type_guards import is_vector
from tilewright.passes.analysis.index_space import IndexSpace
from tilewright.passes.lowering_cpu.builder import INDEX, ScopedBuilder


@dataclass(frozen=True)
class Lanes:
    """An index for each lane: `base + stride * lane`."""

    base: SSAValue
    stride: int | SSAValue
    count: int


Index: TypeAlias = SSAValue | Lanes
"""An index, a vector of them, or one that moves by a constant stride."""


class AddressBuilder:
    """Evaluates expressions over an index space.

    `values` says what each index value of the kernel has become; sizes come from `size`.
    """

    def __init__(self, space: IndexSpace, builder: ScopedBuilder, size: Callable[[str], SSAValue]):
        self.space = space
        self.builder = builder
        self.values: dict[SSAValue, Index] = {}
        self._size = size

    def evaluate(self, expr: Expr) -> Index:
        """Return the value of `expr`."""
        if expr.is_Integer:
            return self.builder.constant(int(expr))
        if isinstance(expr, sympy.Symbol):
            value = self.space.value(expr)
            return self._size(expr.name) if value is None else self.values[value]
        if expr.is_Add:
            return self._sum(expr)
        if expr.is_Mul:
            coefficient, rest = expr.as_coeff_Mul()
            return self._product(int(coefficient), [self.evaluate(f) for f in _sorted(sympy.Mul.make_args(rest))])
        if expr.is_Pow:
            base, exponent = expr.args
            return self._product(1, [self.evaluate(base)] * int(exponent))
        if isinstance(expr, (FloorDiv, Mod)):
            return self._division(expr)
        assert isinstance(expr, (Min, Max)), expr
        kind = arith.MinSIOp if isinstance(expr, Min) else arith.MaxSIOp
        return self._binary(kind, *(self.evaluate(a) for a in _sorted(expr.args)))

    def scalar(self, expr: Expr) -> SSAValue:
        """Return the value of `expr`, which is the same in all lanes."""
        value = self.evaluate(expr)
        assert not isinstance(value, Lanes)
        return value

    def materialize(self, value: Index) -> SSAValue:
        """Return `value` as an index or as a vector of them."""
        if not isinstance(value, Lanes):
            return value
        builder, count = self.builder, value.count
        moving = builder.step(count)
        if value.stride != 1:
            stride = builder.constant(value.stride) if isinstance(value.stride, int) else value.stride
            moving = builder.binary(arith.MuliOp, moving, builder.broadcast(stride, count))
        return builder.binary(arith.AddiOp, builder.broadcast(value.base, count), moving)

    def _binary(self, kind: type[Operation], a: Index, b: Index) -> SSAValue:
        """Apply `kind`, lane by lane if one of the operands holds lanes."""
        a, b = self.materialize(a), self.materialize(b)
        if is_vector(a.type) and not is_vector(b.type):
            b = self.builder.broadcast(b, a.type.get_shape()[0])
        elif is_vector(b.type) and not is_vector(a.type):
            a = self.builder.broadcast(a, b.type.get_shape()[0])
        return self.builder.binary(kind, a, b)

    def _sum(self, expr: Expr) -> Index:
        constant, terms = expr.as_coeff_Add()
        added, subtracted, lanes, vectors = list[SSAValue](), list[SSAValue](), list[Lanes](), list[SSAValue]()
        for term in _sorted(sympy.Add.make_args(terms)):
            negative = term.as_coeff_Mul()[0] == -1
            value = self.evaluate(-term if negative else term)
            if negative and (isinstance(value, Lanes) or value.type != INDEX):
                value = self._product(-1, [value])
            if isinstance(value, Lanes):
                lanes.append(value)
            elif value.type != INDEX:
                vectors.append(value)
            else:
                (subtracted if negative else added).append(value)
        total: Index | None = None
        if added or subtracted or lanes or constant != 0:
            total = self._add_scalars([*added, *(v.base for v in lanes)], subtracted, int(constant))
        if lanes:
            assert isinstance(total, SSAValue)
            total = Lanes(total, self._add_strides([v.stride for v in lanes]), lanes[0].count)
        for vector in vectors:
            total = vector if total is None else self._binary(arith.AddiOp, total, vector)
        assert total is not None
        return total

    def _add_scalars(self, added: Sequence[SSAValue], subtracted: Sequence[SSAValue], constant: int) -> SSAValue:
        """Add up, what comes from the outermost blocks first, so that partial sums leave inner loops."""
        parts = [*((v, arith.AddiOp) for v in added), *((v, arith.SubiOp) for v in subtracted)]
        parts = [part for part in parts if not self.builder.is_zero(part[0])]
        parts.sort(key=lambda part: self.builder.depth(part[0]))
        if constant != 0 or not parts or parts[0][1] is arith.SubiOp:
            parts.insert(0, (self.builder.constant(constant), arith.AddiOp))
        (total, _), *rest = parts
        for value, kind in rest:
            total = self.builder.binary(kind, total, value)
        return total

    def _add_strides(self, strides: Sequence[int | SSAValue]) -> int | SSAValue:
        constant = sum(s for s in strides if isinstance(s, int))
        values = [s for s in strides if not isinstance(s, int)]
        return self._add_scalars(values, (), constant) if values else constant

    def _product(self, coefficient: int, factors: Sequence[Index]) -> Index:
        scalars = [f for f in factors if not isinstance(f, Lanes) and f.type == INDEX]
        others = [f for f in factors if isinstance(f, Lanes) or f.type != INDEX]
        if any(self.builder.is_zero(s) for s in scalars):
            return self.builder.constant(0)
        scale = self._multiply_scalars(scalars, coefficient) if scalars or coefficient != 1 else None
        if not others:
            assert scale is not None
            return scale
        first, *rest = others
        if isinstance(first, Lanes) and not rest and scale is not None:
            base = self.builder.binary(arith.MuliOp, scale, first.base)
            if first.stride == 1:
                return Lanes(base, scale if scalars else coefficient, first.count)
            stride = self.builder.constant(first.stride) if isinstance(first.stride, int) else first.stride
            return Lanes(base, self.builder.binary(arith.MuliOp, scale, stride), first.count)
        total = first if scale is None else self._binary(arith.MuliOp, scale, first)
        for other in rest:
            total = self._binary(arith.MuliOp, total, other)
        return total

    def _multiply_scalars(self, values: list[SSAValue], coefficient: int) -> SSAValue:
        if not values:
            return self.builder.constant(coefficient)
        values.sort(key=self.builder.depth)
        if coefficient != 1:
            values.insert(0, self.builder.constant(coefficient))
        total = values[0]
        for value in values[1:]:
            total = self.builder.binary(arith.MuliOp, total, value)
        return total

    def _division(self, expr: Expr) -> SSAValue:
        """Evaluate a floor division or modulo. Their divisors are positive."""
        a, b = expr.args
        dividend, divisor = self.evaluate(a), self.evaluate(b)
        quotient = isinstance(expr, FloorDiv)
        power = int(b) if b.is_Integer else 0
        if power > 0 and power & (power - 1) == 0:
            by = self.builder.constant(power.bit_length() - 1 if quotient else power - 1)
            return self._binary(arith.ShRSIOp if quotient else arith.AndIOp, dividend, by)
        if not b.is_Integer:
            # Evaluated ahead of a loop that may be empty, and then the size may be zero.
            divisor = self._binary(arith.MaxSIOp, divisor, self.builder.constant(1))
        if provably_at_most(integer(0), a, self.space.ranges):
            return self._binary(arith.DivUIOp if quotient else arith.RemUIOp, dividend, divisor)
        truncated = self._binary(arith.DivSIOp, dividend, divisor)
        rest = self._binary(arith.SubiOp, dividend, self._binary(arith.MuliOp, truncated, divisor))
        negative = self._binary(arith.ShRSIOp, rest, self.builder.constant(63))
        if quotient:
            return self._binary(arith.AddiOp, truncated, negative)
        return self._binary(arith.AddiOp, rest, self._binary(arith.AndIOp, negative, divisor))


def _sorted(exprs: Sequence[Expr]) -> list[Expr]:
    return sorted(exprs, key=format_expr)
