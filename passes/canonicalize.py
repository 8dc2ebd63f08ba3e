"""Fold operations, share equal ones and remove dead ones; the pass knows no dialect.

What folds is said beside the operations (`dialects/*_canonicalize.py`), and nothing folds that could change a bit of a
result. Equal pure operations are shared within a region and the regions inside it; a load from a tensor is pure.
Operations without effect whose results nobody uses go, and so do unused results of a nest, with the stores that
computed them.

Before:
```
!X = tensor<8xf32, #sym.layout<[8], [1]>>
func.func @twice(%x : !X) -> !X {
  %y = loop.nest (%i : 8) outs(%o : !X) {
    %one = arith.constant 1.0 : f32
    %a = loop.load %x[%i] : !X -> f32
    %b = loop.load %x[%i] : !X -> f32
    %c = arith.mulf %b, %one : f32
    %d = arith.addf %a, %c : f32
    loop.store %d, %o[%i] : f32, !X
  }
  func.return %y : !X
}
```
After:
```
!X = tensor<8xf32, #sym.layout<[8], [1]>>
func.func @twice(%x : !X) -> !X {
  %y = loop.nest (%i : 8) outs(%o : !X) {
    %a = loop.load %x[%i] : !X -> f32
    %d = arith.addf %a, %a : f32
    loop.store %d, %o[%i] : f32, !X
  }
  func.return %y : !X
}
```

It leaves alone what only looks equal: `x + 0.0` (-0.0), `x * 0.0` (NaN), loads from buffers, and calls that draw random
numbers. Each operation is visited twice, so the time is linear.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, ShapedType, VectorType
from xdsl.ir import Attribute, Block, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.traits import IsolatedFromAbove, IsTerminator, SymbolOpInterface, is_side_effect_free

from tilewright.dialects.canonicalization import PRUNE, SCOPES, SIMPLIFY, constant, fold

Known = dict[Hashable, Operation]


def _key(op: Operation) -> Hashable:
    """Return what equal operations have in common: name, operands, attributes and result types."""
    return (
        op.name,
        tuple(op.operands),
        tuple(op.properties.items()),
        tuple(op.attributes.items()),
        tuple(r.type for r in op.results),
    )


def _may_share(op: Operation) -> bool:
    """Whether `op` can stand for an equal one. Tensors have an identity: returned twice, one is one buffer, not two."""
    if not op.results or op.regions or op.has_trait(IsTerminator):
        return False
    return not any(isinstance(r.type, ShapedType) and not isinstance(r.type, VectorType) for r in op.results) and (
        is_side_effect_free(op)
    )


def simplify_block(block: Block) -> None:
    """Fold and share the operations of `block`; nothing is removed that is merely unused."""
    _simplify(block, {})


def _simplify(block: Block, known: Known) -> None:
    """Fold and share the operations of `block`; take out of `known` again what does not dominate what follows."""
    added: list[Hashable] = []
    op = block.first_op
    while op is not None:
        following = op.next_op
        op = _fold(op, block)
        if op is not None:
            _share(op, known, added)
        op = following
    for key in added:
        del known[key]


def _fold(op: Operation, block: Block) -> Operation | None:
    """Fold `op`; return it, or the constant that takes its place, or None if it was equal to another value."""
    simplify = SIMPLIFY.get(type(op))
    if simplify is not None:
        simplify(op)
    folded = fold(op)
    if folded is None:
        return op
    if isinstance(folded, Attribute):
        new = constant(folded)
        new.location = op.location
        new.results[0].name_hint = op.results[0].name_hint
        Rewriter.replace_op(op, new)
        return new
    op.results[0].replace_all_uses_with(folded)
    block.erase_op(op)
    return None


def _share(op: Operation, known: Known, added: list[Hashable]) -> None:
    """Replace `op` by an equal operation that dominates it, or let it be found; go into its regions."""
    if _may_share(op):
        key = _key(op)
        equal = known.get(key)
        if equal is None:
            known[key] = op
            added.append(key)
        else:
            Rewriter.replace_op(op, [], equal.results)
        return
    for region in op.regions:
        # Values of another block of the same region may not dominate this one.
        apart = type(op) in SCOPES or op.has_trait(IsolatedFromAbove) or len(region.blocks) > 1
        for inner in region.blocks:
            _simplify(inner, {} if apart else known)


def _sweep(block: Block) -> None:
    """Remove the dead operations of `block`, last first, and the unused results of others."""
    op = block.last_op
    while op is not None:
        before = op.prev_op
        if _is_dead(op):
            block.erase_op(op)
        else:
            prune = PRUNE.get(type(op))
            op = op if prune is None else prune(op)
            for region in op.regions:
                for inner in region.blocks:
                    _sweep(inner)
            if op.regions and _is_dead(op):
                block.erase_op(op)
        op = before


def _is_dead(op: Operation) -> bool:
    if any(r.first_use is not None for r in op.results) or op.has_trait(IsTerminator):
        return False
    return not op.has_trait(SymbolOpInterface) and is_side_effect_free(op)


@dataclass(frozen=True)
class CanonicalizePass(ModulePass):
    """Fold operations, share equal ones and remove dead ones."""

    name = "canonicalize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for region in op.regions:
            for block in region.blocks:
                simplify_block(block)
                _sweep(block)
