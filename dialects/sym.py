"""Symbolic sizes and index expressions.

The attributes of this dialect hold integer expressions: sizes, strides, loop bounds and index maps. An expression is an
interned SymPy object built from integers, size symbols (`s0`), dimension symbols (`d0`, `d1`, ..) and `+ - *`,
`floordiv`, `mod`, `min`, `max`. `floordiv` and `mod` round towards negative infinity, as in Python. The dialect has no
division that leaves a remainder unnamed, no floating point, and no way to call anything: text is read by the parser
below and is never evaluated.

```
#sym.expr<4 * s0 + 1>
#sym.ints<[-1, s0]>
#sym.layout<[s0, 1024], [1024, 1]>
#sym.map<(d0, d1) -> (d0 floordiv 4, d1 + s0)>
#sym.symbol<hint 4096, 2 to 1000000>
```
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy
from xdsl.dialects.builtin import MemRefLayoutAttr
from xdsl.ir import Data, Dialect
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.sym_expr import DIM_NAME, Expr, FloorDiv, Max, Min, Mod, Symbol, dim, integer, symbol

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset(
    {"floordiv", "mod", "min", "max", "to", "step", "hint", "offset", "device", "mask", "else", "combine"}
)
_DIM = re.compile(r"\bd([0-9]+)\b")
_ZERO = integer(0)
_LARGEST = 1 << 63

# Deep enough for any expression that a pass builds, shallow enough that neither the recursive parser nor the printer
# exhausts the stack.
_MAX_DEPTH = 100


def parse_expr(parser: AttrParser, atom: Callable[[], Expr | None] | None = None) -> Expr:
    """Parse one expression.

    `atom` is asked first at each operand position and may consume tokens of its own, such as SSA names, which then
    stand for the dims: no dim may be named. Raises `ParseError` at the offending token.
    """
    return _parse_sum(parser, atom, 0)


def _parse_sum(parser: AttrParser, atom: Callable[[], Expr | None] | None, depth: int) -> Expr:
    if depth > _MAX_DEPTH:
        parser.raise_error("index expression is nested too deeply")
    terms = [_parse_product(parser, atom, depth)]
    while True:
        if parser.parse_optional_punctuation("+") is not None:
            terms.append(_parse_product(parser, atom, depth))
        elif parser.parse_optional_punctuation("-") is not None:
            terms.append(-_parse_product(parser, atom, depth))
        else:
            return terms[0] if len(terms) == 1 else sympy.Add(*terms)


def _parse_product(parser: AttrParser, atom: Callable[[], Expr | None] | None, depth: int) -> Expr:
    # SymPy multiplies a product of a number and a sum out, one of more factors not: all factors must meet in one call.
    factors = [integer(-1)] if _parse_minus(parser) else []
    factors.append(_parse_operand(parser, atom, depth))
    for _ in range(_MAX_DEPTH):
        if parser.parse_optional_punctuation("*") is not None:
            factors.append(_parse_operand(parser, atom, depth))
            continue
        operator = parser.parse_optional_keyword_in(("floordiv", "mod"))
        if operator is None:
            return factors[0] if len(factors) == 1 else sympy.Mul(*factors)
        position = parser.pos
        divisor = _parse_operand(parser, atom, depth)
        if divisor == 0:
            parser.raise_error(f"`{operator}` by zero", position)
        dividend = sympy.Mul(*factors)
        factors = [FloorDiv(dividend, divisor) if operator == "floordiv" else Mod(dividend, divisor)]
    parser.raise_error(f"a product in an index expression has more than {_MAX_DEPTH} factors")


def _parse_minus(parser: AttrParser) -> bool:
    """Parse any number of minus signs; return whether it is odd."""
    negative = False
    while parser.parse_optional_punctuation("-") is not None:
        negative = not negative
    return negative


def _parse_operand(parser: AttrParser, atom: Callable[[], Expr | None] | None, depth: int) -> Expr:
    if atom is not None and (value := atom()) is not None:
        return value
    if _parse_minus(parser):
        return -_parse_operand(parser, atom, depth)
    if parser.parse_optional_punctuation("(") is not None:
        value = _parse_sum(parser, atom, depth + 1)
        parser.parse_punctuation(")", " in index expression")
        return value
    position = parser.pos
    number = parser.parse_optional_integer(allow_boolean=False, allow_negative=False)
    if number is not None:
        if number > _LARGEST:
            parser.raise_error("an integer in an index expression has more than 64 bits", position)
        return integer(number)
    name = parser.parse_optional_identifier()
    if name is None:
        parser.raise_error("expected an integer, a symbol or `(` in index expression", position)
    if name in ("min", "max"):
        parser.parse_punctuation("(", f" after `{name}`")
        lhs = _parse_sum(parser, atom, depth + 1)
        parser.parse_punctuation(",", f" in `{name}`")
        rhs = _parse_sum(parser, atom, depth + 1)
        parser.parse_punctuation(")", f" in `{name}`")
        return Min(lhs, rhs) if name == "min" else Max(lhs, rhs)
    if name in _RESERVED or not _NAME.fullmatch(name):
        parser.raise_error(f"`{name}` is not a symbol name", position)
    if atom is not None and DIM_NAME.fullmatch(name):
        parser.raise_error(f"`{name}` is the name of a dim; an index is written as a value, such as `%i`", position)
    return symbol(name)


def _term_key(expr: Expr) -> tuple[bool, bool, str, str]:
    """Order the operands of a sum or product without regard to the numbers of dims, then by those."""
    text = format_expr(expr)
    negative = expr.as_coeff_Mul()[0] < 0
    # Numbers of equal length: d2 comes before d10.
    numbered = _DIM.sub(lambda m: f"d{int(m[1]):06d}", text)
    return (bool(expr.is_Integer), bool(negative), _DIM.sub("d", text), numbered)


@lru_cache(maxsize=8192)
def format_expr(expr: Expr) -> str:
    """Return the canonical text of `expr`. It does not depend on hash order, and `parse_expr` reads it back."""
    return _format(expr, str, 0)


def format_with_names(expr: Expr, names: Mapping[Symbol, str]) -> str:
    """Return the text of `expr` with the symbols in `names` written as given."""
    return _format(expr, lambda s: names.get(s, str(s)), 0) if names else format_expr(expr)


def _format(expr: Expr, name: Callable[[Any], str], level: int) -> str:
    """Format with parentheses as needed in a context of `level`: 0 sum, 1 product, 2 operand of a product."""
    if expr.is_Integer:
        text = str(int(expr))
        return f"({text})" if level > 1 and text[0] == "-" else text
    if isinstance(expr, sympy.Symbol):
        return name(expr)
    if isinstance(expr, (Min, Max)):
        lhs, rhs = (_format(a, name, 0) for a in sorted(expr.args, key=_term_key))
        return f"{'min' if isinstance(expr, Min) else 'max'}({lhs}, {rhs})"
    if isinstance(expr, (FloorDiv, Mod)):
        lhs, rhs = _format(expr.args[0], name, 2), _format(expr.args[1], name, 2)
        text = f"{lhs} {'floordiv' if isinstance(expr, FloorDiv) else 'mod'} {rhs}"
        return f"({text})" if level > 0 else text
    if expr.is_Add:
        parts: list[str] = []
        for term in sorted(expr.args, key=_term_key):
            negative = term.as_coeff_Mul()[0] < 0
            separator = (" - " if negative else " + ") if parts else ("-" if negative else "")
            parts += [separator, _format(-term if negative else term, name, 1)]
        return f"({''.join(parts)})" if level > 0 else "".join(parts)
    if expr.is_Mul:
        if expr.as_coeff_Mul()[0] < 0:
            text = f"-{_format(-expr, name, 1)}"
            return f"({text})" if level > 0 else text
        factors = sorted(expr.args, key=lambda a: (not a.is_Integer, *_term_key(a)))
        text = " * ".join(_format(f, name, 1 if f.is_Pow else 2) for f in factors)
        return f"({text})" if level > 1 else text
    if expr.is_Pow:
        base, exponent = expr.args
        text = " * ".join([_format(base, name, 2)] * int(exponent))
        return f"({text})" if level > 1 else text
    raise ValueError(f"`{expr}` is not an index expression")


def _check(exprs: Iterable[object], what: str) -> None:
    for expr in exprs:
        if not isinstance(expr, sympy.Expr):
            raise VerifyException(f"expected {what} to be an index expression, found {expr!r}")


@irdl_attr_definition
class ExprAttr(Data[sympy.Expr]):
    """One integer expression: `#sym.expr<4 * s0 + 1>`."""

    name = "sym.expr"

    @property
    def expr(self) -> Expr:
        return self.data

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Expr:
        with parser.in_angle_brackets():
            return parse_expr(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{format_expr(self.data)}>")

    def verify(self) -> None:
        _check([self.data], "`sym.expr`")


def _parse_expr_list(parser: AttrParser) -> tuple[Expr, ...]:
    return tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_expr(parser)))


def _format_list(exprs: Iterable[Expr]) -> str:
    return ", ".join(format_expr(e) for e in exprs)


@irdl_attr_definition
class IntsAttr(Data[tuple[sympy.Expr, ...]]):
    """A list of integers, some of them perhaps symbolic: `#sym.ints<[-1, s0]>`."""

    name = "sym.ints"

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.data

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Expr, ...]:
        with parser.in_angle_brackets():
            return _parse_expr_list(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<[{_format_list(self.data)}]>")

    def verify(self) -> None:
        _check(self.data, "an element of `sym.ints`")


@dataclass(frozen=True)
class Layout:
    """Sizes and strides (in elements) of a strided tensor, the offset of its first element in its storage, device."""

    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr
    device: str


@irdl_attr_definition
class LayoutAttr(MemRefLayoutAttr, Data[Layout]):
    """Where the elements of a tensor lie: `#sym.layout<[sizes], [strides], offset e, device "cuda:0">`.

    Element `i` lies at `offset + sum(i[k] * strides[k])`, counted in elements from the start of the storage. The offset
    is left out when zero, the device when it is the CPU.
    """

    name = "sym.layout"

    @staticmethod
    def get(  # pyright: ignore[reportIncompatibleMethodOverride]  (the base has no use for a second parameter)
        sizes: Iterable[Expr], strides: Iterable[Expr], offset: Expr = _ZERO, device: str = "cpu"
    ) -> LayoutAttr:
        return LayoutAttr(Layout(tuple(sizes), tuple(strides), offset, device))

    @staticmethod
    def contiguous(sizes: Iterable[Expr], device: str = "cpu") -> LayoutAttr:
        """Return the row-major layout of `sizes`."""
        sizes = tuple(sizes)
        return LayoutAttr.get(sizes, contiguous_strides(sizes), device=device)

    def get_affine_map(self) -> AffineMap:
        """Return the map from indices to elements of the storage. Raises ValueError where the layout is symbolic."""
        strides, offset = self.get_strides(), self.get_offset()
        if offset is None or any(s is None for s in strides):
            raise ValueError(f"the layout {self} is symbolic and has no affine map")
        expr: AffineExpr = AffineExpr.constant(offset)
        for i, stride in enumerate(strides):
            expr = expr + AffineExpr.dimension(i) * AffineExpr.constant(stride or 0)
        return AffineMap(len(strides), 0, (expr,))

    def get_strides(self) -> Sequence[int | None]:
        return [int(s) if s.is_Integer else None for s in self.strides]

    def get_offset(self) -> int | None:
        return int(self.offset) if self.offset.is_Integer else None

    @property
    def sizes(self) -> tuple[Expr, ...]:
        return self.data.sizes

    @property
    def strides(self) -> tuple[Expr, ...]:
        return self.data.strides

    @property
    def offset(self) -> Expr:
        return self.data.offset

    @property
    def device(self) -> str:
        return self.data.device

    @property
    def device_kind(self) -> str:
        """The device without its number: `cuda` for `cuda:0`."""
        return self.data.device.partition(":")[0]

    def on_device(self, device: str) -> LayoutAttr:
        """Return the same layout on another device."""
        return LayoutAttr.get(self.sizes, self.strides, self.offset, device)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Layout:
        with parser.in_angle_brackets():
            sizes = _parse_expr_list(parser)
            parser.parse_punctuation(",", " between sizes and strides")
            position = parser.pos
            strides = _parse_expr_list(parser)
            if len(sizes) != len(strides):
                parser.raise_error(f"layout has {len(sizes)} sizes but {len(strides)} strides", position)
            offset, device = _ZERO, "cpu"
            while parser.parse_optional_punctuation(",") is not None:
                if parser.parse_optional_keyword("offset") is not None:
                    offset = parse_expr(parser)
                else:
                    parser.parse_keyword("device")
                    device = parser.parse_str_literal()
        return Layout(sizes, strides, offset, device)

    def print_parameter(self, printer: Printer) -> None:
        layout = self.data
        text = f"<[{_format_list(layout.sizes)}], [{_format_list(layout.strides)}]"
        if layout.offset != 0:
            text += f", offset {format_expr(layout.offset)}"
        printer.print_string(text)
        if layout.device != "cpu":
            printer.print_string(", device ")
            printer.print_string_literal(layout.device)
        printer.print_string(">")

    def verify(self) -> None:
        if len(self.sizes) != len(self.strides):
            raise VerifyException(f"layout has {len(self.sizes)} sizes but {len(self.strides)} strides")
        _check((*self.sizes, *self.strides, self.offset), "a part of `sym.layout`")
        for size in self.sizes:
            if size.is_Integer and size < 0:
                raise VerifyException(f"layout has a negative size {size}")


@dataclass(frozen=True)
class IndexMap:
    """A function from `num_dims` integers (`d0`, `d1`, ..) to a tuple of integers."""

    num_dims: int
    exprs: tuple[Expr, ...]


@irdl_attr_definition
class MapAttr(Data[IndexMap]):
    """A map of indices: `#sym.map<(d0, d1) -> (d0 floordiv 4, d1 + s0)>`. Symbols other than its dims are sizes."""

    name = "sym.map"

    @staticmethod
    def get(num_dims: int, exprs: Iterable[Expr]) -> MapAttr:  # pyright: ignore[reportIncompatibleMethodOverride]
        return MapAttr(IndexMap(num_dims, tuple(exprs)))

    @staticmethod
    def identity(rank: int) -> MapAttr:
        return MapAttr.get(rank, (dim(i) for i in range(rank)))

    @property
    def num_dims(self) -> int:
        return self.data.num_dims

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.data.exprs

    def apply(self, args: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return the results at `args`, one expression per dim."""
        assert len(args) == self.num_dims
        replacement = {dim(i): arg for i, arg in enumerate(args)}
        return tuple(e.xreplace(replacement) for e in self.exprs)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> IndexMap:
        with parser.in_angle_brackets():
            position = parser.pos
            dims = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_identifier)
            if dims != [f"d{i}" for i in range(len(dims))]:
                parser.raise_error(f"expected the dims (d0, d1, ..), found ({', '.join(dims)})", position)
            parser.parse_punctuation("->")
            exprs = tuple(parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parse_expr(parser)))
        return IndexMap(len(dims), exprs)

    def print_parameter(self, printer: Printer) -> None:
        dims = ", ".join(f"d{i}" for i in range(self.num_dims))
        printer.print_string(f"<({dims}) -> ({_format_list(self.exprs)})>")

    def verify(self) -> None:
        _check(self.exprs, "a result of `sym.map`")
        for s in free_symbols(self.exprs):
            if DIM_NAME.fullmatch(s.name) and int(s.name[1:]) >= self.num_dims:
                raise VerifyException(f"`sym.map` has {self.num_dims} dims but uses {s.name}")


