"""The `host` dialect: the program around the kernels, on buffers (level 2).

A host program is a `func.func` on memrefs with `#sym.layout` and on i64 sizes. It allocates, views, launches kernels,
calls ATen operators and returns; what happens inside a kernel, and on which thread, it cannot say. The function's
attributes are those of `dialects/aten.py`. Its caller gives the arguments away (but for constants): one that is not
returned ends after its last use, as a view does. What is allocated or returned by a call ends at its `host.free`.

```
loop.kernel @k0(%a : memref<?xf32, #sym.layout<[n0], [1]>>, %b : memref<?xf32, #sym.layout<[n0], [1]>>) symbols [n0] {
  loop.nest (%i : n0) {
    %v = loop.load %a[%i] : memref<?xf32, #sym.layout<[n0], [1]>> -> f32
    loop.store %v, %b[%i] : f32, memref<?xf32, #sym.layout<[n0], [1]>>
  }
}
func.func @forward(%x : memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>) -> memref<?xf32, #sym.layout<[8 * s0], [1]>> {
  %f = host.view %x : memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>> to memref<?xf32, #sym.layout<[8 * s0], [1]>>
  %y = host.alloc : memref<?xf32, #sym.layout<[8 * s0], [1]>>
  host.launch @k0(%f, %y) symbols [8 * s0]
      : memref<?xf32, #sym.layout<[8 * s0], [1]>>, memref<?xf32, #sym.layout<[8 * s0], [1]>>
  func.return %y : memref<?xf32, #sym.layout<[8 * s0], [1]>>
}
```
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Self

from xdsl.dialects.builtin import MemRefType, SymbolRefAttr, i64
from xdsl.ir import Attribute, Dialect, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind, Pure, SymbolTable
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.call_syntax import OperatorCall
from tilewright.dialects.loop_access import verify_layout
from tilewright.dialects.loop_kernel import KernelOp
from tilewright.dialects.sym import ExprAttr, IntsAttr, parse_expr
from tilewright.dialects.sym_expr import Expr


class Allocates(MemoryEffect):
    """The operation makes memory and does nothing else."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        return {EffectInstance(MemoryEffectKind.ALLOC)}


