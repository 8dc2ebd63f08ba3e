"""Let convolutions work on tensors whose channels lie side by side in memory, and what is between them follow.

cuDNN's kernels for tensor cores want channels last; given anything else, it converts operands and result inside each
call. So an operand that lies otherwise is copied once, by an operation that loops can absorb, and the results of the
operators that become loops (elementwise ones, batch norm, pooling, padding) get the layout of what they read. Where
anybody else reads a result, another call or the caller, it is copied back to the strides that tracing saw. (Inductor:
layout optimization.)

Before:
```
!X = tensor<8x16x9x9xbf16, #sym.layout<[8, 16, 9, 9], [1296, 81, 9, 1], device "cuda:0">>
!W = tensor<16x16x3x3xbf16, #sym.layout<[16, 16, 3, 3], [144, 9, 3, 1], device "cuda:0">>
!Y = tensor<8x16x7x7xbf16, #sym.layout<[8, 16, 7, 7], [784, 49, 7, 1], device "cuda:0">>
func.func @forward(%x : !X, %w : !W) -> !Y {
  %y = aten.call "aten.convolution.default"(input = %x, weight = %w, bias = none, stride = #sym.ints<[1, 1]>,
      padding = #sym.ints<[0, 0]>, dilation = #sym.ints<[1, 1]>, transposed = false, output_padding = #sym.ints<[0, 0]>,
      groups = 1 : i64) : (!X, !W) -> !Y
  %z = aten.call "aten.relu.default"(self = %y) : (!Y) -> !Y
  func.return %z : !Y
}
```
After:
```
!X = tensor<8x16x9x9xbf16, #sym.layout<[8, 16, 9, 9], [1296, 81, 9, 1], device "cuda:0">>
!XL = tensor<8x16x9x9xbf16, #sym.layout<[8, 16, 9, 9], [1296, 1, 144, 16], device "cuda:0">>
!W = tensor<16x16x3x3xbf16, #sym.layout<[16, 16, 3, 3], [144, 9, 3, 1], device "cuda:0">>
!WL = tensor<16x16x3x3xbf16, #sym.layout<[16, 16, 3, 3], [144, 1, 48, 16], device "cuda:0">>
!Y = tensor<8x16x7x7xbf16, #sym.layout<[8, 16, 7, 7], [784, 49, 7, 1], device "cuda:0">>
!YL = tensor<8x16x7x7xbf16, #sym.layout<[8, 16, 7, 7], [784, 1, 112, 16], device "cuda:0">>
func.func @forward(%x : !X, %w : !W) -> !Y {
  %x_1 = aten.call "aten.clone.default"(self = %x, memory_format = #aten.memory_format<"channels_last">) : (!X) -> !XL
  %w_1 = aten.call "aten.clone.default"(self = %w, memory_format = #aten.memory_format<"channels_last">) : (!W) -> !WL
  %y = aten.call "aten.convolution.default"(input = %x_1, weight = %w_1, bias = none, stride = #sym.ints<[1, 1]>,
      padding = #sym.ints<[0, 0]>, dilation = #sym.ints<[1, 1]>, transposed = false, output_padding = #sym.ints<[0, 0]>,
      groups = 1 : i64) : (!XL, !WL) -> !YL
  %z = aten.call "aten.relu.default"(self = %y) : (!YL) -> !YL
  %z_1 = aten.call "aten.clone.default"(self = %z, memory_format = #aten.memory_format<"contiguous_format">)
      : (!YL) -> !Y
  func.return %z_1 : !Y
}
```

A result that the function lists in `aten.free_results`, an activation saved for the backward graph, is returned as it
is; the frontend tells that graph, in which a clone to contiguous stands behind such an argument: here it is seen
through. `passes/analysis/convolutions.py` says which convolutions take part.

Left alone: tensors that tracing saw neither contiguous nor with channels last, and what is no tensor of images or
volumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.dialects.aten import CallOp
from tilewright.dialects.call_syntax import MemoryFormatAttr, OperandAttr
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.sym import IntsAttr
from tilewright.dialects.type_guards import is_array, is_tensor
from tilewright.passes.analysis.aliasing import call_memory
from tilewright.passes.analysis.convolutions import CONVOLUTIONS, Convolution
from tilewright.passes.analysis.memory_formats import (
    CONTIGUOUS,
    as_contiguous,
    channels_last_format,
    is_channels_last,
    is_contiguous,
    with_channels_last,
)
from tilewright.passes.analysis.sizes import SizeHints
from tilewright.passes.lowering import (
    activations,
    avg_pooling,
    batch_norm,
    binary,
    casts,
    max_pooling,
    padding,
    reductions,
    unary,
    upsampling,
)

_FOLLOWING = frozenset(
    name
    for family in (
        activations,
        avg_pooling,
        batch_norm,
        binary,
        casts,
        max_pooling,
        padding,
        unary,
        upsampling,
    )
    for name in family.LOWERINGS
) | {"aten.cat.default", "aten.constant_pad_nd.default"}
"""Operators that become loops, whose results may lie in memory as what they read does."""

_READING = frozenset(reductions.LOWERINGS)
"""Operators that become loops, and read what lies anyhow; their results stay what they are."""


_SAME = frozenset({"aten.alias.default", "aten.detach.default", "prims.view_of.default"})
"""Operators whose result is their operand."""

_PRESERVE = MemoryFormatAttr("preserve_format")


class _Channels:
    """The tensors of one function, operation after operation."""

    def __init__(self, function: FuncOp, devices: Sequence[str], *, tf32: bool) -> None:
        self.function = function
        self.devices = devices
        self.tf32 = tf32
        self.hints = SizeHints(function)
        self.last: dict[SSAValue, SSAValue] = {}
        """For tensors that are not channels last the same tensor that is."""
        self.traced: dict[SSAValue, SSAValue | None] = {}
        """Results that were contiguous and now are channels last; with the contiguous copy, if somebody needed it."""

    def run(self) -> None:
        block = self.function.body.block
        for op in list(block.ops):
            match op:
                case CallOp() if self._restores(op):
                    self.last[op.results[0]] = op.operands[0]
                case CallOp() if (convolution := Convolution.of(op)) is not None and self._is_chosen(convolution):
                    self._convolve(convolution)
                case CallOp() if op.operator in _SAME and self._is_changed(op.operands[0]):
                    self._read(op)
                    self._change_results(op)
                case CallOp() if op.operator in _FOLLOWING and self._leads(op):
                    self._read(op)
                    self._change_results(op)
                case CallOp() if op.operator in _FOLLOWING or op.operator in _READING:
                    self._read(op)
                case ReturnOp():
                    self._leave(op)
                case _:
                    for number, value in enumerate(op.operands):
                        op.operands[number] = self._as_traced(value, op)
                    if isinstance(op, CallOp) and call_memory(op).writes:
                        self.last = {value: last for value, last in self.last.items() if _is_new(value)}
        for op in reversed(list(block.ops)):
            if isinstance(op, CallOp) and self._restores(op) and op.results[0].first_use is None:
                block.erase_op(op)

    def _restores(self, op: CallOp) -> bool:
        """Whether a call copies a tensor with channels last to a contiguous one."""
        return (
            op.operator == "aten.clone.default"
            and op.arguments.data.get("memory_format") == CONTIGUOUS
            and is_channels_last(op.operands[0].type)
            and is_contiguous(op.results[0].type)
        )

    def _is_chosen(self, convolution: Convolution) -> bool:
        """Whether a convolution takes part: it pays off, and its results are in one of the two formats."""
        op = convolution.op
        kinds = [r.type for r in op.results if is_tensor(r.type) and len(layout_of(r.type).sizes) > 1]
        if not all(layout_of(k).device_kind in self.devices for k in kinds):
            return False
        if not all(is_contiguous(k) or is_channels_last(k) for k in kinds):
            return False
        images = [op.operands[number] for number in convolution.images]
        return convolution.pays(self.hints, tf32=self.tf32) and (
            not convolution.is_pointwise or any(self._is_last(v) or is_channels_last(v.type) for v in images)
        )

    def _convolve(self, convolution: Convolution) -> None:
        """Give channels last to the operands and results of a convolution.

        Images get the very strides, which ATen's choice of a kernel goes by.
        """
        op = convolution.op
        for number in (*convolution.images, convolution.weight):
            value = op.operands[number]
            if number != convolution.weight or _differ(value.type):
                op.operands[number] = self._with_channels_last(value, op)
        self._change_results(op, all_of_them=True)

    def _leads(self, op: CallOp) -> bool:
        """Whether the largest tensor that a call reads, of its result's rank, is at hand with channels last."""
        if op.arguments.data.get("memory_format", _PRESERVE) != _PRESERVE or not is_tensor(op.results[0].type):
            return False
        rank = len(layout_of(op.results[0].type).sizes)
        read = [v for v in op.operands if is_tensor(v.type) and len(layout_of(v.type).sizes) == rank]
        sizes = [self.hints.elements(v.type) for v in read]
        return any(n == max(sizes) and self._is_last(v) for n, v in zip(sizes, read, strict=True))

    def _is_changed(self, value: SSAValue) -> bool:
        """Whether a tensor, made by the program, was given channels last; not whether a copy has them."""
        owner = value.owner
        return value in self.traced or (isinstance(owner, CallOp) and self._restores(owner))

    def _is_last(self, value: SSAValue) -> bool:
        return value in self.traced or value in self.last

    def _with_channels_last(self, value: SSAValue, user: Operation) -> SSAValue:
        """Return a tensor with channels last, a copy in front of its user if need be."""
        if is_channels_last(value.type):
            return value
        found = self.last.get(value)
        if found is None:
            assert is_tensor(value.type)
            kind = with_channels_last(value.type)
            found = self.last[value] = _copy(value, kind, channels_last_format(len(kind.shape)), user)
        return found

    def _as_traced(self, value: SSAValue, user: Operation) -> SSAValue:
        """Return a tensor as tracing saw it, a copy in front of its user if need be."""
        if value not in self.traced:
            return value
        found = self.traced[value]
        if found is None:
            assert is_tensor(value.type)
            kind = as_contiguous(value.type)
            found = _copy(value, kind, CONTIGUOUS, user) if _differ(kind) else _view(value, kind, user)
            self.traced[value] = found
            self.last[found] = value
        return found

    def _read(self, op: CallOp) -> None:
        """Let loops read the one copy that others need; an argument is there in any case."""
        for number, value in enumerate(op.operands):
            if not isinstance(value, BlockArgument):
                op.operands[number] = self.last.get(value, value)

    def _change_results(self, op: CallOp, *, all_of_them: bool = False) -> None:
        """Give channels last to the results that tracing saw contiguous, where it makes a difference or to all."""
        for result in op.results:
            kind = result.type
            if is_contiguous(kind) and is_tensor(kind) and (all_of_them or _differ(kind)):
                self.traced[Rewriter.replace_value_with_new_type(result, with_channels_last(kind))] = None

    def _leave(self, op: ReturnOp) -> None:
        """Return what tracing saw, but for results whose strides are free."""
        free = _numbers(self.function, "aten.free_results")
        aliases = _numbers(self.function, "aten.output_alias")
        fixed = {v for n, v in enumerate(op.operands) if n not in free}
        for number, value in enumerate(op.operands):
            shared = number < len(aliases) and aliases[number] >= 0
            if number in free and value not in fixed and not shared:
                last = self.last.get(value, value)
                if all(s.is_Integer for s in layout_of(last.type).strides):
                    op.operands[number] = last
                    continue
            op.operands[number] = self._as_traced(value, op)
        self.function.update_function_type()


