"""The scalar operations that `arith` and `math` lack or restrict to scalars: cast, compare, select, intrinsics.

They work on scalars and, lane by lane, on vectors, and are legal on every level from `loop` down to the CPU's
structured operations. Integers carry no sign; an operation that needs one says `unsigned`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.dialects.builtin import AnyFloat, IndexType, IntegerType, StringAttr, UnitAttr, VectorType, i1
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.operand_syntax import parse_operands
from tilewright.dialects.type_guards import is_vector


def _element(kind: Attribute) -> Attribute:
    return kind.element_type if is_vector(kind) else kind


def _shape(kind: Attribute) -> tuple[int, ...]:
    return kind.get_shape() if is_vector(kind) else ()


def like(kind: Attribute, element: Attribute) -> Attribute:
    """Return `element`, as a vector where `kind` is one, of the same shape."""
    return VectorType(element, kind.get_shape()) if is_vector(kind) else element


def is_scalar_type(kind: Attribute) -> bool:
    """Whether `kind` may be held in a register: a float, a signless integer or index, or a vector of them."""
    element = _element(kind)
    return isinstance(element, (AnyFloat, IntegerType, IndexType))


@irdl_op_definition
class CastOp(IRDLOperation):
    """Convert a value to another scalar type, as `torch.Tensor.to` does.

    Float to integer truncates towards zero; anything to i1 tests for non-zero; f32 to bf16 or f16 rounds to nearest
    even; integers truncate or extend. With `unsigned` the integer side is unsigned. `%b = loop.cast %a : f32 to bf16`.
    """

    name = "loop.cast"
    input = operand_def()
    result = result_def()
    unsigned = opt_prop_def(UnitAttr)
    traits = traits_def(Pure())
    assembly_format = "(`unsigned` $unsigned^)? $input attr-dict `:` type($input) `to` type($result)"

    @staticmethod
    def get(value: SSAValue, target: Attribute, *, unsigned: bool = False) -> CastOp:
        """Cast to the element type `target`, lane by lane if `value` is a vector."""
        properties: dict[str, Attribute] = {"unsigned": UnitAttr()} if unsigned else {}
        return CastOp.create(operands=[value], result_types=[like(value.type, target)], properties=properties)

    def verify_(self) -> None:
        source, target = self.input.type, self.result.type
        if not is_scalar_type(source) or not is_scalar_type(target) or _shape(source) != _shape(target):
            raise VerifyException(f"`loop.cast` cannot convert {source} to {target}")


@irdl_op_definition
class SelectOp(IRDLOperation):
    """`%r = loop.select %c, %a, %b : f32` is `%a` where `%c`, else `%b`; nothing is evaluated lazily."""

    name = "loop.select"
    condition = operand_def()
    if_true = operand_def()
    if_false = operand_def()
    result = result_def()
    traits = traits_def(Pure())

    @staticmethod
    def get(condition: SSAValue, if_true: SSAValue, if_false: SSAValue) -> SelectOp:
        return SelectOp.create(operands=[condition, if_true, if_false], result_types=[if_true.type])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operands = parse_operands(parser, 3)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        values = parser.resolve_operands(operands, [like(kind, i1), kind, kind], parser.pos)
        return cls.create(operands=values, result_types=[kind], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        kind = self.result.type
        if self.condition.type != like(kind, i1):
            raise VerifyException(f"`loop.select` of {kind} has a condition of type {self.condition.type}")
        if not self.if_true.type == self.if_false.type == kind:
            raise VerifyException(f"`loop.select` of {kind} has operands {self.if_true.type} and {self.if_false.type}")


@irdl_op_definition
class CmpOp(IRDLOperation):
    """`%c = loop.cmp "lt" %a, %b : f32` compares, giving i1. With a NaN, only `ne` holds.

    With `unsigned` integers are unsigned.
    """

    PREDICATES: ClassVar = ("eq", "ne", "lt", "le", "gt", "ge")

    name = "loop.cmp"
    lhs = operand_def()
    rhs = operand_def()
    result = result_def()
    predicate = prop_def(StringAttr)
    unsigned = opt_prop_def(UnitAttr)
    traits = traits_def(Pure())

    @staticmethod
    def get(predicate: str, lhs: SSAValue, rhs: SSAValue, *, unsigned: bool = False) -> CmpOp:
        properties: dict[str, Attribute] = {"predicate": StringAttr(predicate)}
        if unsigned:
            properties["unsigned"] = UnitAttr()
        return CmpOp.create(operands=[lhs, rhs], result_types=[like(lhs.type, i1)], properties=properties)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        properties: dict[str, Attribute] = {}
        if parser.parse_optional_keyword("unsigned") is not None:
            properties["unsigned"] = UnitAttr()
        properties["predicate"] = StringAttr(parser.parse_str_literal())
        lhs = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        rhs = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        values = parser.resolve_operands([lhs, rhs], [kind, kind], parser.pos)
        return cls.create(operands=values, result_types=[like(kind, i1)], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" unsigned " if self.unsigned is not None else " ")
        printer.print_string_literal(self.predicate.data)
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.lhs.type)

    def verify_(self) -> None:
        if self.predicate.data not in self.PREDICATES:
            raise VerifyException(
                f"`loop.cmp` has predicate `{self.predicate.data}`, expected one of {', '.join(self.PREDICATES)}"
            )
        if self.lhs.type != self.rhs.type or not is_scalar_type(self.lhs.type):
            raise VerifyException(f"`loop.cmp` cannot compare {self.lhs.type} with {self.rhs.type}")
        if self.result.type != like(self.lhs.type, i1):
            raise VerifyException(f"`loop.cmp` of {self.lhs.type} has result type {self.result.type}")


INTRINSICS: dict[str, tuple[int, str]] = {
    "asinh": (1, "inverse hyperbolic sine"),
    "acosh": (1, "inverse hyperbolic cosine"),
    "erfc": (1, "complementary error function"),
    "exp10": (1, "ten to the power x"),
    "floordiv": (2, "quotient rounded towards negative infinity, as Python's `//`; undefined for an integer zero"),
    "fmod": (2, "remainder with the sign of the dividend, as C's fmod and %"),
    "hypot": (2, "square root of the sum of squares, without undue overflow"),
    "isfinite": (1, "i1: neither infinite nor NaN"),
    "isinf": (1, "i1: infinite"),
    "isnan": (1, "i1: NaN"),
    "lgamma": (1, "logarithm of the absolute value of the gamma function"),
    "nextafter": (2, "the next representable value after x towards y"),
    "powi": (2, "integer power by squaring; a negative exponent gives 0 unless the base is 1 or -1"),
    "remainder": (2, "remainder with the sign of the divisor, as Python's %"),
    "sign": (1, "-1, 0 or 1; 0 for NaN, as in torch"),
    "signbit": (1, "i1: the sign bit is set"),
    "truncdiv": (2, "quotient rounded towards zero"),
}
"""Elementwise functions without an arith or math operation: number of operands and meaning."""

PREDICATE_INTRINSICS = frozenset({"isfinite", "isinf", "isnan", "signbit"})


@irdl_op_definition
class IntrinsicOp(IRDLOperation):
    """`%r = loop.intrinsic "erfc"(%a) : f32`: a named elementwise function of operands of one type; see `INTRINSICS`.

    The result has the operands' type, or i1 for the functions that test something.
    """

    name = "loop.intrinsic"
    arguments = var_operand_def()
    result = result_def()
    function = prop_def(StringAttr)
    unsigned = opt_prop_def(UnitAttr)
    traits = traits_def(Pure())

    @staticmethod
    def get(function: str, *arguments: SSAValue, unsigned: bool = False) -> IntrinsicOp:
        properties: dict[str, Attribute] = {"function": StringAttr(function)}
        if unsigned:
            properties["unsigned"] = UnitAttr()
        kind = arguments[0].type
        result = like(kind, i1) if function in PREDICATE_INTRINSICS else kind
        return IntrinsicOp.create(operands=arguments, result_types=[result], properties=properties)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        properties: dict[str, Attribute] = {}
        if parser.parse_optional_keyword("unsigned") is not None:
            properties["unsigned"] = UnitAttr()
        function = parser.parse_str_literal()
        properties["function"] = StringAttr(function)
        operands = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        values = parser.resolve_operands(operands, [kind] * len(operands), parser.pos)
        result = like(kind, i1) if function in PREDICATE_INTRINSICS else kind
        return cls.create(operands=values, result_types=[result], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" unsigned " if self.unsigned is not None else " ")
        printer.print_string_literal(self.function.data)
        printer.print_string("(")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_string(")")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.operands[0].type)

    def verify_(self) -> None:
        function = self.function.data
        if function not in INTRINSICS:
            raise VerifyException(f"`loop.intrinsic` has no function `{function}`")
        name = f'`loop.intrinsic "{function}"`'
        arity = INTRINSICS[function][0]
        if len(self.operands) != arity:
            raise VerifyException(f"{name} has {len(self.operands)} operands, expected {arity}")
        kind = self.operands[0].type
        if not is_scalar_type(kind) or any(o.type != kind for o in self.operands):
            raise VerifyException(f"{name} has operands of different or unfit types")
        expected = like(kind, i1) if function in PREDICATE_INTRINSICS else kind
        if self.result.type != expected:
            raise VerifyException(f"{name} has result type {self.result.type}, expected {expected}")


SCALAR_OPS: Sequence[type[Operation]] = (CastOp, SelectOp, CmpOp, IntrinsicOp)
