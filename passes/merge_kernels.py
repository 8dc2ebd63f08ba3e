"""Make one kernel of equal ones, and name kernels after what they compute.

The layers of a model repeat, and so do their kernels: what comes after is done once for each that is left. Kernels are
equal if their text is, but for the name and for where they came from (`origin`), which decides the names of those that
stay: they are numbered by first launch among kernels of the same name.

Before:
```
loop.kernel @kernel_0(%y0 : memref<8xf32, #sym.layout<[8], [1]>>) symbols [] attributes {origin = ["exp", "add"]} {
  loop.nest (%i0 : 8) {
    %v0 = loop.load %y0[%i0] : memref<8xf32, #sym.layout<[8], [1]>> -> f32
    loop.store %v0, %y0[%i0] : f32, memref<8xf32, #sym.layout<[8], [1]>>
  }
}
loop.kernel @kernel_1(%y0 : memref<8xf32, #sym.layout<[8], [1]>>) symbols [] attributes {origin = ["mul"]} {
  loop.nest (%i0 : 8) {
    %v0 = loop.load %y0[%i0] : memref<8xf32, #sym.layout<[8], [1]>> -> f32
    loop.store %v0, %y0[%i0] : f32, memref<8xf32, #sym.layout<[8], [1]>>
  }
}
func.func @forward(%x : memref<8xf32, #sym.layout<[8], [1]>>, %y : memref<8xf32, #sym.layout<[8], [1]>>) {
  host.launch @kernel_0(%x) symbols [] : memref<8xf32, #sym.layout<[8], [1]>>
  host.launch @kernel_1(%y) symbols [] : memref<8xf32, #sym.layout<[8], [1]>>
  func.return
}
```
After:
```
loop.kernel @exp_add_0(%y0 : memref<8xf32, #sym.layout<[8], [1]>>) symbols [] {
  loop.nest (%i0 : 8) {
    %v0 = loop.load %y0[%i0] : memref<8xf32, #sym.layout<[8], [1]>> -> f32
    loop.store %v0, %y0[%i0] : f32, memref<8xf32, #sym.layout<[8], [1]>>
  }
}
func.func @forward(%x : memref<8xf32, #sym.layout<[8], [1]>>, %y : memref<8xf32, #sym.layout<[8], [1]>>) {
  host.launch @exp_add_0(%x) symbols [] : memref<8xf32, #sym.layout<[8], [1]>>
  host.launch @exp_add_0(%y) symbols [] : memref<8xf32, #sym.layout<[8], [1]>>
  func.return
}
```

Kernels that compute the same in a different way (another order of operations, another tiling) are left apart. A kernel
without `origin` is called `kernel`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr
from xdsl.ir import Attribute
from xdsl.passes import ModulePass

from tilewright.dialects import loop
from tilewright.dialects.type_guards import is_array
from tilewright.passes.rewriting.kernel_content import kernel_content, launches_in
from tilewright.passes.rewriting.kernel_names import number_values

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]+")


def _stem(origin: Attribute | None, max_length: int) -> str:
    """Return the name that `origin` gives to a kernel, but for its number: the operators, each once, joined."""
    parts = () if origin is None else origin.data if is_array(origin) else (origin,)
    names = (_NOT_IN_NAMES.sub("_", part.data).strip("_") for part in parts if isinstance(part, StringAttr))
    stem = "_".join(n for n in dict.fromkeys(names) if n)
    if len(stem) > max_length:
        stem = stem[:max_length].rpartition("_")[0].strip("_") or stem[:max_length]
    return f"kernel_{stem}" if stem[:1].isdigit() else stem or "kernel"


@dataclass(frozen=True)
class MergeKernelsPass(ModulePass):
    """Make one kernel of equal ones, and name kernels after what they compute."""

    name = "merge-kernels"

    max_name_length: int = 48
    """How long the part of a kernel's name before the number may be."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        launches = launches_in(op)
        kernels = {k.sym_name.data: k for k in op.ops if isinstance(k, loop.KernelOp)}
        # Those that nothing launches come last.
        order = dict.fromkeys(name for name in (*(n.kernel_name for n in launches), *kernels) if name in kernels)
        taken = {n.data for f in op.ops if isinstance(n := f.properties.get("sym_name"), StringAttr)} - kernels.keys()
        names: dict[tuple[object, ...], str] = {}
        renamed: dict[str, SymbolRefAttr] = {}
        numbers: dict[str, int] = {}
        for old in order:
            kernel = kernels[old]
            key = kernel_content(kernel)
            if key in names:
                kernel.detach()
                kernel.erase()
            else:
                stem = _stem(kernel.attributes.pop("origin", None), self.max_name_length)
                names[key] = _new_name(stem, numbers, taken)
                number_values(kernel)
                kernel.properties["sym_name"] = StringAttr(names[key])
            renamed[old] = SymbolRefAttr(names[key])
        for launch in launches:
            launch.properties["kernel"] = renamed.get(launch.kernel_name, launch.kernel)


def _new_name(stem: str, numbers: dict[str, int], taken: set[str]) -> str:
    number = numbers.get(stem, 0)
    while f"{stem}_{number}" in taken:
        number += 1
    numbers[stem] = number + 1
    return f"{stem}_{number}"
