"""Schemas of ATen operators, read without torch.

`aten_schemas.txt` beside this file holds one torch schema string a line, sorted, with a mark behind those that draw
random numbers; `tools/gen_aten_schemas.py` writes it from an installed torch. The file is read once, on the first
lookup, into a dict of lines; a line is parsed when it is asked for. So who meets ten operators parses ten lines.

    >>> schema = lookup("aten.add.Tensor")
    >>> [(a.name, str(a.kind)) for a in schema.arguments]
    [('self', 'Tensor'), ('other', 'Tensor'), ('alpha', 'Scalar')]
"""

import ast
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

RANDOM_MARK = "  # random"
TABLE = Path(__file__).with_name("aten_schemas.txt")


class Element(StrEnum):
    """The type of a single value, or of each value in a list; the spelling is torch's."""

    TENSOR = "Tensor"
    INT = "int"
    SYM_INT = "SymInt"
    FLOAT = "float"
    BOOL = "bool"
    SYM_BOOL = "SymBool"
    SCALAR = "Scalar"
    STR = "str"
    SCALAR_TYPE = "ScalarType"
    DEVICE = "Device"
    LAYOUT = "Layout"
    MEMORY_FORMAT = "MemoryFormat"
    GENERATOR = "Generator"
    OTHER = "other"
    """What no graph after AOTAutograd holds as a value: `Storage`, `Stream`, `Dict(..)`, script classes."""


Default = None | bool | int | float | str | tuple[bool | int | float, ...]
"""A default value. Enumerations appear as torch's number for them (`ScalarType? dtype=4` is int64)."""


