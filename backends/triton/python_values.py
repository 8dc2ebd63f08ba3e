"""Pieces of Triton's Python: expressions with their precedence and shape, literals, names of types and of variables."""

from __future__ import annotations

import builtins
import keyword
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
)
from xdsl.ir import Attribute

from tilewright.dialects.arith_tensor import element_of
from tilewright.dialects.tt import PointerType
from tilewright.dialects.type_guards import is_integer

COMPARISON, OR, XOR, AND, SHIFT, SUM, PRODUCT, UNARY, ATOM = range(9)
"""The precedence of Python's operators, from loose to tight."""

_FLOATS: dict[type[Attribute], str] = {
    BFloat16Type: "bfloat16",
    Float16Type: "float16",
    Float32Type: "float32",
    Float64Type: "float64",
    Float8E4M3FNType: "float8e4nv",
    Float8E5M2Type: "float8e5",
}
_RESERVED = frozenset({"tl", "triton", "torch", "libdevice", "launch", "programs", *keyword.kwlist, *dir(builtins)})

COMBINE = "combine_"
"""What the names of functions that combine two elements begin with, and no variable's."""


class SourceError(Exception):
    """A kernel has something that Triton's Python cannot say."""


@dataclass(frozen=True)
class Text:
    """An expression. Its shape may be smaller than that of the value that it stands for: what is repeated is left to
    broadcasting. A literal takes the type of what it is computed with. A plain number is one without methods in
    Triton's interpreter.
    """

    code: str
    rank: int = ATOM
    shape: tuple[int, ...] = ()
    literal: bool = False
    plain: bool = False

    def within(self, rank: int) -> str:
        """Return the code for a place that wants at least precedence `rank`."""
        return self.code if self.rank >= rank else f"({self.code})"

    @property
    def is_name(self) -> bool:
        return self.code.isidentifier()


def dtype_name(kind: Attribute) -> str:
    """Return the type of elements as `tl.float32`. Raises `SourceError` for one that Triton does not have."""
    element = element_of(kind)
    if isinstance(element, PointerType):
        return f"tl.pointer_type({dtype_name(element.pointee)})"
    if is_integer(element):
        return f"tl.int{element.width.data}"
    name = _FLOATS.get(type(element))
    if name is None:
        raise SourceError(f"triton has no elements of type {element}")
    return f"tl.{name}"


def unsigned_name(kind: Attribute) -> str:
    """Return the unsigned integer type of the width of `kind`."""
    return dtype_name(kind).replace("tl.int", "tl.uint")


def literal(number: float, kind: Attribute) -> Text:
    """Return a number of the element type `kind`, as short as its bits allow."""
    element = element_of(kind)
    if not isinstance(element, AnyFloat):
        if is_integer(element) and element.width.data == 1:
            return Text(str(bool(number)), literal=True)
        code = str(int(number))
    elif math.isnan(number) or math.isinf(number):
        return Text(f'float("{number}")', literal=True)
    else:
        code = _short_float(number, element)
    return Text(code, UNARY if code.startswith("-") else ATOM, literal=True)


def _short_float(number: float, element: AnyFloat) -> str:
    if not isinstance(element, Float64Type):
        for digits in range(1, 10):
            short = float(f"{number:.{digits}g}")
            if struct.pack("<f", short) == struct.pack("<f", number):
                return repr(short)
    return repr(number)


def broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of what is computed from values of shapes that are scalar, or of one rank and compatible."""
    result: tuple[int, ...] = ()
    for shape in shapes:
        if not result or not shape:
            result = result or shape
        else:
            result = tuple(max(a, b) for a, b in zip(result, shape, strict=True))
    return result


class Names:
    """Hands out names, each once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def fresh(self, hint: str, *, top: bool = False) -> str:
        """Return `hint`, or else with a number behind it; at the top of the file the number is a part of the hint."""
        base = re.sub(r"\W", "_", hint if top else re.sub(r"_\d+$", "", hint)) or "value"
        if not base[0].isalpha():
            base = f"v{base}"
        if base in _RESERVED or (base.startswith(COMBINE) and not top):
            base = f"{base}_value"
        name, number = base, 1
        while name in self._taken:
            name, number = f"{base}{number}" if not base[-1].isdigit() else f"{base}_{number}", number + 1
        self._taken.add(name)
        return name


def shape_text(shape: Sequence[int], blocks: dict[int, str]) -> str:
    """Return a shape as a tuple, with the names of block sizes."""
    sizes = [blocks.get(n, str(n)) for n in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"
