"""Operations of the `tt` dialect that compute, beside those of `arith` and `math`; see `dialects/tt.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.dialects.builtin import (
    AnyFloat,
    BoolAttr,
    FixedBitwidthType,
    Float32Type,
    Float64Type,
    IntegerAttr,
    StringAttr,
    TensorType,
    i1,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
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
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind, Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.arith_tensor import element_of, like
from tilewright.dialects.operand_syntax import parse_operands
from tilewright.dialects.tt_types import GivesBlocks, PointerType, shape_of, verify_choice, verify_same
from tilewright.dialects.type_guards import is_integer, is_integer_constant

PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
ROUNDINGS = ("rtz", "rtne", "rs")
NAN_RULES = ("none", "all")


@irdl_op_definition
class DotOp(IRDLOperation):
    """A matrix product plus a matrix:
    `%d = tt.dot %a, %b, %c, inputPrecision = tf32 : tensor<16x64xf16> * tensor<64x16xf16> -> tensor<16x16xf32>`.

    The precision `ieee` is not written.
    """

    name = "tt.dot"
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    c = operand_def(TensorType)
    inputPrecision = prop_def(StringAttr, default_value=StringAttr("ieee"))
    result = result_def(TensorType)
    traits = traits_def(Pure(), GivesBlocks())

    @staticmethod
    def get(a: SSAValue, b: SSAValue, c: SSAValue, *, precision: str = "ieee") -> DotOp:
        return DotOp.create(
            operands=[a, b, c], result_types=[c.type], properties={"inputPrecision": StringAttr(precision)}
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names = parse_operands(parser, 3)
        precision = _parse_word(parser, "inputPrecision")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        a = parser.parse_type()
        parser.parse_characters("*")
        b = parser.parse_type()
        parser.parse_punctuation("->")
        kind = parser.parse_type()
        return cls.create(
            operands=parser.resolve_operands(names, [a, b, kind], parser.pos),
            result_types=[kind],
            properties={"inputPrecision": StringAttr(precision or "ieee")},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        if self.inputPrecision.data != "ieee":
            printer.print_string(f", inputPrecision = {self.inputPrecision.data}")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.a.type)
        printer.print_string(" * ")
        printer.print_attribute(self.b.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        verify_choice(self.name, "inputPrecision", self.inputPrecision, PRECISIONS)
        verify_same(self, "an addend", self.c.type, self.result.type)
        a, b, c = (shape_of(v.type) for v in (self.a, self.b, self.c))
        if len(a) not in (2, 3) or len(a) != len(b) or a[-1] != b[-2] or c != (*a[:-1], b[-1]) or a[:-2] != b[:-2]:
            raise VerifyException(f"`tt.dot` cannot multiply {self.a.type} by {self.b.type} to {self.result.type}")
        if element_of(self.a.type) != element_of(self.b.type):
            raise VerifyException(f"`tt.dot` has factors of different elements, {self.a.type} and {self.b.type}")


def _parse_word(parser: Parser, name: str) -> str | None:
    """Parse `, name = word` if it is there."""
    if parser.parse_optional_punctuation(",") is None:
        return None
    parser.parse_keyword(name)
    parser.parse_punctuation("=")
    return parser.parse_identifier()


@irdl_op_definition
class FpToFpOp(IRDLOperation):
    """Convert floats with a given rounding: `%r = tt.fp_to_fp %a, rounding = rtne : tensor<16xf32> -> tensor<16xf16>`.

    Widening needs no rounding. Types of 8 bits are converted by this operation alone.
    """

    name = "tt.fp_to_fp"
    src = operand_def()
    rounding = opt_prop_def(StringAttr)
    result = result_def()
    traits = traits_def(Pure(), GivesBlocks())

    @staticmethod
    def get(value: SSAValue, target: Attribute, *, rounding: str | None = None) -> FpToFpOp:
        """Convert to the element type `target`."""
        return FpToFpOp.create(
            operands=[value],
            result_types=[like(value.type, target)],
            properties={} if rounding is None else {"rounding": StringAttr(rounding)},
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = parser.parse_unresolved_operand()
        rounding = _parse_word(parser, "rounding")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        operand = parser.resolve_operand(name, parser.parse_type())
        parser.parse_punctuation("->")
        return cls.create(
            operands=[operand],
            result_types=[parser.parse_type()],
            properties={} if rounding is None else {"rounding": StringAttr(rounding)},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.src)
        if self.rounding is not None:
            printer.print_string(f", rounding = {self.rounding.data}")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.src.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        source, target = self.src.type, self.result.type
        elements = element_of(source), element_of(target)
        if not all(isinstance(e, AnyFloat) for e in elements) or shape_of(source) != shape_of(target):
            raise VerifyException(f"`tt.fp_to_fp` cannot convert {source} to {target}")
        if self.rounding is not None:
            verify_choice(self.name, "a rounding", self.rounding, ROUNDINGS)
        if (self.rounding is None) == (_width(elements[1]) < _width(elements[0])):
            raise VerifyException(f"`tt.fp_to_fp` of {source} to {target} has a rounding if and only if it narrows")


def _width(element: Attribute) -> int:
    """Return how many bits an element has; a pointer has 64."""
    if isinstance(element, PointerType):
        return 64
    return element.bitwidth if isinstance(element, FixedBitwidthType) else 0


@irdl_op_definition
class BitcastOp(IRDLOperation):
    """The same bits as another type: `%r = tt.bitcast %a : tensor<16xf32> -> tensor<16xi32>`."""

    name = "tt.bitcast"
    src = operand_def()
    result = result_def()
    traits = traits_def(Pure(), GivesBlocks())
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"

    @staticmethod
    def get(value: SSAValue, target: Attribute) -> BitcastOp:
        """Make the bits a value of the element type `target`."""
        return BitcastOp.create(operands=[value], result_types=[like(value.type, target)])

    def verify_(self) -> None:
        source, target = self.src.type, self.result.type
        if shape_of(source) != shape_of(target) or _width(element_of(source)) != _width(element_of(target)):
            raise VerifyException(f"`tt.bitcast` cannot make {source} a {target}")


@irdl_op_definition
class ClampfOp(IRDLOperation):
    """Bring into a range: `%r = tt.clampf %x, %min, %max, propagateNan = all : tensor<16xf32>`.

    With `none` a NaN becomes the lower end.
    """

    name = "tt.clampf"
    x = operand_def()
    min = operand_def()
    max = operand_def()
    propagateNan = prop_def(StringAttr)
    result = result_def()
    traits = traits_def(Pure(), GivesBlocks())

    @staticmethod
    def get(x: SSAValue, low: SSAValue, high: SSAValue, *, propagate_nan: bool = True) -> ClampfOp:
        return ClampfOp.create(
            operands=[x, low, high],
            result_types=[x.type],
            properties={"propagateNan": StringAttr("all" if propagate_nan else "none")},
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names = parse_operands(parser, 3)
        rule = _parse_word(parser, "propagateNan")
        if rule is None:
            parser.raise_error("expected `, propagateNan = `")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        return cls.create(
            operands=parser.resolve_operands(names, [kind] * 3, parser.pos),
            result_types=[kind],
            properties={"propagateNan": StringAttr(rule)},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_string(f", propagateNan = {self.propagateNan.data}")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        verify_choice(self.name, "propagateNan", self.propagateNan, NAN_RULES)
        _verify_elementwise(self, floats=True)


def _verify_elementwise(op: Operation, *, floats: bool) -> None:
    kind = op.results[0].type
    element = element_of(kind)
    if not (isinstance(element, AnyFloat) if floats else is_integer(element)):
        raise VerifyException(f"`{op.name}` computes with {'floats' if floats else 'integers'}, found {kind}")
    for operand in op.operands:
        verify_same(op, "an operand", operand.type, kind)


class _ElementwiseOp(IRDLOperation):
    """Base of the operations whose operands and result have one type: `%r = tt.mulhiui %a, %b : tensor<16xi32>`."""

    ARITY: ClassVar = 2
    FLOATS: ClassVar = True

    arguments = var_operand_def()
    result = result_def()
    traits = traits_def(Pure(), GivesBlocks())

    @classmethod
    def get(cls, *arguments: SSAValue) -> Self:
        return cls.create(operands=arguments, result_types=[arguments[0].type])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        operands = parser.resolve_operands(names, [kind] * len(names), parser.pos)
        return cls.create(operands=operands, result_types=[kind], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        if len(self.arguments) != self.ARITY:
            raise VerifyException(f"`{self.name}` has {len(self.arguments)} operands, expected {self.ARITY}")
        _verify_elementwise(self, floats=self.FLOATS)


@irdl_op_definition
class MulhiUIOp(_ElementwiseOp):
    """The upper half of an unsigned product: `%h = tt.mulhiui %a, %b : tensor<16xi32>`."""

    name = "tt.mulhiui"
    FLOATS: ClassVar = False


@irdl_op_definition
class PreciseDivFOp(_ElementwiseOp):
    """A quotient rounded as IEEE 754 says, which `arith.divf` is not on a GPU: `%q = tt.precise_divf %a, %b : f32`."""

    name = "tt.precise_divf"


@irdl_op_definition
class PreciseSqrtOp(_ElementwiseOp):
    """A square root rounded as IEEE 754 says, which `math.sqrt` is not on a GPU: `%r = tt.precise_sqrt %a : f32`."""

    name = "tt.precise_sqrt"
    ARITY: ClassVar = 1


class ExternEffect(MemoryEffect):
    """What a foreign function does is unknown unless it says that it is pure."""

    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance]:
        pure = op.properties.get("pure")
        if pure is not None and is_integer_constant(pure) and pure.value.data:
            return set()
        return {EffectInstance(MemoryEffectKind.READ), EffectInstance(MemoryEffectKind.WRITE)}


@irdl_op_definition
class ExternElementwiseOp(IRDLOperation):
    """A foreign function of each element:
    `%r = tt.extern_elementwise %a {libname = "libdevice", libpath = "", pure = true, symbol = "__nv_expf"} :
    (tensor<16xf32>) -> tensor<16xf32>`.
    """

    name = "tt.extern_elementwise"
    srcs = var_operand_def()
    libname = prop_def(StringAttr)
    libpath = prop_def(StringAttr)
    symbol = prop_def(StringAttr)
    pure = prop_def(IntegerAttr.constr(i1))
    result = result_def()
    traits = traits_def(ExternEffect(), GivesBlocks())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$srcs attr-dict `:` `(` type($srcs) `)` `->` type($result)"

    @staticmethod
    def get(symbol: str, arguments: Sequence[SSAValue], result: Attribute | None = None) -> ExternElementwiseOp:
        """Call a function of libdevice; the result has the type of the first argument, or else `result`."""
        return ExternElementwiseOp.create(
            operands=arguments,
            result_types=[arguments[0].type if result is None else result],
            properties={
                "libname": StringAttr("libdevice"),
                "libpath": StringAttr(""),
                "pure": BoolAttr.from_bool(True),
                "symbol": StringAttr(symbol),
            },
        )

    def verify_(self) -> None:
        if not self.srcs:
            raise VerifyException("`tt.extern_elementwise` has no operand, expected at least one")
        shape = shape_of(self.result.type)
        for operand in self.srcs:
            if shape_of(operand.type) != shape:
                raise VerifyException(
                    f"`tt.extern_elementwise` has operands and results of different shapes, "
                    f"{operand.type} and {self.result.type}"
                )
            if self.libname.data == "libdevice" and not _is_of_libdevice(element_of(operand.type)):
                raise VerifyException(f"`{self.symbol.data}` of libdevice takes no {operand.type}")


def _is_of_libdevice(element: Attribute) -> bool:
    """Whether functions of libdevice work on a type; none does on floats of 16 bits."""
    return isinstance(element, (Float32Type, Float64Type)) or is_integer(element)