def _is_new(value: SSAValue) -> bool:
    """Whether a tensor is no argument, nor a view of one: nobody writes to it, so a copy stays what it is."""
    owner = value.owner
    return isinstance(owner, CallOp) and not any(call_memory(owner).shares)


def _copy(value: SSAValue, kind: Attribute, memory_format: MemoryFormatAttr, user: Operation) -> SSAValue:
    """Copy a tensor to another memory format, in front of `user`."""
    arguments = {"self": OperandAttr(0), "memory_format": memory_format}
    return _insert(CallOp.get("aten.clone.default", arguments, [value], [kind]), user)


def _view(value: SSAValue, kind: Attribute, user: Operation) -> SSAValue:
    """See a tensor, in front of `user`, with other strides in dims of size one."""
    arguments = {"self": OperandAttr(0), "size": IntsAttr.get(layout_of(kind).sizes)}
    return _insert(CallOp.get("aten.view.default", arguments, [value], [kind]), user)


def _insert(call: CallOp, user: Operation) -> SSAValue:
    call.location = user.location
    call.results[0].name_hint = call.operands[0].name_hint
    block = user.parent
    assert block is not None
    block.insert_op_before(call, user)
    return call.results[0]


def _differ(kind: Attribute) -> bool:
    """Whether contiguous or with channels last, a tensor of these sizes has elements at different places."""
    sizes = layout_of(kind).sizes
    return sizes[1] != 1 and any(s != 1 for s in sizes[2:])


def _numbers(function: FuncOp, name: str) -> list[int]:
    """Return the numbers that an attribute of a function lists."""
    found = function.attributes.get(name)
    return [n.value.data for n in found.data if isinstance(n, IntegerAttr)] if found and is_array(found) else []


def _has_convolution(function: FuncOp) -> bool:
    return any(isinstance(op, CallOp) and op.operator in CONVOLUTIONS for op in function.body.block.ops)


@dataclass(frozen=True)
class ChannelsLastPass(ModulePass):
    """Let convolutions work on tensors with channels last, and what is between them follow."""

    name = "channels-last"

    devices: tuple[str, ...] = ("cuda",)
    """The kinds of devices whose convolutions take part."""
    tf32: bool = True
    """Whether convolutions of f32 round their operands to 11 bits, as cuDNN's do unless told otherwise."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, FuncOp) and len(function.body.blocks) == 1 and _has_convolution(function):
                _Channels(function, self.devices, tf32=self.tf32).run()
