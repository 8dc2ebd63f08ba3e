"""Triton's Python computes what the kernel does, in Triton's interpreter, and compiles."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.backends.triton.conftest import needs_triton, read
from tests.backends.triton.kernels import BODIES, kernel_text
from tests.backends.triton.python.cases import CASES
from tests.backends.triton.python.operations import OPERATIONS, Operation, numbers, text_of
from tests.reference.conftest import Runner
from torch import Tensor
from xdsl.ir import Attribute

from tilewright.backends.reference import run_function
from tilewright.backends.triton.python_source import emit_python
from tilewright.backends.triton.python_values import SourceError
from tilewright.backends.triton.ttir import installed_version, parse_version
from tilewright.dialects.tt import FuncOp, MakeRangeOp, PointerType
from tilewright.passes.convert_loop_to_tt import ConvertLoopToTtPass
from tilewright.tools.source import Source, read_module
from tilewright.tools.universe import make_context

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("worker.py")


def lowered(text: str, name: str) -> FuncOp:
    """Return the kernel of a loop kernel named `k`, under another name."""
    context = make_context()
    parsed = read_module(context, Source("kernel.ir", text.replace("@k(", f"@{name}(")))
    assert list(parsed.verify()) == []
    ConvertLoopToTtPass().apply(context, parsed.module)
    kernel = parsed.module.ops.first
    assert isinstance(kernel, FuncOp)
    return kernel


def work(what: str, folder: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")}
    environment |= {"TRITON_INTERPRET": "1"} if what == "run" else {}
    done = subprocess.run(
        [sys.executable, str(WORKER), what, str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def type_names(kernel: FuncOp) -> list[str]:
    """Return the types of a kernel's arguments as Triton's compiler wants them."""

    def name(kind: Attribute) -> str:
        if isinstance(kind, PointerType):
            return f"*{name(kind.pointee)}"
        return str(kind).replace("bf", "b").replace("f", "fp").replace("b16", "bf16")

    return [name(value.type) for value in kernel.args]


def block_sizes(kernel: FuncOp) -> list[int]:
    sizes = [op.end.value.data for op in kernel.walk() if isinstance(op, MakeRangeOp) and op.end.value.data > 1]
    return list(dict.fromkeys(sizes))


def write(folder: Path, name: str, kernel: FuncOp) -> None:
    (folder / f"{name}.py").write_text(emit_python([kernel]))
    facts = {"types": type_names(kernel), "blocks": block_sizes(kernel)}
    (folder / f"{name}.json").write_text(json.dumps(facts))


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interpreted")
    for name, case in CASES.items():
        write(folder, name, lowered(case.text, name))
        torch.save([*case.tensors(), *case.sizes], folder / f"{name}.pt")
    for number, operation in enumerate(OPERATIONS):
        name = f"operation_{number}"
        write(folder, name, read(text_of(operation, name)))
        torch.save(arguments_of(operation), folder / f"{name}.pt")
    work("run", folder)
    return folder


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    for name, case in CASES.items():
        write(folder, name, lowered(case.text, name))
    for name in BODIES:
        write(folder, name, read(kernel_text(name)))
    work("compile", folder)
    return folder


@pytest.fixture(scope="module")
def compiled_operations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operations")
    for number, operation in enumerate(OPERATIONS):
        name = f"operation_{number}"
        write(folder, name, read(text_of(operation, name)))
    work("compile", folder)
    return folder


def as_our_ir(text: str) -> str:
    """Return Triton's IR without the places in Python that it came from, and with barriers by MLIR's name."""
    lines = [line for line in text.split("\n") if not line.startswith("#loc")]
    place = re.compile(r' loc\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*")*\))*\)')
    text = "\n".join(place.sub("", line) for line in lines)
    return re.sub(r"^ +(?:ttg\.barrier all|gpu\.barrier)$", '"gpu.barrier"() : () -> ()', text, flags=re.MULTILINE)


def execute(text: str, kernel: FuncOp, arguments: Sequence[Tensor | int]) -> None:
    """Run Triton's IR in our executor as `kernel` is run."""
    parsed = read_module(make_context(), Source("triton.ir", as_our_ir(text)))
    (made,) = parsed.module.ops
    assert isinstance(made, FuncOp)
    made.attributes |= {n: a for n, a in kernel.attributes.items() if n not in ("reach", "wide")}
    assert list(parsed.verify()) == []
    run_function(parsed.module, arguments, made.sym_name.data, None)


