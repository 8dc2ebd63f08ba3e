"""The accesses of the `loop` dialect: loads, stores, index values and views; see `dialects/loop.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Self

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    DenseArrayBase,
    IndexType,
    IntegerType,
    MemRefType,
    Signedness,
    StringAttr,
    TensorType,
    i1,
    i32,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.access import (
    normalize_access,
    parse_access,
    parse_access_list,
    print_access,
    print_access_list,
    verify_access,
)
from tilewright.dialects.combiners import verify_combine
from tilewright.dialects.loop_effects import LoadEffect, StoreEffect
from tilewright.dialects.loop_scalar import like
from tilewright.dialects.sym import LayoutAttr, MapAttr
from tilewright.dialects.sym_expr import Expr
from tilewright.dialects.type_guards import is_integer, is_memref, is_tensor, is_vector


def layout_of(kind: Attribute) -> LayoutAttr:
    """Return the layout of a tensor or memref type. Raises `VerifyException` where it has none."""
    layout = kind.encoding if isinstance(kind, TensorType) else kind.layout if isinstance(kind, MemRefType) else None
    if not isinstance(layout, LayoutAttr):
        raise VerifyException(f"expected a tensor or memref with a `#sym.layout`, found {kind}")
    return layout


def verify_layout(kind: Attribute) -> LayoutAttr:
    """Return the layout of a tensor or memref type. Raises `VerifyException` where it has none or disagrees with it."""
    layout = layout_of(kind)
    shape = kind.get_shape() if is_tensor(kind) or is_memref(kind) else ()
    if shape != tuple(int(s) if s.is_Integer else DYNAMIC_INDEX for s in layout.sizes):
        raise VerifyException(f"the shape of {kind} is not that of its layout")
    return layout


def register_type(element: Attribute) -> Attribute:
    """Return the type that a tensor element has in a register: integers lose their sign, `ui8` becomes `i8`."""
    if is_integer(element) and element.signedness.data != Signedness.SIGNLESS:
        return IntegerType(element.width.data)
    return element


def element_in_register(kind: Attribute) -> Attribute:
    """Return the register type of one element of a tensor or memref."""
    assert is_tensor(kind) or is_memref(kind)
    return register_type(kind.element_type)


def _vector_of(operands: Iterable[SSAValue]) -> Attribute | None:
    """Return the vector type among index operands, if one of them holds lanes."""
    return next((o.type for o in operands if is_vector(o.type)), None)


def _access_type(element: Attribute, indices: Sequence[SSAValue]) -> Attribute:
    vector = _vector_of(indices)
    return element if vector is None else like(vector, element)


def _verify_shaped(name: str, source: SSAValue, access: MapAttr, indices: Sequence[SSAValue]) -> None:
    verify_access(name, access, indices)
    rank = len(verify_layout(source.type).sizes)
    if len(access.exprs) != rank:
        raise VerifyException(f"`{name}` has {len(access.exprs)} indices, {source.type} has rank {rank}")


@irdl_op_definition
class LoadOp(IRDLOperation):
    """Load the element at some indices, one index per dimension.

    `%v = loop.load %x[%i, %k + 1] : tensor<...> -> f32`. With `mask %m else %z` an access whose mask is false touches
    no memory and gives `%z`. Where an index holds lanes, the result is a vector of the elements at each lane.
    """

    name = "loop.load"
    source = operand_def()
    indices = var_operand_def()
    mask = opt_operand_def()
    otherwise = opt_operand_def()
    access = prop_def(MapAttr)
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(LoadEffect())

    @staticmethod
    def get(
        source: SSAValue,
        exprs: Iterable[Expr],
        indices: Sequence[SSAValue],
        *,
        mask: SSAValue | None = None,
        otherwise: SSAValue | None = None,
    ) -> LoadOp:
        """Load from `source` at `exprs`, in which `d<i>` stands for `indices[i]`."""
        access, indices = normalize_access(exprs, indices)
        kind = _access_type(element_in_register(source.type), indices)
        if mask is not None and is_vector(mask.type):
            kind = like(mask.type, element_in_register(source.type))
        masks = [*_optional(mask), *_optional(otherwise)]
        return LoadOp.create(
            operands=[source, *indices, *masks],
            result_types=[kind],
            properties={
                "access": access,
                "operandSegmentSizes": _segments(1, len(indices), mask is not None, otherwise is not None),
            },
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        source = parser.parse_unresolved_operand()
        access, indices = parse_access_list(parser)
        mask: UnresolvedOperand | None = None
        otherwise: UnresolvedOperand | None = None
        if parser.parse_optional_keyword("mask") is not None:
            mask = parser.parse_unresolved_operand()
            parser.parse_keyword("else")
            otherwise = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source_type = parser.parse_type()
        parser.parse_punctuation("->")
        kind = parser.parse_type()
        return cls(
            operands=[
                [parser.resolve_operand(source, source_type)],
                indices,
                [] if mask is None else [parser.resolve_operand(mask, like(kind, i1))],
                [] if otherwise is None else [parser.resolve_operand(otherwise, kind)],
            ],
            result_types=[kind],
            properties={"access": access},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.source)
        print_access_list(printer, self.access.exprs, self.indices)
        if self.mask is not None and self.otherwise is not None:
            printer.print_string(" mask ")
            printer.print_operand(self.mask)
            printer.print_string(" else ")
            printer.print_operand(self.otherwise)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.source.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        _verify_shaped(self.name, self.source, self.access, self.indices)
        element = element_in_register(self.source.type)
        kind = self.result.type
        lanes = _vector_of(self.indices)
        if kind != (like(kind, element) if lanes is None else like(lanes, element)):
            raise VerifyException(f"`loop.load` from {self.source.type} gives {element}, found {kind}")
        if (self.mask is None) != (self.otherwise is None):
            raise VerifyException("`loop.load` has a mask without `else` or the other way round")
        if self.mask is None or self.otherwise is None:
            return
        if self.mask.type != like(kind, i1) or self.otherwise.type != kind:
            raise VerifyException(f"`loop.load` of {kind} has mask {self.mask.type} and `else` {self.otherwise.type}")


def _optional(value: SSAValue | None) -> list[SSAValue]:
    return [] if value is None else [value]


@lru_cache
def _segments(*sizes: int) -> Attribute:
    """Return the property that says how many operands each of an operation's operand definitions has."""
    return DenseArrayBase.from_list(i32, sizes)


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Store an element: `loop.store %v, %o[%i, %k] : f32, tensor<...>`.

    With `combine "sum"` the element is combined with what is there: atomically among parallel iterations, in turn in a
    `loop.scan`. With `mask %m` an access whose mask is false touches no memory.
    """

    name = "loop.store"
    value = operand_def()
    target = operand_def()
    indices = var_operand_def()
    mask = opt_operand_def()
    access = prop_def(MapAttr)
    combine = opt_prop_def(StringAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(StoreEffect())

    @staticmethod
    def get(
        value: SSAValue,
        target: SSAValue,
        exprs: Iterable[Expr],
        indices: Sequence[SSAValue],
        *,
        mask: SSAValue | None = None,
        combine: str | None = None,
    ) -> StoreOp:
        """Store `value` to `target` at `exprs`, in which `d<i>` stands for `indices[i]`."""
        access, indices = normalize_access(exprs, indices)
        properties: dict[str, Attribute] = {
            "access": access,
            "operandSegmentSizes": _segments(1, 1, len(indices), mask is not None),
        }
        if combine is not None:
            properties["combine"] = StringAttr(combine)
        return StoreOp.create(operands=[value, target, *indices, *_optional(mask)], properties=properties)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        target = parser.parse_unresolved_operand()
        access, indices = parse_access_list(parser)
        properties: dict[str, Attribute] = {"access": access}
        if parser.parse_optional_keyword("combine") is not None:
            properties["combine"] = StringAttr(parser.parse_str_literal())
        mask: UnresolvedOperand | None = None
        if parser.parse_optional_keyword("mask") is not None:
            mask = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        parser.parse_punctuation(",")
        target_type = parser.parse_type()
        return cls(
            operands=[
                [parser.resolve_operand(value, kind)],
                [parser.resolve_operand(target, target_type)],
                indices,
                [] if mask is None else [parser.resolve_operand(mask, like(kind, i1))],
            ],
            properties=properties,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.value)
        printer.print_string(", ")
        printer.print_operand(self.target)
        print_access_list(printer, self.access.exprs, self.indices)
        if self.combine is not None:
            printer.print_string(" combine ")
            printer.print_string_literal(self.combine.data)
        if self.mask is not None:
            printer.print_string(" mask ")
            printer.print_operand(self.mask)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.value.type)
        printer.print_string(", ")
        printer.print_attribute(self.target.type)

    def verify_(self) -> None:
        _verify_shaped(self.name, self.target, self.access, self.indices)
        element = element_in_register(self.target.type)
        kind = self.value.type
        lanes = _vector_of(self.indices)
        if kind != (like(kind, element) if lanes is None else like(lanes, element)):
            raise VerifyException(f"`loop.store` to {self.target.type} takes {element}, found {kind}")
        if self.mask is not None and self.mask.type != like(kind, i1):
            raise VerifyException(f"`loop.store` of {kind} has a mask of type {self.mask.type}")
        if self.combine is not None:
            verify_combine(self.name, self.combine.data, kind)


@irdl_op_definition
class ApplyOp(IRDLOperation):
    """The value of an index expression, in lanes where an index holds lanes: `%n = loop.apply (%i + 3) : index`."""

    name = "loop.apply"
    indices = var_operand_def()
    access = prop_def(MapAttr)
    result = result_def()
    traits = traits_def(Pure())

    @staticmethod
    def get(expr: Expr, indices: Sequence[SSAValue]) -> ApplyOp:
        """Evaluate `expr`, in which `d<i>` stands for `indices[i]`."""
        access, indices = normalize_access([expr], indices)
        kind = _access_type(IndexType(), indices)
        return ApplyOp.create(operands=indices, result_types=[kind], properties={"access": access})

    @property
    def expr(self) -> Expr:
        return self.access.exprs[0]

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        indices: list[SSAValue] = []
        parser.parse_punctuation("(")
        expr = parse_access(parser, indices)
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        access, indices = normalize_access([expr], indices)
        return cls.create(operands=indices, result_types=[kind], properties={"access": access}, attributes=attributes)

    def print(self, printer: Printer) -> None:
        access, indices = normalize_access([self.expr], self.indices)
        printer.print_string(" (")
        print_access(printer, access.exprs[0], indices)
        printer.print_string(")")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        verify_access(self.name, self.access, self.indices)
        if len(self.access.exprs) != 1:
            raise VerifyException(f"`loop.apply` has {len(self.access.exprs)} expressions, expected one")
        expected = _access_type(IndexType(), self.indices)
        if self.result.type != expected:
            raise VerifyException(f"`loop.apply` has result type {self.result.type}, expected {expected}")


@irdl_op_definition
class ViewOp(IRDLOperation):
    """A tensor whose elements are elements of another: element `j` of the result is element `map(j)` of the source.

    `%y = loop.view %x <(d0, d1) -> (d1, d0)> : tensor<...> to tensor<...>`. It moves nothing and shares the
    source's memory.
    """

    name = "loop.view"
    source = operand_def(TensorType)
    access = prop_def(MapAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$source $access attr-dict `:` type($source) `to` type($result)"

    @staticmethod
    def get(source: SSAValue, access: MapAttr, kind: Attribute) -> ViewOp:
        return ViewOp.create(operands=[source], result_types=[kind], properties={"access": access})

    def verify_(self) -> None:
        source, result = verify_layout(self.source.type), verify_layout(self.result.type)
        if self.access.num_dims != len(result.sizes) or len(self.access.exprs) != len(source.sizes):
            raise VerifyException(
                f"`loop.view` from rank {len(source.sizes)} to rank {len(result.sizes)} has a map from "
                f"{self.access.num_dims} to {len(self.access.exprs)} indices"
            )
        if element_in_register(self.source.type) != element_in_register(self.result.type):
            raise VerifyException(
                f"`loop.view` cannot change the element type from {self.source.type} to {self.result.type}"
            )
