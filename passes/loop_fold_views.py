"""Compose the maps of views into the loads that read through them.

A `loop.view` moves nothing, but a load from one hides which tensor it reads, and fusion and simplification would stop
there.

Before:
```
!X = tensor<2x3xf32, #sym.layout<[2, 3], [3, 1]>>
!T = tensor<3x2xf32, #sym.layout<[3, 2], [1, 3]>>
!Y = tensor<3x2xf32, #sym.layout<[3, 2], [2, 1]>>
func.func @transposed(%x : !X) -> !Y {
  %t = loop.view %x <(d0, d1) -> (d1, d0)> : !X to !T
  %y = loop.nest (%i : 3, %j : 2) outs(%o : !Y) {
    %v = loop.load %t[%i, %j] : !T -> f32
    loop.store %v, %o[%i, %j] : f32, !Y
  }
  func.return %y : !Y
}
```
After:
```
!X = tensor<2x3xf32, #sym.layout<[2, 3], [3, 1]>>
!Y = tensor<3x2xf32, #sym.layout<[3, 2], [2, 1]>>
func.func @transposed(%x : !X) -> !Y {
  %y = loop.nest (%i : 3, %j : 2) outs(%o : !Y) {
    %v = loop.load %x[%j, %i] : !X -> f32
    loop.store %v, %o[%i, %j] : f32, !Y
  }
  func.return %y : !Y
}
```

Views of views read the first tensor too. A view that nothing uses any more goes; one that feeds a call or is returned
stays, because there its layout is what counts. Loads from buffers are left alone: at that level `host.view` speaks of
memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.dialects.loop import LoadOp, ViewOp
from tilewright.passes.rewriting.indices import set_index_map


def _fold_view_of_view(view: ViewOp) -> ViewOp:
    """Return a view like `view` that reads the tensor at the start of its chain of views."""
    inner = view.source.owner
    if not isinstance(inner, ViewOp):
        return view
    # `inner` was folded before, as it comes first in the block: it reads no view.
    access = type(view.access).get(view.access.num_dims, inner.access.apply(view.access.exprs))
    folded = ViewOp.get(inner.source, access, view.result.type)
    folded.location = view.location
    Rewriter.replace_op(view, folded)
    return folded


def _fold_loads(view: ViewOp) -> None:
    """Make every load through `view` read its source."""
    for use in list(view.result.uses):
        load = use.operation
        if not isinstance(load, LoadOp) or use.index != 0:
            continue
        exprs, indices = view.access.apply(load.access.exprs), list(load.indices)
        load.operands[0] = view.source
        set_index_map(load, exprs, indices)


@dataclass(frozen=True)
class LoopFoldViewsPass(ModulePass):
    """Compose the maps of views into the loads that read through them."""

    name = "loop-fold-views"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        views = [_fold_view_of_view(v) for v in op.walk() if isinstance(v, ViewOp)]
        for view in views:
            _fold_loads(view)
        for view in reversed(views):
            if view.result.first_use is None:
                Rewriter.erase_op(view)
