"""The syntax of index expressions over SSA values, `[%i, %k floordiv 4 + s0]`, and their normal form.

An access is a `#sym.map` and one operand per dim. In normal form the operands are distinct, all are used, and they are
numbered in the order in which the printed text names them, so that text and memory hold the same thing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.sym import MapAttr, format_expr, format_with_names, parse_expr
from tilewright.dialects.sym_expr import Expr, dim
from tilewright.dialects.type_guards import is_vector

_DIM = re.compile(r"\bd([0-9]+)\b")
_MARK = "\0"


def normalize_access(exprs: Iterable[Expr], operands: Sequence[SSAValue]) -> tuple[MapAttr, list[SSAValue]]:
    """Return the normal form of the access `exprs` over `operands`, where dim `d<i>` stands for operand `i`."""
    exprs = tuple(exprs)
    first: dict[SSAValue, int] = {}
    merge = {dim(i): dim(first.setdefault(value, i)) for i, value in enumerate(operands)}
    if len(first) < len(operands):
        exprs = tuple(e.xreplace(merge) for e in exprs)
    access, order = _normal_form(exprs)
    return access, [operands[i] for i in order]


@lru_cache(maxsize=8192)
def _normal_form(exprs: tuple[Expr, ...]) -> tuple[MapAttr, tuple[int, ...]]:
    """Return `exprs` with their dims numbered as the text names them, and for each of these dims its old number."""
    numbers: tuple[int, ...] | None = None
    while True:
        seen = tuple(dict.fromkeys(int(n) for e in exprs for n in _DIM.findall(format_expr(e))))
        numbers = seen if numbers is None else tuple(numbers[i] for i in seen)
        if seen == tuple(range(len(seen))):
            return MapAttr.get(len(seen), exprs), numbers
        order = {dim(old): dim(new) for new, old in enumerate(seen)}
        exprs = tuple(e.xreplace(order) for e in exprs)


def parse_access(parser: Parser, operands: list[SSAValue]) -> Expr:
    """Parse one expression whose atoms may be SSA values; append those not yet in `operands` to it."""

    def atom() -> Expr | None:
        position = parser.pos
        unresolved = parser.parse_optional_unresolved_operand()
        if unresolved is None:
            return None
        values = parser.ssa_values.get(unresolved.operand_name)
        if values is None or unresolved.index >= len(values):
            parser.raise_error(f"`%{unresolved.operand_name}` is used in an index before it is defined", position)
        value = values[unresolved.index]
        if not is_index(value):
            parser.raise_error(
                f"`%{unresolved.operand_name}` has type {value.type}, expected an index or a vector of index", position
            )
        if value not in operands:
            operands.append(value)
        return dim(operands.index(value))

    return parse_expr(parser, atom)


def parse_access_list(parser: Parser) -> tuple[MapAttr, list[SSAValue]]:
    """Parse `[expr, ..]` into an access in normal form."""
    operands: list[SSAValue] = []
    exprs = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_access(parser, operands))
    return normalize_access(exprs, operands)


def print_access(printer: Printer, expr: Expr, operands: Sequence[SSAValue]) -> None:
    """Print `expr` with its dims written as the names of `operands`."""
    names = {dim(i): f"{_MARK}{i}{_MARK}" for i in range(len(operands))}
    for position, piece in enumerate(format_with_names(expr, names).split(_MARK)):
        if position % 2:
            printer.print_operand(operands[int(piece)])
        elif piece:
            printer.print_string(piece)


def print_access_list(printer: Printer, exprs: Iterable[Expr], operands: Sequence[SSAValue]) -> None:
    """Print `[expr, ..]`, in normal form: what is read back prints as the same text."""
    access, values = normalize_access(exprs, operands)
    printer.print_string("[")
    printer.print_list(access.exprs, lambda e: print_access(printer, e, values))
    printer.print_string("]")


def is_index(value: SSAValue) -> bool:
    """Whether `value` may stand in an index expression: an `index`, or a vector of them."""
    kind = value.type
    return isinstance(kind, IndexType) or (is_vector(kind) and isinstance(kind.element_type, IndexType))


def verify_access(name: str, access: MapAttr, operands: Sequence[SSAValue]) -> None:
    """Raise `VerifyException` unless `access` has one dim per operand and all operands are indices."""
    if access.num_dims != len(operands):
        raise VerifyException(f"`{name}` has {len(operands)} index operands, its map has {access.num_dims} dims")
    for operand in operands:
        if not is_index(operand):
            raise VerifyException(f"`{name}` has an index operand of type {operand.type}, expected index")
    lanes = [o.type for o in operands if is_vector(o.type)]
    if any(kind != lanes[0] for kind in lanes):
        raise VerifyException(f"`{name}` has index operands of different numbers of lanes")
