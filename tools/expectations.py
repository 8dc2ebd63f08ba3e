"""The comments that say which errors a file is expected to cause: `// expected-error {{part of the message}}`.

The error is expected on the comment's line; `@+1`, `@-2`, `@below` and `@above` name another, `@unknown` an error
without a position, such as one of a pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilewright.tools.source import Source, SourceError

_COMMENT = re.compile(r"//.*?\bexpected-(?P<kind>error|warning|note|remark)\b")
_REST = re.compile(r"\s*(?:@(?:(?P<offset>[+-][0-9]+)|(?P<word>above|below|unknown)))?\s*\{\{(?P<text>.*?)\}\}")


@dataclass(frozen=True)
class Expectation:
    """One comment: the line on which an error is expected, None for no line, part of its message, where it stands."""

    line: int | None
    text: str
    position: int


def find_expectations(source: Source) -> list[Expectation]:
    """Return what the comments of `source` expect. Raises `SourceError` for a comment that is not understood."""
    found: list[Expectation] = []
    start = 0
    for number, line in enumerate(source.text.split("\n"), 1 + source.line_offset):
        found += _in_line(source, line, start, number)
        start += len(line) + 1
    return found


def _in_line(source: Source, line: str, start: int, number: int) -> Iterator[Expectation]:
    for comment in _COMMENT.finditer(line):
        position = start + comment.start("kind") - len("expected-")
        if comment["kind"] != "error":
            raise source.error(f"`expected-{comment['kind']}`: only errors can be expected", position)
        rest = _REST.match(line, comment.end())
        if rest is None:
            raise source.error("expected a line such as `@+1` or `@below`, if any, and then `{{text}}`", position)
        where = rest["word"] or rest["offset"] or "0"
        lines = {"above": number - 1, "below": number + 1, "unknown": None}
        yield Expectation(lines[where] if where in lines else number + int(where), rest["text"], position)


def mismatches(source: Source, expected: Iterable[Expectation], errors: Iterable[SourceError]) -> list[SourceError]:
    """Return an error for each error that no comment expects and each comment whose error did not come."""
    open_expectations = list(expected)
    wrong: list[SourceError] = []
    for error in errors:
        line = None if error.location is None else error.location.line
        met = next((e for e in open_expectations if e.line == line and e.text in error.message), None)
        if met is None:
            wrong.append(SourceError(error.name, f"unexpected error: {error.message}", error.location, error.excerpt))
        else:
            open_expectations.remove(met)
    wrong += [source.error(f'the expected error "{e.text}" did not come', e.position) for e in open_expectations]
    return wrong