@dataclass(frozen=True, slots=True)
class Alias:
    """An alias annotation, `(a! -> *)`: the sets a value is in before and after the call, and whether it is written."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    is_write: bool


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of an argument or a result. `str` gives torch's spelling, such as `Tensor?[]` or `SymInt[2]`."""

    element: Element
    is_list: bool = False
    length: int | None = None
    """The list length that torch states (`int[2]`): a single value stands for that many equal ones."""
    optional: bool = False
    """Whether `none` is allowed for the whole value."""
    optional_elements: bool = False
    """Whether `none` is allowed for an element of the list (`Tensor?[]`)."""

    def __str__(self) -> str:
        text = self.element + "?" * self.optional_elements
        if self.is_list:
            text += f"[{'' if self.length is None else self.length}]"
        return text + "?" * self.optional


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of an operator."""

    name: str
    kind: Kind
    alias: Alias | None
    default: Default
    has_default: bool
    kwarg_only: bool

    @property
    def is_write(self) -> bool:
        """Whether the operator writes into this argument."""
        return self.alias is not None and self.alias.is_write


@dataclass(frozen=True, slots=True)
class Return:
    """One result of an operator; torch names few of them. How long a list is, only the call knows."""

    name: str | None
    kind: Kind
    alias: Alias | None


@dataclass(frozen=True, slots=True)
class Schema:
    """The signature of one overload, named as in the IR: `aten.add.Tensor`, `aten.relu.default`."""

    name: str
    arguments: tuple[Argument, ...]
    returns: tuple[Return, ...]
    is_random: bool = False
    """Whether the result depends on the state of a random generator, which the call moves on."""

    def argument(self, name: str) -> Argument | None:
        """The parameter of that name, if there is one."""
        return next((a for a in self.arguments if a.name == name), None)

    @property
    def is_mutable(self) -> bool:
        """Whether the operator writes into any argument."""
        return any(a.is_write for a in self.arguments)

    @property
    def has_effect(self) -> bool:
        """Whether a call does more than write arguments and return results.

        It draws random numbers, or returns nothing: it is called for the error that it raises, or for what it prints.
        """
        return self.is_random or not (self.returns or self.is_mutable)

    @property
    def is_view(self) -> bool:
        """Whether some result may share memory with an argument that the operator does not write."""
        return any(r.alias is not None and not r.alias.is_write for r in self.returns)


@cache
def _lines() -> dict[str, str]:
    """Every line of the table by the operator's name in torch's spelling, `aten::add.Tensor`."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return {line[: line.index("(")]: line for line in lines if not line.startswith("#")}


def names() -> list[str]:
    """The operators in the table, in its order, named as in the IR."""
    return [_ir_name(name) for name in _lines()]


@cache
def lookup(name: str) -> Schema | None:
    """The schema of an operator named as in the IR, or None if the table does not have it (custom operators)."""
    namespace, _, rest = name.partition(".")
    operator, _, overload = rest.partition(".")
    if not operator or not overload:
        return None
    torch_name = f"{namespace}::{operator}" if overload == "default" else f"{namespace}::{operator}.{overload}"
    line = _lines().get(torch_name)
    return None if line is None else parse_schema(line)


def _ir_name(torch_name: str) -> str:
    name = torch_name.replace("::", ".", 1)
    return name if name.count(".") == 2 else f"{name}.default"


_VALUE = re.compile(
    r"""(?P<base>Dict\([^)]*\)|[\w.]+)
        (?P<suffix>(?:\([^)]*\)|\[\d*\]|\?)*)
        (?:\ (?P<name>\w+))?
        (?:=(?P<default>"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[^,)]+))?""",
    re.VERBOSE,
)
_SUFFIX = re.compile(r"\((?P<alias>[^)]*)\)|\[(?P<length>\d*)\]|(?P<optional>\?)")


def parse_schema(text: str) -> Schema:
    """Parse a torch schema string, `aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor`.

    The mark of random operators may follow. Raises ValueError if the text is none of this.
    """
    is_random = text.endswith(RANDOM_MARK)
    text = text.removesuffix(RANDOM_MARK)
    paren = text.find("(")
    if paren < 1:
        raise ValueError(f"not an operator schema: {text!r}")
    arguments, end = _parse_arguments(text, paren + 1)
    arrow = ") -> "
    if not text.startswith(arrow, end):
        raise ValueError(f"expected {arrow!r} at column {end} of {text!r}")
    return Schema(_ir_name(text[:paren]), arguments, _parse_returns(text, end + len(arrow)), is_random)


def _parse_arguments(text: str, pos: int) -> tuple[tuple[Argument, ...], int]:
    arguments: list[Argument] = []
    kwarg_only = False
    while text[pos : pos + 1] != ")":
        if arguments or kwarg_only:
            pos = _skip(text, pos, ", ")
        if text.startswith("*", pos):
            kwarg_only = True
            pos += 1
            continue
        match = _match(text, pos)
        kind, alias = _parse_kind(match)
        default: str | None = match["default"]
        arguments.append(
            Argument(
                name=match["name"],
                kind=kind,
                alias=alias,
                default=None if default is None else _parse_default(default),
                has_default=default is not None,
                kwarg_only=kwarg_only,
            )
        )
        pos = match.end()
    return tuple(arguments), pos


def _parse_returns(text: str, pos: int) -> tuple[Return, ...]:
    if text[pos:] == "()":
        return ()
    stop = len(text)
    if text.startswith("(", pos):
        pos, stop = pos + 1, stop - 1
    returns: list[Return] = []
    while pos < stop:
        if returns:
            pos = _skip(text, pos, ", ")
        match = _match(text, pos)
        kind, alias = _parse_kind(match)
        returns.append(Return(match["name"], kind, alias))
        pos = match.end()
    return tuple(returns)


def _match(text: str, pos: int) -> re.Match[str]:
    match = _VALUE.match(text, pos)
    if match is None:
        raise ValueError(f"expected a type at column {pos} of {text!r}")
    return match


def _skip(text: str, pos: int, token: str) -> int:
    if not text.startswith(token, pos):
        raise ValueError(f"expected {token!r} at column {pos} of {text!r}")
    return pos + len(token)


_ELEMENTS = {element.value: element for element in Element}


def _parse_kind(match: re.Match[str]) -> tuple[Kind, Alias | None]:
    alias: Alias | None = None
    is_list = optional = optional_elements = False
    length: int | None = None
    for suffix in _SUFFIX.finditer(match["suffix"]):
        if suffix["alias"] is not None:
            alias = _parse_alias(suffix["alias"])
        elif suffix["optional"] is not None:
            optional = True
        else:
            is_list, optional_elements, optional = True, optional, False
            length = int(suffix["length"]) if suffix["length"] else None
    element = _ELEMENTS.get(match["base"], Element.OTHER)
    return Kind(element, is_list, length, optional, optional_elements), alias


def _parse_alias(text: str) -> Alias:
    before, _, after = text.partition(" -> ")
    before_sets = tuple(before.replace("!", "").split("|"))
    return Alias(before_sets, tuple(after.split("|")) if after else before_sets, "!" in before)


def _parse_default(text: str) -> Default:
    """Read a literal as torch prints it: Python's, but for a float's missing last zero, which Python also accepts.

    `ast.literal_eval` builds constants only: nothing in the text is executed.
    """
    value: Any = ast.literal_eval(text)
    return tuple(value) if text[0] == "[" else value
