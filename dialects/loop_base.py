"""What all loops of the `loop` dialect share: their bounds, their text, the blocks that they are axes of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IndexType,
    IntegerType,
    UnitAttr,
    VectorType,
    i1,
    i64,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    opt_prop_def,
    prop_def,
    region_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.access import normalize_access, parse_access, print_access, verify_access
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
