"""Read and verify `.ir` text, with errors that say where: `file:line:column: error: message` and the line itself.

Whatever is wrong with a file, the reader raises `SourceError`: xDSL's parser has errors of many kinds, and not all of
them know their position. The position of each operation is kept beside the module, so that what the verifier finds can
be shown too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from xdsl.context import Context
from xdsl.dialects.builtin import (
    AnyDenseElement,
    AnyFloat,
    DenseIntOrFPElementsAttr,
    ModuleOp,
    RankedStructure,
    TensorType,
    VectorType,
)
from xdsl.ir import AttributeInvT, Operation, SSAValue, TypeAttribute
from xdsl.parser import Parser
from xdsl.parser.core import UnresolvedOperand
from xdsl.utils.exceptions import ParseError, VerifyException

from tilewright.dialects.type_guards import is_tensor, is_vector
from tilewright.dialects.verifier import InvalidOperation, invalid_operations, verify_module

_UNKNOWN = re.compile(r"(?:Operation |')(?P<name>[\w.$-]+)'? is not registered")

# Comments are matched to be left alone.
_STRING = re.compile(r'//[^\n]*|"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+(?P<end>"?)')

# A line of a program may hold a whole graph's types.
_MAX_EXCERPT = 160


@dataclass(frozen=True)
class Location:
    """A place in a file; line and column count from one."""

    line: int
    column: int


class SourceError(Exception):
    """Something wrong with a file; its text is what a user sees."""

    def __init__(self, name: str, message: str, location: Location | None = None, excerpt: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.message = message
        self.location = location
        self.excerpt = excerpt

    def headline(self) -> str:
        """Return the error in one line, without the excerpt."""
        place = "" if self.location is None else f":{self.location.line}:{self.location.column}"
        return f"{self.name}{place}: error: {self.message}"

    def __str__(self) -> str:
        return self.headline() + (f"\n{self.excerpt}" if self.excerpt else "")


@dataclass(frozen=True)
class Source:
    """The text of a file, or of a piece of one that starts `line_offset` lines below its top."""

    name: str
    text: str
    line_offset: int = 0

    def error(self, message: str, position: int | None = None) -> SourceError:
        """Return an error at `position`, counted in characters from the start of the text."""
        if position is None:
            return SourceError(self.name, message)
        position = min(position, len(self.text))
        start = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        line = self.text[start : end if end >= 0 else len(self.text)].rstrip("\r")
        location = Location(self.text.count("\n", 0, position) + 1 + self.line_offset, position - start + 1)
        return SourceError(self.name, message, location, _excerpt(line, position - start))


def _excerpt(line: str, column: int) -> str:
    """Return `line`, or the part of it around `column`, with a mark below that character."""
    first = max(0, min(column - _MAX_EXCERPT // 2, len(line) - _MAX_EXCERPT))
    shown = line[first : first + _MAX_EXCERPT].replace("\t", " ")
    before, after = "..." * (first > 0), "..." * (first + _MAX_EXCERPT < len(line))
    printable = "".join(c if c.isprintable() else "?" for c in shown)
    return f"  {before}{printable}{after}\n  {' ' * (len(before) + column - first)}^"


@dataclass(frozen=True)
class ParsedModule:
    """A module, and where in the source each operation that was read starts."""

    source: Source
    module: ModuleOp
    positions: dict[Operation, int]

    def error_at(self, op: Operation | None, message: str) -> SourceError:
        """Return an error at `op`, or at the closest operation around it that the source has."""
        while op is not None and op not in self.positions:
            op = op.parent_op()
        return self.source.error(message, None if op is None else self.positions[op])

    def verify(self) -> Iterator[SourceError]:
        """Yield what is wrong with the module: everything that verifiers say, or else the first use before definition.

        Nothing that a verifier raises comes through.
        """
        try:
            verify_module(self.module)
        except InvalidOperation as error:
            yield from self._every_error() or [self.error_at(error.op, one_line(str(error)))]
        except VerifyException as error:
            yield self.source.error(one_line(str(error)))
        except RecursionError:
            yield self.source.error("operations are nested too deeply")
        except Exception as error:  # noqa: BLE001 (verifiers of xDSL raise anything)
            yield self.error_at(self._unverifiable(), f"cannot be verified: {describe(error)}")

    def _every_error(self) -> list[SourceError]:
        """Return what is wrong with each operation by itself, or nothing if that cannot be found out."""
        try:
            return [self.error_at(e.op, one_line(str(e))) for e in invalid_operations(self.module)]
        except Exception:  # noqa: BLE001 (as above)
            return []

    def _unverifiable(self) -> Operation | None:
        """Return the first operation whose verifier raises anything."""
        for op in self.module.walk(reverse=True):
            try:
                op.verify(verify_nested_ops=False)
            except Exception:  # noqa: BLE001 (as above)
                return op
        return None


def describe(error: BaseException) -> str:
    """Return the text of an exception that was not meant for users, in one line, with its type."""
    text = one_line(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def read_text(path: str) -> str:
    """Return the text of a file. Raises `SourceError` if it cannot be read or is not text."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror or error}") from None
    return decode(path, content)


