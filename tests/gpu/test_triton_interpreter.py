"""A second opinion on the kernels of the suite: Triton's interpreter, on the Python that is printed from them."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.backends.triton.conftest import needs_triton
from tests.backends.triton.python.test_source import work
from tests.gpu.emulated import Launch
from tests.gpu.test_kernel_suite import TOLERANCES, checked
from torch.testing import assert_close

from tilewright.backends.triton.python_source import emit_python

pytestmark = [needs_triton, pytest.mark.slow]

IN_F32 = (
    *("softmax", "softmax of long rows", "layer norm", "functions", "where and clamp", "integers", "transpose"),
    *("sum of columns", "variance", "embedding", "gather", "scatter", "running sums", "max pool", "concatenation"),
)

CASES = [
    *((name, torch.float32) for name in IN_F32),
    *((name, torch.float16) for name in ("softmax", "sum of columns")),
]
"""None in bf16, to which the interpreter does not round, and no long rows with combiners of their own: it is slow."""


def launches_of(case: tuple[str, torch.dtype]) -> list[Launch]:
    return checked(*case).launches


def file_of(folder: Path, case: tuple[str, torch.dtype], number: int) -> Path:
    return folder / f"k{CASES.index(case)}_{number}.py"


def test_it_agrees(tmp_path: Path) -> None:
    """All kernels in one process, which takes long to start."""
    for case in CASES:
        for number, launch in enumerate(launches_of(case)):
            file = file_of(tmp_path, case, number)
            file.write_text(emit_python([launch.kernel]))
            torch.save([*(t.clone() for t in launch.before), *launch.sizes], file.with_suffix(".pt"))
    work("run", tmp_path)
    differences = [
        f"{case[0]} in {case[1]}: {difference}\n{file_of(tmp_path, case, number).read_text()}"
        for case in CASES
        for number, launch in enumerate(launches_of(case))
        for difference in compare(launch, file_of(tmp_path, case, number), TOLERANCES[case[1]])
    ]
    assert not differences, "\n".join(differences)


def compare(launch: Launch, file: Path, tolerance: float) -> Iterator[str]:
    """Yield what is wrong with the buffers that a kernel has left, or the error that it has ended with."""
    error = file.with_suffix(".run.error")
    if error.exists():
        yield error.read_text()
        return
    for argument, mine, theirs in zip(
        launch.kernel.args, launch.after, torch.load(file.with_suffix(".out")), strict=False
    ):
        largest = float(mine[mine.isfinite()].abs().max()) if mine.numel() and mine.is_floating_point() else 0.0
        try:
            assert_close(theirs, mine, rtol=tolerance, atol=tolerance * max(1.0, largest), equal_nan=True)
        except AssertionError as difference:
            yield f"%{argument.name_hint}: {difference}"
