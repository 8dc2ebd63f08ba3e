"""What every test stands on: the programs that a test starts see this checkout. And the sizes that reviewers judge."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("dialects", "passes", "frontends", "backends", "tools")
GUIDELINE_FILE = 400
GUIDELINE_FUNCTION = 50


def pytest_configure(config: pytest.Config) -> None:
    """Put `src` on the path of child processes; `pythonpath` in pyproject.toml does it for this one."""
    os.environ["PYTHONPATH"] = str(ROOT / "src")


def oversized() -> Iterator[tuple[int, str]]:
    """Yield the lines and the name of each file and function of the product that is above the guideline."""
    for file in (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        name = str(file.relative_to(ROOT))
        text = file.read_text()
        lines = text.count("\n")
        if lines > GUIDELINE_FILE:
            yield lines, name
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.FunctionDef(lineno=first, end_lineno=int() as last) if last - first >= GUIDELINE_FUNCTION:
                    yield last - first + 1, f"{name}: {node.name}"
                case _:
                    pass


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what is above the guideline: a registry or a table may be, a decision should be split."""
    rows = sorted(oversized(), reverse=True)
    if rows:
        terminalreporter.section(f"files over {GUIDELINE_FILE} lines, functions over {GUIDELINE_FUNCTION} (guidance)")
        for lines, name in rows:
            terminalreporter.write_line(f"{lines:6} {name}")