class Writes(MemoryEffect):
    """The operation writes memory or frees it."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        return {EffectInstance(MemoryEffectKind.WRITE)}


@irdl_op_definition
class AllocOp(IRDLOperation):
    """Make an uninitialised buffer with the sizes, strides and device of its type: `%y = host.alloc : memref<...>`."""

    name = "host.alloc"
    result = result_def(MemRefType)
    traits = traits_def(Allocates())
    assembly_format = "attr-dict `:` type($result)"

    @staticmethod
    def get(kind: Attribute) -> AllocOp:
        return AllocOp.create(result_types=[kind])

    def verify_(self) -> None:
        if verify_layout(self.result.type).offset != 0:
            raise VerifyException("`host.alloc` makes a buffer with an offset of zero")


@irdl_op_definition
class FreeOp(IRDLOperation):
    """Give up a buffer that was allocated or returned by a call, or a view: `host.free %x : memref<...>`.

    Memory is released with the last handle to it, so freeing a buffer leaves its views alone.
    """

    name = "host.free"
    buffer = operand_def(MemRefType)
    traits = traits_def(Writes())
    assembly_format = "$buffer attr-dict `:` type($buffer)"

    @staticmethod
    def get(buffer: SSAValue) -> FreeOp:
        return FreeOp.create(operands=[buffer])


@irdl_op_definition
class ViewOp(IRDLOperation):
    """See a buffer's storage through another layout: `%y = host.view %x : memref<...> to memref<...>`.

    The result's sizes, strides and offset count from the start of the storage, as `torch.as_strided` does. A change of
    element type reinterprets the bytes, for buffers that are reused.
    """

    name = "host.view"
    source = operand_def(MemRefType)
    result = result_def(MemRefType)
    traits = traits_def(Pure())
    assembly_format = "$source attr-dict `:` type($source) `to` type($result)"

    @staticmethod
    def get(source: SSAValue, kind: Attribute) -> ViewOp:
        return ViewOp.create(operands=[source], result_types=[kind])

    def verify_(self) -> None:
        if verify_layout(self.source.type).device != verify_layout(self.result.type).device:
            raise VerifyException("`host.view` cannot move a buffer to another device")


@irdl_op_definition
class LaunchOp(IRDLOperation):
    """Run a kernel on buffers: `host.launch @k0(%a, %b) symbols [4 * s0] : memref<...>, memref<...>`.

    `symbols` gives the values of the kernel's symbols, in its order. The buffers must not overlap where one is written.
    """

    name = "host.launch"
    buffers = var_operand_def(MemRefType)
    kernel = prop_def(SymbolRefAttr)
    symbols = prop_def(IntsAttr)
    traits = traits_def(Writes())

    @staticmethod
    def get(kernel: str, buffers: Sequence[SSAValue], symbols: Sequence[Expr]) -> LaunchOp:
        properties: dict[str, Attribute] = {"kernel": SymbolRefAttr(kernel), "symbols": IntsAttr(tuple(symbols))}
        return LaunchOp.create(operands=buffers, properties=properties)

    @property
    def kernel_name(self) -> str:
        return self.kernel.string_value()

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = parser.parse_symbol_name()
        operands = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        parser.parse_keyword("symbols")
        symbols = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_expr(parser))
        attributes = parser.parse_optional_attr_dict()
        kinds: list[Attribute] = []
        if operands:
            parser.parse_punctuation(":")
            kinds = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        values = parser.resolve_operands(operands, kinds, parser.pos)
        properties: dict[str, Attribute] = {"kernel": SymbolRefAttr(name), "symbols": IntsAttr(tuple(symbols))}
        return cls.create(operands=values, properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.kernel_name)
        printer.print_string("(")
        printer.print_list(self.buffers, printer.print_operand)
        text = str(self.symbols).removeprefix("#sym.ints<").removesuffix(">")
        printer.print_string(f") symbols {text}")
        printer.print_op_attributes(self.attributes)
        if self.buffers:
            printer.print_string(" : ")
            printer.print_list(self.buffers, lambda b: printer.print_attribute(b.type))

    def verify_(self) -> None:
        for buffer in self.buffers:
            verify_layout(buffer.type)
        callee = SymbolTable.lookup_symbol(self, self.kernel)
        if callee is None:
            raise VerifyException(f"`host.launch` of `@{self.kernel_name}`, which is not in the module")
        if isinstance(callee, KernelOp):
            _verify_count(self.kernel_name, "buffers", len(callee.buffers), len(self.buffers))
            _verify_count(self.kernel_name, "symbols", len(callee.symbols), len(self.symbols.exprs))


def _verify_count(kernel: str, what: str, expected: int, found: int) -> None:
    if found != expected:
        raise VerifyException(f"`@{kernel}` takes {expected} {what}, found {found}")


@irdl_op_definition
class CallOp(OperatorCall):
    """Call an ATen operator on buffers: `%y = host.call "aten.mm.default"(self = %a, mat2 = %b) : (..) -> ..`.

    The arguments are those of `aten.call`. The results are new buffers, or share the memory that the operator's schema
    says.
    """

    name = "host.call"
    traits = traits_def(Writes())


@irdl_op_definition
class SizeOp(IRDLOperation):
    """The value of a size expression: `%n = host.size <s0 + 1> : i64`."""

    name = "host.size"
    size = prop_def(ExprAttr)
    result = result_def(i64)
    traits = traits_def(Pure())
    assembly_format = "$size attr-dict `:` type($result)"

    @staticmethod
    def get(expr: Expr) -> SizeOp:
        return SizeOp.create(result_types=[i64], properties={"size": ExprAttr(expr)})


Host = Dialect("host", [AllocOp, FreeOp, ViewOp, LaunchOp, CallOp, SizeOp])
