"""`loop.kernel`: a loop nest taken out of a program, under canonical names, that many calls may share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, MemRefType, StringAttr, SymbolNameConstraint
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, region_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.loop_access import verify_layout
from tilewright.dialects.sym import ExprAttr, IntsAttr, LayoutAttr, MapAttr, SymbolAttr, free_symbols
from tilewright.dialects.sym_expr import DIM_NAME, Expr, Symbol, integer, symbol
from tilewright.dialects.type_guards import is_memref

DEVICE = "device"
"""The attribute of a kernel that names the kind of device it is for, if that is not the CPU."""

RANGES = "ranges"
"""The attribute of a kernel that says which values its symbols have at least and at most."""


@irdl_op_definition
class KernelOp(IRDLOperation):
    """A kernel on buffers: `loop.kernel @k0(%a : memref<...>, %b : memref<...>) symbols [n0, n1] { ... }`.

    The buffers do not overlap. The symbols are the kernel's only free names; a caller gives each a value, as an i64
    after the buffers. So equal kernels have equal text, whatever the graph called its sizes.

    A kernel for another kind of device than the CPU says so: `attributes {device = "cuda"}`. Its buffers do not, as the
    same kernel runs on all devices of a kind. What is known of its symbols is an attribute, too: `attributes {ranges =
    {n0 = #sym.symbol<16 to 4096>}}` promises that no launch has another value.
    """

    name = "loop.kernel"
    sym_name = prop_def(SymbolNameConstraint())
    symbols = prop_def(ArrayAttr[StringAttr])
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface(), NoTerminator())

    @staticmethod
    def get(name: str, buffers: Sequence[Attribute], symbols: Sequence[str]) -> KernelOp:
        """Make a kernel with an empty body."""
        properties: dict[str, Attribute] = {
            "sym_name": StringAttr(name),
            "symbols": ArrayAttr([StringAttr(s) for s in symbols]),
        }
        return KernelOp.create(properties=properties, regions=[Region(Block(arg_types=buffers))])

    @property
    def block(self) -> Block:
        return self.body.block

    @property
    def buffers(self) -> Sequence[SSAValue]:
        return self.body.block.args

    @property
    def symbol_names(self) -> list[str]:
        return [s.data for s in self.symbols]

    @property
    def device(self) -> str:
        """The kind of device that the kernel is for: `cpu`, `cuda`."""
        found = self.attributes.get(DEVICE)
        return found.data if isinstance(found, StringAttr) else "cpu"

    @device.setter
    def device(self, kind: str) -> None:
        self.attributes.pop(DEVICE, None)
        if kind != "cpu":
            self.attributes[DEVICE] = StringAttr(kind)

    @property
    def ranges(self) -> dict[Symbol, tuple[Expr | None, Expr | None]]:
        """The inclusive bounds of the symbols of which something is known."""
        given = self.attributes.get(RANGES)
        return {
            symbol(name): (integer(known.data.lower), integer(known.data.upper))
            for name, known in (given.data.items() if isinstance(given, DictionaryAttr) else ())
            if isinstance(known, SymbolAttr)
        }

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = parser.parse_symbol_name()
        arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
        parser.parse_keyword("symbols")
        symbols = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_identifier)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        region = parser.parse_region(arguments)
        properties: dict[str, Attribute] = {
            "sym_name": name,
            "symbols": ArrayAttr([StringAttr(s) for s in symbols]),
        }
        return cls.create(
            properties=properties, attributes=attributes.data if attributes is not None else {}, regions=[region]
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_string("(")
        printer.print_list(self.block.args, printer.print_block_argument)
        printer.print_string(f") symbols [{', '.join(self.symbol_names)}]")
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)

    def verify_(self) -> None:
        for argument in self.block.args:
            if not is_memref(argument.type):
                raise VerifyException(f"`loop.kernel` takes buffers, found an argument of type {argument.type}")
            verify_layout(argument.type)
        device = self.attributes.get(DEVICE, StringAttr("cpu"))
        if not isinstance(device, StringAttr) or ":" in device.data:
            raise VerifyException(f'`loop.kernel` is for a kind of device, such as "cuda", found {device}')
        names = self.symbol_names
        dims = [name for name in names if DIM_NAME.fullmatch(name)]
        if dims:
            raise VerifyException(f"`loop.kernel` takes the symbol `{dims[0]}`, which is the name of a dim")
        if len(set(names)) != len(names):
            raise VerifyException(f"`loop.kernel` names a symbol twice in [{', '.join(names)}]")
        self._verify_ranges()
        unbound = [s.name for s in free_symbols(_exprs(self)) if s.name not in names and not DIM_NAME.fullmatch(s.name)]
        if unbound:
            raise VerifyException(f"`loop.kernel` uses the symbol `{unbound[0]}`, which it does not take")

    def _verify_ranges(self) -> None:
        given = self.attributes.get(RANGES, DictionaryAttr({}))
        if not isinstance(given, DictionaryAttr) or not all(isinstance(r, SymbolAttr) for r in given.data.values()):
            raise VerifyException(f"`loop.kernel` has ranges = {given}, expected a `#sym.symbol` for each symbol")
        unknown = [name for name in given.data if name not in self.symbol_names]
        if unknown:
            raise VerifyException(f"`loop.kernel` has a range of the symbol `{unknown[0]}`, which it does not take")


def _exprs(kernel: KernelOp) -> list[Expr]:
    """Return every expression in a kernel."""
    found: list[Expr] = []
    for op in kernel.walk():
        for attribute in _attributes(op):
            if isinstance(attribute, ExprAttr):
                found.append(attribute.expr)
            elif isinstance(attribute, IntsAttr):
                found += attribute.exprs
            elif isinstance(attribute, LayoutAttr):
                found += (*attribute.sizes, *attribute.strides, attribute.offset)
            elif isinstance(attribute, MapAttr):
                found += attribute.exprs
    return found


def _attributes(op: Operation) -> list[Attribute]:
    kinds = [a.type for region in op.regions for block in region.blocks for a in block.args]
    return [*op.properties.values(), *(k.layout for k in kinds if isinstance(k, MemRefType))]
