"""The check of the `loop` dialect: what makes a program fail with an exception instead of doing what it must not."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

from xdsl.dialects.builtin import StringAttr, i1
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.loop_scalar import is_scalar_type, like

ERRORS: Mapping[str, type[Exception]] = MappingProxyType({"IndexError": IndexError, "RuntimeError": RuntimeError})
"""The exceptions that a check may lead to, by name."""


def split_error(error: str) -> tuple[type[Exception], str]:
    """Return the exception type and the message that the text of a check stands for.

    Raises `VerifyException` for a text that does not begin with the name of one of `ERRORS`.
    """
    name, colon, message = error.partition(": ")
    if name not in ERRORS or not colon or not message:
        raise VerifyException(f"expected `{'` or `'.join(ERRORS)}`, a colon and a message, found `{error}`")
    return ERRORS[name], message


@irdl_op_definition
class CheckOp(IRDLOperation):
    """`%r = loop.check %ok, %v else "IndexError: index out of range" : i64` is `%v`, provided that `%ok` holds.

    Where it does not, `%r` is zero and the program ends with that exception after the kernel has run. So what uses `%r`
    need not be skipped: it works on a value that does no harm. Like a division, a check may be shared, computed again
    where its value is wanted again, or dropped with its last use; it must not be made for points that are not there.
    """

    name = "loop.check"
    condition = operand_def()
    value = operand_def()
    result = result_def()
    error = prop_def(StringAttr)
    traits = traits_def(Pure())

    @staticmethod
    def get(condition: SSAValue, value: SSAValue, error: str) -> CheckOp:
        return CheckOp.create(
            operands=[condition, value], result_types=[value.type], properties={"error": StringAttr(error)}
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        condition = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        value = parser.parse_unresolved_operand()
        parser.parse_keyword("else")
        error = parser.parse_str_literal()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        operands = parser.resolve_operands([condition, value], [like(kind, i1), kind], parser.pos)
        return cls.create(
            operands=operands, result_types=[kind], properties={"error": StringAttr(error)}, attributes=attributes
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_string(" else ")
        printer.print_string_literal(self.error.data)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        kind = self.result.type
        if not is_scalar_type(kind) or self.value.type != kind:
            raise VerifyException(f"`loop.check` of {self.value.type} has result type {kind}")
        if self.condition.type != like(kind, i1):
            raise VerifyException(f"`loop.check` of {kind} has a condition of type {self.condition.type}")
        try:
            split_error(self.error.data)
        except VerifyException as error:
            raise VerifyException(f"`loop.check` has a text without an exception: {error}") from error
