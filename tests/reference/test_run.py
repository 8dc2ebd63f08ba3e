"""The command line of `tilewright-run`, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tilewright.tools.run import main

PROGRAM = """
!x = tensor<?x4xf32, #sym.layout<[s0, 4], [4, 1]>>
!n = tensor<3xi64, #sym.layout<[3], [1]>>
!y = tensor<3x4xf32, #sym.layout<[3, 4], [4, 1]>>
func.func @forward(%x : !x, %n : !n) -> !y {
  %y = aten.call "aten.embedding.default"(weight = %x, indices = %n) : (!x, !n) -> !y
  func.return %y : !y
}"""

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write_file


def test_inputs_from_a_file(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = str(tmp_path / "inputs.pt")
    torch.save([torch.arange(8.0).view(2, 4), torch.tensor([1, 0, 1])], inputs)
    assert main([write("a.ir", PROGRAM), "--args", inputs]) == 0
    assert capsys.readouterr().out == (
        "result 0: float32[3, 4] strides [4, 1]\n  [[4, 5, 6, 7],\n   [0, 1, 2, 3],\n   [4, 5, 6, 7]]\n"
    )


def test_the_same_seed_gives_the_same_output(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write("a.ir", PROGRAM)
    outputs: list[str] = []
    for seed in ("1", "1", "2"):
        assert main([file, "--seed", seed]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]


def test_integers_out_of_range_are_an_error(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write("a.ir", PROGRAM)
    assert main([file, "--int-range", "0:2", "--symbol", "s0=2"]) == 0
    assert main([file, "--int-range", "7:9", "--symbol", "s0=2"]) == 1
    assert capsys.readouterr().err.startswith(f"{file}:6:3: error: `aten.call`: PyTorch refuses: index out of range")


def test_files_whose_arguments_differ(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    other = write("b.ir", PROGRAM.replace("3xi64", "5xi64").replace("<[3], [1]>", "<[5], [1]>"))
    assert main([write("a.ir", PROGRAM), "--compare", other]) == 1
    assert capsys.readouterr().err == f"{other}: error: argument 1 has sizes [3], expected [5]\n"


@pytest.mark.parametrize(
    "text", ["", "func.func", "\x00", "func.func @forward() { }", "((((", "#sym.expr<__import__('os')>"]
)
def test_bad_files_give_one_error(text: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write("bad.ir", text)
    assert main([file]) == 1
    error = capsys.readouterr().err
    assert error.startswith(file)
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "arguments", [["--symbol", "x"], ["--int-range", "3"], ["--int-range", "3:1"], ["--backend", "gpu"]]
)
def test_bad_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        main(["file.ir", *arguments])
    assert refusal.value.code == 2
    assert "error: argument" in capsys.readouterr().err
