"""Add the bias of a convolution on a GPU by itself, so that loops around the convolution can do it.

cuDNN's convolutions have no bias: PyTorch adds it to the result, which goes through memory once more, and in the
backward pass sums up the gradient for it in the same way. As operators of their own both are fused with what computes
the gradient or reads the result. The result is rounded before and after the sum, as PyTorch does.
(Inductor does the same where it lowers a convolution.)

Before:
```
!X = tensor<8x16x9x9xbf16, #sym.layout<[8, 16, 9, 9], [1296, 81, 9, 1], device "cuda:0">>
!W = tensor<32x16x3x3xbf16, #sym.layout<[32, 16, 3, 3], [144, 9, 3, 1], device "cuda:0">>
!B = tensor<32xbf16, #sym.layout<[32], [1], device "cuda:0">>
!Y = tensor<8x32x7x7xbf16, #sym.layout<[8, 32, 7, 7], [1568, 49, 7, 1], device "cuda:0">>
func.func @forward(%x : !X, %w : !W, %b : !B) -> !Y {
  %y = aten.call "aten.convolution.default"(input = %x, weight = %w, bias = %b, stride = #sym.ints<[1, 1]>,
      padding = #sym.ints<[0, 0]>, dilation = #sym.ints<[1, 1]>, transposed = false,
      output_padding = #sym.ints<[0, 0]>, groups = 1 : i64) : (!X, !W, !B) -> !Y
  func.return %y : !Y
}
```
After:
```
!X = tensor<8x16x9x9xbf16, #sym.layout<[8, 16, 9, 9], [1296, 81, 9, 1], device "cuda:0">>
!W = tensor<32x16x3x3xbf16, #sym.layout<[32, 16, 3, 3], [144, 9, 3, 1], device "cuda:0">>
!B = tensor<32xbf16, #sym.layout<[32], [1], device "cuda:0">>
!C = tensor<1x32x1x1xbf16, #sym.layout<[1, 32, 1, 1], [32, 1, 1, 1], device "cuda:0">>
!Y = tensor<8x32x7x7xbf16, #sym.layout<[8, 32, 7, 7], [1568, 49, 7, 1], device "cuda:0">>
func.func @forward(%x : !X, %w : !W, %b : !B) -> !Y {
  %y = aten.call "aten.convolution.default"(input = %x, weight = %w, bias = none, stride = #sym.ints<[1, 1]>,
      padding = #sym.ints<[0, 0]>, dilation = #sym.ints<[1, 1]>, transposed = false,
      output_padding = #sym.ints<[0, 0]>, groups = 1 : i64) : (!X, !W) -> !Y
  %b_1 = aten.call "aten.view.default"(self = %b, size = #sym.ints<[1, 32, 1, 1]>) : (!B) -> !C
  %y_1 = aten.call "aten.add.Tensor"(self = %y, other = %b_1) : (!Y, !C) -> !Y
  func.return %y_1 : !Y
}
```

Left alone: convolutions on a CPU and of f64, whose kernels add the bias while they compute, and those in groups, some
of which do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    BFloat16Type,
    Float16Type,
    Float32Type,
    IntegerAttr,
    ModuleOp,
    NoneAttr,
    NoneType,
    TensorType,
    i64,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from tilewright.dialects.aten import CallOp
from tilewright.dialects.call_syntax import OperandAttr
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.sym import IntsAttr, LayoutAttr
from tilewright.dialects.sym_expr import integer
from tilewright.dialects.type_guards import is_array, is_tensor
from tilewright.passes.lowering.call import Tensor, tensor_type

_DTYPES = (BFloat16Type, Float16Type, Float32Type)


def _is_apart(op: CallOp, read: str) -> SSAValue | None:
    """Return the images that a convolution reads as `read`, if PyTorch handles its bias in a kernel of its own."""
    value = op.arguments.data.get(read)
    image = op.operands[value.data] if isinstance(value, OperandAttr) else None
    if image is None or not is_tensor(image.type) or op.arguments.data.get("groups") != IntegerAttr(1, i64):
        return None
    on_gpu = layout_of(image.type).device_kind == "cuda"
    return image if on_gpu and isinstance(image.type.element_type, _DTYPES) else None


def _split_forward(op: CallOp) -> None:
    """Replace a convolution with a bias by one without, and a sum."""
    bias = op.arguments.data.get("bias")
    if not isinstance(bias, OperandAttr) or bias.data != len(op.operands) - 1 or _is_apart(op, "input") is None:
        return
    result, added = op.results[0], op.operands[bias.data]
    kind = tensor_type(result)
    if tensor_type(added).element_type != kind.element_type:
        return
    arguments = {**op.arguments.data, "bias": NoneAttr()}
    plain = CallOp.get(op.operator, arguments, op.operands[: bias.data], [kind])
    shape = _one_per_channel(tensor_type(added), len(kind.shape))
    view = CallOp.get(
        "aten.view.default", {"self": OperandAttr(0), "size": IntsAttr.get(layout_of(shape).sizes)}, [added], [shape]
    )
    terms = {"self": OperandAttr(0), "other": OperandAttr(1)}
    total = CallOp.get("aten.add.Tensor", terms, [plain.results[0], view.results[0]], [kind])
    plain.results[0].name_hint, view.results[0].name_hint = result.name_hint, added.name_hint
    _replace(op, [plain, view, total], [total.results[0]])


def _split_gradients(op: CallOp) -> None:
    """Let the gradient for the bias be a sum."""
    gradient, mask = _is_apart(op, "grad_output"), op.arguments.data.get("output_mask")
    kind = op.results[2].type
    if gradient is None or mask is None or not is_array(mask) or not is_tensor(kind):
        return
    if tensor_type(gradient).element_type != kind.element_type:
        return
    rank = len(tensor_type(gradient).shape)
    no = IntegerAttr.from_bool(False)
    arguments = {**op.arguments.data, "bias_sizes": NoneAttr(), "output_mask": ArrayAttr([*mask.data[:2], no])}
    kinds = [*(r.type for r in op.results[:2]), NoneType()]
    others = CallOp.get(op.operator, arguments, op.operands, kinds)
    dims = IntsAttr.get(tuple(integer(d) for d in range(rank) if d != 1))
    total = CallOp.get("aten.sum.dim_IntList", {"self": OperandAttr(0), "dim": dims}, [gradient], [kind])
    _replace(op, [total, others], [*others.results[:2], total.results[0]])


def _one_per_channel(bias: Tensor, rank: int) -> Tensor:
    """Return the type of a bias that broadcasts over images of `rank`."""
    layout, shape = layout_of(bias), [1] * rank
    sizes = [integer(1)] * rank
    shape[1], sizes[1] = bias.get_shape()[0], layout.sizes[0]
    kind = LayoutAttr.contiguous(sizes, layout.device)
    return TensorType(bias.element_type, shape, kind)


def _replace(op: CallOp, calls: Sequence[CallOp], results: Sequence[SSAValue]) -> None:
    """Put calls in the place of `op`, and `results` in that of its results."""
    block = op.parent
    assert block is not None
    for call in calls:
        call.location = op.location
    block.insert_ops_before(calls, op)
    for old, new in zip(op.results, results, strict=True):
        if new.name_hint is None:
            new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    block.erase_op(op)


_RULES = {"aten.convolution.default": _split_forward, "aten.convolution_backward.default": _split_gradients}


@dataclass(frozen=True)
class SplitBiasPass(ModulePass):
    """Add the bias of a convolution on a GPU by itself."""

    name = "split-bias"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, FuncOp):
                for call in [c for c in function.walk() if isinstance(c, CallOp) and c.operator in _RULES]:
                    _RULES[call.operator](call)
