"""The README shows what happens: its IR is what the pipelines give, its program prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from xdsl.dialects.func import FuncOp
from xdsl.parser import Parser

from tilewright.backends.llvm.emit import emit_module
from tilewright.backends.llvm.target import Target
from tilewright.backends.triton.python_source import emit_python
from tilewright.dialects import tt
from tilewright.passes.pipelines import PIPELINES, load_passes
from tilewright.tools.universe import make_context

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
TARGET = Target("x86_64-unknown-linux-gnu", "x86-64-v4", "+avx512f,+fma", 512, has_sleef=True, has_openmp=True)
KERNELS = ("loop.kernel @softmax_0", "func.func @softmax_0")


def blocks(language: str) -> list[str]:
    """Return the code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def kernel(text: str) -> str:
    """Return the kernel in a module's text, without the module's indentation."""
    lines = textwrap.dedent(text.split("\n", 1)[1].rsplit("}", 1)[0]).splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith(KERNELS))
    end = next(i for i in range(start, len(lines)) if lines[i] == "}\n")
    return "".join(lines[start : end + 1])


def test_ir() -> None:
    graph, loops, buffers, cpu = blocks("mlir")
    context = make_context()
    module = Parser(context, graph).parse_module()
    assert f"{module!s}\n" == graph
    rest = PIPELINES["cpu-512"]
    for part, expected in ((PIPELINES["graph"], loops), (PIPELINES["buffers"], buffers), (None, cpu)):
        pipeline = rest if part is None else part
        for one in load_passes(pipeline):
            one.apply(context, module)
        rest = rest.removeprefix(pipeline).removeprefix(",")
        found = f"{module!s}\n"
        assert (found if part == PIPELINES["graph"] else kernel(found)) == expected
    code = [op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == "softmax_0"]
    text = emit_module(code, TARGET)
    (shown,) = blocks("llvm")
    assert shown in text


def test_triton() -> None:
    context = make_context()
    module = Parser(context, blocks("mlir")[0]).parse_module()
    for one in load_passes(f"{PIPELINES['graph']},{PIPELINES['buffers']},retarget,{PIPELINES['tt']}"):
        one.apply(context, module)
    (shown,) = blocks("py")
    assert shown in emit_python([op for op in module.ops if isinstance(op, tt.FuncOp)])


def test_stages_are_named_as_they_are_written() -> None:
    passes = PIPELINES["cpu-512"].split(",")
    mentioned = re.findall(r"\b(\d\d)-([a-z-]+)\.ir(?: -p ([a-z-]+))?", README)
    assert len(mentioned) >= 4
    for number, name, following in mentioned:
        assert name == ("input" if number == "00" else passes[int(number) - 1].partition("{")[0])
        assert not following or following == passes[int(number)]


@pytest.mark.slow
def test_program() -> None:
    program = "".join(blocks("python"))
    (output,) = blocks("text")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == output
