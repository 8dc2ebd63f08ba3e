"""The atomic operations of the `tt` dialect; see `dialects/tt.py`."""

from __future__ import annotations

from typing import Self

from xdsl.dialects.builtin import StringAttr, i1
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, opt_operand_def, prop_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.arith_tensor import element_of, like
from tilewright.dialects.tt_memory import parse_operands
from tilewright.dialects.tt_types import GivesBlocks, ReadsAndWrites, verify_choice, verify_pointer, verify_same
from tilewright.dialects.type_guards import is_integer

RMW_KINDS = ("and", "or", "xor", "add", "fadd", "max", "min", "umax", "umin", "exch")
SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")
SCOPES = ("gpu", "cta", "sys")


@irdl_op_definition
class AtomicRMWOp(IRDLOperation):
    """Update memory atomically and give what was there:
    `%o = tt.atomic_rmw fadd, relaxed, gpu, %p, %v, %mask : (tensor<16x!tt.ptr<f32>>, tensor<16xf32>, tensor<16xi1>)
    -> tensor<16xf32>`. The mask may be left out.
    """

    name = "tt.atomic_rmw"
    atomic_rmw_op = prop_def(StringAttr)
    sem = prop_def(StringAttr)
    scope = prop_def(StringAttr)
    ptr = operand_def()
    val = operand_def()
    mask = opt_operand_def()
    result = result_def()
    traits = traits_def(ReadsAndWrites(), GivesBlocks())

    @staticmethod
    def get(
        kind: str,
        pointer: SSAValue,
        value: SSAValue,
        mask: SSAValue | None = None,
        *,
        sem: str = "relaxed",
        scope: str = "gpu",
    ) -> AtomicRMWOp:
        """Combine `value` into memory; `kind` is one of `RMW_KINDS`."""
        return AtomicRMWOp.create(
            operands=[pointer, value] if mask is None else [pointer, value, mask],
            result_types=[value.type],
            properties={
                "atomic_rmw_op": StringAttr(kind),
                "sem": StringAttr(sem),
                "scope": StringAttr(scope),
            },
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        words: list[StringAttr] = []
        for _ in range(3):
            words.append(StringAttr(parser.parse_identifier()))
            parser.parse_punctuation(",")
        operands, kind, attributes = _parse_functional(parser, 3)
        properties = dict(zip(("atomic_rmw_op", "sem", "scope"), words, strict=True))
        return cls.create(operands=operands, result_types=[kind], properties={**properties}, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.atomic_rmw_op.data}, {self.sem.data}, {self.scope.data}, ")
        _print_functional(printer, self)

    def verify_(self) -> None:
        verify_choice(self.name, "an operation", self.atomic_rmw_op, RMW_KINDS)
        verify_choice(self.name, "semantics", self.sem, SEMANTICS)
        verify_choice(self.name, "a scope", self.scope, SCOPES)
        value = verify_pointer(self, self.ptr.type)
        verify_same(self, "a value", self.val.type, value)
        verify_same(self, "a result", self.result.type, value)
        kind = self.atomic_rmw_op.data
        if kind != "exch" and is_integer(element_of(value)) == (kind == "fadd"):
            raise VerifyException(f"`tt.atomic_rmw {kind}` cannot update {element_of(value)}")
        if self.mask is not None:
            verify_same(self, "a mask", self.mask.type, like(value, i1))


@irdl_op_definition
class AtomicCASOp(IRDLOperation):
    """Store `%v` where memory holds `%c`, atomically, and give what was there:
    `%o = tt.atomic_cas acq_rel, gpu, %p, %c, %v : (!tt.ptr<i32>, i32, i32) -> i32`.
    """

    name = "tt.atomic_cas"
    sem = prop_def(StringAttr)
    scope = prop_def(StringAttr)
    ptr = operand_def()
    cmp = operand_def()
    val = operand_def()
    result = result_def()
    traits = traits_def(ReadsAndWrites(), GivesBlocks())

    @staticmethod
    def get(
        pointer: SSAValue, compare: SSAValue, value: SSAValue, *, sem: str = "acq_rel", scope: str = "gpu"
    ) -> AtomicCASOp:
        return AtomicCASOp.create(
            operands=[pointer, compare, value],
            result_types=[value.type],
            properties={"sem": StringAttr(sem), "scope": StringAttr(scope)},
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        sem = parser.parse_identifier()
        parser.parse_punctuation(",")
        scope = parser.parse_identifier()
        parser.parse_punctuation(",")
        operands, kind, attributes = _parse_functional(parser, 3)
        properties: dict[str, Attribute] = {"sem": StringAttr(sem), "scope": StringAttr(scope)}
        return cls.create(operands=operands, result_types=[kind], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.sem.data}, {self.scope.data}, ")
        _print_functional(printer, self)

    def verify_(self) -> None:
        verify_choice(self.name, "semantics", self.sem, SEMANTICS)
        verify_choice(self.name, "a scope", self.scope, SCOPES)
        value = verify_pointer(self, self.ptr.type)
        verify_same(self, "a value to compare with", self.cmp.type, value)
        verify_same(self, "a value", self.val.type, value)
        verify_same(self, "a result", self.result.type, value)


def _parse_functional(parser: Parser, most: int) -> tuple[list[SSAValue], Attribute, dict[str, Attribute]]:
    """Parse operands and a function type: `%p, %v : (!tt.ptr<f32>, f32) -> f32`."""
    names = parse_operands(parser, most)
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    parser.parse_punctuation("->")
    operands = parser.resolve_operands(names, types, parser.pos)
    return list(operands), parser.parse_type(), attributes


def _print_functional(printer: Printer, op: AtomicRMWOp | AtomicCASOp) -> None:
    printer.print_list(op.operands, printer.print_operand)
    printer.print_op_attributes(op.attributes)
    printer.print_string(" : (")
    printer.print_list([o.type for o in op.operands], printer.print_attribute)
    printer.print_string(") -> ")
    printer.print_attribute(op.result.type)
