"""Let the GPU's fast functions compute what is rounded to half precision anyway.

A `bf16` or `f16` operator computes in f32 and rounds its result, to 8 or 11 bits. What the library's `exp` and exact
division take time for are the last of 24 bits. Where each use of such a value is that rounding, possibly after steps
that keep a relative error small (products, quotients, a positive constant added to an `exp`), the instructions of the
hardware do: `ex2.approx` (relative error below 2**-17 where `exp` is a half precision number), `div.full` (2**-22) and
`sqrt.approx` (2**-23). A result then differs from the exact one's rounding only where that lies next to the middle of
two half precision numbers; results that are subnormal in f32 become zero.

Before:
```
tt.func public @k(%x : !tt.ptr<bf16>, %y : !tt.ptr<bf16>) attributes {grid = #sym.expr<1>} {
  %v = tt.load %x : !tt.ptr<bf16>
  %w = arith.extf %v : bf16 to f32
  %e = tt.extern_elementwise %w {libname = "libdevice", libpath = "", pure = true, symbol = "__nv_expf"} : (f32) -> f32
  %h = arith.truncf %e : f32 to bf16
  tt.store %y, %h : !tt.ptr<bf16>
  tt.return
}
```
After:
```
tt.func public @k(%x : !tt.ptr<bf16>, %y : !tt.ptr<bf16>) attributes {grid = #sym.expr<1>} {
  %v = tt.load %x : !tt.ptr<bf16>
  %w = arith.extf %v : bf16 to f32
  %e = math.exp %w : f32
  %h = arith.truncf %e : f32 to bf16
  tt.store %y, %h : !tt.ptr<bf16>
  tt.return
}
```
It leaves alone what is f32 in the program, and the other functions of the library: there is no instruction that is good
enough for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.dialects import tt
from tilewright.dialects.arith_tensor import element_of
from tilewright.dialects.type_guards import is_float_constant


def _is_positive(value: SSAValue) -> bool:
    """Whether a value is a positive constant, or one in each element."""
    owner = value.owner
    if isinstance(owner, tt.SplatOp):
        owner = owner.src.owner
    if isinstance(owner, arith.ConstantOp) and is_float_constant(owner.value):
        return owner.value.value.data > 0
    return False


def _is_exp(op: Operation) -> bool:
    return isinstance(op, tt.ExternElementwiseOp) and op.symbol.data == "__nv_expf"


class _Precision:
    """Finds the values of a kernel that are only used to be rounded to half precision."""

    def __init__(self) -> None:
        self._is_rounded: dict[SSAValue, bool] = {}

    def is_rounded(self, value: SSAValue) -> bool:
        """Whether each use of `value` rounds it, or what is as precise as `value` is."""
        known = self._is_rounded.get(value)
        if known is None:
            uses = list(value.uses)
            known = bool(uses) and all(self._rounds(use.operation, value) for use in uses)
            self._is_rounded[value] = known
        return known

    def _rounds(self, op: Operation, value: SSAValue) -> bool:
        match op:
            case arith.TruncFOp():
                return isinstance(element_of(op.result.type), (BFloat16Type, Float16Type))
            case arith.AddfOp():
                other = op.rhs if op.lhs is value else op.lhs
                return _is_exp_value(value) and _is_positive(other) and self.is_rounded(op.result)
            case arith.MulfOp() | arith.DivfOp() | tt.PreciseDivFOp():
                return self.is_rounded(op.results[0])
            case _:
                return False


def _is_exp_value(value: SSAValue) -> bool:
    owner = value.owner
    return isinstance(owner, Operation) and (_is_exp(owner) or isinstance(owner, math.ExpOp))


def _fast(op: Operation) -> Callable[[], Operation] | None:
    """Return what makes a faster, less precise operation for the value of `op`, None if there is none."""
    if not all(isinstance(element_of(r.type), Float32Type) for r in op.results):
        return None
    if _is_exp(op):
        return lambda: math.ExpOp(op.operands[0])
    match op:
        case tt.PreciseDivFOp():
            return lambda: arith.DivfOp(op.operands[0], op.operands[1])
        case tt.PreciseSqrtOp():
            return lambda: math.SqrtOp(op.operands[0])
        case _:
            return None


def _approximate(kernel: tt.FuncOp) -> None:
    precision = _Precision()
    for op in list(kernel.walk(reverse=True)):
        fast = _fast(op)
        if fast is not None and precision.is_rounded(op.results[0]):
            new = fast()
            new.results[0].name_hint = op.results[0].name_hint
            Rewriter.replace_op(op, new)


@dataclass(frozen=True)
class TtApproximatePass(ModulePass):
    """Let the GPU's fast functions compute what is rounded to half precision anyway."""

    name = "tt-approximate"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, tt.FuncOp):
                _approximate(function)
