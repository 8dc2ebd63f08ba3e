"""xDSL's `arith`, where compare, select and casts of integers take tensors too, and casts of floats are verified.

MLIR allows tensors in every elementwise operation of `arith`; xDSL restricts these to scalars, and lets floats be
widened to narrower ones and to tensors. The classes here keep xDSL's names and syntax and are subclasses of its own, so
code for scalars holds. `Arith` is the dialect that our tools
register, and `like` makes the types.
"""

from __future__ import annotations

from typing import ClassVar, Self

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloatConstr,
    FixedBitwidthType,
    IntegerAttr,
    IntegerType,
    TensorType,
    VectorType,
    container_of,
    i1,
    i64,
)
from xdsl.ir import Attribute, Dialect, Operation, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.operand_syntax import parse_operands
from tilewright.dialects.type_guards import is_tensor, is_vector


def like(kind: Attribute, element: Attribute) -> Attribute:
    """Return `element`, in a tensor or vector of the shape of `kind` where that is one."""
    if is_tensor(kind):
        return TensorType(element, kind.shape)
    return VectorType(element, kind.shape) if is_vector(kind) else element


def element_of(kind: Attribute) -> Attribute:
    """Return the type of one element of `kind`, which is `kind` itself for a scalar."""
    return kind.element_type if is_tensor(kind) or is_vector(kind) else kind


def _predicate(given: int | str, names: list[str]) -> IntegerAttr[IntegerType]:
    if isinstance(given, str):
        if given not in names:
            raise VerifyException(f"unknown comparison mnemonic: {given}")
        given = names.index(given)
    return IntegerAttr(given, i64)


def _verify_comparison(op: arith.ComparisonOperation) -> None:
    lhs, rhs, result = op.operands[0].type, op.operands[1].type, op.results[0].type
    if lhs != rhs:
        raise VerifyException(f"`{op.name}` cannot compare {lhs} with {rhs}")
    if result != like(lhs, i1):
        raise VerifyException(f"`{op.name}` of {lhs} has result type {result}, expected {like(lhs, i1)}")


@irdl_op_definition
class CmpiOp(arith.CmpiOp):
    """Compare integers: `%c = arith.cmpi slt, %a, %b : tensor<16xi32>` gives tensor<16xi1>."""

    predicate = prop_def(IntegerAttr)
    lhs = operand_def(arith.signlessIntegerLike)
    rhs = operand_def(arith.signlessIntegerLike)
    result = result_def()

    def __init__(self, operand1: Operation | SSAValue, operand2: Operation | SSAValue, arg: int | str):
        lhs = SSAValue.get(operand1)
        IRDLOperation.__init__(
            self,
            operands=[lhs, operand2],
            result_types=[like(lhs.type, i1)],
            properties={"predicate": _predicate(arg, arith.CMPI_COMPARISON_OPERATIONS)},
        )

    def verify_(self) -> None:
        _verify_comparison(self)


@irdl_op_definition
class CmpfOp(arith.CmpfOp):
    """Compare floats: `%c = arith.cmpf olt, %a, %b : tensor<16xf32>` gives tensor<16xi1>."""

    predicate = prop_def(IntegerAttr)
    fastmath = prop_def(arith.FastMathFlagsAttr, default_value=arith.FastMathFlagsAttr("none"))
    lhs = operand_def(arith.floatingPointLike)
    rhs = operand_def(arith.floatingPointLike)
    result = result_def()

    def __init__(
        self,
        operand1: Operation | SSAValue,
        operand2: Operation | SSAValue,
        arg: int | str,
        fastmath: arith.FastMathFlagsAttr | None = None,
    ):
        lhs = SSAValue.get(operand1)
        flags = arith.FastMathFlagsAttr("none") if fastmath is None else fastmath
        IRDLOperation.__init__(
            self,
            operands=[lhs, operand2],
            result_types=[like(lhs.type, i1)],
            properties={"predicate": _predicate(arg, arith.CMPF_COMPARISON_OPERATIONS), "fastmath": flags},
        )

    def verify_(self) -> None:
        _verify_comparison(self)


