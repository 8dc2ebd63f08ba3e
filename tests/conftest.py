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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs the tests marked `long`, and no others."""
    parser.addoption("--long", action="store_true", help="run the tests that take minutes each, and only those")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `long`, or the others."""
    wanted = bool(config.getoption("--long"))
    chosen = [item for item in items if (item.get_closest_marker("long") is not None) == wanted]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Begin without compiled code and statistics, from one seed, and leave no code behind."""
    import torch

    import tilewright

    torch.compiler.reset()
    tilewright.reset_compile_stats()
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    yield
    torch.compiler.reset()


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
