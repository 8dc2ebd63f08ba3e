"""The loops of the `loop` dialect, and those without results: `loop.nest`, `loop.for`; see `dialects/loop.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, Self

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IndexType,
    IntegerType,
    TensorType,
    UnitAttr,
    VectorType,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.access import normalize_access, parse_access, print_access, verify_access
from tilewright.dialects.loop_access import StoreOp, element_in_register, verify_layout
from tilewright.dialects.loop_effects import NestEffect
from tilewright.dialects.sym import MapAttr
from tilewright.dialects.sym_expr import Expr, integer
from tilewright.dialects.type_guards import is_vector

BLOCKS = "blocks"
"""The attribute of loops whose points are computed together, as axes of one block: a power of two for each loop."""


@lru_cache(maxsize=1024)
def integers(kind: IntegerType, values: tuple[int, ...]) -> Attribute:
    """Return an array of integers."""
    return DenseArrayBase.from_list(kind, values)


@dataclass(frozen=True)
class LoopDim:
    """One loop: from `lower` to `upper` (exclusive) by `step`; with `lanes`, `step` iterations at a time in a vector.

    The bounds are expressions over size symbols and, as `d0`, `d1`, .., the operands of the `Bounds` the loop belongs
    to.
    """

    lower: Expr
    upper: Expr
    step: int = 1
    lanes: bool = False

    @staticmethod
    def extent(size: Expr) -> LoopDim:
        """Return the loop from 0 to `size`."""
        return LoopDim(integer(0), size)


@dataclass(frozen=True)
class Bounds:
    """The loops of one operation, and the index values that their bounds refer to as `d0`, `d1`, .."""

    dims: tuple[LoopDim, ...]
    operands: tuple[SSAValue, ...] = ()

    @staticmethod
    def extents(sizes: Iterable[Expr]) -> Bounds:
        """Return loops from 0 to each of `sizes`."""
        return Bounds(tuple(LoopDim.extent(s) for s in sizes))

    def properties(self) -> tuple[list[SSAValue], dict[str, Attribute]]:
        """Return the operands and properties that hold these loops in an operation."""
        exprs = [e for d in self.dims for e in (d.lower, d.upper)]
        access, operands = normalize_access(exprs, self.operands)
        properties: dict[str, Attribute] = {
            "bounds": access,
            "steps": integers(i64, tuple(d.step for d in self.dims)),
        }
        lanes = tuple(i for i, d in enumerate(self.dims) if d.lanes)
        if lanes:
            properties["lanes"] = integers(i64, lanes)
        return operands, properties

    def index_types(self) -> list[Attribute]:
        """Return the types of the loops' index values."""
        return [VectorType(IndexType(), [d.step]) if d.lanes else IndexType() for d in self.dims]


