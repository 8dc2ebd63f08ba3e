"""What every test stands on: the programs that a test starts see this checkout. And the sizes that reviewers judge."""

from __future__ import annotations

import ast
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("dialects", "passes", "frontends", "backends", "tools")
GUIDELINE_FILE = 400
GUIDELINE_FUNCTION = 50


def pytest_configure(config: pytest.Config) -> None:
    """Put `src` on the path of child processes; `pythonpath` in pyproject.toml does it for this one.

    What is compiled is kept for this run alone: the processes of `-n` share a folder, the user's is left as it is.
    """
    os.environ["PYTHONPATH"] = str(ROOT / "src")
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="tilewright-tests-")
        os.environ["TILEWRIGHT_CACHE_DIR"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    name = config.getoption("--device")
    if name is not None:
        import torch
        from tests import adapter

        adapter.device = torch.device(name)
        if adapter.device.type == "cuda" and not torch.cuda.is_available() and not config.option.collectonly:
            raise pytest.UsageError("--device cuda: PyTorch finds no CUDA device")
        # By default convolutions on CUDA round f32 to TF32, each algorithm in its own way.
        torch.backends.cudnn.allow_tf32 = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose tests: those marked `long`, or those that follow a device; and no others."""
    parser.addoption("--long", action="store_true", help="run the tests that take minutes each, and only those")
    parser.addoption("--device", help="run the tests of what is computed on a device, such as cuda, and only those")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `long`, or the others, and with `--device` all that do not follow the device."""
    wanted, device = bool(config.getoption("--long")), config.getoption("--device")
    chosen = [item for item in items if (item.get_closest_marker("long") is not None) == wanted]
    if device is not None:
        chosen = [item for item in chosen if "device" in getattr(item, "fixturenames", ())]
    for item in chosen:
        cpu_only = item.get_closest_marker("cpu_only")
        if cpu_only is not None and device not in (None, "cpu"):
            item.add_marker(pytest.mark.skip(reason=cpu_only.args[0]))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


@pytest.fixture
def device() -> torch.device | None:
    """The device of `--device`: a test that asks for it runs there too. None without it."""
    from tests import adapter

    return adapter.device


@pytest.fixture
def on_device(device: torch.device | None) -> Iterator[None]:
    """Make new tensors on the device of `--device`."""
    import torch

    torch.set_default_device(device)  # pyright: ignore[reportUnknownMemberType]
    yield
    torch.set_default_device(None)  # pyright: ignore[reportUnknownMemberType]


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
