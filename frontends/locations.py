"""Where in the user's program a node comes from."""

from __future__ import annotations

import re

from torch import fx
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, LocationAttr, StringAttr, UnknownLoc

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_UNKNOWN = UnknownLoc()

_GENERATED = "<eval_with_key>"
"""How torch names the code that it makes of a graph."""


class Locations:
    """Finds the location of nodes, and shares those of equal stack traces."""

    def __init__(self) -> None:
        self._locations: dict[str, LocationAttr] = {}

    def get(self, node: fx.Node) -> LocationAttr:
        """Return the innermost line of the user's program that led to `node`."""
        trace = node.meta.get("stack_trace")
        if not trace:
            return _UNKNOWN
        location = self._locations.get(trace)
        if location is None:
            location = self._locations[trace] = _parse(trace)
        return location


def describe(location: LocationAttr) -> str | None:
    """Return a location as people write it, `model.py:12`, or None if it is unknown."""
    if not isinstance(location, FileLineColLoc):
        return None
    return f"{location.filename.data}:{location.line.data}"


def _parse(trace: str) -> LocationAttr:
    end = len(trace)
    while (start := trace.rfind('File "', 0, end)) >= 0:
        frame = _FRAME.match(trace, start)
        if frame is not None and not frame["file"].startswith(_GENERATED):
            break
        end = start
    else:
        return _UNKNOWN
    return FileLineColLoc(StringAttr(frame["file"]), IntAttr(int(frame["line"])), IntAttr(0))