@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_the_source_computes_what_torch_does(name: str, interpreted: Path) -> None:
    error = interpreted / f"{name}.run.error"
    assert not error.exists(), error.read_text() + (interpreted / f"{name}.py").read_text()
    case = CASES[name]
    tensors: list[Tensor] = torch.load(interpreted / f"{name}.out")[: len(case.tensors())]
    expected = case.expected(case.tensors())
    torch.testing.assert_close(tensors[-1], expected, rtol=case.tolerance, atol=case.tolerance)


def arguments_of(operation: Operation) -> list[Tensor]:
    _, operands, result = operation
    return [*(numbers(d, seed) for seed, d in enumerate(operands)), torch.ones(32, dtype=result)]


@needs_triton
@pytest.mark.parametrize("number", range(len(OPERATIONS)), ids=[code for code, _, _ in OPERATIONS])
def test_an_operation_computes_what_the_executor_does(number: int, interpreted: Path) -> None:
    name, code = f"operation_{number}", OPERATIONS[number][0]
    if "numf" in code and parse_version(installed_version() or "") < (3, 9):
        pytest.skip("this interpreter takes the other minimum, which has the rule for NaN of `minimumf`")
    error = interpreted / f"{name}.run.error"
    assert not error.exists(), error.read_text() + (interpreted / f"{name}.py").read_text()
    found: list[Tensor] = torch.load(interpreted / f"{name}.out")
    expected = arguments_of(OPERATIONS[number])
    Runner().all(text_of(OPERATIONS[number], name), *expected, name=name)
    torch.testing.assert_close(found[-1], expected[-1], rtol=0, atol=0, equal_nan=True)


@needs_triton
@pytest.mark.parametrize("name", [*CASES, *BODIES])
def test_the_source_compiles(name: str, compiled: Path) -> None:
    error = compiled / f"{name}.compile.error"
    assert not error.exists(), error.read_text() + (compiled / f"{name}.py").read_text()


@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_what_triton_makes_of_the_source_computes_the_same(name: str, compiled: Path) -> None:
    case = CASES[name]
    arguments = [*case.tensors(), *case.sizes]
    execute((compiled / f"{name}.ttir").read_text(), lowered(case.text, name), arguments)
    expected = case.expected(case.tensors())
    found = arguments[len(case.tensors()) - 1]
    torch.testing.assert_close(found, expected, rtol=case.tolerance, atol=case.tolerance)


@needs_triton
@pytest.mark.parametrize("number", range(len(OPERATIONS)), ids=[code for code, _, _ in OPERATIONS])
def test_what_triton_makes_of_an_operation_computes_the_same(number: int, compiled_operations: Path) -> None:
    name = f"operation_{number}"
    error = compiled_operations / f"{name}.compile.error"
    assert not error.exists(), error.read_text() + (compiled_operations / f"{name}.py").read_text()
    kernel = read(text_of(OPERATIONS[number], name))
    found, expected = arguments_of(OPERATIONS[number]), arguments_of(OPERATIONS[number])
    execute((compiled_operations / f"{name}.ttir").read_text(), kernel, found)
    Runner().all(text_of(OPERATIONS[number], name), *expected, name=name)
    torch.testing.assert_close(found[-1], expected[-1], rtol=0, atol=0, equal_nan=True)


def test_a_kernel_without_a_grid_cannot_be_launched() -> None:
    kernel = read(kernel_text("casts"))
    del kernel.attributes["grid"]
    with pytest.raises(SourceError, match="kernel `casts` does not say how many programs run it"):
        emit_python([kernel])
