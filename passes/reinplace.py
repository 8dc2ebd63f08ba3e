"""Make scatters to a part of a tensor updates, where the whole can be overwritten.

AOTAutograd makes `x[1:3] = v` functional: a `slice_scatter` gives a new tensor, which in the end is copied into `x`. As
a function of all its elements it costs what the whole costs. As an update it costs what the part costs: a nest over the
part, whose destination begins as the whole. That is better only if nobody reads the old whole afterwards; otherwise the
copy that the nest begins with has to be made. (Inductor: reinplacing of generalized scatters.)

Before:
```
!X = tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>
!V = tensor<2x8xf32, #sym.layout<[2, 8], [8, 1]>>
func.func @f(%x : !X, %v : !V) attributes {aten.mutates = [0]} {
  %y = aten.call "aten.slice_scatter.default"(self = %x, src = %v, dim = 0 : i64, start = 1 : i64, end = 3 : i64)
      : (!X, !V) -> !X
  %z = aten.call "aten.copy_.default"(self = %x, src = %y) : (!X, !X) -> !X
  func.return
}
```
After:
```
!X = tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>
!V = tensor<2x8xf32, #sym.layout<[2, 8], [8, 1]>>
func.func @f(%x : !X, %v : !V) attributes {aten.mutates = [0]} {
  %y = loop.nest (%i : 2, %j : 8) outs(%out = %x : !X) attributes {origin = ["slice_scatter"]} {
    %0 = loop.load %v[%i, %j] : !V -> f32
    loop.store %0, %out[%i + 1, %j] : f32, !X
  }
  %z = aten.call "aten.copy_.default"(self = %x, src = %y) : (!X, !X) -> !X
  func.return
}
```

The whole is an argument that is written in the end with what the updates give, or a tensor that an ATen call makes, or
one that is updated many times. A scatter whose old whole is read later is left alone: as a function of all elements it
fuses with its readers. So are scatters to intermediates that are updated a few times, for the same reason. Whether
memory is overwritten in the end, `elide-copies` decides on buffers; nothing here can make a program wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, BlockArgument, SSAValue
from xdsl.passes import ModulePass

from tilewright.dialects.aten import CallOp
from tilewright.dialects.call_syntax import OperandAttr
from tilewright.passes.analysis.aliasing import call_memory
from tilewright.passes.convert_aten_to_loop import LOWERINGS, lower_call, symbol_ranges
from tilewright.passes.lowering.updates import LOWERINGS as PARTS

_AT_POSITIONS = frozenset(
    f"aten.{name}"
    for name in (
        "index_add.default",
        "index_copy.default",
        "index_fill.int_Scalar",
        "index_fill.int_Tensor",
        "index_put.default",
        "scatter.reduce",
        "scatter.src",
        "scatter.value",
        "scatter.value_reduce",
        "scatter_add.default",
        "scatter_reduce.two",
    )
)
"""Scatters to positions that are data. They are updates as `convert-aten-to-loop` makes them."""


@dataclass
class _Whole:
    """A tensor in memory, and the updates that could be made to it, in order."""

    root: SSAValue
    updates: list[CallOp] = field(default_factory=list[CallOp])
    is_final: bool = False
    """Whether what the updates give is copied into the tensor in the end."""
    is_read_late: bool = False
    """Whether something reads what an update has overwritten."""

    @property
    def is_argument(self) -> bool:
        return isinstance(self.root, BlockArgument)


@dataclass(frozen=True)
class _State:
    """A value that lies in the memory of a whole, as it is after some of its updates."""

    whole: _Whole
    updates: int
    is_named: bool
    """Whether the program that was captured has it in this memory: an argument, what was copied into it, a view."""

    @property
    def is_old(self) -> bool:
        return self.updates < len(self.whole.updates)


class _Graph:
    """Follows the tensors of one block through views and updates."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.states: dict[SSAValue, _State] = {}
        self.wholes: list[_Whole] = []

    def run(self) -> list[_Whole]:
        """Return what is updated, with the updates."""
        for argument in self.block.args:
            self.begin(argument)
        for op in self.block.ops:
            match op:
                case CallOp() if op.operator in PARTS or op.operator in _AT_POSITIONS:
                    self.update(op)
                case CallOp(operator="aten.copy_.default"):
                    self.copy(op)
                case CallOp():
                    self.call(op)
                case ReturnOp():
                    self.leave(op)
                case _:
                    self.read(op.operands)
        return [w for w in self.wholes if w.updates]

    def begin(self, value: SSAValue) -> None:
        self.states[value] = _State(_Whole(value), 0, is_named=True)
        self.wholes.append(self.states[value].whole)

    def read(self, values: Iterable[SSAValue]) -> None:
        for value in values:
            state = self.states[value]
            if state.is_old:
                state.whole.is_read_late = True

    def update(self, op: CallOp) -> None:
        """Add an update. It may take an old whole for what is outside the part, if the part is up to date itself."""
        target = _argument(op, "self")
        state = self.states[target]
        part = self.states[_argument(op, "src")] if op.operator in PARTS else None
        is_around = part is not None and part.whole is state.whole and not part.is_old
        self.read(o for o in op.operands if o is not target or not is_around)
        state.whole.updates.append(op)
        self.states[op.results[0]] = _State(state.whole, len(state.whole.updates), is_named=False)

    def copy(self, op: CallOp) -> None:
        """Take `x.copy_(y)`: the end of the updates of `x` if `y` is what they give."""
        whole, source = self.states[_argument(op, "self")].whole, _argument(op, "src")
        self.read([source])
        whole.is_final |= self.states[source].whole is whole
        self.states[op.results[0]] = _State(whole, len(whole.updates), is_named=True)

    def call(self, op: CallOp) -> None:
        memory = call_memory(op)
        if op.operator == "aten.copy.default":
            self.read([_argument(op, "src")])  # the elements of `self` do not matter
        elif not memory.is_view:
            self.read(op.operands)
        for result, shares in zip(op.results, memory.shares, strict=True):
            if memory.is_view and len(shares) == 1:
                self.states[result] = self.states[op.operands[shares[0]]]
            else:
                self.begin(result)

    def leave(self, op: ReturnOp) -> None:
        """Take the end of the program: the caller must not get an argument's memory under a name of its own."""
        for value in op.operands:
            state = self.states.get(value)
            if state is not None and (not state.is_named if state.whole.is_argument else state.is_old):
                state.whole.is_read_late = True


def _argument(op: CallOp, name: str) -> SSAValue:
    value = op.arguments.data[name]
    assert isinstance(value, OperandAttr)
    return op.operands[value.data]


@dataclass(frozen=True)
class ReinplacePass(ModulePass):
    """Make scatters to a part of a tensor updates, where the whole can be overwritten."""

    name = "reinplace"

    many: int = 4
    """How many updates an intermediate tensor gets, if it is to be updated in memory."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if not isinstance(function, FuncOp) or len(function.body.blocks) != 1:
                continue
            ranges = symbol_ranges(function)
            for whole in _Graph(function.body.block).run():
                if not whole.is_read_late and self._is_worth_it(whole):
                    for update in whole.updates:
                        if update.operator in PARTS:
                            lower_call(update, PARTS[update.operator], ranges)

    def _is_worth_it(self, whole: _Whole) -> bool:
        if whole.is_argument:
            return whole.is_final
        owner = whole.root.owner
        is_made_by_call = isinstance(owner, CallOp) and owner.operator not in LOWERINGS
        return is_made_by_call or len(whole.updates) >= self.many
