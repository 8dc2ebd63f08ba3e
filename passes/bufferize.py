"""Give every tensor a buffer: `loop` and `aten` on tensors become a host program on memrefs.

From here on storage is explicit: who owns it, who shares it, when it is written and when it ends. A tensor's buffer has
the layout that the tensor's type says; results of the function have exactly the strides of its type, because the next
graph was traced with them, and an operand of an ATen call has exactly the layout that tracing saw.

Before:
```
func.func @forward(%x : tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>) -> tensor<8x4xf32, #sym.layout<[8, 4], [1, 8]>> {
  %y = loop.nest (%i : 4, %j : 8) outs(%o : tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>) {
    %v = loop.load %x[%i, %j] : tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>> -> f32
    loop.store %v, %o[%i, %j] : f32, tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>
  }
  %t = loop.view %y <(d0, d1) -> (d1, d0)>
      : tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>> to tensor<8x4xf32, #sym.layout<[8, 4], [1, 8]>>
  func.return %t : tensor<8x4xf32, #sym.layout<[8, 4], [1, 8]>>
}
```
After:
```
func.func @forward(%x : memref<4x8xf32, #sym.layout<[4, 8], [8, 1]>>) -> memref<8x4xf32, #sym.layout<[8, 4], [1, 8]>> {
  %y = host.alloc : memref<4x8xf32, #sym.layout<[4, 8], [8, 1]>>
  loop.nest (%i : 4, %j : 8) {
    %v = loop.load %x[%i, %j] : memref<4x8xf32, #sym.layout<[4, 8], [8, 1]>> -> f32
    loop.store %v, %y[%i, %j] : f32, memref<4x8xf32, #sym.layout<[4, 8], [8, 1]>>
  }
  %t = host.view %y : memref<4x8xf32, #sym.layout<[4, 8], [8, 1]>> to memref<8x4xf32, #sym.layout<[8, 4], [1, 8]>>
  func.return %t : memref<8x4xf32, #sym.layout<[8, 4], [1, 8]>>
}
```

A view whose address is not linear in its indices (a reshape of a transposed tensor) is copied, as `torch.reshape` does.
A tensor that is expanded, so that several of its elements are one, is computed into dense storage.

Operations keep their order, so a write (`aten.copy_` to an argument, a call in place) is seen by what reads the operand
or a view of it later, and by nothing before. Where a tensor is copied into memory that it shares, as `x.copy_(x.t())`
asks, what it was is kept first.

Functions without tensors are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ComplexType, ModuleOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import is_side_effect_free
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects import aten, host, loop
from tilewright.dialects.call_syntax import OperandAttr
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.loop_nest import nest_properties
from tilewright.dialects.sym import LayoutAttr, MapAttr
from tilewright.dialects.sym_expr import Expr, Min, dim, integer
from tilewright.dialects.type_guards import is_memref, is_tensor
from tilewright.passes.analysis.aliasing import AliasSets, call_memory
from tilewright.passes.analysis.layouts import (
    all_equal,
    equal,
    may_overlap,
    memref_type,
    same_places,
    span,
    view_layout,
)
from tilewright.passes.analysis.lifetimes import handle_ends
from tilewright.passes.analysis.ranges import symbol_ranges
from tilewright.passes.analysis.takeovers import Takeovers

OpT = TypeVar("OpT", bound=Operation)


def buffer_type(kind: Attribute) -> Attribute:
    """Return the type of the buffer of a tensor, any other type itself."""
    return memref_type(kind.element_type, layout_of(kind)) if is_tensor(kind) else kind


def copy_nest(source: SSAValue, target: SSAValue, access: MapAttr) -> loop.NestOp:
    """Return a nest that stores element `access(j)` of `source` at each index `j` of `target`.

    Along a dim of stride zero, where all elements of the target are one, only the first is stored.
    """
    layout = layout_of(target.type)
    loops: list[Expr] = []
    point: list[Expr] = []
    for size, stride in zip(layout.sizes, layout.strides, strict=True):
        extent = Min(size, integer(1)) if stride == 0 else size
        point.append(integer(0) if extent == 1 else dim(len(loops)))
        loops += [] if extent == 1 else [extent]
    nest = loop.NestOp.get(loop.Bounds.extents(loops))
    load = loop.LoadOp.get(source, access.apply(point), nest.indices)
    nest.block.add_ops([load, loop.StoreOp.get(load.result, target, point, nest.indices)])
    return nest


class _Bufferizer:
    """Rewrites one function: its operations one by one, in order, into a new block.

    `values` maps each tensor met so far to the buffer that holds it.
    """

    def __init__(self, function: func.FuncOp) -> None:
        self.function = function
        self.block = Block()
        self.ranges = symbol_ranges(function)
        self.sets = AliasSets()
        self.takeovers = Takeovers(function.body.block)
        self.values: dict[SSAValue, SSAValue] = {}
        self.dense_layouts: dict[LayoutAttr, LayoutAttr] = {}
        self.view_layouts: dict[tuple[LayoutAttr, MapAttr, LayoutAttr], LayoutAttr | None] = {}

    def run(self) -> None:
        """Replace the function's body."""
        old = self.function.body.block
        for number, argument in enumerate(old.args):
            new = self.block.insert_arg(buffer_type(argument.type), number)
            new.name_hint = argument.name_hint
            if is_tensor(argument.type):
                self.sets.add(new)
                self.hold(argument, new)
            else:
                argument.replace_all_uses_with(new)
        for op in list(old.ops):
            self.convert(op)
        region = self.function.body
        region.add_block(self.block)
        region.erase_block(old, safe_erase=False)
        self.function.update_function_type()
        add_frees(self.block)

    def convert(self, op: Operation) -> None:
        match op:
            case loop.NestOp():
                self.convert_nest(op)
            case loop.ViewOp():
                self.convert_view(op)
            case loop.AfterOp():  # operations keep their order
                self.hold(op.result, self.values[op.source])
            case aten.CallOp():
                self.convert_call(op)
            case aten.SizeOp():
                size = self.emit(host.SizeOp.get(op.size.expr))
                op.result.replace_all_uses_with(size.result)
            case func.ReturnOp():
                self.convert_return(op)
            case _ if is_side_effect_free(op) and not any(is_tensor(v.type) for v in (*op.operands, *op.results)):
                op.detach()
                self.emit(op)
            case _:
                raise PassFailedException(
                    f"found `{op.name}` in `@{self.function.sym_name.data}`, expected `loop.nest`, `loop.view`, "
                    "`aten.call` or `aten.size`"
                )

    def emit(self, op: OpT) -> OpT:
        self.block.add_op(op)
        return op

    def hold(self, tensor: SSAValue, buffer: SSAValue) -> None:
        """Note that `buffer` holds `tensor`."""
        self.values[tensor] = buffer
        if buffer.name_hint is None:
            buffer.name_hint = tensor.name_hint

    def alloc(self, element: Attribute, layout: LayoutAttr, *, placed: bool = False) -> SSAValue:
        """Make a buffer in `layout`, whose offset counts only if it is `placed` in its storage as the layout says."""
        start = LayoutAttr.get(layout.sizes, layout.strides, device=layout.device)
        if not placed or layout.offset == 0:
            buffer = self.emit(host.AllocOp.get(memref_type(element, start))).result
            self.sets.add(buffer)
            return buffer
        whole = LayoutAttr.contiguous([span(layout) + layout.offset], layout.device)
        return self.view(self.alloc(element, whole), memref_type(element, layout))

    def view(self, buffer: SSAValue, kind: Attribute) -> SSAValue:
        """See `buffer` in another layout."""
        if buffer.type == kind:
            return buffer
        base = self.sets.base(buffer)
        if base.type == kind:
            return base
        result = self.emit(host.ViewOp.get(base, kind)).result
        self.sets.add(result, base=base)
        return result

    def copy(
        self, buffer: SSAValue, layout: LayoutAttr, access: MapAttr | None = None, *, placed: bool = False
    ) -> SSAValue:
        """Make a buffer in `layout` whose element `j` is what element `access(j)` of `buffer` is now."""
        assert is_memref(buffer.type)
        target = self.alloc(buffer.type.element_type, layout, placed=placed)
        self.emit(copy_nest(buffer, target, access or MapAttr.identity(len(layout.sizes))))
        return target

    def dense(self, layout: LayoutAttr) -> LayoutAttr:
        """Return `layout`, or the row-major one where several of its elements may be one."""
        found = self.dense_layouts.get(layout)
        if found is None:
            overlaps = may_overlap(layout, self.ranges)
            found = LayoutAttr.contiguous(layout.sizes, layout.device) if overlaps else layout
            self.dense_layouts[layout] = found
        return found

    def exact(self, tensor: SSAValue, *, placed: bool = False) -> SSAValue:
        """Return a buffer that holds `tensor` in exactly the layout of its type; with its offset too if `placed`."""
        buffer, kind = self.values[tensor], layout_of(tensor.type)
        found = layout_of(buffer.type)
        if same_places(found, kind, self.ranges) and (not placed or equal(found.offset, kind.offset, self.ranges)):
            return buffer
        return self.copy(buffer, kind, placed=placed)

    def convert_nest(self, op: loop.NestOp) -> None:
        kinds = [r.type for r in op.outputs if is_tensor(r.type)]
        begins = op.begins
        targets = [
            self.begin(op, i, layout_of(kind))
            if i in begins
            else self.alloc(kind.element_type, self.dense(layout_of(kind)))
            for i, kind in enumerate(kinds)
        ]
        for load in op.walk():
            if isinstance(load, loop.LoadOp) and load.source in self.values:
                load.operands[0] = self.values[load.source]
        operands, properties = nest_properties(op.loops, op.masked is not None, {})
        nest = loop.NestOp.create(
            operands=operands, properties=properties, attributes=op.attributes, regions=[op.detach_region(0)]
        )
        destinations = nest.block.args[nest.loop_arguments() :]
        for destination, target in zip(reversed(destinations), reversed(targets), strict=True):
            destination.replace_all_uses_with(target)
            nest.block.erase_arg(destination)
        self.emit(nest)
        for result, target in zip(op.results, targets, strict=True):
            target.name_hint = None
            self.hold(result, target)

    def begin(self, op: loop.NestOp, number: int, kind: LayoutAttr) -> SSAValue:
        """Return a buffer in layout `kind` that holds what a destination begins as, and may be written.

        It is the buffer of that tensor itself where nothing reads it later.
        """
        start = op.begins[number]
        buffer, layout = self.values[start], self.dense(kind)
        if same_places(layout_of(buffer.type), layout, self.ranges) and self.takeovers.is_possible(op, number):
            return buffer
        return self.copy(buffer, layout)

    def convert_view(self, op: loop.ViewOp) -> None:
        source = self.values[op.source]
        kind = layout_of(op.result.type)
        assert is_tensor(op.result.type)
        key = layout_of(source.type), op.access, kind
        if key not in self.view_layouts:
            self.view_layouts[key] = view_layout(*key, self.ranges)
        layout = self.view_layouts[key]
        if layout is None:
            buffer = self.copy(source, self.dense(kind), op.access)
        else:
            buffer = self.view(source, memref_type(op.result.type.element_type, layout))
        self.hold(op.result, buffer)

    def convert_call(self, op: aten.CallOp) -> None:
        if op.operator == "aten.copy_.default" and self.convert_copy(op):
            return
        memory = call_memory(op)
        buffers = [self.exact(o, placed=memory.is_view) if is_tensor(o.type) else o for o in op.operands]
        for i in memory.writes:
            self.hold(op.operands[i], buffers[i])
        kinds = [buffer_type(r.type) for r in op.results]
        call = host.CallOp.create(
            operands=buffers, result_types=kinds, properties=op.properties, attributes=op.attributes
        )
        self.sets.add_call(self.emit(call))
        for old, new, shares in zip(op.results, call.results, memory.shares, strict=True):
            if not is_tensor(old.type):
                old.replace_all_uses_with(new)
                continue
            same = len(shares) == 1 and shares[0] in memory.writes and buffers[shares[0]].type == new.type
            self.hold(old, buffers[shares[0]] if same else new)

    def convert_copy(self, op: aten.CallOp) -> bool:
        """Turn `aten.copy_` into a nest, unless it converts or broadcasts: then do nothing and return False.

        Nor are complex numbers copied by a nest: memory may hold their conjugates, which only ATen knows.
        """
        arguments = [op.arguments.data.get(name) for name in ("self", "src")]
        if len(op.operands) != 2 or arguments != [OperandAttr(0), OperandAttr(1)]:
            return False
        target, source = (self.values[o] for o in op.operands)
        assert is_memref(target.type)
        assert is_memref(source.type)
        into, of = layout_of(target.type), layout_of(source.type)
        if (
            target.type.element_type != source.type.element_type
            or isinstance(target.type.element_type, ComplexType)
            or into.device != of.device
            or not all_equal(into.sizes, of.sizes, self.ranges)
            or may_overlap(into, self.ranges)
        ):
            return False
        if source is not target:
            if self.sets.may_alias(source, target):
                source = self.copy(source, self.dense(of))
            self.emit(copy_nest(source, target, MapAttr.identity(len(into.sizes))))
        self.hold(op.results[0], target)
        return True

    def convert_return(self, op: func.ReturnOp) -> None:
        made: dict[tuple[SSAValue, Attribute], SSAValue] = {}
        results: list[SSAValue] = []
        for value in op.operands:
            if not is_tensor(value.type):
                results.append(value)
                continue
            key = (self.values[value], layout_of(value.type))
            if key not in made:
                made[key] = self.result(value)
            results.append(made[key])
        self.emit(func.ReturnOp(*results))

    def result(self, tensor: SSAValue) -> SSAValue:
        """Return a buffer that holds `tensor` under its very strides, those of dims of size one included.

        A view of an argument that is like the argument is a tensor of its own all the same.
        """
        buffer, kind = self.exact(tensor), layout_of(tensor.type)
        assert is_memref(buffer.type)
        found = layout_of(buffer.type)
        exact = LayoutAttr.get(kind.sizes, kind.strides, found.offset, found.device)
        if isinstance(buffer, BlockArgument) and isinstance(tensor.owner, loop.ViewOp):
            return self.emit(host.ViewOp.get(buffer, memref_type(buffer.type.element_type, exact))).result
        return self.view(buffer, memref_type(buffer.type.element_type, exact))


def add_frees(program: Block) -> None:
    """Free what a host program allocates and what calls return, after the last use, unless it is returned."""
    ends = handle_ends(program)
    ops = list(program.ops)
    frees: dict[int, list[Operation]] = {}
    for value, end in ends.items():
        frees.setdefault(end, []).append(host.FreeOp.get(value))
    for number, group in frees.items():
        program.insert_ops_after(group, ops[number])


@dataclass(frozen=True)
class BufferizePass(ModulePass):
    """Give every tensor a buffer."""

    name = "bufferize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in list(op.ops):
            if isinstance(function, func.FuncOp) and _is_graph(function):
                _Bufferizer(function).run()


def _is_graph(function: func.FuncOp) -> bool:
    """Whether a function is of level 0 or 1: it has tensors, or sizes of them."""
    if function.is_declaration:
        return False
    if len(function.body.blocks) != 1:
        raise PassFailedException(
            f"expected `@{function.sym_name.data}` to have one block, found {len(function.body.blocks)}"
        )
    ops = list(function.body.block.ops)
    values = (v for op in ops for v in op.results)
    has_tensors = any(is_tensor(v.type) for v in (*function.body.block.args, *values))
    return has_tensors or any(isinstance(op, aten.SizeOp) for op in ops)
