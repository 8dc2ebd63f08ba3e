"""Make one nest of two that share outer loops."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from xdsl.ir import SSAValue

from tilewright.dialects.loop import Bounds, ForOp, LoadOp, NestOp
from tilewright.dialects.sym_expr import Expr
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.rewriting.indices import IndexRewriter
from tilewright.passes.rewriting.loops import move_ops
from tilewright.passes.rewriting.origins import merge_origins


def merge_nests(
    first: NestOp, second: NestOp, rules: Mapping[Expr, Expr], shared: AbstractSet[Expr], names: IndexNames
) -> NestOp:
    """Put the bodies of two nests, in order, into one nest in place of `second`, and return it.

    Its loops are those of `second` named in `shared`. `rules` gives indices of `first` in terms of these. The other
    outer loops of either become a `loop.for` around its part. What `second` reads of `first` it then reads from the
    destination.
    """
    kept = [i for i, v in enumerate(second.indices) if names.symbol(v) in shared]
    bounds = second.loops
    outs = [r.type for r in (*first.outputs, *second.outputs)]
    nest = NestOp.get(Bounds(tuple(bounds.dims[i] for i in kept)), outs)
    nest.attributes.update(second.attributes)
    nest.location = second.location
    merge_origins(nest, first)
    assert second.parent is not None
    second.parent.insert_op_before(nest, second)
    _connect(first, second, nest)
    renamed: dict[Expr, Expr] = {
        names.symbol(second.indices[i]): names.symbol(new) for i, new in zip(kept, nest.indices, strict=True)
    }
    _place(first, nest, {i: e.xreplace(renamed) for i, e in rules.items()}, names)
    _place(second, nest, renamed, names)
    for old in (first, second):
        old.detach()
        old.erase()
    return nest


def _connect(first: NestOp, second: NestOp, nest: NestOp) -> None:
    """Give `nest` the results and destinations of two nests; the second part reads the destinations of the first."""
    for old, destination in zip(first.outputs, nest.destinations, strict=False):
        for use in list(old.uses):
            if isinstance(use.operation, LoadOp) and second.is_ancestor(use.operation):
                use.operation.operands[use.index] = destination
    results = [*first.outputs, *second.outputs]
    destinations = [*first.destinations, *second.destinations]
    for old, new in zip((*results, *destinations), (*nest.outputs, *nest.destinations), strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)


def _place(part: NestOp, nest: NestOp, rules: Mapping[Expr, Expr], names: IndexNames) -> None:
    """Move the body of `part` to the end of `nest`, with `rules` for its indices and a loop for the others."""
    sunk = [i for i, v in enumerate(part.indices) if names.symbol(v) not in rules]
    target = nest.block
    if sunk:
        dims = part.loops.dims
        loop = ForOp.get(Bounds(tuple(dims[i] for i in sunk)))
        loop.location = part.location
        target.add_op(loop)
        target = loop.block
        for i, new in zip(sunk, loop.indices, strict=True):
            _rename(part.indices[i], new)
    rewriter = IndexRewriter(names, rules, nest.block)
    for value in part.indices:
        if names.symbol(value) in rules:
            rewriter.replace(value)
    move_ops(part.block.ops, target)


def _rename(old: SSAValue, new: SSAValue) -> None:
    new.name_hint = old.name_hint
    old.replace_all_uses_with(new)
