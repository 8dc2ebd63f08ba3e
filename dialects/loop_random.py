"""Random numbers of the `loop` dialect: a function of a seed, a stream and the number of an element, without state.

So it does not matter in what order elements are computed, by how many threads, in how many lanes, in which kernel, or
how often: a number that is wanted again is computed again. `dialects/philox.py` defines the function.
"""

from __future__ import annotations

from typing import Self

from xdsl.dialects.builtin import IndexType, StringAttr, f32, f64, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.loop_scalar import like
from tilewright.dialects.type_guards import is_vector

INDEX = IndexType()

DISTRIBUTIONS: dict[str, tuple[Attribute, ...]] = {"bits": (i32, i64), "normal": (f32,), "uniform": (f32, f64)}
"""By name the types of the numbers: all bits random, floats from 0 up to but not including 1, or normal ones.

The floats are multiples of 2**-24 (f32: the high 24 bits of a word) and 2**-53 (f64: the high 53 bits of two words, the
first of which is the low one). A normal number has mean 0 and variance 1, and shares two words with its neighbour.
"""


def verify_distribution(op: str, distribution: str, kind: Attribute) -> None:
    """Check that there are numbers of type `kind`. Raises `VerifyException` if there are none."""
    if distribution not in DISTRIBUTIONS:
        raise VerifyException(
            f"`{op}` has distribution `{distribution}`, expected one of {', '.join(sorted(DISTRIBUTIONS))}"
        )
    element = kind.element_type if is_vector(kind) else kind
    if element not in DISTRIBUTIONS[distribution]:
        expected = " or ".join(map(str, DISTRIBUTIONS[distribution]))
        raise VerifyException(f'`{op} "{distribution}"` gives {expected}, found {kind}')


class RandomOperation(IRDLOperation):
    """Base of the operations that give random numbers."""

    seed = operand_def(i64)
    stream = operand_def(INDEX)
    element = operand_def()
    result = result_def()
    distribution = prop_def(StringAttr)
    traits = traits_def(Pure())

    @classmethod
    def get(cls, distribution: str, seed: SSAValue, stream: SSAValue, element: SSAValue, kind: Attribute) -> Self:
        """Make numbers of type `kind`."""
        return cls.create(
            operands=[seed, stream, element],
            result_types=[kind],
            properties={"distribution": StringAttr(distribution)},
        )

    @property
    def is_wide(self) -> bool:
        """Whether an element takes two words of a block."""
        kind = self.result.type
        element = kind.element_type if is_vector(kind) else kind
        return element in (i64, f64)

    @classmethod
    def element_type(cls, kind: Attribute) -> Attribute:
        """Return the type of the element's number where the result is of type `kind`."""
        return INDEX

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        distribution = parser.parse_str_literal()
        parser.parse_keyword("seed")
        seed = parser.parse_unresolved_operand()
        parser.parse_keyword("stream")
        stream = parser.parse_unresolved_operand()
        parser.parse_keyword("element")
        element = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        operands = parser.resolve_operands([seed, stream, element], [i64, INDEX, cls.element_type(kind)], parser.pos)
        return cls.create(
            operands=operands,
            result_types=[kind],
            properties={"distribution": StringAttr(distribution)},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_string_literal(self.distribution.data)
        for name, operand in (("seed", self.seed), ("stream", self.stream), ("element", self.element)):
            printer.print_string(f" {name} ")
            printer.print_operand(operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        kind = self.result.type
        verify_distribution(self.name, self.distribution.data, kind)
        if self.element.type != self.element_type(kind):
            raise VerifyException(f"`{self.name}` of {kind} has an element of type {self.element.type}")


@irdl_op_definition
class RandomOp(RandomOperation):
    """The random number of one element: `%u = loop.random "uniform" seed %s stream %n element %e : f32`.

    The seed belongs to one call of the program, the stream to one operator in it, the element to a place in that
    operator's result; see `DISTRIBUTIONS`. Of a vector, each lane has an element of its own.
    """

    name = "loop.random"

    @classmethod
    def element_type(cls, kind: Attribute) -> Attribute:
        return like(kind, INDEX)