def decode(name: str, content: bytes) -> str:
    """Return `content` as text. Raises `SourceError` at the first byte that is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        good = Source(name, content[: error.start].decode("utf-8"))
        raise good.error(f"byte 0x{content[error.start]:02x} is not UTF-8 text", len(good.text)) from None


def read_file(context: Context, path: str) -> ParsedModule:
    """Parse and verify a file. Raises `SourceError` for the first thing that is wrong."""
    parsed = read_module(context, Source(path, read_text(path)))
    for error in parsed.verify():
        raise error
    return parsed


def read_module(context: Context, source: Source, *, implicit_module: bool = True) -> ParsedModule:
    """Parse a module. Raises `SourceError` for whatever is wrong with the text. Does not verify it."""
    _check_strings(source)
    try:
        parser = _Parser(context, source.text, source.name)
    except ParseError as error:
        # The constructor reads the first token.
        raise source.error(error.msg, error.span.start) from None
    try:
        module = parser.parse_module(implicit_module)
    except Exception as error:  # noqa: BLE001 (the parser, and the constructors that it calls, raise anything)
        parser.report(source, error)
    return ParsedModule(source, module, parser.positions)


def _check_strings(source: Source) -> None:
    """Raise `SourceError` for a string that does not end on its line; xDSL's lexer would take forever to find out."""
    for match in _STRING.finditer(source.text):
        if match["end"] == "":
            raise source.error("this string is not closed, or has an escape that does not exist", match.start())


_NUMBER = re.compile(r"0[xX][0-9A-Fa-f]+|[-+]?[0-9]+(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?)?")
_DENSE_BITS = re.compile(r'\s*<([^<>"]*0[xX][0-9A-Fa-f]+[^<>"]*)>')
_SHAPED_TYPE = re.compile(r'(?:tensor|memref)<[^<>"]*(?:(?:#sym\.layout|!tt\.ptr)<[^<>"]*>)?>')