class Loop(IRDLOperation):
    """What `loop.nest`, `loop.for` and `loop.reduce` share: loops, their index values, and an optional lane mask.

    The block arguments of the body are one index value per loop, then the mask if there is one, then whatever the
    operation adds.

    With `attributes {blocks = array<i64: 16, 64>}` a target that computes on blocks takes all points of the loops at a
    time: each loop is an axis of that many points, of which those beyond its end are masked. A `loop.scan` may have
    more points than its block, and is then taken block by block.
    """

    bound_operands = var_operand_def()
    bounds = prop_def(MapAttr)
    steps = prop_def(DenseArrayBase.constr(i64))
    lanes = opt_prop_def(DenseArrayBase.constr(i64))
    masked = opt_prop_def(UnitAttr)
    body = region_def("single_block")
    MAY_EXCEED_BLOCKS: ClassVar = False
    """Whether a loop may have more points than its block."""

    @property
    def block(self) -> Block:
        return self.body.block

    @property
    def loops(self) -> Bounds:
        exprs, steps = self.bounds.exprs, self.steps.get_values()
        lanes = () if self.lanes is None else self.lanes.get_values()
        dims = (LoopDim(exprs[2 * i], exprs[2 * i + 1], int(step), i in lanes) for i, step in enumerate(steps))
        return Bounds(tuple(dims), tuple(self.bound_operands))

    @property
    def indices(self) -> Sequence[SSAValue]:
        """The index values of the loops, outermost first."""
        return self.block.args[: len(self.steps)]

    @property
    def mask(self) -> SSAValue | None:
        """The lane mask: true for lanes within the bounds."""
        return self.block.args[len(self.steps)] if self.masked is not None else None

    @property
    def blocks(self) -> tuple[int, ...] | None:
        """The points of each loop along the axis of a block that it is; None for loops that are no axes."""
        found = self.attributes.get(BLOCKS)
        return None if found is None else tuple(int(n) for n in _block_sizes(self.name, found))

    @blocks.setter
    def blocks(self, sizes: Sequence[int]) -> None:
        self.attributes[BLOCKS] = integers(i64, tuple(sizes))

    def loop_arguments(self) -> int:
        """Return the number of block arguments that are indices or the mask."""
        return len(self.steps) + (self.masked is not None)

    def verify_loops(self) -> None:
        verify_access(self.name, self.bounds, self.bound_operands)
        if any(is_vector(operand.type) for operand in self.bound_operands):
            raise VerifyException(f"`{self.name}` has bounds that depend on lanes")
        steps = self.steps.get_values()
        if len(self.bounds.exprs) != 2 * len(steps):
            raise VerifyException(
                f"`{self.name}` has {len(steps)} steps and {len(self.bounds.exprs)} bounds, expected two each"
            )
        if any(step < 1 for step in steps):
            raise VerifyException(f"`{self.name}` has a step below one")
        lane_dims = [] if self.lanes is None else list(self.lanes.get_values())
        if len(lane_dims) > 1 or any(not 0 <= i < len(steps) for i in lane_dims):
            raise VerifyException(f"`{self.name}` has lanes {lane_dims}, expected at most one of its loops")
        if self.masked is not None and not lane_dims:
            raise VerifyException(f"`{self.name}` has a mask but no lanes")
        if BLOCKS in self.attributes:
            self._verify_blocks()
        expected = self.loops.index_types()
        if self.masked is not None:
            expected.append(VectorType(i1, [int(steps[i]) for i in lane_dims]))
        found = [a.type for a in self.block.args[: len(expected)]]
        if found != expected:
            texts = [", ".join(map(str, kinds)) for kinds in (found, expected)]
            raise VerifyException(f"`{self.name}` has block arguments ({texts[0]}), expected ({texts[1]})")

    def _verify_blocks(self) -> None:
        sizes = self.blocks or ()
        dims = self.loops.dims
        if len(sizes) != len(dims):
            raise VerifyException(f"`{self.name}` has {len(dims)} loops and {len(sizes)} blocks, expected one each")
        for size, this in zip(sizes, dims, strict=True):
            if size < 1 or size & (size - 1):
                raise VerifyException(f"`{self.name}` has a block of {size} points, expected a power of two")
            extent = this.upper - this.lower
            if not self.MAY_EXCEED_BLOCKS and extent.is_Integer and extent > size:
                raise VerifyException(f"`{self.name}` has a loop of {extent} points and a block of {size} for it")


def _block_sizes(name: str, attribute: Attribute) -> Sequence[int]:
    if not DenseArrayBase.constr(i64).verifies(attribute):
        raise VerifyException(f"`{name}` has blocks {attribute}, expected an array of i64")
    return attribute.get_values()


def print_loops(printer: Printer, op: Loop) -> None:
    """Print what `parse_loops` reads."""
    printer.print_string("(")
    access, operands = normalize_access(op.bounds.exprs, op.bound_operands)
    for i, (d, index) in enumerate(zip(op.loops.dims, op.indices, strict=True)):
        lower, upper = access.exprs[2 * i : 2 * i + 2]
        printer.print_string(", " if i else "")
        printer.print_operand(index)
        if lower == 0 and d.step == 1 and not d.lanes:
            printer.print_string(" : ")
            print_access(printer, upper, operands)
            continue
        printer.print_string(" = ")
        print_access(printer, lower, operands)
        printer.print_string(" to ")
        print_access(printer, upper, operands)
        if d.step != 1 or d.lanes:
            printer.print_string(f" step {d.step}")
        printer.print_string(" lanes" if d.lanes else "")
    printer.print_string(")")
    if op.mask is not None:
        printer.print_string(" mask(")
        printer.print_operand(op.mask)
        printer.print_string(")")


