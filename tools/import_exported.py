"""Write a program that `torch.export.save` wrote as a file for the other tools.

tilewright-import model.pt2 -o model.ir
tilewright-import model.pt2 -o model.ir --constants model.constants.pt
tilewright-run model.ir --args random --constants model.constants.pt

The file names the program's parameters, buffers and constants (`aten.constants`), which are its last arguments; their
values are written on request. Its heading says what each argument and result is. Reading a program is as safe, or as
unsafe, as `torch.export.load` is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.tools.entry import run_tool
from tilewright.tools.source import SourceError, describe

if TYPE_CHECKING:
    from tilewright.frontends.export import ImportedProgram


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool. Returns 1 for a file that is no exported program or that the IR cannot hold, otherwise 0."""
    arguments = _parser().parse_args(argv)
    return run_tool("tilewright-import", lambda: _import(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "tilewright-import", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="what `torch.export.save` wrote")
    parser.add_argument("-o", "--output", metavar="FILE.ir", help="where to write the module (default: print it)")
    parser.add_argument(
        "--constants", metavar="FILE.pt", help="where to write parameters, buffers and constants, by name"
    )
    parser.add_argument("--name", default="forward", help="what to call the function (default: forward)")
    return parser


def _import(arguments: argparse.Namespace) -> int:
    imported = _read(arguments.file, arguments.name)
    text = "".join(f"// {line}\n" for line in heading(arguments.file, imported)) + f"{imported.graph.module!s}\n"
    try:
        if arguments.constants is not None:
            _save(imported, arguments.constants)
        if arguments.output is not None:
            Path(arguments.output).write_text(text)
        else:
            print(text, end="")
    except OSError as error:
        raise SourceError(str(error.filename), f"cannot be written: {error.strerror or error}") from error
    return 0


def _read(path: str, name: str) -> ImportedProgram:
    import torch

    from tilewright.frontends.export import import_exported_program
    from tilewright.frontends.unsupported import Unsupported

    try:
        program = torch.export.load(path)
    except Exception as error:
        # An archive that is damaged raises whatever the code that reads its parts raises.
        raise SourceError(path, f"cannot be read as an exported program: {describe(error)}") from error
    try:
        return import_exported_program(program, name=name)
    except Unsupported as error:
        raise SourceError(path, str(error)) from error


def _save(imported: ImportedProgram, path: str) -> None:
    import torch

    with open(path, "wb") as file:
        torch.save({name: tensor.detach() for name, tensor in imported.constants.items()}, file)


def heading(path: str, imported: ImportedProgram) -> Iterator[str]:
    """Yield lines that say what the arguments and results of a program are."""
    yield f"imported from {Path(path).name}"
    names = (*imported.argument_names, *imported.constant_names)
    yield from (f"argument {number}: {name}" for number, name in enumerate(names))
    yield from (f"result {number}: output{name}" for number, name in enumerate(imported.result_names))


if __name__ == "__main__":
    sys.exit(main())
