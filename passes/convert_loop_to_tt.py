"""Turn loop kernels of a GPU into functions of Triton IR.

The loops of a nest become a grid of programs. A loop whose points are computed together (`blocks`) becomes an axis of
tensors, along which a value that does not depend on it has size 1; a mask says which of its points are there. Other
loops become `scf.for`. Reductions over blocks become `tt.reduce`, scans over blocks `tt.scan`; a reduction over many
blocks combines them element by element and reduces once. Index expressions are split into what is the same for all
points, a scalar, and the rest, in i32 if all offsets of the kernel fit. Where that depends on sizes there are two
functions: the one in i32 says how far its indices reach (`reach`), and which function takes over beyond (`wide`).

Before:
```
loop.kernel @k0(%x : memref<64xf32, #sym.layout<[64], [1]>>, %y : memref<64xf32, #sym.layout<[64], [1]>>) symbols []
    attributes {device = "cuda"} {
  loop.nest (%t = 0 to 64 step 16) {
    loop.for (%k = %t to %t + 16) attributes {blocks = array<i64: 16>} {
      %v = loop.load %x[%k] : memref<64xf32, #sym.layout<[64], [1]>> -> f32
      %e = math.absf %v : f32
      loop.store %e, %y[%k] : f32, memref<64xf32, #sym.layout<[64], [1]>>
    }
  }
}
```
After:
```
tt.func public @k0(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %y: !tt.ptr<f32> {tt.divisibility = 16 : i32})
    attributes {grid = #sym.expr<4>, num_warps = 4 : i32, num_stages = 1 : i32} {
  %pid = tt.get_program_id x : i32
  %k = tt.make_range {start = 0 : i32, end = 16 : i32} : tensor<16xi32>
  %0 = arith.constant 16 : i32
  %1 = arith.muli %pid, %0 : i32
  %x_ptr = tt.addptr %x, %1 : !tt.ptr<f32>, i32
  %x_ptr_1 = tt.splat %x_ptr : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
  %x_ptr_2 = tt.addptr %x_ptr_1, %k : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
  %x_1 = tt.load %x_ptr_2 : tensor<16x!tt.ptr<f32>>
  %abs = math.absf %x_1 : tensor<16xf32>
  %y_ptr = tt.addptr %y, %1 : !tt.ptr<f32>, i32
  %y_ptr_1 = tt.splat %y_ptr : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
  %y_ptr_2 = tt.addptr %y_ptr_1, %k : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
  tt.store %y_ptr_2, %abs : tensor<16x!tt.ptr<f32>>
  tt.return
}
```
Kernels of other devices and the host program are left alone. Fails on what has no lowering.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr, i32, i64
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.dialects import tt
from tilewright.dialects.loop import KernelOp
from tilewright.dialects.sym import ExprAttr
from tilewright.passes.analysis.index_space import IndexSpace
from tilewright.passes.analysis.kernels import kernels_for
from tilewright.passes.lowering_tt.kernel import KernelLowering
from tilewright.passes.lowering_tt.width import index_reach


@dataclass(frozen=True)
class ConvertLoopToTtPass(ModulePass):
    """Turn loop kernels of a GPU into functions of Triton IR."""

    name = "convert-loop-to-tt"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        taken = {name.data for other in op.ops if isinstance(name := other.properties.get("sym_name"), StringAttr)}
        for kernel in kernels_for(op, "cuda"):
            functions = _lower(kernel)
            for wide in functions[1:]:
                _rename(wide, taken)
                functions[0].attributes["wide"] = SymbolRefAttr(wide.sym_name)
            Rewriter.replace_op(kernel, functions, [])


def _lower(kernel: KernelOp) -> list[tt.FuncOp]:
    """Return the function of a kernel, and if it is for some sizes only, a second one for all sizes."""
    space = IndexSpace(kernel.ranges)
    reach = index_reach(kernel, space)
    if reach is None or (reach.is_Integer and reach >= tt.NARROW_LIMIT):
        return [KernelLowering(kernel, space, i64).lower()]
    narrow = KernelLowering(kernel, space, i32).lower()
    if reach.is_Integer:
        return [narrow]
    narrow.attributes["reach"] = ExprAttr(reach)
    return [narrow, KernelLowering(kernel, space, i64).lower()]


def _rename(function: tt.FuncOp, taken: set[str]) -> None:
    """Give a function another name than others have."""
    name = f"{function.sym_name.data}_wide"
    while name in taken:
        name += "_"
    taken.add(name)
    function.properties["sym_name"] = StringAttr(name)