@irdl_op_definition
class SelectOp(arith.SelectOp):
    """Choose: `%r = arith.select %c, %a, %b : tensor<16xi1>, tensor<16xf32>`; the condition may be a scalar.

    As in MLIR, the type of the condition is written where it is a tensor only.
    """

    _T: ClassVar = VarConstraint("_T", AnyAttr())
    cond = operand_def()
    lhs = operand_def(_T)
    rhs = operand_def(_T)
    result = result_def(_T)
    assembly_format = None

    def verify_(self) -> None:
        kind = self.result.type
        if self.cond.type != i1 and self.cond.type != like(kind, i1):
            raise VerifyException(f"`arith.select` of {kind} has a condition of type {self.cond.type}")

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operands = parse_operands(parser, 3)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        start = parser.pos
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        if len(types) > 2:
            parser.raise_error("expected a type, after that of a condition that is no scalar", start, parser.pos)
        condition = i1 if len(types) == 1 else types[0]
        values = parser.resolve_operands(operands, [condition, types[-1], types[-1]], parser.pos)
        return cls.create(operands=values, result_types=[types[-1]], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        if self.cond.type != i1:
            printer.print_attribute(self.cond.type)
            printer.print_string(", ")
        printer.print_attribute(self.result.type)


def _verify_cast(op: Operation) -> None:
    source, target = op.operands[0].type, op.results[0].type
    if target != like(source, element_of(target)):
        raise VerifyException(f"`{op.name}` of {source} cannot give {target}, which has another shape")


def _verify_resize(op: Operation, *, wider: bool) -> None:
    _verify_cast(op)
    source, target = element_of(op.operands[0].type), element_of(op.results[0].type)
    assert isinstance(source, FixedBitwidthType)
    assert isinstance(target, FixedBitwidthType)
    if source.bitwidth == target.bitwidth or wider != (source.bitwidth < target.bitwidth):
        raise VerifyException(
            f"`{op.name}` of {source} gives a {'wider' if wider else 'narrower'} type, found {target}"
        )


_INTEGERS = container_of(IntegerType)
_FLOATS = container_of(AnyFloatConstr)


@irdl_op_definition
class FPToSIOp(arith.FPToSIOp):
    """`%r = arith.fptosi %a : tensor<16xf32> to tensor<16xi32>`."""

    input = operand_def(_FLOATS)
    result = result_def(_INTEGERS)
    assembly_format = None

    def verify_(self) -> None:
        _verify_cast(self)


@irdl_op_definition
class FPToUIOp(arith.FPToUIOp):
    """`%r = arith.fptoui %a : tensor<16xf32> to tensor<16xi32>`."""

    input = operand_def(_FLOATS)
    result = result_def(_INTEGERS)
    assembly_format = None

    def verify_(self) -> None:
        _verify_cast(self)


@irdl_op_definition
class SIToFPOp(arith.SIToFPOp):
    """`%r = arith.sitofp %a : tensor<16xi32> to tensor<16xf32>`."""

    input = operand_def(_INTEGERS)
    result = result_def(_FLOATS)
    assembly_format = None

    def verify_(self) -> None:
        _verify_cast(self)


@irdl_op_definition
class UIToFPOp(arith.UIToFPOp):
    """`%r = arith.uitofp %a : tensor<16xi32> to tensor<16xf32>`."""

    input = operand_def(_INTEGERS)
    result = result_def(_FLOATS)
    assembly_format = None

    def verify_(self) -> None:
        _verify_cast(self)


@irdl_op_definition
class TruncIOp(arith.TruncIOp):
    """`%r = arith.trunci %a : tensor<16xi64> to tensor<16xi32>`."""

    input = operand_def(_INTEGERS)
    result = result_def(_INTEGERS)
    assembly_format = None

    def verify_(self) -> None:
        _verify_resize(self, wider=False)


@irdl_op_definition
class ExtSIOp(arith.ExtSIOp):
    """`%r = arith.extsi %a : tensor<16xi32> to tensor<16xi64>`."""

    input = operand_def(_INTEGERS)
    result = result_def(_INTEGERS)
    traits = traits_def(Pure())
    assembly_format = None

    def verify_(self) -> None:
        _verify_resize(self, wider=True)


@irdl_op_definition
class ExtUIOp(arith.ExtUIOp):
    """`%r = arith.extui %a : tensor<16xi1> to tensor<16xi32>`."""

    input = operand_def(_INTEGERS)
    result = result_def(_INTEGERS)
    assembly_format = None

    def verify_(self) -> None:
        _verify_resize(self, wider=True)


@irdl_op_definition
class ExtFOp(arith.ExtFOp):
    """`%r = arith.extf %a : tensor<16xf16> to tensor<16xf32>`."""

    input = operand_def(_FLOATS)
    result = result_def(_FLOATS)
    assembly_format = None

    def verify_(self) -> None:
        _verify_resize(self, wider=True)


@irdl_op_definition
class TruncFOp(arith.TruncFOp):
    """`%r = arith.truncf %a : tensor<16xf32> to tensor<16xf16>`, rounded to the nearest, ties to even."""

    input = operand_def(_FLOATS)
    result = result_def(_FLOATS)
    assembly_format = None

    def verify_(self) -> None:
        _verify_resize(self, wider=False)


REPLACED: dict[type[Operation], type[Operation]] = {
    arith.CmpfOp: CmpfOp,
    arith.CmpiOp: CmpiOp,
    arith.ExtFOp: ExtFOp,
    arith.ExtSIOp: ExtSIOp,
    arith.ExtUIOp: ExtUIOp,
    arith.FPToSIOp: FPToSIOp,
    arith.FPToUIOp: FPToUIOp,
    arith.SIToFPOp: SIToFPOp,
    arith.SelectOp: SelectOp,
    arith.TruncFOp: TruncFOp,
    arith.TruncIOp: TruncIOp,
    arith.UIToFPOp: UIToFPOp,
}
"""For each class of xDSL that is replaced the one in its place; a table by exact type has both."""

Arith = Dialect(
    "arith",
    [REPLACED.get(op, op) for op in arith.Arith.operations],
    list(arith.Arith.attributes),
    [arith.ArithConstantMaterializationInterface()],
)