class _Parser(Parser):
    """xDSL's parser, which also remembers where operations start and values are first used, and parses a type once."""

    def __init__(self, context: Context, text: str, name: str) -> None:
        self.positions: dict[Operation, int] = {}
        self._first_use: dict[str, int] = {}
        self._types: dict[str, TypeAttribute] = {}
        """Types with a shape by their text: they are most of a file, and few."""
        super().__init__(context, text, name)

    def parse_operation(self) -> Operation:
        start = self.pos
        op = super().parse_operation()
        self.positions[op] = start
        return op

    def parse_optional_type(self) -> TypeAttribute | None:
        match = _SHAPED_TYPE.match(self.lexer.input.content, self.pos)
        if match is None:
            return super().parse_optional_type()
        kind = self._types.get(match[0])
        if kind is not None:
            self._resume_from(match.end())
            return kind
        kind = super().parse_optional_type()
        if kind is not None:
            self._types[match[0]] = kind
        return kind

    def parse_dense_int_or_fp_elements_attr(
        self, type: RankedStructure[AnyDenseElement] | None
    ) -> DenseIntOrFPElementsAttr[AnyDenseElement]:
        """Parse the numbers of a `dense` attribute; those in hexadecimal are the bits of floats, as in MLIR."""
        start = self.pos
        match = _DENSE_BITS.match(self.lexer.input.content, start)
        if match is not None:
            self._resume_from(match.end())
            kind = type
            if kind is None:
                self.parse_punctuation(":")
                kind = self.parse_type()
            element = kind.element_type if is_tensor(kind) or is_vector(kind) else None
            if (is_tensor(kind) or is_vector(kind)) and isinstance(element, AnyFloat):
                numbers = [self._dense_float(word, element, start) for word in _NUMBER.findall(match[1])]
                count = math.prod(kind.get_shape())
                if len(numbers) not in (1, count):
                    self.raise_error(f"found {len(numbers)} numbers in `dense`, expected {count}", start, self.pos)
                values = numbers * count if len(numbers) == 1 else numbers
                shaped = TensorType(element, kind.shape) if is_tensor(kind) else VectorType(element, kind.get_shape())
                return DenseIntOrFPElementsAttr.from_list(shaped, values)
            self._resume_from(start)
        return super().parse_dense_int_or_fp_elements_attr(type)

    def _dense_float(self, word: str, element: AnyFloat, start: int) -> float:
        if word[:2] not in ("0x", "0X"):
            return float(word)
        bits = int(word, 16)
        if bits.bit_length() > element.bitwidth:
            self.raise_error(f"{word} has more bits than {element}", start, self.pos)
        return next(element.iter_unpack(bits.to_bytes(element.compile_time_size, "little")))

    def resolve_operand(self, operand: UnresolvedOperand, type: AttributeInvT) -> SSAValue[AttributeInvT]:
        name = operand.operand_name
        if name not in self.ssa_values and name not in self.forward_ssa_references:
            self._first_use[name] = operand.span.start
        return super().resolve_operand(operand, type)

    def report(self, source: Source, error: Exception) -> NoReturn:
        """Raise `SourceError` for an exception that came out of the parser."""
        undefined = [name for name in self.forward_ssa_references if name in self._first_use]
        match error:
            case ParseError() if undefined and error.msg.startswith("values used but not defined"):
                raise source.error(
                    f"`%{undefined[0]}` is used but not defined", self._first_use[undefined[0]]
                ) from None
            case ParseError(msg="Could not parse entire input!"):
                raise source.error("expected an operation", error.span.start) from None
            case ParseError():
                raise source.error(one_line(error.msg), self._unknown(error)) from None
            case RecursionError():
                raise source.error("nested too deeply", self.pos) from None
            case VerifyException():
                raise source.error(one_line(str(error)), self._last_read()) from None
            case _:
                raise source.error(f"cannot be parsed: {describe(error)}", self._last_read()) from None

    def _last_read(self) -> int:
        """Return the position of the last character that was read: what follows has nothing to do with the error."""
        return max(0, len(self.lexer.input.content[: self.pos].rstrip()) - 1)

    def _unknown(self, error: ParseError) -> int:
        """Return the position of `error`; for an unknown name that of the name, which has been read by then."""
        match = _UNKNOWN.search(error.msg)
        found = -1 if match is None else self.lexer.input.content.rfind(match["name"], 0, error.span.start)
        return error.span.start if found < 0 else found


def one_line(message: str) -> str:
    """Return `message` without line breaks."""
    return " ".join(message.split())
