"""How two values of a reduction or scan become one, as operations on tensors or in a region of `tt`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.dialects import tt
from tilewright.dialects.combiners import COMBINERS
from tilewright.dialects.type_guards import is_float_constant, is_integer_constant
from tilewright.passes.lowering_tt.builder import Shape, TensorBuilder, element_of, shape_of
from tilewright.passes.lowering_tt.scalars import ScalarLowering

Values = Sequence[SSAValue]
Group = tuple[str, slice]
"""A combiner, and which values are its slots."""

_ROUNDS = frozenset({"sum", "prod", "welford", "logaddexp"})


def depends_on_order(name: str, kinds: Sequence[Attribute]) -> bool:
    """Whether a combiner of slots of types `kinds` rounds, so that its result depends on the order of elements."""
    return name in _ROUNDS and isinstance(kinds[0], AnyFloat)


@dataclass(frozen=True)
class _Recipe:
    """A combiner as operations on the arguments of a block, which are those of two tuples."""

    block: Block
    results: Sequence[SSAValue]


class CombinerLowering:
    """Emits combiners by `builder`."""

    def __init__(self, builder: TensorBuilder, scalars: ScalarLowering):
        self._builder = builder
        self._scalars = scalars
        self._recipes: dict[tuple[str, tuple[Attribute, ...]], _Recipe] = {}

    def identity(self, name: str, kinds: Sequence[Attribute]) -> list[SSAValue]:
        """Return the neutral scalars of a combiner of slots of types `kinds`."""
        return [self._builder.constant(c) for c in COMBINERS[name].identity(kinds)]

    def combine(self, name: str, earlier: Values, later: Values) -> list[SSAValue]:
        """Combine two tuples element by element."""
        recipe = self._recipe(name, tuple(element_of(v) for v in earlier))
        values: dict[SSAValue, SSAValue] = dict(zip(recipe.block.args, (*earlier, *later), strict=True))
        for op in recipe.block.ops:
            if isinstance(op, arith.ConstantOp):
                attribute = op.value
                assert is_float_constant(attribute) or is_integer_constant(attribute)
                values[op.result] = self._builder.constant(attribute)
                continue
            values[op.results[0]] = self._scalars.lower(op, [values[v] for v in op.operands])
        return [values[v] for v in recipe.results]

    def _recipe(self, name: str, kinds: tuple[Attribute, ...]) -> _Recipe:
        found = self._recipes.get((name, kinds))
        if found is not None:
            return found
        block = Block(arg_types=[*kinds, *kinds])

        def emit(op: Operation) -> SSAValue:
            block.add_op(op)
            return op.results[0]

        count = len(kinds)
        results = COMBINERS[name].combine(emit, block.args[:count], block.args[count:])
        recipe = self._recipes[name, kinds] = _Recipe(block, results)
        return recipe

    def reduce(self, groups: Sequence[Group], values: Values, axes: Sequence[int]) -> list[SSAValue]:
        """Combine the elements along some axes, in rising order, each group of slots by its combiner.

        Tensors of one shape are reduced together: threads wait for each other once, not once for each of them.
        """
        found = list(values)
        for axis in reversed(axes):
            alike: dict[Shape, list[Group]] = {}
            for group in groups:
                _, slots = group
                alike.setdefault(shape_of(found[slots][0]), []).append(group)
            for together in alike.values():
                slots = [i for _, part in together for i in range(part.start, part.stop)]
                op = tt.ReduceOp.get([found[i] for i in slots], axis)
                self._fill([(name, part.stop - part.start) for name, part in together], op)
                for i, result in zip(slots, self._builder.append(op), strict=True):
                    found[i] = result
                for name, part in together:
                    for result in found[part]:
                        result.name_hint = name
        return found

    def scan(self, name: str, values: Values, axis: int) -> list[SSAValue]:
        """Combine each element with all before it along an axis."""
        op = tt.ScanOp.get(values, axis)
        self._fill([(name, len(values))], op)
        return list(self._builder.append(op))

    def _fill(self, parts: Sequence[tuple[str, int]], op: tt.ReduceOp | tt.ScanOp) -> None:
        """Build the region of `op`, whose operands are the slots of some combiners, so many of each."""
        count = len(op.srcs)
        self._builder.push(op.block, closed=True)
        results: list[SSAValue] = []
        for name, arity in parts:
            first, later = len(results), count + len(results)
            results += self.combine(name, op.block.args[first : first + arity], op.block.args[later : later + arity])
        end = tt.ReduceReturnOp if isinstance(op, tt.ReduceOp) else tt.ScanReturnOp
        self._builder.append(end.get(results))
        self._builder.pop()
