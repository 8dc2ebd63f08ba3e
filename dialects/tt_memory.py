"""Operations of the `tt` dialect on pointers and memory; see `dialects/tt.py`."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Self

from xdsl.dialects.builtin import BoolAttr, IntegerAttr, IntegerType, i1, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind, Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.arith_tensor import element_of, like
from tilewright.dialects.tt_types import (
    CachePolicyAttr,
    GivesBlocks,
    PointerType,
    Writes,
    pointee_of,
    verify_pointer,
    verify_same,
)


@irdl_op_definition
class AddPtrOp(IRDLOperation):
    """Move pointers by elements: `%q = tt.addptr %p, %i : tensor<16x!tt.ptr<f32>>, tensor<16xi32>`."""

    name = "tt.addptr"
    ptr = operand_def()
    offset = operand_def()
    result = result_def()
    traits = traits_def(Pure(), GivesBlocks())

    @staticmethod
    def get(pointer: SSAValue, offset: SSAValue) -> AddPtrOp:
        return AddPtrOp.create(operands=[pointer, offset], result_types=[pointer.type])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        pointer = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        offset = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        parser.parse_punctuation(",")
        operands = parser.resolve_operands([pointer, offset], [kind, parser.parse_type()], parser.pos)
        return cls.create(operands=operands, result_types=[kind], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_list([o.type for o in self.operands], printer.print_attribute)

    def verify_(self) -> None:
        kind, offset = self.ptr.type, self.offset.type
        verify_pointer(self, kind)
        if not isinstance(element_of(offset), IntegerType) or like(kind, element_of(offset)) != offset:
            raise VerifyException(f"`tt.addptr` of {kind} takes integers of that shape, found {offset}")
        verify_same(self, "a result", self.result.type, kind)


class LoadEffect(MemoryEffect):
    """A load reads; where it is volatile it stays, as often as it is written."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        read = EffectInstance(MemoryEffectKind.READ)
        return {read, EffectInstance(MemoryEffectKind.WRITE)} if "isVolatile" in op.properties else {read}


def _hints(policy: CachePolicyAttr | None, volatile: bool) -> dict[str, Attribute]:
    hints: dict[str, Attribute] = {} if policy is None else {"cachePolicy": policy}
    if volatile:
        hints["isVolatile"] = BoolAttr.from_bool(True)
    return hints


def _parse_hints(parser: Parser) -> tuple[dict[str, Attribute], dict[str, Attribute]]:
    """Parse an attribute dictionary into properties and other attributes."""
    attributes = parser.parse_optional_attr_dict()
    hints = {name: attributes.pop(name) for name in ("cachePolicy", "isVolatile") if name in attributes}
    return hints, attributes


def parse_operands(parser: Parser, most: int) -> list[UnresolvedOperand]:
    """Parse one to `most` operands."""
    operands = [parser.parse_unresolved_operand()]
    while len(operands) < most and parser.parse_optional_punctuation(",") is not None:
        operands.append(parser.parse_unresolved_operand())
    return operands


def _parse_pointer_type(parser: Parser) -> tuple[Attribute, Attribute]:
    """Parse the type of pointers; return it, and that of what they point to."""
    start = parser.pos
    kind = parser.parse_type()
    value = pointee_of(kind)
    if value is None:
        parser.raise_error(f"expected a pointer or a tensor of pointers, found {kind}", start, parser.pos)
    return kind, value


def _print_access(printer: Printer, op: LoadOp | StoreOp) -> None:
    printer.print_string(" ")
    printer.print_list(op.operands, printer.print_operand)
    hints = {name: op.properties[name] for name in ("cachePolicy", "isVolatile") if name in op.properties}
    printer.print_op_attributes({**hints, **op.attributes})
    printer.print_string(" : ")
    printer.print_attribute(op.ptr.type)


