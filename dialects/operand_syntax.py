"""Lists of operands in the syntax of operations, where xDSL's assembly formats don't reach."""

from __future__ import annotations

from xdsl.parser import Parser, UnresolvedOperand


def parse_operands(parser: Parser, count: int) -> list[UnresolvedOperand]:
    """Parse `count` operands with commas in between; how many there are is part of the syntax."""
    operands = [parser.parse_unresolved_operand()]
    for _ in range(count - 1):
        parser.parse_punctuation(",")
        operands.append(parser.parse_unresolved_operand())
    return operands
