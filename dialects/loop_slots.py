"""What `loop.combine` and `loop.prefix` share: a combiner's name, and an operand for each of its slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.combiners import COMBINERS


def parse_slots(parser: Parser) -> tuple[StringAttr, Sequence[SSAValue], dict[str, Attribute]]:
    """Parse `"argmax" %v, %k {..} : f32, i64`. Return the combiner, the operands and the attributes."""
    combiner = StringAttr(parser.parse_str_literal())
    values = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    position = parser.pos
    kinds = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    return combiner, parser.resolve_operands(values, kinds, position), attributes


def print_slots(
    printer: Printer, combiner: StringAttr, values: Sequence[SSAValue], attributes: Mapping[str, Attribute]
) -> None:
    """Print what `parse_slots` reads."""
    printer.print_string(" ")
    printer.print_string_literal(combiner.data)
    printer.print_string(" ")
    printer.print_list(values, printer.print_operand)
    printer.print_op_attributes(dict(attributes))
    printer.print_string(" : ")
    printer.print_list(values, lambda v: printer.print_attribute(v.type))


def verify_slots(op: str, combiner: StringAttr, values: Sequence[SSAValue]) -> None:
    """Raise `VerifyException` unless the combiner of `op` exists and `values` has one value for each of its slots."""
    found = COMBINERS.get(combiner.data)
    if found is None:
        raise VerifyException(f"`{op}` has an unknown combiner `{combiner.data}`")
    if len(values) != found.arity:
        raise VerifyException(f"`{op}` has {len(values)} operands, `{combiner.data}` has {found.arity} slots")
