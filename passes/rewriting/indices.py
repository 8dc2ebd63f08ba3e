"""Replace index values by expressions over other index values, wherever they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from xdsl.dialects.builtin import DenseArrayBase, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.dialects.access import normalize_access
from tilewright.dialects.loop import ApplyOp
from tilewright.dialects.sym_expr import Expr, dim
from tilewright.passes.analysis.accesses import IndexNames, index_map, index_place

_SEGMENTS = "operandSegmentSizes"


@lru_cache
def _segments(sizes: tuple[int, ...]) -> Attribute:
    return DenseArrayBase.from_list(i32, sizes)


def set_index_map(op: Operation, exprs: Sequence[Expr], operands: Sequence[SSAValue]) -> None:
    """Give `op` the index map `exprs`, in which `d<i>` stands for `operands[i]`, in normal form."""
    place, old = index_place(op), index_map(op)
    assert place is not None
    assert old is not None
    (name, first), before = place, old[0].num_dims
    access, operands = normalize_access(exprs, operands)
    op.properties[name] = access
    values = op.operands
    op.operands = [*values[:first], *operands, *values[first + before :]]
    if _SEGMENTS in op.properties and len(operands) != before:
        sizes = op.properties[_SEGMENTS]
        assert isinstance(sizes, DenseArrayBase)
        counts = [int(n) for n in sizes.iter_values()]
        counts[first] = len(operands)
        op.properties[_SEGMENTS] = _segments(tuple(counts))


def from_names(names: IndexNames, exprs: Sequence[Expr]) -> tuple[list[Expr], list[SSAValue]]:
    """Return `exprs` over named index values as expressions over `d0`, `d1`, .. and the values of these dims."""
    values = names.values(exprs)
    dims: dict[Expr, Expr] = {names.symbol(v): dim(i) for i, v in enumerate(values)}
    return [e.xreplace(dims) for e in exprs], values


class IndexRewriter:
    """Replaces index values by expressions over others: in index maps by substitution, elsewhere by a `loop.apply`.

    `rules` maps the symbol of a value in `names` to its expression; `block`, at whose start the values of these
    expressions exist, takes the `loop.apply`s.
    """

    def __init__(self, names: IndexNames, rules: Mapping[Expr, Expr], block: Block) -> None:
        self._names = names
        self._rules = rules
        self._block = block

    def replace(self, value: SSAValue) -> None:
        """Replace all uses of `value`, for which there is a rule. A value that takes its place takes over its name."""
        names = self._names
        expr = self._rules[names.symbol(value)]
        if expr.is_Symbol and names.is_index(expr):
            (new,) = names.values([expr])
            new.name_hint = new.name_hint or value.name_hint
            value.replace_all_uses_with(new)
            return
        applied: SSAValue | None = None
        for use in list(value.uses):
            op = use.operation
            found = index_map(op)
            place = index_place(op)
            if found is not None and place is not None and 0 <= use.index - place[1] < found[0].num_dims:
                exprs = [e.xreplace(self._rules) for e in names.exprs(*found)]
                set_index_map(op, *from_names(names, exprs))
                continue
            if applied is None:
                apply = ApplyOp.get(*_single(names, expr))
                _prepend(self._block, apply)
                applied = apply.result
            op.operands[use.index] = applied


def _single(names: IndexNames, expr: Expr) -> tuple[Expr, list[SSAValue]]:
    (expr,), values = from_names(names, [expr])
    return expr, values


def _prepend(block: Block, op: Operation) -> None:
    if block.first_op is None:
        block.add_op(op)
    else:
        block.insert_op_before(op, block.first_op)
