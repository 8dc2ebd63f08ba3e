"""Make a size a parameter of kernels that differ in nothing else.

The step of an optimizer does the same to every parameter of a model, and they have many sizes. One kernel with a symbol
for the size serves them all, and is compiled once. A kernel that no other resembles keeps its constant, which tells
later passes more.

Before:
```
loop.kernel @kernel_0(%y0 : memref<8xf32, #sym.layout<[8], [1]>>) symbols [] {
  loop.nest (%i0 : 8) {
    %v0 = loop.load %y0[%i0] : memref<8xf32, #sym.layout<[8], [1]>> -> f32
    loop.store %v0, %y0[%i0] : f32, memref<8xf32, #sym.layout<[8], [1]>>
  }
}
loop.kernel @kernel_1(%y0 : memref<9xf32, #sym.layout<[9], [1]>>) symbols [] {
  loop.nest (%i0 : 9) {
    %v0 = loop.load %y0[%i0] : memref<9xf32, #sym.layout<[9], [1]>> -> f32
    loop.store %v0, %y0[%i0] : f32, memref<9xf32, #sym.layout<[9], [1]>>
  }
}
func.func @forward(%x : memref<8xf32, #sym.layout<[8], [1]>>, %y : memref<9xf32, #sym.layout<[9], [1]>>) {
  host.launch @kernel_0(%x) symbols [] : memref<8xf32, #sym.layout<[8], [1]>>
  host.launch @kernel_1(%y) symbols [] : memref<9xf32, #sym.layout<[9], [1]>>
  func.return
}
```
After:
```
loop.kernel @kernel_0(%y0 : memref<?xf32, #sym.layout<[n0], [1]>>) symbols [n0] {
  loop.nest (%i0 : n0) {
    %v0 = loop.load %y0[%i0] : memref<?xf32, #sym.layout<[n0], [1]>> -> f32
    loop.store %v0, %y0[%i0] : f32, memref<?xf32, #sym.layout<[n0], [1]>>
  }
}
loop.kernel @kernel_1(%y0 : memref<?xf32, #sym.layout<[n0], [1]>>) symbols [n0] {
  loop.nest (%i0 : n0) {
    %v0 = loop.load %y0[%i0] : memref<?xf32, #sym.layout<[n0], [1]>> -> f32
    loop.store %v0, %y0[%i0] : f32, memref<?xf32, #sym.layout<[n0], [1]>>
  }
}
func.func @forward(%x : memref<8xf32, #sym.layout<[8], [1]>>, %y : memref<9xf32, #sym.layout<[9], [1]>>) {
  host.launch @kernel_0(%x) symbols [8] : memref<8xf32, #sym.layout<[8], [1]>>
  host.launch @kernel_1(%y) symbols [9] : memref<9xf32, #sym.layout<[9], [1]>>
  func.return
}
```

A kernel for a GPU also says between which lengths it is one (`ranges`): its blocks are chosen by that.

Kernels are looked at whose loops all have one length, but for loops of a single iteration. Sums of a known length may
be added up better, so that kernels with reductions are made one only where there are several.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.dialects import loop
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.loop_kernel import RANGES
from tilewright.dialects.sym import IntsAttr, LayoutAttr, MapAttr, SymbolAttr, SymbolInfo
from tilewright.dialects.sym_expr import Expr, Symbol, integer, symbol
from tilewright.dialects.type_guards import is_memref
from tilewright.passes.analysis.layouts import memref_type
from tilewright.passes.rewriting.kernel_content import Translation, kernel_content, launches_in


def _length(kernel: loop.KernelOp) -> int | None:
    """Return the length that all loops of a kernel have, but for those of one iteration; None if it has others."""
    found: set[Expr] = set()
    for op in kernel.block.walk():
        if not isinstance(op, loop.Loop):
            if op.regions:
                return None
            continue
        dims = op.loops.dims
        if any(d.lower != 0 or d.step != 1 or d.lanes for d in dims):
            return None
        found.update(d.upper for d in dims if d.upper != 1)
    if len(found) != 1:
        return None
    (length,) = found
    return int(length) if length.is_Integer else None


def _translation(size: Symbol, length: int) -> Translation:
    """Return what puts `size` for a length into the bounds of loops and the sizes of buffers."""
    old = integer(length)

    def replaced(exprs: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(size if e == old else e for e in exprs)

    def translate(name: str, attribute: Attribute) -> Attribute:
        if name == "bounds" and isinstance(attribute, MapAttr):
            return MapAttr.get(attribute.num_dims, replaced(attribute.exprs))
        if is_memref(attribute):
            layout = layout_of(attribute)
            flat = LayoutAttr.get(replaced(layout.sizes), layout.strides, layout.offset, layout.device)
            return memref_type(attribute.element_type, flat)
        return attribute

    return translate


def _new_symbol(kernel: loop.KernelOp) -> Symbol:
    """Return a symbol that the kernel does not have; the next one of those that `outline-kernels` gives."""
    number = len(kernel.symbol_names)
    while f"n{number}" in kernel.symbol_names:
        number += 1
    return symbol(f"n{number}")


def _generalize(kernel: loop.KernelOp, length: int, known: SymbolAttr) -> None:
    """Give a kernel its length as a parameter, of which something is `known`."""
    size = _new_symbol(kernel)
    translate = _translation(size, length)
    kernel.properties["symbols"] = ArrayAttr([*kernel.symbols, StringAttr(size.name)])
    for buffer in kernel.block.args:
        Rewriter.replace_value_with_new_type(buffer, translate("", buffer.type))
    for op in kernel.walk():
        if isinstance(op, loop.Loop):
            op.properties["bounds"] = translate("bounds", op.bounds)
    if kernel.device != "cpu":
        given = kernel.attributes.get(RANGES, DictionaryAttr({}))
        assert isinstance(given, DictionaryAttr)
        kernel.attributes[RANGES] = DictionaryAttr({**given.data, size.name: known})


@dataclass(frozen=True)
class GeneralizeKernelsPass(ModulePass):
    """Make a size a parameter of kernels that differ in nothing else."""

    name = "generalize-kernels"

    least: int = 4
    """How many lengths kernels with reductions must have among them to become one."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        groups: dict[tuple[object, ...], list[tuple[loop.KernelOp, int]]] = {}
        for kernel in [k for k in op.ops if isinstance(k, loop.KernelOp)]:
            length = _length(kernel)
            if length is not None:
                content = kernel_content(kernel, _translation(_new_symbol(kernel), length))
                groups.setdefault(content, []).append((kernel, length))
        lengths: dict[str, int] = {}
        for group in groups.values():
            reduces = any(isinstance(op, loop.ReduceOp) for op in group[0][0].walk())
            found = {length for _, length in group}
            if len(found) >= (self.least if reduces else 2):
                lengths.update((kernel.sym_name.data, length) for kernel, length in group)
                known = SymbolAttr(SymbolInfo(None, min(found), max(found)))
                for kernel, length in group:
                    _generalize(kernel, length, known)
        for launch in launches_in(op):
            length = lengths.get(launch.kernel_name)
            if length is not None:
                launch.properties["symbols"] = IntsAttr((*launch.symbols.exprs, integer(length)))
