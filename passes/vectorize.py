"""Make several iterations of a loop the lanes of vectors.

For each tree of loops a cost model (`lowering_cpu/cost.py`) picks the loops that take lanes: the elements of an
access should lie side by side from lane to lane. So a reduction over rows takes them on its own loop and combines
them at the end, and a reduction over columns takes them on the parallel loop around it. A masked loop does what is
left where the length is no multiple of the lanes.

Before:
```
loop.kernel @k0(%x : memref<?xf32, #sym.layout<[n0], [1]>>, %y : memref<?xf32, #sym.layout<[n0], [1]>>) symbols [n0] {
  loop.nest () {
    loop.for (%i : n0) {
      %v = loop.load %x[%i] : memref<?xf32, #sym.layout<[n0], [1]>> -> f32
      %w = math.exp %v : f32
      loop.store %w, %y[%i] : f32, memref<?xf32, #sym.layout<[n0], [1]>>
    }
  }
}
```
After:
```
loop.kernel @k0(%x : memref<?xf32, #sym.layout<[n0], [1]>>, %y : memref<?xf32, #sym.layout<[n0], [1]>>) symbols [n0] {
  loop.nest () {
    loop.for (%i = 0 to n0 - n0 mod 16 step 16 lanes) {
      %v = loop.load %x[%i] : memref<?xf32, #sym.layout<[n0], [1]>> -> vector<16xf32>
      %w = math.exp %v : vector<16xf32>
      loop.store %w, %y[%i] : vector<16xf32>, memref<?xf32, #sym.layout<[n0], [1]>>
    }
    loop.for (%i = n0 - n0 mod 16 to n0 step 16 lanes) mask(%m) {
      %z = arith.constant 0.0 : f32
      %zs = vector.broadcast %z : f32 to vector<16xf32>
      %v = loop.load %x[%i] mask %m else %zs : memref<?xf32, #sym.layout<[n0], [1]>> -> vector<16xf32>
      %w = math.exp %v : vector<16xf32>
      loop.store %w, %y[%i] mask %m : vector<16xf32>, memref<?xf32, #sym.layout<[n0], [1]>>
    }
  }
}
```
A loop that stays as it is gets the attribute `remark`, which says why: it is too short, it is ordered, its stores
collide, or each element would need a gather and nothing is gained.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from tilewright.dialects.loop import Loop, NestOp
from tilewright.passes.analysis.index_space import IndexSpace
from tilewright.passes.analysis.kernels import nests_for
from tilewright.passes.analysis.legality import dependents, is_leaf, why_not
from tilewright.passes.lowering_cpu.cost import CostModel
from tilewright.passes.lowering_cpu.widen import widen


def _remark(loop: Loop) -> str:
    """Return why an innermost loop was left alone."""
    reasons = [why_not(loop, i, dependents(loop, i)) for i in range(len(loop.loops.dims))]
    if None in reasons:
        return "lanes would cost more than they save"
    return next(r for r in reasons if r is not None)


@dataclass(frozen=True)
class VectorizePass(ModulePass):
    """Make several iterations of a loop the lanes of vectors, with a masked loop for the rest."""

    name = "vectorize"

    lanes: int = 16
    """The f32 that fill a vector register."""

    unroll: int = 4
    """How many registers a value of a cheap loop may take, to have several operations under way at a time."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for nest in nests_for(op, "cpu"):
            self._vectorize(nest)

    def _vectorize(self, nest: NestOp) -> None:
        space = IndexSpace()
        choices = CostModel(space, self.lanes, self.unroll).best(nest).choices
        taken = {inner for c in choices for inner in c.loop.walk() if isinstance(inner, Loop)}
        for loop in nest.walk():
            if isinstance(loop, Loop) and loop not in taken and is_leaf(loop) and loop.loops.dims:
                loop.attributes["remark"] = StringAttr(_remark(loop))
        for choice in choices:
            widen(space, choice.loop, choice.position, choice.lanes)
