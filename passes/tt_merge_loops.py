"""Merge loops of Triton kernels that run over the same range side by side and read the same buffers.

A layer norm's backward pass goes over its rows twice: for the gradient of each row, and for the sums over all rows.
Each pass reads everything; in one loop, `tt-cse` finds that both load the same.

Before:
```
tt.func public @twice(%x : !tt.ptr<f32>, %y : !tt.ptr<f32>, %z : !tt.ptr<f32>) attributes {grid = #sym.expr<1>} {
  %zero = arith.constant 0 : i32
  %end = arith.constant 8 : i32
  %one = arith.constant 1 : i32
  scf.for %i = %zero to %end step %one : i32 {
    %p = tt.addptr %x, %i : !tt.ptr<f32>, i32
    %q = tt.addptr %y, %i : !tt.ptr<f32>, i32
    %a = tt.load %p : !tt.ptr<f32>
    tt.store %q, %a : !tt.ptr<f32>
  }
  %start = arith.constant 0.0 : f32
  %sum = scf.for %k = %zero to %end step %one iter_args(%s = %start) -> (f32) : i32 {
    %p = tt.addptr %x, %k : !tt.ptr<f32>, i32
    %a = tt.load %p : !tt.ptr<f32>
    %t = arith.addf %s, %a : f32
    scf.yield %t : f32
  }
  tt.store %z, %sum : !tt.ptr<f32>
  tt.return
}
```
After:
```
tt.func public @twice(%x : !tt.ptr<f32>, %y : !tt.ptr<f32>, %z : !tt.ptr<f32>) attributes {grid = #sym.expr<1>} {
  %zero = arith.constant 0 : i32
  %end = arith.constant 8 : i32
  %one = arith.constant 1 : i32
  %start = arith.constant 0.0 : f32
  %sum = scf.for %i = %zero to %end step %one iter_args(%s = %start) -> (f32) : i32 {
    %p = tt.addptr %x, %i : !tt.ptr<f32>, i32
    %q = tt.addptr %y, %i : !tt.ptr<f32>, i32
    %a = tt.load %p : !tt.ptr<f32>
    tt.store %q, %a : !tt.ptr<f32>
    %p_1 = tt.addptr %x, %i : !tt.ptr<f32>, i32
    %a_1 = tt.load %p_1 : !tt.ptr<f32>
    %t = arith.addf %s, %a_1 : f32
    scf.yield %t : f32
  }
  tt.store %z, %sum : !tt.ptr<f32>
  tt.return
}
```
It leaves alone loops of which one needs a result of the other or what the other stores, and those between which
something is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import is_side_effect_free

from tilewright.dialects import tt
from tilewright.passes.analysis.pointers import base_of, writes


def _loads(op: Operation) -> set[SSAValue | None]:
    """Return the buffers that `op`, or something in it, loads from; None stands for any of them."""
    return {base_of(o.ptr) for o in op.walk() if isinstance(o, (tt.LoadOp, tt.AtomicRMWOp, tt.AtomicCASOp))}


def _stores(op: Operation) -> set[SSAValue | None]:
    return {base for o in op.walk() for base in writes(o)}


def _may_swap(first: Operation, second: Operation) -> bool:
    """Whether iterations of two loops may be interleaved, as far as memory goes."""
    stored, stored_later = _stores(first), _stores(second)
    touched, touched_later = stored | _loads(first), stored_later | _loads(second)
    if None in touched | touched_later:
        return not stored and not stored_later
    return not stored & touched_later and not stored_later & touched


def _between(first: scf.ForOp, second: scf.ForOp) -> list[Operation] | None:
    """Return what `second` needs of what lies between the loops, in order; None if it needs something of `first`.

    None also if something between them has an effect, or may see one of `first`.
    """
    stored, between = _stores(first), list[Operation]()
    op = first.next_op
    while op is not None and op is not second:
        if not is_side_effect_free(op):
            reads = isinstance(op, tt.LoadOp) and op.isVolatile is None
            if not reads or None in stored or not stored.isdisjoint(_loads(op)):
                return None
        between.append(op)
        op = op.next_op
    needed = {v for o in second.walk() for v in o.operands}
    found: list[Operation] = []
    for op in reversed(between):
        if any(r in needed for r in op.results):
            found.append(op)
            needed.update(v for o in op.walk() for v in o.operands)
    return None if any(r in needed for r in first.results) else found[::-1]


def _merge(first: scf.ForOp, second: scf.ForOp, between: list[Operation]) -> scf.ForOp:
    """Let one loop do what two did, where the first one is."""
    for op in between:
        op.detach()
    Rewriter.insert_op(between, InsertPoint.before(first))
    blocks = [first.body.block, second.body.block]
    yielded: list[SSAValue] = []
    block = Block(arg_types=[a.type for a in (*blocks[0].args, *blocks[1].args[1:])])
    arguments = list(block.args)
    counter, carried = arguments[0], arguments[1:]
    for old in blocks:
        count = len(old.args) - 1
        for before, after in zip(old.args, (counter, *carried[:count]), strict=True):
            after.name_hint = after.name_hint or before.name_hint
            before.replace_all_uses_with(after)
        carried = carried[count:]
        last = old.last_op
        assert isinstance(last, scf.YieldOp)
        yielded += last.arguments
        last.detach()
        last.erase()
        for op in list(old.ops):
            op.detach()
            block.add_op(op)
    block.add_op(scf.YieldOp(*yielded))
    merged = scf.ForOp(first.lb, first.ub, first.step, [*first.iter_args, *second.iter_args], Region(block))
    for old, new in zip((*first.results, *second.results), merged.results, strict=True):
        new.name_hint = old.name_hint
    Rewriter.replace_op(first, merged, merged.results[: len(first.results)])
    Rewriter.replace_op(second, [], merged.results[len(merged.results) - len(second.results) :])
    return merged


def _merge_in(block: Block) -> None:
    """Merge the loops of a block, and of the blocks in it."""
    before: scf.ForOp | None = None
    for op in list(block.ops):
        for region in op.regions:
            for inner in region.blocks:
                _merge_in(inner)
        if not isinstance(op, scf.ForOp):
            continue
        between = None
        if before is not None and (before.lb, before.ub, before.step) == (op.lb, op.ub, op.step):
            shared = _loads(before) & _loads(op)
            between = _between(before, op) if shared and _may_swap(before, op) else None
        before = op if before is None or between is None else _merge(before, op, between)


@dataclass(frozen=True)
class TtMergeLoopsPass(ModulePass):
    """Merge loops of Triton kernels that run over the same range side by side and read the same buffers."""

    name = "tt-merge-loops"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, tt.FuncOp):
                _merge_in(function.block)
