"""A second opinion on the kernels of the suite: Triton's interpreter, on the Python that is printed from them."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.backends.triton.conftest import needs_triton
from tests.backends.triton.python.test_source import work
from tests.gpu.emulated import Launch
from tests.gpu.test_kernel_suite import TOLERANCES, checked

from tilewright.backends.triton.python_source import emit_python

pytestmark = [needs_triton, pytest.mark.slow]

IN_F32 = (
    *("softmax", "softmax of short rows", "softmax of long rows", "softmax in the middle", "layer norm", "rms norm"),
    *("gelu by tanh", "functions", "where and clamp", "masks", "integers", "transpose", "nchw to nhwc", "sum of all"),
    *("sum of columns", "sum of short rows", "variance", "smoothed cross entropy", "embedding", "gather"),
    *("scatter", "running sums", "max pool", "concatenation", "padding"),
)

CASES = [
    *((name, torch.float32) for name in IN_F32),
    *((name, torch.float16) for name in ("softmax", "layer norm", "sum of columns")),
]
"""None in bf16, to which the interpreter does not round, and no long rows with combiners of their own: it is slow."""


def launches_of(case: tuple[str, torch.dtype]) -> list[Launch]:
    return checked(*case).launches


def file_of(folder: Path, case: tuple[str, torch.dtype], number: int) -> Path:
    return folder / f"k{CASES.index(case)}_{number}.py"


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all kernels in one process, which takes long to start."""
    folder = tmp_path_factory.mktemp("interpreted")
    for case in CASES:
        for number, launch in enumerate(launches_of(case)):
            file = file_of(folder, case, number)
            file.write_text(emit_python([launch.kernel]))
            torch.save([*(t.clone() for t in launch.before), *launch.sizes], file.with_suffix(".pt"))
    work("run", folder)
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_it_agrees(case: tuple[str, torch.dtype], interpreted: Path) -> None:
    tolerance = TOLERANCES[case[1]]
    for number, launch in enumerate(launches_of(case)):
        file = file_of(interpreted, case, number)
        error = file.with_suffix(".run.error")
        assert not error.exists(), f"{error.read_text()}\n{file.read_text()}"
        found = torch.load(file.with_suffix(".out"))
        for name, mine, theirs in zip(launch.kernel.args, launch.after, found, strict=False):
            largest = float(mine[mine.isfinite()].abs().max()) if mine.numel() and mine.is_floating_point() else 0.0
            torch.testing.assert_close(
                theirs,
                mine,
                rtol=tolerance,
                atol=tolerance * max(1.0, largest),
                equal_nan=True,
                msg=lambda text, name=name, file=file: f"%{name.name_hint}: {text}\n{file.read_text()}",
            )
