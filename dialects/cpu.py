"""The `cpu` dialect: what `scf`, `vector`, `memref` and `omp` lack for CPU code (level 3).

A kernel at this level is a `func.func` on memrefs and i64 sizes whose body is `scf.for`, `arith`, `math`,
`vector.broadcast`, the scalar operations of `loop`, and the operations here. Buffers are addressed by linear element
offsets from their first element; their layouts no longer matter. Threads appear as `cpu.parallel` only, vectors as
types of a fixed length.

```
func.func @k0(%a : memref<?xf32, #sym.layout<[n0], [1]>>, %b : memref<?xf32, #sym.layout<[n0], [1]>>, %n0 : i64) {
  %n = arith.index_cast %n0 : i64 to index
  cpu.parallel %n grain 1024 {
  ^bb0(%begin : index, %end : index):
    %step = arith.constant 16 : index
    scf.for %i = %begin to %end step %step {
      %m = cpu.tail_mask %i, %end : vector<16xi1>
      %v = cpu.load %a[%i] mask %m : memref<?xf32, #sym.layout<[n0], [1]>> -> vector<16xf32>
      cpu.store %v, %b[%i] mask %m : vector<16xf32>, memref<?xf32, #sym.layout<[n0], [1]>>
    }
  }
  func.return
}
```
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Self

from xdsl.dialects.builtin import I64, IndexType, IntegerAttr, MemRefType, StringAttr, VectorType, i1, i64
from xdsl.ir import Attribute, Block, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind, NoTerminator, Pure, RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.combiners import verify_combine
from tilewright.dialects.cpu_random import RandomOp
from tilewright.dialects.cpu_transpose import TransposeOp
from tilewright.dialects.loop_access import element_in_register
from tilewright.dialects.loop_scalar import like
from tilewright.dialects.type_guards import is_vector

INDEX = IndexType()


class Reads(MemoryEffect):
    """The operation reads memory."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        return {EffectInstance(MemoryEffectKind.READ)}


