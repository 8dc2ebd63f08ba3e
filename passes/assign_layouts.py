"""Choose the memory layout of each tensor that only loops read.

Up to here a layout is what tracing saw. It binds where the outside sees it: what is returned, what an ATen call or a
view takes. Any other tensor may lie in memory as suits the loops that store and load it. Each of these has an index
along which its other accesses go element by element; it becomes a vector's lanes. The dim of the tensor that most bytes
are accessed along in this way becomes the innermost one, the others keep their order. (Inductor: layout decisions of
flexible layouts.)

Before:
```
!X = tensor<256x64xf32, #sym.layout<[256, 64], [64, 1]>>
!T = tensor<64x256xf32, #sym.layout<[64, 256], [256, 1]>>
!R = tensor<256xf32, #sym.layout<[256], [1]>>
func.func @forward(%x : !X) -> !R {
  %t = loop.nest (%i : 64, %j : 256) outs(%o : !T) {
    %v = loop.load %x[%j, %i] : !X -> f32
    %e = math.exp %v : f32
    loop.store %e, %o[%i, %j] : f32, !T
  }
  %r = loop.nest (%j : 256) outs(%o : !R) {
    %s = loop.reduce "sum" (%i : 64) {
      %v = loop.load %t[%i, %j] : !T -> f32
      %w = loop.load %x[%j, %i] : !X -> f32
      %p = arith.mulf %v, %w : f32
      loop.yield %p : f32
    } : f32
    loop.store %s, %o[%j] : f32, !R
  }
  func.return %r : !R
}
```
After:
```
!X = tensor<256x64xf32, #sym.layout<[256, 64], [64, 1]>>
!T = tensor<64x256xf32, #sym.layout<[64, 256], [1, 64]>>
!R = tensor<256xf32, #sym.layout<[256], [1]>>
func.func @forward(%x : !X) -> !R {
  %t = loop.nest (%i : 64, %j : 256) outs(%o : !T) {
    %v = loop.load %x[%j, %i] : !X -> f32
    %e = math.exp %v : f32
    loop.store %e, %o[%i, %j] : f32, !T
  }
  %r = loop.nest (%j : 256) outs(%o : !R) {
    %s = loop.reduce "sum" (%i : 64) {
      %v = loop.load %t[%i, %j] : !T -> f32
      %w = loop.load %x[%j, %i] : !X -> f32
      %p = arith.mulf %v, %w : f32
      loop.yield %p : f32
    } : f32
    loop.store %s, %o[%j] : f32, !R
  }
  func.return %r : !R
}
```

A tensor that is free and whose traced layout leaves gaps, or has several elements in one place, becomes dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.dialects.loop import LoadOp, NestOp, StoreOp
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.loop_order import data_uses
from tilewright.dialects.sym import LayoutAttr
from tilewright.dialects.sym_expr import Expr, Symbol, integer
from tilewright.dialects.type_guards import is_tensor
from tilewright.passes.analysis.accesses import IndexNames
from tilewright.passes.analysis.layouts import is_dense
from tilewright.passes.analysis.order import statement_of
from tilewright.passes.analysis.ranges import symbol_ranges
from tilewright.passes.analysis.sizes import SizeHints


@dataclass(frozen=True)
class _Access:
    """A load or a store of a tensor, at index expressions."""

    tensor: SSAValue
    exprs: tuple[Expr, ...]
    bytes: int

    def moves(self, index: Symbol) -> int | None:
        """Return the dim that one step of `index` goes one element along; None if it moves in another way."""
        moved = [d for d, expr in enumerate(self.exprs) if index in expr.free_symbols]
        if len(moved) != 1:
            return None
        expr = self.exprs[moved[0]]
        return moved[0] if expr == index or (expr.is_Add and index in expr.args) else None


@dataclass
class _Layouts:
    """The layouts of one function's tensors, and what they are weighed by."""

    function: FuncOp
    names: IndexNames = field(default_factory=IndexNames)
    _accesses: dict[NestOp, list[_Access]] = field(default_factory=dict[NestOp, list[_Access]])

    def __post_init__(self) -> None:
        self.block = self.function.body.block
        self.hints = SizeHints(self.function)
        self.ranges = symbol_ranges(self.function)

    def run(self) -> None:
        """Choose the layouts of all free tensors, in program order."""
        for nest in [op for op in self.block.ops if isinstance(op, NestOp)]:
            for result, destination in list(zip(nest.outputs, nest.destinations, strict=True)):
                readers = None if nest.starts is not None else _readers(result, self.block)
                if readers is not None and is_tensor(result.type):
                    self._choose(nest, result, destination, readers)

    def _choose(self, nest: NestOp, result: OpResult, destination: SSAValue, readers: Sequence[NestOp]) -> None:
        layout = layout_of(result.type)
        order = self._order(layout)
        if len(order) < 2:
            return
        votes = [0] * len(layout.sizes)
        for user, tensor in ((nest, destination), *((reader, result) for reader in readers)):
            self._vote(user, tensor, votes)
        best = max(order, key=lambda d: (votes[d], order.index(d)))
        if votes[best] <= votes[order[-1]]:
            if is_dense(layout, self.ranges):
                return
            best = order[-1]
        self._assign(nest, result, destination, [*(d for d in order if d != best), best])

    def _order(self, layout: LayoutAttr) -> list[int]:
        """Return the dims of more than one element, outermost first."""
        moving = [d for d, size in enumerate(layout.sizes) if size != 1]
        return sorted(moving, key=lambda d: -self.hints.value(layout.strides[d]))

    def _vote(self, nest: NestOp, tensor: SSAValue, votes: list[int]) -> None:
        """Add, to each dim that the lanes of `nest` go along, the bytes that are accessed so."""
        lanes = self._lanes(nest, tensor)
        if lanes is None:
            return
        for access in self._of(nest):
            if access.tensor is tensor and (dim := access.moves(lanes)) is not None:
                votes[dim] += access.bytes

    def _lanes(self, nest: NestOp, tensor: SSAValue) -> Symbol | None:
        """Return the index along which most bytes of the other accesses lie side by side; the inner one of equals."""
        weights: dict[Symbol, int] = {}
        for access in self._of(nest):
            if access.tensor is tensor:
                continue
            strides = layout_of(access.tensor.type).strides
            for index in self.names.symbols(*access.exprs):
                dim = access.moves(index)
                is_side_by_side = dim is not None and strides[dim] == 1
                weights[index] = weights.get(index, 0) + (access.bytes if is_side_by_side else -access.bytes)
        # Of equals the last: `max` takes the first that it finds.
        best = max(reversed(weights), key=lambda index: weights[index], default=None)
        return best if best is not None and weights[best] > 0 else None

    def _of(self, nest: NestOp) -> list[_Access]:
        found = self._accesses.get(nest)
        if found is None:
            found = self._accesses[nest] = []
            for op in nest.body.walk():
                if isinstance(op, (LoadOp, StoreOp)):
                    tensor = op.source if isinstance(op, LoadOp) else op.target
                    exprs = self.names.exprs(op.access, op.indices)
                    found.append(_Access(tensor, exprs, self.hints.bytes_of(tensor.type)))
        return found

    def _assign(self, nest: NestOp, result: OpResult, destination: SSAValue, order: Sequence[int]) -> None:
        """Let `result` lie densely in memory, with the dims of `order` from the outermost to the innermost."""
        kind = result.type
        assert is_tensor(kind)
        old = layout_of(kind)
        strides = [integer(1)] * len(old.sizes)
        stride = integer(1)
        for d in reversed(order):
            strides[d] = stride
            stride = sympy.expand(stride * old.sizes[d])
        new = TensorType(kind.element_type, kind.shape, LayoutAttr.get(old.sizes, strides, device=old.device))
        self._accesses.clear()
        Rewriter.replace_value_with_new_type(result, new)
        Rewriter.replace_value_with_new_type(destination, new)


def _readers(result: SSAValue, block: Block) -> list[NestOp] | None:
    """Return the nests that load from `result`; None if it is used in another way, or not at all."""
    readers: dict[NestOp, None] = {}
    for use in data_uses(result):
        if not isinstance(use.operation, LoadOp) or use.index != 0:
            return None
        reader = statement_of(use.operation, block)
        assert isinstance(reader, NestOp)
        readers[reader] = None
    return list(readers) or None


@dataclass(frozen=True)
class AssignLayoutsPass(ModulePass):
    """Choose the memory layout of each tensor that only loops read."""

    name = "assign-layouts"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, FuncOp) and len(function.body.blocks) == 1:
                _Layouts(function).run()
