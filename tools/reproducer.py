"""Reproducers: a module and the pass that crashed on it, in a file that `tilewright-opt --run-reproducer` runs.

The file is the IR before the pass, headed by comments:
```
// RUN: tilewright-opt --run-reproducer %s
// PIPELINE: loop-tile{sizes=8,64}
// IndexError: list index out of range
```
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import traceback
from pathlib import Path

from tilewright.tools.source import Source

_PIPELINE = re.compile(r"^// PIPELINE:(?P<text>.*)$", re.MULTILINE)


def write_reproducer(path: str | None, ir: str, pipeline: str, what: BaseException | str) -> Path:
    """Write a reproducer and return where: at `path`, or under a name of its own in the folder for temporary files.

    `what` happened goes into the header, an exception with its traceback.
    """
    text = what if isinstance(what, str) else "".join(traceback.format_exception(what))
    header = ("RUN: tilewright-opt --run-reproducer %s", f"PIPELINE: {pipeline}", *text.splitlines())
    text = "\n".join((*(f"// {line}".rstrip() for line in header), ir.rstrip(), ""))
    if path is None:
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        name = re.sub(r"[^a-z0-9-].*", "", pipeline) or "pipeline"
        path = str(Path(tempfile.gettempdir()) / f"tilewright-{name}-{digest}.ir")
    found = Path(path)
    found.write_text(text, encoding="utf-8")
    return found


def read_pipeline(source: Source) -> str:
    """Return the pipeline in the header of a reproducer. Raises `SourceError` if there is none."""
    match = _PIPELINE.search(source.text)
    if match is None:
        raise source.error("not a reproducer: it has no line `// PIPELINE: ..`", 0)
    return match["text"].strip()