def parse_loops(parser: Parser) -> tuple[Bounds, list[Parser.Argument], bool]:
    """Parse `(%i : N, %k = LO to HI step S lanes) mask(%m)`.

    Return the loops, the block arguments, and whether there is a mask.
    """
    operands: list[SSAValue] = []

    def parse_loop() -> tuple[LoopDim, Parser.UnresolvedArgument]:
        argument = parser.parse_argument(expect_type=False)
        if parser.parse_optional_punctuation(":") is not None:
            return LoopDim.extent(parse_access(parser, operands)), argument
        parser.parse_punctuation("=", " or `:` after a loop index")
        lower = parse_access(parser, operands)
        parser.parse_keyword("to")
        upper = parse_access(parser, operands)
        step, lanes = 1, False
        if parser.parse_optional_keyword("step") is not None:
            step = parser.parse_integer(allow_boolean=False)
            lanes = parser.parse_optional_keyword("lanes") is not None
        return LoopDim(lower, upper, step, lanes), argument

    position = parser.pos
    loops = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parse_loop)
    bounds = Bounds(tuple(d for d, _ in loops), tuple(operands))
    if any(d.step < 1 for d in bounds.dims):
        parser.raise_error("a loop has a step below one", position)
    arguments = [a.resolve(t) for (_, a), t in zip(loops, bounds.index_types(), strict=True)]
    masked = parser.parse_optional_keyword("mask") is not None
    if masked:
        position = parser.pos
        parser.parse_punctuation("(")
        lanes = [d.step for d in bounds.dims if d.lanes]
        if not lanes:
            parser.raise_error("a loop without lanes has no mask", position)
        arguments.append(parser.parse_argument(expect_type=False).resolve(VectorType(i1, [lanes[0]])))
        parser.parse_punctuation(")")
    return bounds, arguments, masked


def parse_region(parser: Parser, arguments: Sequence[Parser.Argument]) -> Region:
    """Parse the body of a loop, a block with the given arguments."""
    region = parser.parse_region(arguments)
    if len(region.blocks) > 1:
        parser.raise_error("the body of a loop has one block")
    return region


def loop_properties(bounds: Bounds, masked: bool) -> tuple[list[SSAValue], dict[str, Attribute]]:
    """Return the operands and properties that hold loops, perhaps with a lane mask, in an operation."""
    operands, properties = bounds.properties()
    if masked:
        properties["masked"] = UnitAttr()
    return operands, properties


def loop_block(bounds: Bounds, masked: bool, extra: Sequence[Attribute] = ()) -> Block:
    """Return an empty body for loops: their index values, the mask if there is one, and arguments of types `extra`."""
    kinds = bounds.index_types()
    if masked:
        kinds.append(VectorType(i1, [next(d.step for d in bounds.dims if d.lanes)]))
    return Block(arg_types=[*kinds, *extra])


@irdl_op_definition
class NestOp(Loop):
    """A tree of loops that computes whole tensors.

    On tensors, each block argument of `outs` is a destination that the body stores to, and becomes the result of the
    same position: every element is stored exactly once, unless the stores combine. A destination `%o = %x : T` begins
    as a copy of the tensor `%x`, and the elements that the body does not store stay what they are there. On buffers
    there are no results. All iterations are independent; an iteration may load from its own destinations only what it
    stored before.

    Without loops, `loop.nest ()`, the body runs once.
    """

    name = "loop.nest"
    bound_operands = var_operand_def()  # declared anew to come before `initial`
    initial = var_operand_def(TensorType)
    starts = opt_prop_def(DenseArrayBase.constr(i64))
    outputs = var_result_def(TensorType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(NoTerminator(), NestEffect())

    @staticmethod
    def get(
        bounds: Bounds,
        outs: Sequence[Attribute] = (),
        *,
        masked: bool = False,
        initial: Mapping[int, SSAValue] = MappingProxyType({}),
    ) -> NestOp:
        """Make a nest with an empty body whose results have the types `outs`.

        `initial` has, by their positions, what destinations begin as.
        """
        operands, properties = nest_properties(bounds, masked, initial)
        region = Region(loop_block(bounds, masked, outs))
        return NestOp.create(operands=operands, result_types=outs, properties=properties, regions=[region])

    @property
    def destinations(self) -> Sequence[SSAValue]:
        """The block arguments that stand for the results while they are being computed."""
        return self.block.args[self.loop_arguments() :]

    @property
    def begins(self) -> dict[int, SSAValue]:
        """What destinations begin as, by their positions."""
        positions = () if self.starts is None else self.starts.get_values()
        return {int(i): value for i, value in zip(positions, self.initial, strict=True)}

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        bounds, arguments, masked = parse_loops(parser)
        outs: list[tuple[Parser.Argument, SSAValue | None]] = []
        if parser.parse_optional_keyword("outs") is not None:
            outs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_out(parser))
        attributes = parser.parse_optional_attr_dict_with_keyword()
        region = parse_region(parser, [*arguments, *(o for o, _ in outs)])
        initial = {i: start for i, (_, start) in enumerate(outs) if start is not None}
        operands, properties = nest_properties(bounds, masked, initial)
        return cls.create(
            operands=operands,
            result_types=[o.type for o, _ in outs],
            properties=properties,
            attributes=attributes.data if attributes is not None else {},
            regions=[region],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_loops(printer, self)
        if self.outputs:
            begins = self.begins
            outs = [(destination, begins.get(i)) for i, destination in enumerate(self.destinations)]
            printer.print_string(" outs(")
            printer.print_list(outs, lambda out: _print_out(printer, *out))
            printer.print_string(")")
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)

    def verify_(self) -> None:
        self.verify_loops()
        found = [a.type for a in self.destinations]
        if found != [r.type for r in self.outputs]:
            kinds = ", ".join(map(str, found)) or "none"
            raise VerifyException(f"`loop.nest` has {len(self.outputs)} results and destinations of types {kinds}")
        for destination in self.destinations:
            verify_layout(destination.type)
            if not any(isinstance(use.operation, StoreOp) for use in destination.uses):
                raise VerifyException("`loop.nest` never stores to one of its destinations")
        self._verify_starts()

    def _verify_starts(self) -> None:
        positions = [] if self.starts is None else [int(i) for i in self.starts.get_values()]
        if len(positions) != len(self.initial) or any(not 0 <= i < len(self.outputs) for i in positions):
            raise VerifyException(
                f"`loop.nest` has {len(self.initial)} tensors for its destinations {positions} to begin as, "
                f"and {len(self.outputs)} destinations"
            )
        for i, start in self.begins.items():
            kind = self.outputs[i].type
            sizes = verify_layout(start.type).sizes
            if sizes != verify_layout(kind).sizes or element_in_register(start.type) != element_in_register(kind):
                raise VerifyException(f"`loop.nest` has a destination of type {kind} that begins as {start.type}")


