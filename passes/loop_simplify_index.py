"""Simplify index expressions and loop bounds by what is known of their ranges, and remove loops of one iteration.

Composed views and split or merged loops leave quotients and remainders that the bounds of the loops decide.

Before:
```
!X = tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
func.func @reshaped_and_back(%x : !X) -> !X {
  %y = loop.nest (%i : s0, %j : 8, %k : 1) outs(%o : !X) {
    %v = loop.load %x[(8 * %i + %j) floordiv 8, (8 * %i + %j) mod 8 + %k] : !X -> f32
    loop.store %v, %o[%i, %j] : f32, !X
  }
  func.return %y : !X
}
```
After:
```
!X = tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
func.func @reshaped_and_back(%x : !X) -> !X {
  %y = loop.nest (%i : s0, %j : 8) outs(%o : !X) {
    %v = loop.load %x[%i, %j] : !X -> f32
    loop.store %v, %o[%i, %j] : f32, !X
  }
  func.return %y : !X
}
```

It works on every level that has loops: on tensors, on buffers, in kernels, and on tiled loops whose bounds depend on
outer indices. An index that no loop gives (a loaded one) may be anything. Loops over lanes stay: their width is a
choice that was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, ModuleOp, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.dialects.loop import ApplyOp, CastOp, CmpOp, ForOp, KernelOp, Loop, LoopDim, NestOp, ReduceOp, ScanOp
from tilewright.dialects.sym import MapAttr
from tilewright.dialects.sym_expr import Expr, Ranges, dim, integer, provably_at_most, simplify
from tilewright.passes.analysis.accesses import IndexNames, index_map
from tilewright.passes.analysis.index_values import decide, index_expr
from tilewright.passes.analysis.ranges import NamedRanges, Range, symbol_ranges
from tilewright.passes.rewriting.indices import IndexRewriter, from_names, set_index_map
from tilewright.passes.rewriting.loops import inline_for, inline_reduce, inline_scan


@dataclass
class _Simplifier:
    """Simplifies the maps of one function. Equal maps under equal ranges are simplified once."""

    ranges: NamedRanges
    names: IndexNames
    _known: dict[tuple[tuple[Expr, ...], tuple[Range, ...]], tuple[Expr, ...]] = field(
        default_factory=dict[tuple[tuple[Expr, ...], tuple[Range, ...]], tuple[Expr, ...]]
    )

    def visit(self, block: Block) -> None:
        """Simplify everything in `block`, outer loops first: their ranges bound the inner ones."""
        op = block.first_op
        while op is not None:
            self._simplify_map(op)
            if isinstance(op, CmpOp):
                op = self._decide(op)
            elif isinstance(op, Loop):
                first = self._remove_unit_loops(op)
                if first is not op:
                    op = first
                    continue
                self.ranges.enter(op)
            for region in op.regions:
                for inner in region.blocks:
                    self.visit(inner)
            op = op.next_op

    def _decide(self, op: CmpOp) -> Operation:
        """Replace a comparison of indices by its outcome, where that is known; return what stands in its place."""
        outcome = decide(op, self.ranges)
        if outcome is None:
            return op
        constant = arith.ConstantOp(IntegerAttr.from_bool(outcome))
        constant.location = op.location
        Rewriter.replace_op(op, constant)
        return constant

    def _simplify_map(self, op: Operation) -> None:
        found = index_map(op)
        if found is None:
            return
        access, operands = found
        if any(isinstance(v.owner, (ApplyOp, CastOp, arith.ConstantOp)) for v in operands):
            access, operands = self._compose(op, operands)
        if all(e.is_Symbol or e.is_Integer for e in access.exprs):
            return
        key = access.exprs, tuple(self.ranges.indices.of(v) for v in operands)
        simple = self._known.get(key)
        if simple is None:
            known = self.ranges.indices.dims(operands)
            simple = self._known[key] = tuple(simplify(e, known) for e in access.exprs)
        if simple != access.exprs:
            set_index_map(op, simple, operands)

    def _compose(self, op: Operation, operands: Sequence[SSAValue]) -> tuple[MapAttr, Sequence[SSAValue]]:
        """Put the expressions of operands that were computed from indices into the map of `op`; return the map."""
        rules: dict[Expr, Expr] = {
            self.names.symbol(v): index_expr(v, self.ranges) or self.names.symbol(v) for v in operands
        }
        found = index_map(op)
        assert found is not None
        set_index_map(op, *from_names(self.names, [e.xreplace(rules) for e in self.names.exprs(*found)]))
        composed = index_map(op)
        assert composed is not None
        return composed

    def _remove_unit_loops(self, loop: Loop) -> Operation | None:
        """Take the loops of one iteration out of `loop`; return it, or what stands in its place if no loop is left."""
        loops = loop.loops
        known = self.ranges.indices.dims(loops.operands)
        unit = [i for i, d in enumerate(loops.dims) if _is_unit(d, known)]
        if not unit:
            return loop
        names = self.names
        symbols = [names.symbol(v) for v in loops.operands]
        indices = loop.indices
        rules: dict[Expr, Expr] = {names.symbol(indices[i]): _at(loops.dims[i].lower, symbols) for i in unit}
        rewriter = IndexRewriter(names, rules, loop.block)
        for i in unit:
            rewriter.replace(indices[i])
        _keep_loops(loop, [i for i in range(len(loops.dims)) if i not in unit])
        if loop.indices or isinstance(loop, NestOp):
            return loop
        if isinstance(loop, ScanOp):
            return inline_scan(loop)
        if isinstance(loop, ForOp):
            return inline_for(loop)
        assert isinstance(loop, ReduceOp)
        return inline_reduce(loop)


def _at(expr: Expr, symbols: Sequence[Expr]) -> Expr:
    return expr.xreplace({dim(i): s for i, s in enumerate(symbols)})


def _is_unit(loop: LoopDim, known: Ranges) -> bool:
    """Whether a loop is known to have exactly one iteration."""
    if loop.lanes:
        return False
    length = loop.upper - loop.lower
    return provably_at_most(length, integer(loop.step), known) and provably_at_most(integer(1), length, known)


def _keep_loops(loop: Loop, kept: list[int]) -> None:
    """Drop all loops of an operation but those at the positions `kept`; the dropped indices have no uses."""
    bounds = loop.loops
    for i in reversed(range(len(bounds.dims))):
        if i not in kept:
            loop.block.erase_arg(loop.block.args[i])
    loop.properties["steps"] = DenseArrayBase.from_list(i64, [bounds.dims[i].step for i in kept])
    lanes = [new for new, old in enumerate(kept) if bounds.dims[old].lanes]
    if lanes:
        loop.properties["lanes"] = DenseArrayBase.from_list(i64, lanes)
    exprs = [e for i in kept for e in (bounds.dims[i].lower, bounds.dims[i].upper)]
    set_index_map(loop, exprs, bounds.operands)


@dataclass(frozen=True)
class LoopSimplifyIndexPass(ModulePass):
    """Simplify index expressions and loop bounds by their ranges, and remove loops of one iteration."""

    name = "loop-simplify-index"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, (FuncOp, KernelOp)):
                names = IndexNames()
                simplifier = _Simplifier(NamedRanges(names, symbol_ranges(function)), names)
                for block in function.body.blocks:
                    simplifier.visit(block)
