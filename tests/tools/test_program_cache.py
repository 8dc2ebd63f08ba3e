"""Programs that were compiled before are loaded: no pass runs, and they are the same programs."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.adapter import compiled
from torch import Tensor, nn
from xdsl.parser import Parser

import tilewright
from tilewright.backends.cache import ObjectCache
from tilewright.dialects.aliases import print_with_aliases
from tilewright.passes.pipelines import PIPELINES
from tilewright.tools.program_cache import program_key
from tilewright.tools.universe import make_context

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def stages() -> set[str]:
    """Return the names of the stages that took time since the last call."""
    names = set(tilewright.last_compile_stats()["compile_s"])
    tilewright.reset_compile_stats()
    return names


def compile_anew(function: Callable[..., Any], cache: Path, **options: Any) -> Callable[..., Any]:
    """Compile without what is in memory."""
    torch.compiler.reset()
    return compiled(function, cache=str(cache), **options)


def softmax_of_product(x: Tensor, w: Tensor) -> Tensor:
    return F.softmax(x @ w, -1) + torch.arange(w.shape[1])


def entries(cache: Path) -> dict[Path, dict[str, Any]]:
    """Return the files of kept programs, and what they say."""
    found: dict[Path, dict[str, Any]] = {}
    for path in cache.glob("*/*.obj"):
        content = ObjectCache(cache).get(path.stem)
        if content is not None and content.startswith(b'{"program"'):
            found[path] = json.loads(content)
    return found


@pytest.mark.parametrize("dynamic", [False, True])
def test_no_pass_runs_again(tmp_path: Path, dynamic: bool) -> None:
    x, w = torch.randn(5, 40), torch.randn(40, 30)
    compile_anew(softmax_of_product, tmp_path, dynamic=dynamic)(x, w)
    first = tilewright.last_compile_stats()
    assert {"loop-fuse", "llvm", "keep"} < stages()

    again = compile_anew(softmax_of_product, tmp_path, dynamic=dynamic)
    torch.testing.assert_close(again(x, w), softmax_of_product(x, w))
    second = tilewright.last_compile_stats()
    assert {n: second[n] for n in second if n != "compile_s"} == {n: first[n] for n in first if n != "compile_s"}
    assert stages() == {"import", "lookup", "host"}
    if dynamic:
        torch.testing.assert_close(again(x[:3], w), softmax_of_product(x[:3], w))


def test_training(tmp_path: Path) -> None:
    def steps(function: Callable[..., Any]) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Dropout(0.0), nn.GELU(), nn.Linear(16, 3))
        x = torch.randn(10, 8)
        function(model)(x).square().sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    expected = steps(lambda f: f)
    torch.testing.assert_close(steps(lambda f: compile_anew(f, tmp_path)), expected)
    stages()
    torch.testing.assert_close(steps(lambda f: compile_anew(f, tmp_path)), expected)
    assert stages() == {"import", "lookup", "host"}


def test_errors_are_raised_as_before(tmp_path: Path) -> None:
    def pick(x: Tensor, i: Tensor) -> Tensor:
        return x[i] * 2

    for _ in range(2):
        with pytest.raises(IndexError, match="index out of bounds for dimension 0 with size 4"):
            compile_anew(pick, tmp_path)(torch.randn(4), torch.tensor([1, 9]))
    assert stages() >= {"lookup"}


def _drop_objects(cache: Path) -> None:
    for path in set(cache.glob("*/*.obj")) - set(entries(cache)):
        path.unlink()


def _cut_text(cache: Path) -> None:
    _rewrite(cache, lambda entry: entry | {"program": entry["program"][:-40]})


def _drop_field(cache: Path) -> None:
    _rewrite(cache, lambda entry: {"program": entry["program"]})


def _unknown_field(cache: Path) -> None:
    _rewrite(cache, lambda entry: entry | {"kernels": [k | {"color": "red"} for k in entry["kernels"]]})


def _flip_bytes(cache: Path) -> None:
    for path in entries(cache):
        path.write_bytes(path.read_bytes()[:-1] + b"!")


def _rewrite(cache: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    for path, entry in entries(cache).items():
        ObjectCache(cache).put(path.stem, json.dumps(change(entry)).encode())


@pytest.mark.parametrize("damage", [_drop_objects, _cut_text, _drop_field, _unknown_field, _flip_bytes])
def test_what_is_damaged_is_compiled_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    compile_anew(softmax_of_product, tmp_path)(x, w)
    stages()
    torch.compiler.reset()
    damage(tmp_path)
    torch.testing.assert_close(compile_anew(softmax_of_product, tmp_path)(x, w), softmax_of_product(x, w))
    assert {"loop-fuse", "keep"} < stages()
    torch.testing.assert_close(compile_anew(softmax_of_product, tmp_path)(x, w), softmax_of_product(x, w))
    assert "loop-fuse" not in stages()


def test_whoever_wants_to_see_stages_does(tmp_path: Path) -> None:
    cache, x, w = tmp_path / "cache", torch.randn(3, 4), torch.randn(4, 5)
    compile_anew(softmax_of_product, cache)(x, w)
    for options in ({"dump": str(tmp_path / "dump")}, {"verify": True}, {"pipeline": "canonicalize," + _pipeline()}):
        stages()
        compile_anew(softmax_of_product, cache, **options)(x, w)
        assert "loop-fuse" in stages(), options
    assert list((tmp_path / "dump").glob("*/*-loop-fuse.ir"))


def _pipeline() -> str:
    return PIPELINES["cpu-128"]


TEXT = """
func.func @f(%x : tensor<4xf32, #sym.layout<[4], [1]>>) -> tensor<4xf32, #sym.layout<[4], [1]>> {
  func.return %x : tensor<4xf32, #sym.layout<[4], [1]>>
}
"""


def test_keys() -> None:
    def key(text: str, *conditions: str) -> str:
        return program_key(Parser(make_context(), text).parse_module(), conditions)

    assert key(TEXT, "a", "b") == key(TEXT, "a", "b")
    others = {key(TEXT, "a"), key(TEXT, "ab"), key(TEXT, "b", "a"), key(TEXT.replace("4", "5"), "a", "b")}
    assert len(others | {key(TEXT, "a", "b")}) == 5


def test_types_are_written_once() -> None:
    module = Parser(make_context(), TEXT).parse_module()
    text = print_with_aliases(module)
    assert text.count("sym.layout") == 1
    assert str(Parser(make_context(), text).parse_module()) == str(module)


PROCESS = """
import sys, torch
f = torch.compile(lambda x: x.softmax(-1) * 2, backend="tilewright", options={"strict": True, "cache": sys.argv[1]})
x = torch.arange(12.0).reshape(3, 4)
torch.testing.assert_close(f(x), x.softmax(-1) * 2)
print(*(name for name in sys.modules if name in ("tilewright.passes.loop_fuse", "tilewright.backends.llvm.emit")))
"""


@pytest.mark.slow
def test_another_process_loads_neither_passes_nor_emitters(tmp_path: Path) -> None:
    printed = [
        subprocess.run(
            [sys.executable, "-c", PROCESS, str(tmp_path)], check=True, capture_output=True, text=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert [len(names) for names in printed] == [2, 0]
