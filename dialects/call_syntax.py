"""The arguments of a call to an ATen operator, by schema name; shared by `aten.call` and `host.call`.

In memory the arguments are a dictionary from name to attribute, where `#aten.operand<i>` stands for operand `i`; in
text the operand is written in its place: `(self = %x, other = [%a, none], alpha = 2 : i64)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    NoneAttr,
    NoneType,
    StringAttr,
)
from xdsl.ir import Attribute, Data, ParametrizedAttribute, SSAValue
from xdsl.irdl import IRDLOperation, irdl_attr_definition, param_def, prop_def, var_operand_def, var_result_def
from xdsl.parser import AttrParser, Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects import aten_schema
from tilewright.dialects.aten_schema import Element, Kind
from tilewright.dialects.loop_access import verify_layout
from tilewright.dialects.sym import ExprAttr, IntsAttr
from tilewright.dialects.type_guards import is_array, is_memref, is_tensor


@irdl_attr_definition
class OperandAttr(Data[int]):
    """Stands for operand `i` of the call it belongs to: `#aten.operand<0>`."""

    name = "aten.operand"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> int:
        with parser.in_angle_brackets():
            return parser.parse_integer(allow_boolean=False, allow_negative=False)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")


class _NameAttr(Data[str]):
    """An attribute that holds one name, written as a string."""

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> str:
        with parser.in_angle_brackets():
            return parser.parse_str_literal()

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string("<")
        printer.print_string_literal(self.data)
        printer.print_string(">")


@irdl_attr_definition
class DeviceAttr(_NameAttr):
    """A device argument: `#aten.device<"cuda:0">`."""

    name = "aten.device"


@irdl_attr_definition
class MemoryFormatAttr(_NameAttr):
    """A memory format argument: `#aten.memory_format<"channels_last">`."""

    name = "aten.memory_format"


@irdl_attr_definition
class LayoutKindAttr(_NameAttr):
    """A layout argument: `#aten.layout<"strided">`."""

    name = "aten.layout"


@irdl_attr_definition
class DtypeAttr(ParametrizedAttribute):
    """A dtype argument, as the element type of tensors that have it: `#aten.dtype<bf16>`."""

    name = "aten.dtype"
    element_type: Attribute = param_def()


@irdl_attr_definition
class ComplexAttr(Data[tuple[float, float]]):
    """A complex scalar argument: `#aten.complex<"1.0", "-inf">`."""

    name = "aten.complex"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[float, float]:
        def part() -> float:
            position = parser.pos
            text = parser.parse_str_literal()
            try:
                return float(text)
            except ValueError:
                parser.raise_error(f"`{text}` is not a number", position)

        with parser.in_angle_brackets():
            real = part()
            parser.parse_punctuation(",")
            return real, part()

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f'<"{self.data[0]!r}", "{self.data[1]!r}">')


ARGUMENT_ATTRS = (OperandAttr, DeviceAttr, MemoryFormatAttr, LayoutKindAttr, DtypeAttr, ComplexAttr)


@dataclass(frozen=True)
class _Pending:
    """Arguments as parsed, with operands to be resolved once the types are known."""

    arguments: dict[str, Attribute]
    operands: list[UnresolvedOperand]


def parse_arguments(parser: Parser) -> tuple[dict[str, Attribute], list[UnresolvedOperand]]:
    """Parse `(name = value, ..)`; return the arguments, and the operands that `#aten.operand` counts."""
    pending = _Pending({}, [])

    def parse_value() -> Attribute:
        operand = parser.parse_optional_unresolved_operand()
        if operand is not None:
            pending.operands.append(operand)
            return OperandAttr(len(pending.operands) - 1)
        if parser.parse_optional_keyword("none") is not None:
            return NoneAttr()
        items = parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, parse_value)
        if items is not None:
            return ArrayAttr(items)
        return parser.parse_attribute()

    def parse_one() -> None:
        position = parser.pos
        name = parser.parse_identifier()
        if name in pending.arguments:
            parser.raise_error(f"argument `{name}` is given twice", position)
        parser.parse_punctuation("=")
        pending.arguments[name] = parse_value()

    parser.parse_comma_separated_list(parser.Delimiter.PAREN, parse_one)
    return pending.arguments, pending.operands


def print_arguments(printer: Printer, arguments: Mapping[str, Attribute], operands: Sequence[SSAValue]) -> None:
    """Print `(name = value, ..)`."""

    def print_value(value: Attribute) -> None:
        match value:
            case OperandAttr():
                printer.print_operand(operands[value.data])
            case NoneAttr():
                printer.print_string("none")
            case ArrayAttr():
                printer.print_string("[")
                printer.print_list(value.data, print_value)
                printer.print_string("]")
            case _:
                printer.print_attribute(value)

    def print_one(item: tuple[str, Attribute]) -> None:
        printer.print_string(f"{item[0]} = ")
        print_value(item[1])

    printer.print_string("(")
    printer.print_list(arguments.items(), print_one)
    printer.print_string(")")


def operand_uses(arguments: Mapping[str, Attribute]) -> Iterator[int]:
    """Yield the operand numbers in the order in which the text names them."""
    for value in arguments.values():
        items = value.data if is_array(value) else (value,)
        for item in items:
            if isinstance(item, OperandAttr):
                yield item.data


def verify_arguments(op: str, arguments: DictionaryAttr, operands: Sequence[SSAValue]) -> None:
    """Check the arguments against the operands and, where the operator is known, against its schema."""
    uses = list(operand_uses(arguments.data))
    if uses != list(range(len(operands))):
        raise VerifyException(f"call of `{op}` has {len(operands)} operands but its arguments name operands {uses}")
    schema = aten_schema.lookup(op)
    if schema is None:
        if op.startswith(("aten.", "prims.")):
            raise VerifyException(f"there is no operator `{op}`")
        return
    for number, operand in enumerate(operands):
        if not is_tensor(operand.type) and not is_memref(operand.type):
            raise VerifyException(f"operand {number} of the call of `{op}` is {operand.type}, expected a tensor")
    known = {a.name: a for a in schema.arguments}
    for name, value in arguments.data.items():
        if name not in known:
            raise VerifyException(f"`{op}` has no argument `{name}`; it takes {', '.join(known)}")
        if not _fits(value, known[name].kind):
            raise VerifyException(f"`{op}` takes {known[name].kind} for `{name}`, found {value}")
    missing = [a.name for a in schema.arguments if not a.has_default and a.name not in arguments.data]
    if missing:
        raise VerifyException(f"call of `{op}` lacks the argument `{missing[0]}`")


def verify_results(op: str, count: int) -> None:
    """Check the number of results against the operator's schema, if it is known; a list may have any number."""
    schema = aten_schema.lookup(op)
    if schema is None:
        return
    lists = sum(r.kind.is_list for r in schema.returns)
    least = len(schema.returns) - lists
    if count < least or (count > least and not lists):
        raise VerifyException(f"call of `{op}` has {count} results, expected {'at least ' * bool(lists)}{least}")


