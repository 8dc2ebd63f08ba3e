"""Check the stages of one graph in a process that knows nothing but their text: run by `test_text_in_text_out.py`.

python stages.py FOLDER

prints a line for each stage or piece of code that its predecessor does not lead to.
"""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from tilewright.backends.host.abi import native_target
from tilewright.passes.pipelines import load_passes
from tilewright.tools.compile import dump_code
from tilewright.tools.source import Source, read_module
from tilewright.tools.universe import make_context


def body(file: Path) -> str:
    """Return a dumped stage without its heading."""
    return "".join(line for line in file.read_text().splitlines(keepends=True) if not line.startswith("//"))


def pipeline(file: Path, heading: str) -> str:
    """Return the passes that a stage's heading names after `heading`."""
    match = re.search(rf"// {heading}: -p '(.*)'", file.read_text())
    assert match is not None
    return match[1]


def read(file: Path) -> ModuleOp:
    """Parse a stage, in a context of its own."""
    return read_module(make_context(), Source(file.name, file.read_text())).module


def main(folder: Path) -> None:
    """Print what the module says, the last stage first: what an earlier one leaves in memory helps no later one."""
    files = sorted(folder.glob("*.ir"))
    assert len(files) > 12
    code = folder / "again"
    code.mkdir()
    dump_code(read(files[-1]), native_target(), code)
    for file in sorted(code.iterdir()):
        if file.read_bytes() != (folder / file.name).read_bytes():
            print(f"{files[-1].name} gives another {file.name}")
    for file, following in reversed(list(pairwise(files))):
        module = read(file)
        for one in load_passes(pipeline(file, "next stage")):
            one.apply(make_context(), module)
        if f"{module!s}\n" != body(following):
            print(f"{file.name} gives another {following.name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