@irdl_op_definition
class LoadOp(IRDLOperation):
    """Load through pointers: `%v = tt.load %p, %mask, %other {cachePolicy = ..} : tensor<16x!tt.ptr<f32>>`.

    Where the mask is false nothing is read and the element is that of `%other`, or undefined. Both may be left out.
    """

    name = "tt.load"
    ptr = operand_def()
    mask = opt_operand_def()
    other = opt_operand_def()
    cachePolicy = opt_prop_def(CachePolicyAttr)
    isVolatile = opt_prop_def(IntegerAttr.constr(i1))
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(LoadEffect(), GivesBlocks())

    @staticmethod
    def get(
        pointer: SSAValue,
        mask: SSAValue | None = None,
        other: SSAValue | None = None,
        *,
        policy: CachePolicyAttr | None = None,
        volatile: bool = False,
    ) -> LoadOp:
        kind = pointee_of(pointer.type)
        assert kind is not None
        optional = [[] if v is None else [v] for v in (mask, other)]
        return LoadOp(operands=[[pointer], *optional], result_types=[kind], properties=_hints(policy, volatile))

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names = parse_operands(parser, 3)
        hints, attributes = _parse_hints(parser)
        parser.parse_punctuation(":")
        kind, value = _parse_pointer_type(parser)
        types = [kind, like(kind, i1), value][: len(names)]
        operands = list(parser.resolve_operands(names, types, parser.pos))
        return cls(
            operands=[operands[:1], operands[1:2], operands[2:3]],
            result_types=[value],
            properties=hints,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        _print_access(printer, self)

    def verify_(self) -> None:
        value = verify_pointer(self, self.ptr.type)
        verify_same(self, "a result", self.result.type, value)
        if self.mask is not None:
            verify_same(self, "a mask", self.mask.type, like(self.ptr.type, i1))
        if self.other is not None:
            verify_same(self, "other values", self.other.type, value)
            if self.mask is None:
                raise VerifyException("`tt.load` has other values, but no mask")


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Store through pointers: `tt.store %p, %v, %mask : tensor<16x!tt.ptr<f32>>`; nothing where the mask is false."""

    name = "tt.store"
    ptr = operand_def()
    value = operand_def()
    mask = opt_operand_def()
    cachePolicy = opt_prop_def(CachePolicyAttr)
    traits = traits_def(Writes())

    @staticmethod
    def get(
        pointer: SSAValue, value: SSAValue, mask: SSAValue | None = None, *, policy: CachePolicyAttr | None = None
    ) -> StoreOp:
        operands = [pointer, value] if mask is None else [pointer, value, mask]
        return StoreOp.create(operands=operands, properties=_hints(policy, volatile=False))

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names = [parser.parse_unresolved_operand()]
        parser.parse_punctuation(",")
        names += parse_operands(parser, 2)
        hints, attributes = _parse_hints(parser)
        parser.parse_punctuation(":")
        kind, value = _parse_pointer_type(parser)
        types = [kind, value, like(kind, i1)][: len(names)]
        operands = parser.resolve_operands(names, types, parser.pos)
        return cls.create(operands=operands, properties=hints, attributes=attributes)

    def print(self, printer: Printer) -> None:
        _print_access(printer, self)

    def verify_(self) -> None:
        verify_same(self, "a value", self.value.type, verify_pointer(self, self.ptr.type))
        if self.mask is not None:
            verify_same(self, "a mask", self.mask.type, like(self.ptr.type, i1))


@irdl_op_definition
class IntToPtrOp(IRDLOperation):
    """`%p = tt.int_to_ptr %i : i64 -> !tt.ptr<f32>`."""

    name = "tt.int_to_ptr"
    src = operand_def()
    result = result_def()
    traits = traits_def(Pure(), GivesBlocks())
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"

    @staticmethod
    def get(value: SSAValue, pointee: Attribute) -> IntToPtrOp:
        return IntToPtrOp.create(operands=[value], result_types=[like(value.type, PointerType(pointee))])

    def verify_(self) -> None:
        verify_pointer(self, self.result.type)
        verify_same(self, "an operand", self.src.type, like(self.result.type, i64))


@irdl_op_definition
class PtrToIntOp(IRDLOperation):
    """`%i = tt.ptr_to_int %p : !tt.ptr<f32> -> i64`."""

    name = "tt.ptr_to_int"
    src = operand_def()
    result = result_def()
    traits = traits_def(Pure(), GivesBlocks())
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"

    @staticmethod
    def get(pointer: SSAValue) -> PtrToIntOp:
        return PtrToIntOp.create(operands=[pointer], result_types=[like(pointer.type, i64)])

    def verify_(self) -> None:
        verify_pointer(self, self.src.type)
        verify_same(self, "a result", self.result.type, like(self.src.type, i64))
