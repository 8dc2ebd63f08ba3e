"""Move a whole program, at any level before its kernels are lowered, to another device.

So one text serves all targets: what was captured on a CPU is lowered, tiled and compared on a GPU, and the other way
round. Types and device arguments of calls say another device afterwards, and kernels are marked for its kind.

Before:
```
loop.kernel @copy(%x0 : memref<8xf32, #sym.layout<[8], [1]>>, %y0 : memref<8xf32, #sym.layout<[8], [1]>>) symbols [] {
  loop.nest (%i0 : 8) {
    %v0 = loop.load %x0[%i0] : memref<8xf32, #sym.layout<[8], [1]>> -> f32
    loop.store %v0, %y0[%i0] : f32, memref<8xf32, #sym.layout<[8], [1]>>
  }
}
func.func @forward(%x : memref<8xf32, #sym.layout<[8], [1]>>) -> memref<8xf32, #sym.layout<[8], [1]>> {
  %y = host.alloc : memref<8xf32, #sym.layout<[8], [1]>>
  host.launch @copy(%x, %y) symbols [] : memref<8xf32, #sym.layout<[8], [1]>>, memref<8xf32, #sym.layout<[8], [1]>>
  func.return %y : memref<8xf32, #sym.layout<[8], [1]>>
}
```
After:
```
!G = memref<8xf32, #sym.layout<[8], [1], device "cuda:0">>
loop.kernel @copy(%x0 : memref<8xf32, #sym.layout<[8], [1]>>, %y0 : memref<8xf32, #sym.layout<[8], [1]>>) symbols []
    attributes {device = "cuda"} {
  loop.nest (%i0 : 8) {
    %v0 = loop.load %x0[%i0] : memref<8xf32, #sym.layout<[8], [1]>> -> f32
    loop.store %v0, %y0[%i0] : f32, memref<8xf32, #sym.layout<[8], [1]>>
  }
}
func.func @forward(%x : !G) -> !G {
  %y = host.alloc : !G
  host.launch @copy(%x, %y) symbols [] : !G, !G
  func.return %y : !G
}
```
A kernel that is lowered to a function is code for one device, and an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects.call_syntax import DeviceAttr
from tilewright.dialects.loop import KernelOp
from tilewright.dialects.sym import LayoutAttr
from tilewright.dialects.type_guards import is_array, is_memref, is_tensor
from tilewright.passes.analysis.layouts import memref_type
from tilewright.passes.rewriting.kernel_content import launches_in


class _Mover:
    """Rewrites attributes for one device; each distinct one is rewritten once."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._moved: dict[Attribute, Attribute] = {}

    def move(self, attribute: Attribute) -> Attribute:
        """Return `attribute` with another device wherever it names one."""
        found = self._moved.get(attribute)
        if found is None:
            found = self._moved[attribute] = self._make(attribute)
        return found

    def _make(self, attribute: Attribute) -> Attribute:
        match attribute:
            case DeviceAttr():
                return DeviceAttr(self._device)
            case LayoutAttr():
                return attribute.on_device(self._device)
            case FunctionType(inputs=inputs, outputs=outputs):
                return FunctionType.from_lists([self.move(i) for i in inputs], [self.move(o) for o in outputs])
            case DictionaryAttr():
                return DictionaryAttr({name: self.move(a) for name, a in attribute.data.items()})
            case _ if is_array(attribute):
                return ArrayAttr([self.move(a) for a in attribute.data])
            case _ if is_tensor(attribute):
                return TensorType(attribute.element_type, attribute.shape, self.move(attribute.encoding))
            case _ if is_memref(attribute) and isinstance(attribute.layout, LayoutAttr):
                return memref_type(attribute.element_type, attribute.layout.on_device(self._device))
            case _:
                return attribute

    def move_op(self, op: Operation) -> None:
        """Rewrite what `op` and all inside it hold, but for kernels, whose text has no device but their own."""
        self._move_values(op.results)
        self._move_in(op.properties)
        self._move_in(op.attributes)
        for region in op.regions:
            for block in region.blocks:
                self._move_values(block.args)
                for inner in block.ops:
                    if isinstance(inner, KernelOp):
                        inner.device = self._device.partition(":")[0]
                    else:
                        self.move_op(inner)

    def _move_values(self, values: Sequence[SSAValue]) -> None:
        for value in values:
            moved = self.move(value.type)
            if moved != value.type:
                Rewriter.replace_value_with_new_type(value, moved)

    def _move_in(self, attributes: dict[str, Attribute]) -> None:
        attributes.update({name: self.move(a) for name, a in attributes.items()})


@dataclass(frozen=True)
class RetargetPass(ModulePass):
    """Move a whole program to another device."""

    name = "retarget"

    device: str = "cuda:0"
    """The device, `cpu` or `"cuda:1"`; the kind alone means its first one."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        functions = {f.sym_name.data for f in op.ops if isinstance(f, FuncOp)}
        for launch in launches_in(op):
            if launch.kernel_name in functions:
                raise PassFailedException(
                    f"the kernel `@{launch.kernel_name}` is lowered for its device; `retarget` goes before that"
                )
        is_kind = self.device != "cpu" and ":" not in self.device
        _Mover(f"{self.device}:0" if is_kind else self.device).move_op(op)