_SCALARS: dict[Element, tuple[type[Attribute], ...]] = {
    # A number in a tensor's place is what `x + 2` gives; as a number it takes part in type promotion.
    Element.TENSOR: (OperandAttr, FloatAttr, IntegerAttr, ExprAttr, ComplexAttr),
    Element.INT: (IntegerAttr, ExprAttr),
    Element.SYM_INT: (IntegerAttr, ExprAttr),
    Element.FLOAT: (FloatAttr, IntegerAttr, ExprAttr),
    Element.BOOL: (IntegerAttr,),
    Element.SYM_BOOL: (IntegerAttr,),
    Element.SCALAR: (FloatAttr, IntegerAttr, ExprAttr, ComplexAttr),
    Element.STR: (StringAttr,),
    Element.SCALAR_TYPE: (DtypeAttr,),
    Element.DEVICE: (DeviceAttr,),
    Element.LAYOUT: (LayoutKindAttr,),
    Element.MEMORY_FORMAT: (MemoryFormatAttr,),
    # `Any` in the schemas of collectives, which is a group's name or number.
    Element.OTHER: (StringAttr, IntegerAttr),
}


def _fits(value: Attribute, kind: Kind) -> bool:
    """Whether an attribute can be an argument of a schema type."""
    if isinstance(value, NoneAttr):
        # PyTorch makes an undefined tensor of it: the gradient of attention has no bias where there was none.
        return kind.optional or (kind.element is Element.TENSOR and not kind.is_list)
    if kind.is_list:
        if isinstance(value, IntsAttr):
            return kind.element in (Element.INT, Element.SYM_INT)
        if is_array(value):
            return all(
                isinstance(v, _SCALARS.get(kind.element, ())) or (isinstance(v, NoneAttr) and kind.optional_elements)
                for v in value.data
            )
        if kind.length is None or kind.element is Element.TENSOR:
            return False
    return isinstance(value, _SCALARS.get(kind.element, ()))


def _has_none_type(value: Attribute) -> bool:
    return isinstance(value, NoneType) or (is_array(value) and any(map(_has_none_type, value.data)))


def _replace_none_type(value: Attribute) -> Attribute:
    if is_array(value):
        return ArrayAttr([_replace_none_type(v) for v in value.data])
    return NoneAttr() if isinstance(value, NoneType) else value


class OperatorCall(IRDLOperation):
    """A call of an operator by name; the base of `aten.call` and `host.call`.

    Arguments are given by schema name; those left out have the schema's default. A list of tensors among the returns
    gives one result per tensor; a return that is an undefined tensor has type `none`.
    """

    inputs = var_operand_def()
    op = prop_def(StringAttr)
    arguments = prop_def(DictionaryAttr)
    outputs = var_result_def()

    @classmethod
    def get(
        cls, op: str, arguments: Mapping[str, Attribute], operands: Sequence[SSAValue], results: Sequence[Attribute]
    ) -> Self:
        """Call `op`, such as `aten.add.Tensor`; `#aten.operand<i>` in `arguments` stands for `operands[i]`."""
        properties: dict[str, Attribute] = {"op": StringAttr(op), "arguments": DictionaryAttr(arguments)}
        return cls.create(operands=operands, result_types=results, properties=properties)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Text in the generic form can say `none` too, which xDSL reads as the type of that name.
        arguments = self.properties.get("arguments")
        if isinstance(arguments, DictionaryAttr) and any(map(_has_none_type, arguments.data.values())):
            values = {name: _replace_none_type(value) for name, value in arguments.data.items()}
            self.properties["arguments"] = DictionaryAttr(values)

    @property
    def operator(self) -> str:
        """The operator's full name, with its overload: `aten.add.Tensor`."""
        return self.op.data

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        op = parser.parse_str_literal()
        arguments, unresolved = parse_arguments(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        position = parser.pos
        kind = parser.parse_function_type()
        operands = parser.resolve_operands(unresolved, kind.inputs.data, position)
        call = cls.get(op, arguments, operands, kind.outputs.data)
        call.attributes = attributes
        return call

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_string_literal(self.operator)
        print_arguments(printer, self.arguments.data, self.operands)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_function_type(self.operand_types, self.result_types)  # `print_operation_type` adds a location

    def verify_(self) -> None:
        verify_arguments(self.operator, self.arguments, self.operands)
        verify_results(self.operator, len(self.results))
        for value in (*self.operands, *self.results):
            if is_tensor(value.type) or is_memref(value.type):
                verify_layout(value.type)