@dataclass(frozen=True)
class SymbolInfo:
    """What is known of a size symbol: the value seen when the graph was traced, and its inclusive range."""

    hint: int | None
    lower: int
    upper: int


@irdl_attr_definition
class SymbolAttr(Data[SymbolInfo]):
    """Facts about one symbol: `#sym.symbol<hint 4096, 2 to 1000000>`; the hint is optional."""

    name = "sym.symbol"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> SymbolInfo:
        with parser.in_angle_brackets():
            hint = None
            if parser.parse_optional_keyword("hint") is not None:
                hint = parser.parse_integer(allow_boolean=False)
                parser.parse_punctuation(",")
            lower = parser.parse_integer(allow_boolean=False)
            parser.parse_keyword("to")
            upper = parser.parse_integer(allow_boolean=False)
        return SymbolInfo(hint, lower, upper)

    def print_parameter(self, printer: Printer) -> None:
        hint = "" if self.data.hint is None else f"hint {self.data.hint}, "
        printer.print_string(f"<{hint}{self.data.lower} to {self.data.upper}>")

    def verify(self) -> None:
        if self.data.lower > self.data.upper:
            raise VerifyException(f"symbol has an empty range {self.data.lower} to {self.data.upper}")


def contiguous_strides(sizes: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return the row-major strides of `sizes`, as PyTorch has them: a size of zero counts as one."""
    strides: list[Expr] = []
    stride = integer(1)
    for size in reversed(sizes):
        strides.append(stride)
        stride = stride * (integer(1) if size == 0 else size)
    return tuple(reversed(strides))


def free_symbols(exprs: Iterable[Expr]) -> list[Symbol]:
    """Return the symbols in `exprs`, sorted by name."""
    found: set[Any] = set()
    for expr in exprs:
        found |= expr.free_symbols
    return sorted(found, key=lambda s: s.name)


Sym = Dialect("sym", [], [ExprAttr, IntsAttr, LayoutAttr, MapAttr, SymbolAttr])