class Writes(MemoryEffect):
    """The operation writes memory."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        return {EffectInstance(MemoryEffectKind.WRITE)}


@irdl_op_definition
class ParallelOp(IRDLOperation):
    """Split [0, n) over the threads of torch's pool:
    `cpu.parallel %n grain 1024 { ^bb0(%begin : index, %end : index): ... }`.

    The body runs once per chunk, on chunks that are contiguous, disjoint and cover the range, each but the last at
    least `grain` long. Where one chunk is enough, the calling thread runs it and no other is woken.
    """

    name = "cpu.parallel"
    extent = operand_def(IndexType)
    grain = prop_def(IntegerAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator(), RecursiveMemoryEffect())

    @staticmethod
    def get(extent: SSAValue, grain: int) -> ParallelOp:
        """Make a parallel region with an empty body."""
        region = Region(Block(arg_types=[INDEX, INDEX]))
        return ParallelOp.create(operands=[extent], properties={"grain": IntegerAttr(grain, i64)}, regions=[region])

    @property
    def block(self) -> Block:
        return self.body.block

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        extent = parser.resolve_operand(parser.parse_unresolved_operand(), INDEX)
        parser.parse_keyword("grain")
        grain = parser.parse_integer(allow_boolean=False)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        region = parser.parse_region()
        return cls.create(
            operands=[extent],
            properties={"grain": IntegerAttr(grain, i64)},
            attributes=attributes.data if attributes is not None else {},
            regions=[region],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.extent)
        printer.print_string(f" grain {self.grain.value.data}")
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body)

    def verify_(self) -> None:
        if self.grain.value.data < 1:
            raise VerifyException(f"`cpu.parallel` has a grain of {self.grain.value.data}, expected at least one")
        if [a.type for a in self.block.args] != [INDEX, INDEX]:
            raise VerifyException("`cpu.parallel` has a body that takes the begin and the end of a chunk, two indices")


def _parse_mask(parser: Parser) -> UnresolvedOperand | None:
    return parser.parse_unresolved_operand() if parser.parse_optional_keyword("mask") is not None else None


def _print_mask(printer: Printer, mask: SSAValue | None) -> None:
    if mask is not None:
        printer.print_string(" mask ")
        printer.print_operand(mask)


def _resolve(parser: Parser, operand: UnresolvedOperand | None, kind: Attribute) -> list[SSAValue]:
    return [] if operand is None else [parser.resolve_operand(operand, kind)]


def _offset_type(name: str, kind: Attribute) -> Attribute:
    """Return the type of the offset of an access of type `kind`: one per lane for gather and scatter, else just one."""
    return like(kind, INDEX) if name in ("cpu.gather", "cpu.scatter") else INDEX


class _Read(IRDLOperation):
    """Base of the loads: `%v = cpu.load %a[%offset] mask %m else %z : memref<...> -> vector<16xf32>`."""

    source = operand_def(MemRefType)
    offset = operand_def()
    mask = opt_operand_def()
    otherwise = opt_operand_def()
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Reads())

    @classmethod
    def get(
        cls,
        source: SSAValue,
        offset: SSAValue,
        kind: Attribute,
        *,
        mask: SSAValue | None = None,
        otherwise: SSAValue | None = None,
    ) -> Self:
        """Load a value of type `kind` at `offset`, counted in elements."""
        optional = [[] if v is None else [v] for v in (mask, otherwise)]
        return cls(operands=[[source], [offset], *optional], result_types=[kind])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        source = parser.parse_unresolved_operand()
        parser.parse_punctuation("[")
        offset = parser.parse_unresolved_operand()
        parser.parse_punctuation("]")
        mask = _parse_mask(parser)
        otherwise = parser.parse_unresolved_operand() if parser.parse_optional_keyword("else") is not None else None
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source_type = parser.parse_type()
        parser.parse_punctuation("->")
        kind = parser.parse_type()
        return cls(
            operands=[
                [parser.resolve_operand(source, source_type)],
                [parser.resolve_operand(offset, _offset_type(cls.name, kind))],
                _resolve(parser, mask, like(kind, i1)),
                _resolve(parser, otherwise, kind),
            ],
            result_types=[kind],
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.source)
        printer.print_string("[")
        printer.print_operand(self.offset)
        printer.print_string("]")
        _print_mask(printer, self.mask)
        if self.otherwise is not None:
            printer.print_string(" else ")
            printer.print_operand(self.otherwise)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.source.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        kind = self.result.type
        if kind != like(kind, element_in_register(self.source.type)):
            raise VerifyException(f"`{self.name}` from {self.source.type} cannot give {kind}")
        if self.offset.type != _offset_type(self.name, kind):
            raise VerifyException(f"`{self.name}` of {kind} has an offset of type {self.offset.type}")
        if self.mask is not None and self.mask.type != like(kind, i1):
            raise VerifyException(f"`{self.name}` of {kind} has a mask of type {self.mask.type}")
        if self.otherwise is not None and (self.mask is None or self.otherwise.type != kind):
            raise VerifyException(f"`{self.name}` of {kind} has an `else` without a mask or of another type")


@irdl_op_definition
class LoadOp(_Read):
    """Load an element, or a vector of consecutive elements: `%v = cpu.load %a[%i] : memref<...> -> vector<16xf32>`.

    A lane that the mask turns off touches no memory and gives the `else` value, or zero. Nothing is assumed of the
    alignment but the element's own.
    """

    name = "cpu.load"


@irdl_op_definition
class GatherOp(_Read):
    """Load one element per lane: `%v = cpu.gather %a[%offsets] mask %m : memref<...> -> vector<16xf32>`."""

    name = "cpu.gather"


class _Write(IRDLOperation):
    """Base of the stores: `cpu.store %v, %a[%offset] mask %m : vector<16xf32>, memref<...>`."""

    value = operand_def()
    target = operand_def(MemRefType)
    offset = operand_def()
    mask = opt_operand_def()
    combine = opt_prop_def(StringAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Writes())

    @classmethod
    def get(
        cls,
        value: SSAValue,
        target: SSAValue,
        offset: SSAValue,
        *,
        mask: SSAValue | None = None,
        combine: str | None = None,
    ) -> Self:
        """Store `value` at `offset`, counted in elements."""
        properties: dict[str, Attribute] = {} if combine is None else {"combine": StringAttr(combine)}
        return cls(operands=[[value], [target], [offset], [] if mask is None else [mask]], properties=properties)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        target = parser.parse_unresolved_operand()
        parser.parse_punctuation("[")
        offset = parser.parse_unresolved_operand()
        parser.parse_punctuation("]")
        properties: dict[str, Attribute] = {}
        if parser.parse_optional_keyword("combine") is not None:
            properties["combine"] = StringAttr(parser.parse_str_literal())
        mask = _parse_mask(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        parser.parse_punctuation(",")
        target_type = parser.parse_type()
        return cls(
            operands=[
                [parser.resolve_operand(value, kind)],
                [parser.resolve_operand(target, target_type)],
                [parser.resolve_operand(offset, _offset_type(cls.name, kind))],
                _resolve(parser, mask, like(kind, i1)),
            ],
            properties=properties,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.value)
        printer.print_string(", ")
        printer.print_operand(self.target)
        printer.print_string("[")
        printer.print_operand(self.offset)
        printer.print_string("]")
        if self.combine is not None:
            printer.print_string(" combine ")
            printer.print_string_literal(self.combine.data)
        _print_mask(printer, self.mask)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.value.type)
        printer.print_string(", ")
        printer.print_attribute(self.target.type)

    def verify_(self) -> None:
        kind = self.value.type
        if kind != like(kind, element_in_register(self.target.type)):
            raise VerifyException(f"`{self.name}` cannot store {kind} to {self.target.type}")
        if self.offset.type != _offset_type(self.name, kind):
            raise VerifyException(f"`{self.name}` of {kind} has an offset of type {self.offset.type}")
        if self.mask is not None and self.mask.type != like(kind, i1):
            raise VerifyException(f"`{self.name}` of {kind} has a mask of type {self.mask.type}")
        if self.combine is not None:
            verify_combine(self.name, self.combine.data, kind)
            if is_vector(kind):
                raise VerifyException(f"`{self.name}` combines single elements, found {kind}")


@irdl_op_definition
class StoreOp(_Write):
    """Store an element or a vector of consecutive elements:
    `cpu.store %v, %a[%i] mask %m : vector<16xf32>, memref<...>`.

    With `combine "sum"` one element is combined atomically with what is there.
    """

    name = "cpu.store"


@irdl_op_definition
class ScatterOp(_Write):
    """Store one element per lane, at distinct offsets: `cpu.scatter %v, %a[%offsets] : vector<16xf32>, memref<...>`."""

    name = "cpu.scatter"


@irdl_op_definition
class StepOp(IRDLOperation):
    """The numbers of the lanes, 0, 1, 2, ..: `%s = cpu.step : vector<16xindex>`."""

    name = "cpu.step"
    result = result_def(VectorType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict `:` type($result)"

    @staticmethod
    def get(lanes: int) -> StepOp:
        return StepOp.create(result_types=[VectorType(INDEX, [lanes])])


@irdl_op_definition
class TailMaskOp(IRDLOperation):
    """True for lane `l` where `i + l < n`: `%m = cpu.tail_mask %i, %n : vector<16xi1>`."""

    name = "cpu.tail_mask"
    position = operand_def(IndexType)
    end = operand_def(IndexType)
    result = result_def(VectorType)
    traits = traits_def(Pure())
    assembly_format = "$position `,` $end attr-dict `:` type($result)"

    @staticmethod
    def get(position: SSAValue, end: SSAValue, lanes: int) -> TailMaskOp:
        return TailMaskOp.create(operands=[position, end], result_types=[VectorType(i1, [lanes])])


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """Combine the lanes of a vector into a scalar: `%s = cpu.reduce "max" %v : vector<16xf32> to f32`.

    Lanes are combined pairwise, the upper half with the lower, so the result does not depend on the target.
    """

    name = "cpu.reduce"
    input = operand_def(VectorType)
    result = result_def()
    combiner = prop_def(StringAttr)
    traits = traits_def(Pure())
    assembly_format = "$combiner $input attr-dict `:` type($input) `to` type($result)"

    @staticmethod
    def get(combiner: str, value: SSAValue) -> ReduceOp:
        assert is_vector(value.type)
        return ReduceOp.create(
            operands=[value], result_types=[value.type.element_type], properties={"combiner": StringAttr(combiner)}
        )

    def verify_(self) -> None:
        verify_combine(self.name, self.combiner.data, self.input.type)
        if not is_vector(self.input.type) or self.result.type != self.input.type.element_type:
            raise VerifyException(f"`cpu.reduce` of {self.input.type} cannot give {self.result.type}")


@irdl_op_definition
class ExtractOp(IRDLOperation):
    """One lane of a vector, or some in a row: `%s = cpu.extract %v 3 : vector<16xf32> to f32`.

    `%h = cpu.extract %v 8 : vector<16xf32> to vector<8xf32>` gives the upper half.
    """

    name = "cpu.extract"
    input = operand_def(VectorType)
    result = result_def()
    lane = prop_def(IntegerAttr[I64])
    traits = traits_def(Pure())
    assembly_format = "$input $lane attr-dict `:` type($input) `to` type($result)"

    @staticmethod
    def get(value: SSAValue, lane: int, count: int = 1) -> ExtractOp:
        """Take `count` lanes from `lane` on; a single one as a scalar."""
        assert is_vector(value.type)
        element = value.type.element_type
        kind = element if count == 1 else VectorType(element, [count])
        return ExtractOp.create(operands=[value], result_types=[kind], properties={"lane": IntegerAttr(lane, i64)})

    def verify_(self) -> None:
        source, kind = self.input.type, self.result.type
        assert is_vector(source)
        if kind != like(kind, source.element_type):
            raise VerifyException(f"`cpu.extract` from {source} cannot give {kind}")
        first, count = self.lane.value.data, kind.get_shape()[0] if is_vector(kind) else 1
        if first < 0 or first + count > source.get_shape()[0]:
            raise VerifyException(f"`cpu.extract` takes lanes {first} to {first + count - 1} of {source}")


Cpu = Dialect(
    "cpu",
    [ParallelOp, LoadOp, StoreOp, GatherOp, ScatterOp, StepOp, TailMaskOp, ReduceOp, ExtractOp, TransposeOp, RandomOp],
)
