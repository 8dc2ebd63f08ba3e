"""The `tt` dialect: Triton's own IR, by Triton's names and in its syntax (level 3 of a GPU).

A kernel is a `tt.func`, run by many programs that differ in their `tt.get_program_id`. Its body is `arith`, `math`
and `scf` on scalars and on tensors, whose sizes are powers of two, and the operations here; memory is reached through
pointers and tensors of pointers. The dialect cannot say how a tensor is spread over threads, nor where anything is in
shared memory: Triton decides it. The text without our attributes of `tt.func` is what Triton parses.

```
tt.func public @softmax_0(%x : !tt.ptr<f32> {tt.divisibility = 16 : i32}, %y : !tt.ptr<f32>)
    attributes {grid = #sym.expr<2048>, num_warps = 4 : i32, num_stages = 1 : i32} {
  %row = tt.get_program_id x : i32
  %width = arith.constant 1024 : i32
  %start = arith.muli %row, %width : i32
  %k = tt.make_range {end = 1024 : i32, start = 0 : i32} : tensor<1024xi32>
  %starts = tt.splat %start : i32 -> tensor<1024xi32>
  %i = arith.addi %starts, %k : tensor<1024xi32>
  %xs = tt.splat %x : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
  %p = tt.addptr %xs, %i : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
  %v = tt.load %p : tensor<1024x!tt.ptr<f32>>
  %m = "tt.reduce"(%v) <{axis = 0 : i32}> ({
  ^bb0(%a : f32, %b : f32):
    %c = arith.maximumf %a, %b : f32
    tt.reduce.return %c : f32
  }) : (tensor<1024xf32>) -> f32
  tt.store %y, %m : !tt.ptr<f32>
  tt.return
}
```
"""

from __future__ import annotations

from xdsl.ir import Dialect

from tilewright.dialects.tt_atomic import AtomicCASOp, AtomicRMWOp
from tilewright.dialects.tt_elements import CatOp, GatherOp, HistogramOp, JoinOp, SplitOp
from tilewright.dialects.tt_func import (
    DIVISIBILITY,
    NARROW_LIMIT,
    OURS,
    AssertOp,
    FuncOp,
    GetNumProgramsOp,
    GetProgramIdOp,
    ReturnOp,
)
from tilewright.dialects.tt_math import (
    BitcastOp,
    ClampfOp,
    DotOp,
    ExternElementwiseOp,
    FpToFpOp,
    MulhiUIOp,
    PreciseDivFOp,
    PreciseSqrtOp,
)
from tilewright.dialects.tt_memory import (
    AddPtrOp,
    IntToPtrOp,
    LoadOp,
    PtrToIntOp,
    StoreOp,
)
from tilewright.dialects.tt_reduce import ReduceOp, ReduceReturnOp, ScanOp, ScanReturnOp
from tilewright.dialects.tt_shape import (
    BroadcastOp,
    ExpandDimsOp,
    MakeRangeOp,
    ReshapeOp,
    SplatOp,
    TransOp,
    UnsplatOp,
)
from tilewright.dialects.tt_types import CachePolicyAttr, PointerType, pointee_of, shape_of

__all__ = [
    "DIVISIBILITY",
    "NARROW_LIMIT",
    "OURS",
    "AddPtrOp",
    "AssertOp",
    "AtomicCASOp",
    "AtomicRMWOp",
    "BitcastOp",
    "BroadcastOp",
    "CachePolicyAttr",
    "CatOp",
    "ClampfOp",
    "DotOp",
    "ExpandDimsOp",
    "ExternElementwiseOp",
    "FpToFpOp",
    "FuncOp",
    "GatherOp",
    "GetNumProgramsOp",
    "GetProgramIdOp",
    "HistogramOp",
    "IntToPtrOp",
    "JoinOp",
    "LoadOp",
    "MakeRangeOp",
    "MulhiUIOp",
    "PointerType",
    "PreciseDivFOp",
    "PreciseSqrtOp",
    "PtrToIntOp",
    "ReduceOp",
    "ReduceReturnOp",
    "ReshapeOp",
    "ReturnOp",
    "ScanOp",
    "ScanReturnOp",
    "SplatOp",
    "SplitOp",
    "StoreOp",
    "TransOp",
    "Tt",
    "UnsplatOp",
    "pointee_of",
    "shape_of",
]

Tt = Dialect(
    "tt",
    [
        FuncOp,
        ReturnOp,
        GetProgramIdOp,
        GetNumProgramsOp,
        AssertOp,
        MakeRangeOp,
        SplatOp,
        UnsplatOp,
        ExpandDimsOp,
        BroadcastOp,
        ReshapeOp,
        TransOp,
        CatOp,
        JoinOp,
        SplitOp,
        GatherOp,
        HistogramOp,
        AddPtrOp,
        LoadOp,
        StoreOp,
        AtomicRMWOp,
        AtomicCASOp,
        IntToPtrOp,
        PtrToIntOp,
        ReduceOp,
        ReduceReturnOp,
        ScanOp,
        ScanReturnOp,
        DotOp,
        FpToFpOp,
        BitcastOp,
        ClampfOp,
        MulhiUIOp,
        PreciseDivFOp,
        PreciseSqrtOp,
        ExternElementwiseOp,
    ],
    [PointerType, CachePolicyAttr],
)
