"""Which convolutions gain from channels that are last in memory.

PyTorch hands a convolution to cuDNN with channels last if its input or its weight has them so. On an H200 (cuDNN 9.19,
PyTorch 2.11) such a call takes this share of the time of a contiguous one, for the sizes of ResNets:

| operands | convolution | its gradients |
|---|---|---|
| bf16, f16 | 0.36 to 0.60 | 0.38 to 0.63 |
| bf16, f16, three channels | 0.45 to 0.83 | 0.53 to 0.75 without that of the input |
| f32 as TF32 | 0.61 to 0.66 | 0.68 to 0.77 |
| f32 | 1.02 to 1.19 | 1.00 to 1.16 |
| a filter for each channel | 0.20 to 0.29 | 0.18 to 0.19 |
| groups, bf16 | 0.49 | 1.82 |
| groups, f32 as TF32 | 0.53 | 0.42 |
| neither number of channels a multiple of 8 | 0.95 | 1.01 |
| filters of one element, bf16 | 0.33 to 1.89 | 0.33 to 1.03 |

On a CPU, oneDNN's kernels take longer so: a ResNet18 in f32 1.4 times as long as contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type

from tilewright.dialects.aten import CallOp
from tilewright.dialects.call_syntax import OperandAttr
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.type_guards import is_tensor
from tilewright.passes.analysis.sizes import SizeHints
from tilewright.passes.lowering.call import Call, element_of, sizes_of
from tilewright.passes.lowering.errors import NotLoweredError

_GRADIENTS = "aten.convolution_backward.default"
CONVOLUTIONS = {"aten.convolution.default": ("input",), _GRADIENTS: ("input", "grad_output")}
"""The operators, and what they call the images that they read."""


@dataclass(frozen=True)
class Convolution:
    """A convolution of images or volumes, or its gradients."""

    op: CallOp
    images: tuple[int, ...]
    """The numbers of the operands that are images, the input first."""
    weight: int
    """The number of the operand that holds the filters."""
    groups: int

    @staticmethod
    def of(op: CallOp) -> Convolution | None:
        """Return what `op` is if it is one: on tensors of rank 4 or 5, all of one type of elements."""
        names = CONVOLUTIONS.get(op.operator)
        if names is None:
            return None
        given = [op.arguments.data.get(name) for name in (*names, "weight")]
        numbers = [value.data for value in given if isinstance(value, OperandAttr)]
        kinds = [op.operands[n].type for n in numbers]
        if len(numbers) != len(given) or not all(is_tensor(k) and len(layout_of(k).sizes) in (4, 5) for k in kinds):
            return None
        try:
            groups = Call(op, {}).integer("groups")
        except NotLoweredError:
            return None
        return Convolution(op, tuple(numbers[:-1]), numbers[-1], groups)

    @property
    def is_pointwise(self) -> bool:
        """Whether each filter has one element per channel: such a convolution is a matrix product in any layout."""
        return all(s == 1 for s in sizes_of(self.op.operands[self.weight])[2:])

    def pays(self, hints: SizeHints, *, tf32: bool) -> bool:
        """Whether the call is not slower with channels last, and as a rule faster; see the table above."""
        image, weight = self.op.operands[self.images[0]], self.op.operands[self.weight]
        channels = hints.value(sizes_of(image)[1])
        if element_of(image) != element_of(weight) or all(s == 1 for s in sizes_of(image)[2:]):
            return False
        is_half = isinstance(element_of(image), (BFloat16Type, Float16Type))
        if not is_half and not isinstance(element_of(image), Float32Type):
            return False
        if self.groups > 1:
            if self.groups == channels:
                return True
            return self.op.operator != _GRADIENTS if is_half else tf32
        filters = sizes_of(weight)[:2]
        return (is_half or tf32) and any(hints.value(s) % 8 == 0 for s in filters)
