"""Text in, text out: a stage's text, read by a process that knows nothing else, gives the next one to the byte."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def small_gpt() -> torch.nn.Module:
    """Return the model of the examples, smaller."""
    spec = importlib.util.spec_from_file_location("gpt", ROOT / "examples" / "gpt.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.GPT(vocabulary=50, length=16, width=32, heads=2, layers=2).eval()


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dump every stage of the demo's forward pass, with a symbolic batch size, and the logits for one input."""
    folder = tmp_path_factory.mktemp("dump")
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = small_gpt()
    ids = torch.randint(0, 50, (3, 16))
    compiled = torch.compile(model, backend="tilewright", dynamic=True, options={"dump": str(folder), "strict": True})
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids), model(ids))
    (graph,) = folder.iterdir()
    return graph


def run(tool: str, *arguments: str, seed: int) -> str:
    """Run a tool in a process of its own, with another order of hashes."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", f"tilewright.tools.{tool}", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def body(file: Path) -> str:
    """Return a dumped stage without its heading."""
    return "".join(line for line in file.read_text().splitlines(keepends=True) if not line.startswith("//"))


@pytest.mark.slow
def test_each_stage_leads_to_the_next(stages: Path) -> None:
    files = sorted(stages.glob("*.ir"))
    assert len(files) > 12
    for number, (file, following) in enumerate(pairwise(files)):
        match = re.search(r"// next stage: -p '(.*)'", file.read_text())
        assert match is not None
        assert run("opt", str(file), "-p", match[1], seed=number) == body(following), (file.name, following.name)


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 1, 8])
def test_a_stage_leads_to_the_same_machine_code(stages: Path, start: int, tmp_path: Path) -> None:
    (file,) = stages.glob(f"{start:02d}-*.ir")
    match = re.search(r"// to the end: -p '(.*)'", file.read_text())
    assert match is not None
    last = tmp_path / "last.ir"
    last.write_text(run("opt", str(file), "-p", match[1], seed=start))
    (expected,) = (f for f in stages.glob("*.ir") if "// last stage" in f.read_text())
    assert last.read_text() == body(expected)
    assembly = run("translate", str(last), "-t", "asm", seed=start)
    for kernel in stages.glob("*.s"):
        assert instructions(kernel.read_text()) <= instructions(assembly), kernel.name


def instructions(assembly: str) -> set[str]:
    """Return the lines of code, without labels that number the functions of a file."""
    lines = (line.strip() for line in assembly.splitlines())
    return {re.sub(r"\.L\w+|chunk\.\d+", "L", line) for line in lines if line and not line.startswith((".", "#"))}
