"""Index expressions as operations: the part that is the same for all points of a block is computed as a scalar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import sympy
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Operation, SSAValue

from tilewright.dialects import arith_tensor
from tilewright.dialects.sym import format_expr
from tilewright.dialects.sym_expr import Expr, FloorDiv, Max, Min, Mod, Symbol, integer, provably_at_most, simplify
from tilewright.passes.analysis.index_space import IndexSpace, divisions, stride
from tilewright.passes.lowering_tt.builder import Shape, TensorBuilder, element_of, shape_of


@dataclass(frozen=True)
class Index:
    """An index: the sum of a scalar and a tensor, of which one may be missing, or both: zero."""

    scalar: SSAValue | None = None
    tensor: SSAValue | None = None


_ROW = sympy.Symbol("%row", integer=True)


@cache
def _part(number: int) -> Symbol:
    # Not a name that the parser accepts, nor one of an `IndexSpace`.
    return sympy.Symbol(f"%p{number}", integer=True)


@dataclass(frozen=True)
class _Axis:
    """The positions along an axis, of one dim, and where that dim goes in tensors of `rank` dims."""

    positions: SSAValue
    size: int
    place: int
    rank: int


@dataclass(frozen=True)
class Repeats:
    """An access that gives each element to several points side by side along an axis."""

    axis: Symbol
    """The positions along the axis."""
    by: int
    """How many points in a row have the same element, a power of two."""
    number: Symbol
    """The number of such a row; its axis takes the place of the other one."""
    expr: Expr
    """The index of the element, over numbers instead of positions."""


class IndexBuilder:
    """Evaluates expressions over the index values of a kernel, whose symbols are those of `space`.

    Each index value is an expression over parts: sizes, the coordinates of the program, the counters of loops, the
    positions in a block, and values that were loaded. Of each part it is known what value it has.
    """

    def __init__(self, space: IndexSpace, builder: TensorBuilder, kind: IntegerType):
        self.space = space
        self.kind = kind
        self._builder = builder
        self._values: dict[Symbol, SSAValue] = {}
        self._ranges: dict[Symbol, tuple[Expr | None, Expr | None]] = {}
        self._meanings: dict[Symbol, Expr] = {}
        self._known: dict[Expr, Expr] = {}
        self._multiples: dict[Symbol, int] = {}
        self._axes: dict[Symbol, _Axis] = {}
        self._rows: dict[tuple[Symbol, int], Symbol] = {}
        self._parts = 0

    def add_size(self, symbol: Symbol, value: SSAValue) -> None:
        """Let the symbol of a size have a value."""
        self._values[symbol] = value
        if symbol in self.space.sizes:
            self._ranges[symbol] = self.space.sizes[symbol]

    def add_part(self, value: SSAValue, lower: Expr | None, upper: Expr | None, *, multiple: int = 1) -> Symbol:
        """Return a new symbol for `value`, with inclusive bounds as far as they are known.

        It is known to be a multiple of `multiple`.
        """
        found = _part(self._parts)
        self._parts += 1
        self._values[found] = value
        self._ranges[found] = (lower, upper)
        self._multiples[found] = multiple
        return found

    def add_axis(self, size: int, place: int, rank: int, hint: str | None) -> Symbol:
        """Return a new symbol for the positions from 0 to `size` along dim `place` of `rank` dims."""
        positions = self.convert(self._builder.numbers(size, hint))
        value = self._builder.along(positions, place, rank, hint)
        found = self.add_part(value, integer(0), integer(size - 1))
        self._axes[found] = _Axis(positions, size, place, rank)
        return found

    def repeats(self, expr: Expr) -> Repeats | None:
        """Return along which axis an index over parts goes through memory element by element, each several times."""
        for part in [s for s in self._axes if s in expr.free_symbols]:
            axis = self._axes[part]
            quotients = [d for d in divisions(expr) if isinstance(d, FloorDiv) and d.args[0] == part]
            if len(quotients) != 1 or not quotients[0].args[1].is_Integer:
                continue
            by = int(quotients[0].args[1])
            over_rows = expr.xreplace({quotients[0]: _ROW})
            if axis.size % by == 0 and part not in over_rows.free_symbols and stride(over_rows, _ROW) == 1:
                found = self._rows.get((part, by))
                if found is None:
                    hint = axis.positions.name_hint
                    found = self._rows[part, by] = self.add_axis(axis.size // by, axis.place, axis.rank, hint)
                return Repeats(part, by, found, over_rows.xreplace({_ROW: found}))
        return None

    def place(self, part: Symbol, rank: int) -> int:
        """Return which dim the axis of `part` is in tensors of `rank` dims."""
        axis = self._axes[part]
        return self._builder.lifted(tuple(2 if i == axis.place else 1 for i in range(axis.rank)), rank).index(2)

    def shapes(self, expr: Expr) -> list[Shape]:
        """Return the shapes of the parts of an expression."""
        return [shape_of(value) for symbol, value in self._values.items() if symbol in expr.free_symbols]

    def below(self, index: Expr, limit: Expr) -> SSAValue:
        """Return where an index is below a limit."""
        axes = [s for s in index.free_symbols if s in self._axes]
        scalar = self.evaluate(limit).tensor is None and len(axes) == 1 and index.coeff(axes[0]) == 1
        start = self.evaluate(index - axes[0]) if scalar else Index()
        if not scalar or start.tensor is not None:
            return self._builder.compare_integers("slt", self.value(index), self.value(limit), hint="mask")
        # In one dim, so that the same axis has the same mask wherever it is among others.
        axis = self._axes[axes[0]]
        positions = self.materialize(Index(start.scalar, axis.positions))
        mask = self._builder.compare_integers("slt", positions, self.scalar(limit), hint="mask")
        return self._builder.along(mask, axis.place, axis.rank, "mask")

    def define(self, index: SSAValue, meaning: Expr) -> None:
        """Let an index value of the kernel be an expression over parts."""
        self._meanings[self.space.symbol(index)] = meaning

    def define_value(self, index: SSAValue, value: SSAValue) -> None:
        """Let an index value of the kernel be a value of which nothing is known."""
        self._values[self.space.symbol(index)] = value

    def over_parts(self, expr: Expr) -> Expr:
        """Return an expression over the index values as one over parts, with its products multiplied out."""
        found = self._known.get(expr)
        if found is None:
            found = expr.xreplace(self._meanings)
            if found.has(FloorDiv, Mod, Min, Max):
                found = simplify(found, self._ranges)
            found = self._known[expr] = sympy.expand(found)
        return found

    def at_most(self, a: Expr, b: Expr) -> bool:
        """Whether `a <= b` for all values of the parts."""
        return provably_at_most(a, b, self._ranges)

    def is_multiple(self, expr: Expr, of: int) -> bool:
        """Whether an expression over parts is provably a multiple of `of`."""
        for term in sympy.Add.make_args(expr):
            coefficient, rest = term.as_coeff_Mul()
            known = self._multiples.get(rest, 1) if isinstance(rest, sympy.Symbol) else 1
            if int(coefficient) * known % of != 0:
                return False
        return True

    def convert(self, value: SSAValue) -> SSAValue:
        """Return an integer in the type that indices have here."""
        found = element_of(value)
        if found == self.kind:
            return value
        assert isinstance(found, IntegerType)
        kind = arith_tensor.ExtSIOp if found.bitwidth < self.kind.bitwidth else arith_tensor.TruncIOp
        return self._builder.apply_shared(kind, value, result=self.kind, hint=value.name_hint)

    def constant(self, value: int) -> SSAValue:
        return self._builder.number(value, self.kind)

    def scalar(self, expr: Expr) -> SSAValue:
        """Return the value of an expression over parts that is the same for all points."""
        value = self.evaluate(expr)
        assert value.tensor is None
        return self.constant(0) if value.scalar is None else value.scalar

    def value(self, expr: Expr) -> SSAValue:
        """Return the value of an expression over parts, a scalar where it can be one."""
        return self.materialize(self.evaluate(expr))

    def materialize(self, index: Index) -> SSAValue:
        """Return the sum that an index is."""
        if index.tensor is None:
            return self.constant(0) if index.scalar is None else index.scalar
        if index.scalar is None:
            return index.tensor
        return self._binary(arith.AddiOp, index.scalar, index.tensor)

    def evaluate(self, expr: Expr) -> Index:
        """Return the value of an expression over parts."""
        if expr.is_Integer:
            return Index() if expr == 0 else Index(self.constant(int(expr)))
        if isinstance(expr, sympy.Symbol):
            value = self._values[expr]
            return Index(tensor=value) if shape_of(value) else Index(value)
        if expr.is_Add:
            return self._sum(expr)
        if expr.is_Mul:
            coefficient, rest = expr.as_coeff_Mul()
            factors = sympy.Mul.make_args(rest)
            axes = [f for f in factors if isinstance(f, sympy.Symbol) and f in self._axes]
            if len(axes) == 1:
                return self._along(axes[0], sympy.Mul(coefficient, *(f for f in factors if f != axes[0])))
            return self._product(int(coefficient), [self.evaluate(f) for f in _sorted(sympy.Mul.make_args(rest))])
        if expr.is_Pow:
            base, exponent = expr.args
            return self._product(1, [self.evaluate(base)] * int(exponent))
        if isinstance(expr, (FloorDiv, Mod)):
            return self._wrap(self._division(expr))
        assert isinstance(expr, (Min, Max)), expr
        kind = arith.MinSIOp if isinstance(expr, Min) else arith.MaxSIOp
        return self._wrap(self._binary(kind, *(self.value(a) for a in _sorted(expr.args))))

    def _along(self, part: Symbol, factor: Expr) -> Index:
        """Evaluate a product of the positions along an axis and a factor, in one dim where that is a scalar."""
        axis, scale = self._axes[part], self.evaluate(factor)
        if scale.tensor is not None or scale.scalar is None:
            return self._product(1, [self.evaluate(part), scale])
        scaled = self._binary(arith.MuliOp, axis.positions, scale.scalar)
        return Index(tensor=self._builder.along(scaled, axis.place, axis.rank, scaled.name_hint))

    def _wrap(self, value: SSAValue) -> Index:
        return Index(tensor=value) if shape_of(value) else Index(value)

    def _binary(self, kind: type[Operation], a: SSAValue, b: SSAValue) -> SSAValue:
        hint = a.name_hint if shape_of(a) and not shape_of(b) else b.name_hint if shape_of(b) else None
        return self._builder.apply_shared(kind, a, b, hint=hint)

    def _sum(self, expr: Expr) -> Index:
        constant, terms = expr.as_coeff_Add()
        added, subtracted, tensors = list[SSAValue](), list[SSAValue](), dict[Shape, SSAValue]()
        for term in _sorted(sympy.Add.make_args(terms)):
            negative = term.as_coeff_Mul()[0] == -1
            index = self.evaluate(-term if negative else term)
            if index.scalar is not None:
                (subtracted if negative else added).append(index.scalar)
            if index.tensor is not None:
                tensor = self._product(-1, [Index(tensor=index.tensor)]).tensor if negative else index.tensor
                assert tensor is not None
                shape = shape_of(tensor)
                tensors[shape] = self._binary(arith.AddiOp, tensors[shape], tensor) if shape in tensors else tensor
        total: SSAValue | None = None
        rank = max(map(len, tensors), default=0)
        for shape in sorted(tensors, key=lambda s: self._builder.lifted(s, rank), reverse=True):
            tensor = tensors[shape]
            total = tensor if total is None else self._binary(arith.AddiOp, total, tensor)
        scalar = self._add_scalars(added, subtracted, int(constant)) if added or subtracted or constant != 0 else None
        return Index(scalar, total)

    def _add_scalars(self, added: Sequence[SSAValue], subtracted: Sequence[SSAValue], constant: int) -> SSAValue:
        """Add up, what comes from the outermost blocks first, so that partial sums leave inner loops."""
        parts = [*((v, arith.AddiOp) for v in added), *((v, arith.SubiOp) for v in subtracted)]
        parts.sort(key=lambda part: self._builder.depth(part[0]))
        if parts and parts[0][1] is arith.AddiOp:
            (total, _), *rest = parts
            if constant != 0:
                rest.append((self.constant(constant), arith.AddiOp))
        else:
            total, rest = self.constant(constant), parts
        for value, kind in rest:
            total = self._binary(kind, total, value)
        return total

    def _product(self, coefficient: int, factors: Sequence[Index]) -> Index:
        tensors = [f for f in factors if f.tensor is not None]
        scalars = [f.scalar for f in factors if f.tensor is None]
        if None in scalars:
            return Index()
        scale = self._multiply([s for s in scalars if s is not None], coefficient)
        if not tensors:
            return Index(self.constant(1) if scale is None else scale)
        if len(tensors) > 1:
            total = self.materialize(tensors[0])
            for other in tensors[1:]:
                total = self._binary(arith.MuliOp, total, self.materialize(other))
            return Index(tensor=total if scale is None else self._binary(arith.MuliOp, total, scale))
        (only,) = tensors
        if scale is None:
            return only
        scaled = [None if v is None else self._binary(arith.MuliOp, v, scale) for v in (only.scalar, only.tensor)]
        return Index(scaled[0], scaled[1])

    def _multiply(self, values: list[SSAValue], coefficient: int) -> SSAValue | None:
        """Return the product of scalars; None if it is one."""
        values.sort(key=self._builder.depth)
        if coefficient != 1:
            values.append(self.constant(coefficient))
        total: SSAValue | None = None
        for value in values:
            total = value if total is None else self._binary(arith.MuliOp, total, value)
        return total

    def _division(self, expr: Expr) -> SSAValue:
        """Evaluate a floor division or modulo, whose divisor is positive."""
        a, b = expr.args
        dividend, divisor = self.value(a), self.value(b)
        quotient = isinstance(expr, FloorDiv)
        if provably_at_most(integer(0), a, self._ranges):
            return self._binary(arith.DivSIOp if quotient else arith.RemSIOp, dividend, divisor)
        rest = self._binary(arith.RemSIOp, dividend, divisor)
        negative = self._builder.compare_integers("slt", rest, self.constant(0))
        if quotient:
            borrow = self._builder.apply_shared(arith_tensor.ExtUIOp, negative, result=self.kind)
            return self._binary(arith.SubiOp, self._binary(arith.DivSIOp, dividend, divisor), borrow)
        moved = self._binary(arith.AddiOp, rest, divisor)
        return self._builder.apply_shared(arith_tensor.SelectOp, negative, moved, rest)


def _sorted(exprs: Sequence[Expr]) -> list[Expr]:
    return sorted(exprs, key=format_expr)