def nest_properties(
    bounds: Bounds, masked: bool, initial: Mapping[int, SSAValue]
) -> tuple[list[SSAValue], dict[str, Attribute]]:
    """Return the operands and properties of a nest, whose destinations begin as `initial` says by position."""
    operands, properties = loop_properties(bounds, masked)
    properties["operandSegmentSizes"] = integers(i32, (len(operands), len(initial)))
    if initial:
        properties["starts"] = integers(i64, tuple(initial))
    return [*operands, *initial.values()], properties


def _parse_out(parser: Parser) -> tuple[Parser.Argument, SSAValue | None]:
    """Parse `%o : T` or `%o = %x : T`, where `%x` has type T or, with another layout, `%o = %x : U as T`."""
    argument = parser.parse_argument(expect_type=False)
    start = parser.parse_unresolved_operand() if parser.parse_optional_punctuation("=") is not None else None
    parser.parse_punctuation(":")
    kind = parser.parse_type()
    if start is None:
        return argument.resolve(kind), None
    begins_as = parser.resolve_operand(start, kind)
    return argument.resolve(parser.parse_type() if parser.parse_optional_keyword("as") else kind), begins_as


def _print_out(printer: Printer, destination: SSAValue, start: SSAValue | None) -> None:
    printer.print_operand(destination)
    if start is not None:
        printer.print_string(" = ")
        printer.print_operand(start)
        if start.type != destination.type:
            printer.print_string(" : ")
            printer.print_attribute(start.type)
            printer.print_string(" as ")
            printer.print_attribute(destination.type)
            return
    printer.print_string(" : ")
    printer.print_attribute(destination.type)


class InnerLoop(Loop):
    """What the loops inside a nest that have no results share."""

    @classmethod
    def get(cls, bounds: Bounds, *, masked: bool = False) -> Self:
        """Make a loop with an empty body."""
        operands, properties = loop_properties(bounds, masked)
        return cls.create(operands=operands, properties=properties, regions=[Region(loop_block(bounds, masked))])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        bounds, arguments, masked = parse_loops(parser)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        region = parse_region(parser, arguments)
        operands, properties = loop_properties(bounds, masked)
        return cls.create(
            operands=operands,
            properties=properties,
            attributes=attributes.data if attributes is not None else {},
            regions=[region],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_loops(printer, self)
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)

    def verify_(self) -> None:
        self.verify_loops()
        if len(self.block.args) != self.loop_arguments():
            raise VerifyException(
                f"`{self.name}` has {len(self.block.args)} block arguments, expected {self.loop_arguments()}"
            )


@irdl_op_definition
class ForOp(InnerLoop):
    """Parallel loops inside a nest: `loop.for (%k : 1024) { ... }`. All iterations are independent."""

    name = "loop.for"
    traits = traits_def(NoTerminator(), NestEffect())
