"""The kernel of the `tt` dialect and the programs that run it; see `dialects/tt.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    i1,
    i32,
    i64,
)
from xdsl.dialects.utils import parse_func_op_like, print_func_op_like
from xdsl.ir import Attribute, Block, BlockArgument, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsolatedFromAbove, IsTerminator, Pure, SymbolOpInterface, SymbolTable
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.arith_tensor import element_of
from tilewright.dialects.sym import ExprAttr, IntsAttr, free_symbols
from tilewright.dialects.tt_types import PointerType, Writes, verify_choice
from tilewright.dialects.type_guards import is_array, is_integer_constant

AXES = ("x", "y", "z")
OURS = ("grid", "symbols", "reach", "wide", "parts", "num_warps", "num_stages")
"""The attributes of a kernel that Triton does not see."""

NARROW_LIMIT = 1 << 31
"""What the reach of a kernel must stay below."""

DIVISIBILITY = "tt.divisibility"
"""The attribute of an argument that is expected to be a multiple of something."""

_HEADER = ("sym_name", "function_type", "sym_visibility", "arg_attrs")


@irdl_op_definition
class FuncOp(IRDLOperation):
    """A kernel: a pointer per buffer, then an i64 per symbol:
    `tt.func public @k0(%x : !tt.ptr<f32> {tt.divisibility = 16 : i32}, %n0 : i64) attributes {..} { .. }`.

    Attributes that say how it is launched, all optional: `grid = #sym.expr<..>`, the number of programs over the
    symbols; `symbols = ["n0", ..]`, the names of the last arguments; `num_warps` and `num_stages`, i32.

    A kernel with `reach = #sym.expr<..>`, over the symbols, is for sizes with which that is below 2**31. For all others
    `wide = @k0_wide` names a kernel that does the same. With `parts = #sym.ints<[4, 8]>` the first 4 programs work on
    other buffers than the next 8. A divisibility is expected of an argument, too, not promised:
    who launches the kernel looks, and else has it compiled without.
    """

    name = "tt.func"
    sym_name = prop_def(SymbolNameConstraint())
    function_type = prop_def(FunctionType)
    sym_visibility = opt_prop_def(StringAttr)
    arg_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    @staticmethod
    def get(
        name: str,
        arguments: Sequence[Attribute],
        *,
        attributes: dict[str, Attribute] | None = None,
        argument_attributes: Sequence[dict[str, Attribute]] | None = None,
    ) -> FuncOp:
        """Make a kernel with an empty body; `attributes` are those of the kernel itself."""
        properties: dict[str, Attribute] = {
            "sym_name": StringAttr(name),
            "function_type": FunctionType.from_lists(arguments, []),
            "sym_visibility": StringAttr("public"),
        }
        if argument_attributes is not None and any(argument_attributes):
            properties["arg_attrs"] = ArrayAttr([DictionaryAttr(a) for a in argument_attributes])
        return FuncOp.create(
            properties=properties, attributes=attributes or {}, regions=[Region(Block(arg_types=arguments))]
        )

    @property
    def block(self) -> Block:
        return self.body.block

    @property
    def args(self) -> Sequence[BlockArgument]:
        return self.body.block.args

    @property
    def symbol_names(self) -> list[str]:
        """The names of the sizes that the kernel takes last, in order."""
        given = self.attributes.get("symbols")
        if given is None or not is_array(given):
            return []
        return [s.data for s in given.data if isinstance(s, StringAttr)]

    @property
    def grid(self) -> ExprAttr | None:
        """The number of programs, if the kernel says it."""
        given = self.attributes.get("grid")
        return given if isinstance(given, ExprAttr) else None

    @property
    def reach(self) -> ExprAttr | None:
        """What must be below `NARROW_LIMIT`, if the kernel is not for all sizes."""
        given = self.attributes.get("reach")
        return given if isinstance(given, ExprAttr) else None

    @property
    def wide(self) -> FuncOp | None:
        """The kernel for the sizes that this one is not for."""
        given = self.attributes.get("wide")
        found = SymbolTable.lookup_symbol(self, given) if isinstance(given, SymbolRefAttr) else None
        return found if isinstance(found, FuncOp) else None

    @property
    def parts(self) -> tuple[int, ...] | None:
        """How many programs one after the other work on the same buffers, if that differs."""
        given = self.attributes.get("parts")
        return tuple(int(count) for count in given.exprs) if isinstance(given, IntsAttr) else None

    def divisor(self, position: int) -> int:
        """Return what an argument is expected to be a multiple of."""
        given = None if self.arg_attrs is None else self.arg_attrs.data[position].data.get(DIVISIBILITY)
        return given.value.data if isinstance(given, IntegerAttr) else 1

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        visibility = parser.parse_optional_visibility_keyword()
        name, inputs, outputs, region, attributes, arg_attrs, _ = parse_func_op_like(
            parser, reserved_attr_names=_HEADER
        )
        properties: dict[str, Attribute] = {
            "sym_name": StringAttr(name),
            "function_type": FunctionType.from_lists(inputs, outputs),
        }
        if visibility is not None:
            properties["sym_visibility"] = visibility
        if arg_attrs is not None:
            properties["arg_attrs"] = arg_attrs
        return cls.create(
            properties=properties, attributes={} if attributes is None else attributes.data, regions=[region]
        )

    def print(self, printer: Printer) -> None:
        if self.sym_visibility is not None:
            printer.print_string(f" {self.sym_visibility.data}")
        print_func_op_like(
            printer,
            self.sym_name,
            self.function_type,
            self.body,
            self.attributes,
            arg_attrs=self.arg_attrs,
            reserved_attr_names=_HEADER,
        )

    def verify_(self) -> None:
        inputs, outputs = self.function_type.inputs.data, self.function_type.outputs.data
        if outputs:
            raise VerifyException(f"`tt.func` is a kernel, which returns nothing, found {outputs[0]}")
        if inputs != tuple(self.block.arg_types):
            raise VerifyException("`tt.func` has a body whose arguments are not those of its type")
        if self.arg_attrs is not None and len(self.arg_attrs) != len(inputs):
            raise VerifyException(
                f"`tt.func` has attributes of {len(self.arg_attrs)} arguments, expected {len(inputs)}"
            )
        self._verify_launch()

    def _verify_launch(self) -> None:
        for name in ("num_warps", "num_stages"):
            given = self.attributes.get(name)
            if given is not None and not (is_integer_constant(given) and given.type == i32 and given.value.data > 0):
                raise VerifyException(f"`tt.func` has {name} = {given}, expected a positive i32")
        warps = self.attributes.get("num_warps")
        if isinstance(warps, IntegerAttr) and warps.value.data & (warps.value.data - 1):
            raise VerifyException(f"`tt.func` has num_warps = {warps}, expected a power of two")
        symbols = self.attributes.get("symbols")
        if symbols is not None:
            self._verify_symbols(symbols)
        for name in ("grid", "reach"):
            self._verify_expr(name)
        self._verify_wide()
        self._verify_parts()

    def _verify_expr(self, name: str) -> None:
        given = self.attributes.get(name)
        if given is None:
            return
        if not isinstance(given, ExprAttr):
            raise VerifyException(f"`tt.func` has {name} = {given}, expected a `#sym.expr`")
        unbound = [s.name for s in free_symbols([given.expr]) if s.name not in self.symbol_names]
        if unbound:
            raise VerifyException(f"`tt.func` has a {name} of the symbol `{unbound[0]}`, which it does not take")

    def _verify_parts(self) -> None:
        given = self.attributes.get("parts")
        if given is None:
            return
        if not isinstance(given, IntsAttr) or not all(count.is_Integer and count > 0 for count in given.exprs):
            raise VerifyException(f"`tt.func` has parts = {given}, expected numbers of programs as `#sym.ints`")
        total = sum(int(count) for count in given.exprs)
        if self.grid is None or self.grid.expr != total:
            raise VerifyException(f"`tt.func` has parts of {total} programs, expected a grid of as many")

    def _verify_wide(self) -> None:
        given = self.attributes.get("wide")
        if (given is None) != (self.reach is None):
            raise VerifyException("`tt.func` has a `reach` without `wide` or the other way round, expected both")
        if given is None:
            return
        wide = self.wide
        if wide is None:
            raise VerifyException(f"`tt.func` has wide = {given}, which is no kernel of the module")
        if wide.function_type != self.function_type or wide.symbol_names != self.symbol_names:
            raise VerifyException(f"`tt.func` has wide = {given}, which takes other arguments")
        if wide.reach is not None:
            raise VerifyException(f"`tt.func` has wide = {given}, which is not for all sizes either")

    def _verify_symbols(self, symbols: Attribute) -> None:
        names = self.symbol_names
        if not is_array(symbols) or len(symbols.data) != len(names):
            raise VerifyException(f"`tt.func` has symbols = {symbols}, expected a list of names")
        if len(set(names)) != len(names):
            raise VerifyException(f"`tt.func` names a symbol twice in [{', '.join(names)}]")
        kinds = self.function_type.inputs.data
        sizes = len(kinds) - len(names)
        pointers_first = all(isinstance(kind, PointerType) for kind in kinds[: max(0, sizes)])
        if sizes < 0 or not pointers_first or any(kind != i64 for kind in kinds[sizes:]):
            raise VerifyException(f"`tt.func` with {len(names)} symbols takes pointers and that many i64 behind them")


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """The end of a kernel: `tt.return`."""

    name = "tt.return"
    traits = traits_def(IsTerminator(), HasParent(FuncOp), Pure())
    assembly_format = "attr-dict"

    @staticmethod
    def get() -> ReturnOp:
        return ReturnOp.create()


class _ProgramOp(IRDLOperation):
    """Base of the operations on the grid: `%p = tt.get_program_id x : i32`."""

    axis = prop_def(StringAttr)
    result = result_def(i32)
    traits = traits_def(Pure())

    @classmethod
    def get(cls, axis: str = "x") -> Self:
        """Ask for axis "x", "y" or "z" of the grid."""
        return cls.create(result_types=[i32], properties={"axis": StringAttr(axis)})

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        axis = parser.parse_identifier()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls.create(
            result_types=[parser.parse_type()], properties={"axis": StringAttr(axis)}, attributes=attributes
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.axis.data}")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        verify_choice(self.name, "axis", self.axis, AXES)


@irdl_op_definition
class GetProgramIdOp(_ProgramOp):
    """Which program of the grid this is: `%p = tt.get_program_id x : i32`."""

    name = "tt.get_program_id"


@irdl_op_definition
class GetNumProgramsOp(_ProgramOp):
    """How many programs there are: `%n = tt.get_num_programs x : i32`."""

    name = "tt.get_num_programs"


@irdl_op_definition
class AssertOp(IRDLOperation):
    """End all programs with an error unless the condition holds everywhere: `tt.assert %c, "text" : tensor<16xi1>`."""

    name = "tt.assert"
    condition = operand_def()
    message = prop_def(StringAttr)
    traits = traits_def(Writes())
    assembly_format = "$condition `,` $message attr-dict `:` type($condition)"

    @staticmethod
    def get(condition: SSAValue, message: str) -> AssertOp:
        return AssertOp.create(operands=[condition], properties={"message": StringAttr(message)})

    def verify_(self) -> None:
        kind = self.condition.type
        if element_of(kind) != i1:
            raise VerifyException(f"`tt.assert` takes an i1 or a tensor of them, found {kind}")
