"""Say in the program what must run before what, because of the memory that tensors share.

On tensors nothing shows that a call writes to memory which a nest reads: both use the same argument, or one a view of
it. Here the reads and writes of each memory are put in order, by `loop.after`, once. Whoever moves operations
afterwards goes by their values alone, and a reader sees why.

Before:
```
!X = tensor<8xf32, #sym.layout<[8], [1]>>
func.func @f(%x : !X, %y : !X) -> !X attributes {aten.mutates = [0]} {
  %a = loop.nest (%i : 8) outs(%o : !X) {
    %v = loop.load %x[%i] : !X -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i] : f32, !X
  }
  %c = aten.call "aten.copy_.default"(self = %x, src = %y) : (!X, !X) -> !X
  func.return %a : !X
}
```
After:
```
!X = tensor<8xf32, #sym.layout<[8], [1]>>
func.func @f(%x : !X, %y : !X) -> !X attributes {aten.mutates = [0]} {
  %a = loop.nest (%i : 8) outs(%o : !X) {
    %v = loop.load %x[%i] : !X -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i] : f32, !X
  }
  %x_1 = loop.after %x behind %a : !X behind !X
  %c = aten.call "aten.copy_.default"(self = %x_1, src = %y) : (!X, !X) -> !X
  func.return %a : !X
}
```

A nest whose destination begins as a tensor that nothing reads later waits for the reads of that tensor as well: so it
can be done in that tensor's memory. Which tensors may share memory is a question of the operators' schemas
(`analysis/aliasing`). What the program says already is not said again, and programs that write nothing are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects.loop import AfterOp
from tilewright.passes.analysis.memory_edges import Edges, memory_edges


def _put(edges: Edges) -> None:
    """Let an operation access its memory through `loop.after`."""
    op, block = edges.op, edges.op.parent
    assert block is not None
    before: list[SSAValue] = []
    for earlier in edges.before:
        if not earlier.results:
            raise PassFailedException(
                f"`{earlier.name}` writes to memory that is used later, and has no result that this could wait for"
            )
        before.append(earlier.results[0])
    inner = {i: None for region in op.regions for i in region.walk()}
    for tensor in edges.tensors:
        after = AfterOp.get(tensor, before)
        block.insert_op_before(after, op)
        for use in list(tensor.uses):
            if use.operation is op or use.operation in inner:
                use.operation.operands[use.index] = after.result


@dataclass(frozen=True)
class OrderWritesPass(ModulePass):
    """Say in the program what must run before what, because of the memory that tensors share."""

    name = "order-writes"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, FuncOp) and len(function.body.blocks) == 1:
                for edges in memory_edges(function.body.block):
                    _put(edges)
