"""A wheel built from a source distribution holds the whole product and works in an environment of its own."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dialects", "passes", "frontends", "backends", "tools")
NOT_SOURCE = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", "*.egg-info", ".*_cache")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a source distribution, and the wheel from that."""
    scratch = tmp_path_factory.mktemp("wheel")
    # In a copy: setuptools would take files that were deleted since from the `build` and `egg-info` of an earlier run.
    shutil.copytree(ROOT, scratch / "source", symlinks=True, ignore=NOT_SOURCE)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(scratch), str(scratch / "source")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = scratch.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def second_environment(wheel: Path) -> Path:
    """Install the wheel in a new environment that borrows this one's other packages, and return its folder."""
    prefix = wheel.parent / "environment"
    venv.create(prefix, symlinks=True)
    paths = {"base": str(prefix), "platbase": str(prefix)}
    # A plain path in a `.pth` file: the packages there are found, the `.pth` file of an editable install there is not.
    Path(sysconfig.get_path("purelib", vars=paths), "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = str(prefix / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel)]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    return prefix


def run(prefix: Path, *command: str) -> str:
    """Run a program of an environment, away from the checkout, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = [str(prefix / "bin" / command[0]), *command[1:]]
    done = subprocess.run(program, cwd=prefix, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_each_file_of_the_product(wheel: Path) -> None:
    files = {
        f"tilewright/{file.relative_to(ROOT)}"
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    shell = {f"tilewright/{file.name}" for file in (ROOT / "src" / "tilewright").iterdir() if file.is_file()}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("tilewright-")}
    assert names == files | shell


def test_the_wheel_is_what_is_imported(second_environment: Path) -> None:
    program = (
        "import tilewright, tilewright.dialects, tilewright.passes, tilewright.frontends, tilewright.backends.host,"
        "tilewright.backends.llvm, tilewright.backends.reference, tilewright.tools\n"
        "import sys\n"
        "for name in sorted(sys.modules):\n"
        "    if name.partition('.')[0] == 'tilewright': print(sys.modules[name].__file__)\n"
    )
    files = run(second_environment, "python", "-c", program).splitlines()
    assert len(files) >= 9
    assert [file for file in files if not Path(file).is_relative_to(second_environment)] == []


def test_installed_tools_run(second_environment: Path) -> None:
    file = second_environment / "empty.ir"
    file.write_text("func.func @empty() {\n  func.return\n}\n")
    assert "func.func @empty()" in run(second_environment, "tilewright-opt", str(file))


def test_torch_finds_the_backend(second_environment: Path) -> None:
    program = (
        "import torch._dynamo as dynamo\n"
        "assert 'tilewright' in dynamo.list_backends(), dynamo.list_backends()\n"
        "print(dynamo.lookup_backend('tilewright').__module__)\n"
    )
    assert run(second_environment, "python", "-c", program).split() == ["tilewright.tools.torch_compile"]
