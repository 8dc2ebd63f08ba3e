"""Give neighbouring elements to neighbouring threads where a mask may end between any two of them.

Triton gives a thread as many elements side by side as the pointers let it load or store at a time, and looks at the
mask only then: if that may end anywhere, as at 50257 elements of a row that is kept in 50264, the thread takes its
elements one by one, and each instruction goes to memory in steps. A thread that has elements one at a time anyway
should have every 128th.

Before:
```
tt.func public @neg(%x : !tt.ptr<f32>, %y : !tt.ptr<f32>) attributes {grid = #sym.expr<1>} {
  %k = tt.make_range {start = 0 : i32, end = 1024 : i32} : tensor<1024xi32>
  %length = arith.constant 1001 : i32
  %end = tt.splat %length : i32 -> tensor<1024xi32>
  %mask = arith.cmpi slt, %k, %end : tensor<1024xi32>
  %xs = tt.splat %x : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
  %p = tt.addptr %xs, %k : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
  %v = tt.load %p, %mask : tensor<1024x!tt.ptr<f32>>
  %ys = tt.splat %y : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
  %q = tt.addptr %ys, %k : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
  tt.store %q, %v, %mask : tensor<1024x!tt.ptr<f32>>
  tt.return
}
```
After:
```
tt.func public @neg(%x : !tt.ptr<f32>, %y : !tt.ptr<f32>) attributes {grid = #sym.expr<1>} {
  %k = tt.make_range {start = 0 : i32, end = 1024 : i32} : tensor<1024xi32>
  %length = arith.constant 1001 : i32
  %end = tt.splat %length : i32 -> tensor<1024xi32>
  %mask = arith.cmpi slt, %k, %end : tensor<1024xi32>
  %xs = tt.splat %x : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
  %p = tt.addptr %xs, %k {tt.contiguity = dense<1> : tensor<1xi32>} : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
  %v = tt.load %p, %mask : tensor<1024x!tt.ptr<f32>>
  %ys = tt.splat %y : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
  %q = tt.addptr %ys, %k {tt.contiguity = dense<1> : tensor<1xi32>} : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
  tt.store %q, %v, %mask : tensor<1024x!tt.ptr<f32>>
  tt.return
}
```
Of the pointers is said less than is true, which Triton believes. It leaves alone masks that end at an even number of
elements, or at one that is not known when compiling, and those along another dimension than the elements of memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp, TensorType, i32
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dialects import tt
from tilewright.dialects.tt_types import shape_of
from tilewright.dialects.type_guards import is_integer_constant, is_tensor

Steps = tuple[int | None, ...]
"""By how much a value grows from one element to the next along each axis; None where that is not known."""


class _Steps:
    """Tells the steps of the offsets and pointers of a kernel."""

    def __init__(self) -> None:
        self._found: dict[SSAValue, Steps] = {}

    def of(self, value: SSAValue) -> Steps:
        if value not in self._found:
            self._found[value] = self._trace(value)
        return self._found[value]

    def _trace(self, value: SSAValue) -> Steps:
        owner, rank = value.owner, len(shape_of(value.type))
        match owner:
            case tt.SplatOp() | arith.ConstantOp():
                return (0,) * rank
            case tt.MakeRangeOp():
                return (1,)
            case tt.BroadcastOp():
                return self.of(owner.src)
            case tt.ExpandDimsOp():
                axis, steps = owner.axis.value.data, self.of(owner.src)
                return (*steps[:axis], 0, *steps[axis:])
            case arith.AddiOp() | tt.AddPtrOp():
                pairs = zip(*map(self.of, owner.operands), strict=True)
                return tuple(None if a is None or b is None else a + b for a, b in pairs)
            case _:
                return (None,) * rank


def _ends_oddly(mask: SSAValue, axis: int, steps: _Steps) -> bool:
    """Whether a mask may change between any two elements along an axis."""
    owner = mask.owner
    match owner:
        case arith.AndIOp():
            return any(_ends_oddly(operand, axis, steps) for operand in owner.operands)
        case tt.BroadcastOp():
            return shape_of(owner.src.type)[axis] != 1 and _ends_oddly(owner.src, axis, steps)
        case tt.ExpandDimsOp():
            added = owner.axis.value.data
            return axis != added and _ends_oddly(owner.src, axis - (axis > added), steps)
        case arith.CmpiOp():
            return steps.of(owner.lhs)[axis] == 1 and _is_odd(owner.rhs)
        case _:
            return False


def _is_odd(value: SSAValue) -> bool:
    """Whether all elements of a value are known to be the same odd number."""
    owner = value.owner
    if isinstance(owner, tt.SplatOp):
        owner = owner.src.owner
    return isinstance(owner, arith.ConstantOp) and is_integer_constant(owner.value) and owner.value.value.data % 2 == 1


def _split(op: Operation, steps: _Steps) -> None:
    """Say of the pointers of a load or a store that no two are side by side, if nothing is gained by two that are."""
    if not isinstance(op, (tt.LoadOp, tt.StoreOp)) or op.mask is None or not is_tensor(op.ptr.type):
        return
    moved = op.ptr.owner
    if isinstance(moved, tt.AddPtrOp):
        along = steps.of(op.ptr)
        if any(step == 1 and _ends_oddly(op.mask, axis, steps) for axis, step in enumerate(along)):
            kind = TensorType(i32, [len(along)])
            moved.attributes["tt.contiguity"] = DenseIntOrFPElementsAttr.from_list(kind, [1] * len(along))


@dataclass(frozen=True)
class TtSplitOddVectorsPass(ModulePass):
    """Give neighbouring elements to neighbouring threads where a mask may end between any two of them."""

    name = "tt-split-odd-vectors"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, tt.FuncOp):
                steps = _Steps()
                for inner in function.walk():
                    _split(inner, steps)
