"""Lower ATen calls to loop nests and views.

Before:
```
func.func @f(%x : tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>) -> tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>> {
  %y = aten.call "aten.exp.default"(self = %x)
      : (tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>) -> tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>
  func.return %y : tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>
}
```
After:
```
func.func @f(%x : tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>) -> tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>> {
  %y = loop.nest (%i : 4, %j : 8)
      outs(%out : tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>) attributes {origin = ["exp"]} {
    %v = loop.load %x[%i, %j] : tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>> -> f32
    %e = math.exp %v : f32
    loop.store %e, %out[%i, %j] : f32, tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>
  }
  func.return %y : tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>
}
```

Each operator becomes one nest, or a view; softmax and the norms are one nest each, too. The rules are in
`passes/lowering/`, one file per family of operators. Eager's rounding is kept: each nest rounds its results to their
dtype, and 16-bit floats are computed with in f32. `origin` names the operators that a nest computes.

A call stays what it is where there is no lowering, or none for its arguments (complex numbers, tensors on several
devices or on one without kernels): it will run as an ATen call. So do calls that write to an argument. On CUDA the
same goes for a scatter that overwrites: positions may be equal, so its writes would have to take turns, on one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ComplexType, ModuleOp, NoneType
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects.aten import CallOp
from tilewright.dialects.loop import LoopDim, PrefixOp, ScanOp, StoreOp, layout_of
from tilewright.dialects.sym_expr import Ranges, integer
from tilewright.dialects.type_guards import is_tensor
from tilewright.passes.analysis.ranges import symbol_ranges
from tilewright.passes.lowering import (
    activations,
    avg_pooling,
    bags,
    batch_norm,
    binary,
    casts,
    creation,
    embedding_gradient,
    folding,
    group_norm,
    indexing,
    losses,
    max_pooling,
    norms,
    norms_backward,
    padding,
    random,
    reductions,
    scans,
    scatter,
    softmax,
    unary,
    upsampling,
    views,
)
from tilewright.passes.lowering.call import Call, Lowering
from tilewright.passes.lowering.errors import NotLoweredError

_FAMILIES = (
    activations,
    avg_pooling,
    bags,
    batch_norm,
    binary,
    casts,
    creation,
    embedding_gradient,
    folding,
    group_norm,
    indexing,
    losses,
    max_pooling,
    norms,
    norms_backward,
    padding,
    random,
    reductions,
    scans,
    scatter,
    softmax,
    unary,
    upsampling,
    views,
)

LOWERINGS: dict[str, Lowering] = {name: lower for family in _FAMILIES for name, lower in family.LOWERINGS.items()}
"""What lowers each operator, by its name with overload."""

_DEVICES = frozenset({"cpu", "cuda"})
"""The kinds of devices that kernels are made for."""


def _fits_a_nest(op: CallOp) -> bool:
    """Whether a call has tensors only, all on one device on which nests run, and none of them complex.

    The memory of a complex tensor may hold the conjugates, which only ATen knows.
    """
    devices: set[str] = set()
    for value in (*op.operands, *op.results):
        kind = value.type
        if isinstance(kind, NoneType):
            continue  # a gradient that is not asked for
        if not is_tensor(kind) or isinstance(kind.element_type, ComplexType):
            return False
        layout = layout_of(kind)
        devices.add(layout.device)
        if len(devices) > 1 or layout.device_kind not in _DEVICES:
            return False
    return True


def _device(op: CallOp) -> str:
    """Return the kind of the one device of a call's tensors."""
    kinds = (v.type for v in (*op.results, *op.operands))
    return next((layout_of(k).device_kind for k in kinds if is_tensor(k)), "cpu")


def _takes_turns(call: Call, *, deterministic: bool) -> bool:
    """Whether a lowering has writes to elements that are data, so that a scan has them take turns.

    Those that combine need no turns, unless the result is to be the same every time.
    """
    scans = (op for nest in call.ops for op in nest.walk() if isinstance(op, ScanOp))
    return any(
        any(d != LoopDim.extent(integer(1)) for d in scan.loops.dims)
        and any(isinstance(op, StoreOp) and (deterministic or op.combine is None) for op in scan.walk())
        and not any(isinstance(op, PrefixOp) for op in scan.walk())
        for scan in scans
    )


def lower_call(op: CallOp, lowering: Lowering, ranges: Ranges, *, deterministic: bool = False) -> bool:
    """Replace a call by what `lowering` makes of it. Return whether it has a rule for the call's arguments."""
    call = Call(op, ranges)
    try:
        replacements = lowering(call)
        if _device(op) != "cpu" and _takes_turns(call, deterministic=deterministic):
            raise NotLoweredError("writes that take turns, on a device of many threads")
    except NotLoweredError:
        call.abandon()
        return False
    except (IndexError, ValueError) as error:
        kinds = ", ".join(str(v.type) for v in (*op.operands, *op.results))
        raise PassFailedException(f"the types of a call of `{op.operator}` do not fit together: {kinds}") from error
    block = op.parent
    assert block is not None
    block.insert_ops_before(call.ops, op)
    for result, replacement in zip(op.results, replacements, strict=True):
        if replacement is not None:
            result.replace_all_uses_with(replacement)
    block.erase_op(op)
    return True


@dataclass(frozen=True)
class ConvertAtenToLoopPass(ModulePass):
    """Lower ATen calls to loop nests and views; see the module's docstring."""

    name = "convert-aten-to-loop"

    keep: tuple[str, ...] = ()
    """Operators that stay calls (`aten.exp.default`), to find out which lowering is at fault."""
    deterministic: bool = False
    """Whether on CUDA scatters that combine stay calls, too: atomic sums of floats depend on the order of threads."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in [f for f in op.ops if isinstance(f, FuncOp)]:
            ranges = symbol_ranges(function)
            for call in [c for c in function.walk() if isinstance(c, CallOp)]:
                lowering = None if call.operator in self.keep else LOWERINGS.get(call.operator)
                if lowering is not None and _fits_a_nest(call):
                    lower_call(call, lowering, ranges, deterministic=self.deterministic)
