"""The text of a kernel that Triton's own parser takes.

It is the text of the `tt` dialect without our attributes of `tt.func`, in the syntax of a version of Triton: up to 3.8
the hints of an access are written as words behind its operands, from 3.9 on as one attribute.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from io import StringIO

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr
from xdsl.printer import Printer

from tilewright.dialects.tt import DIVISIBILITY, OURS, FuncOp, PointerType

Version = tuple[int, int]

ATTRIBUTE_HINTS: Version = (3, 9)
"""The first version that writes the hints of an access as an attribute."""

_HINTS = re.compile(
    r" \{cachePolicy = #tt\.cache_policy<cache_modifier = (\w+), eviction_policy = (\w+)>(?:, ([^}]*))?\}(?= : )"
)


@cache
def installed_version() -> str | None:
    """Return the version of Triton that is installed, without importing it; None if there is none."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def parse_version(text: str) -> Version:
    """Return the first two numbers of a version. Raises `ValueError` if there are none."""
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        raise ValueError(f"`{text}` is no version of Triton, expected one such as 3.9")
    return int(match[1]), int(match[2])


@dataclass(frozen=True)
class Expected:
    """Which of the multiples that a kernel expects its arguments to be they are: of bytes, and of elements."""

    pointers: bool = True
    sizes: bool = True


ALL_EXPECTED = Expected()


def emit_ttir(kernel: FuncOp, triton: Version = ATTRIBUTE_HINTS, expected: Expected = ALL_EXPECTED) -> str:
    """Return a module with `kernel` alone for the parser of version `triton`."""
    seen = kernel.clone()
    for name in OURS:
        seen.attributes.pop(name, None)
    if expected != ALL_EXPECTED and seen.arg_attrs is not None:
        kept = [expected.pointers if isinstance(a.type, PointerType) else expected.sizes for a in seen.args]
        seen.properties["arg_attrs"] = _without_divisors(seen.arg_attrs, kept)
    stream = StringIO()
    stream.write("module {\n")
    printer = Printer(stream)
    with printer.indented():
        stream.write("  ")
        printer.print_op(seen)
    stream.write("\n}\n")
    text = stream.getvalue()
    return text if triton >= ATTRIBUTE_HINTS else _HINTS.sub(_hints_as_words, text)


def _without_divisors(arguments: ArrayAttr[DictionaryAttr], kept: Sequence[bool]) -> ArrayAttr[DictionaryAttr]:
    return ArrayAttr(
        [
            a if keep else DictionaryAttr({k: v for k, v in a.data.items() if k != DIVISIBILITY})
            for a, keep in zip(arguments, kept, strict=True)
        ]
    )


def _hints_as_words(match: re.Match[str]) -> str:
    modifier, eviction, others = match[1], match[2], match[3]
    words = "" if modifier == "none" else f" cacheModifier = {modifier}"
    words += "" if eviction == "evict_normal" else f" evictionPolicy = {eviction}"
    return words + (f" {{{others}}}" if others else "")
