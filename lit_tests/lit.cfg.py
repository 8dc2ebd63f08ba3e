"""How lit runs the `.ir` files of this folder: the tools of this checkout, by the Python that runs lit."""

# ruff: noqa: F821 (lit defines `config`)

import sys
from pathlib import Path

import lit.formats

root = Path(__file__).resolve().parent.parent
python = f"{sys.executable} -P"

config.name = "tilewright"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".ir"]
config.test_source_root = str(root / "lit_tests")
config.test_exec_root = str(root / "build" / "lit")

# This alone runs the tools without installing them, and never those of another checkout that the environment serves.
config.environment["PYTHONPATH"] = str(root / "src")

for tool in ("opt", "run", "translate"):
    config.substitutions.append((rf"\btilewright-{tool}\b", f"{python} -m tilewright.tools.{tool}"))
config.substitutions.append((r"\bfilecheck\b", f"{python} -m filecheck"))
