"""The comments that say which errors a file is expected to cause: `// expected-error {{part of the message}}`.

The error is expected on the comment's line; `@+1`, `@-2`, `@below` and `@above` name another, `@unknown` an error
without a position, such as one of a pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.tools.source import Source, SourceError

_COMMENT = re.compile(r"expected-(?P<kind>[a-z]+)(?P<where>@[^\s{]*)?\s*\{\{(?P<text>.*?)\}\}")
_WHERE = re.compile(r"@(?P<offset>[+-][0-9]+)|@(?P<word>above|below|unknown)")


@dataclass(frozen=True)
class Expectation:
    """One comment: the line on which an error is expected, None for no line, part of its message, where it stands."""

    line: int | None
    text: str
    position: int


def find_expectations(source: Source) -> list[Expectation]:
    """Return what the comments of `source` expect. Raises `SourceError` for a comment that is not understood."""
    found: list[Expectation] = []
    for number, (start, line) in enumerate(_lines(source.text), 1 + source.line_offset):
        comment = line.find("//")
        if comment < 0:
            continue
        for match in _COMMENT.finditer(line, comment):
            position = start + match.start()
            if match["kind"] != "error":
                raise source.error(f"`expected-{match['kind']}`: only errors can be expected", position)
            found.append(Expectation(_line(source, match["where"], number, position), match["text"], position))
    return found


def _lines(text: str) -> Iterable[tuple[int, str]]:
    start = 0
    for line in text.split("\n"):
        yield start, line
        start += len(line) + 1


def _line(source: Source, where: str | None, line: int, position: int) -> int | None:
    if where is None:
        return line
    match = _WHERE.fullmatch(where)
    if match is None:
        raise source.error(f"`{where}` names no line, expected such as `@+1`, `@below` or `@unknown`", position)
    if match["offset"] is not None:
        return line + int(match["offset"])
    return {"above": line - 1, "below": line + 1, "unknown": None}[match["word"]]


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
