"""Text in, text out: a stage's text, read by a process that knows nothing else, gives the next one to the byte.

Training steps are compiled with their stages written to a folder. Other processes, with other orders of hashes, start
from each of these files and must arrive at the next, and at the same machine code in the end.
"""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

HERE = Path(__file__).resolve().parent


def load(name: str) -> Any:
    """Import a file beside this one."""
    spec = importlib.util.spec_from_file_location(f"tilewright_tests_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


models, stages = load("models"), load("stages")


def small_gpt(folder: Path) -> list[Path]:
    """Train a GPT of one layer; the batch size is symbolic."""
    model = models.small_gpt()
    ids = torch.randint(0, 50, (3, 16))

    def loss(ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    torch._dynamo.mark_dynamic(ids, 0)
    return models.dump_training(loss, (ids,), folder)


def small_resnet(folder: Path) -> list[Path]:
    return resnet(folder, models.ResNet((0, 1), 4, 10), 16)


def resnet18(folder: Path) -> list[Path]:
    return resnet(folder, models.ResNet(), 64)


def resnet(folder: Path, model: Any, size: int) -> list[Path]:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    return models.dump_training(loss, (torch.randn(2, 3, size, size), torch.tensor([1, 9])), folder)


def gpt2(folder: Path) -> list[Path]:
    """Train the model of the `transformers` library."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=3, n_embd=64, n_head=4, vocab_size=300, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(0, 300, (2, 32))

    def loss(ids: Tensor) -> Tensor:
        return model(ids, labels=ids).loss

    return models.dump_training(loss, (ids,), folder)


def run(*arguments: str, seed: int) -> str:
    """Run Python in a process of its own, with another order of hashes."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("train", [small_gpt, small_resnet])
def test_each_stage_of_a_training_step_leads_to_the_next(train: Any, tmp_path: Path) -> None:
    graphs = train(tmp_path)
    assert [g.name.partition("-")[2] for g in graphs] == ["backward", "forward"]
    for number, graph in enumerate(graphs):
        assert run(str(HERE / "stages.py"), str(graph), seed=number) == ""


@pytest.mark.slow
def test_the_first_stage_leads_to_the_last(tmp_path: Path) -> None:
    *_, graph = small_gpt(tmp_path)
    first, *_, last = sorted(graph.glob("*.ir"))
    rest = stages.pipeline(first, "to the end")
    assert run("-m", "tilewright.tools.opt", str(first), "-p", rest, seed=2) == stages.body(last)
    assert (
        run("-m", "tilewright.tools.translate", str(last), "-t", "host-py", seed=3) == (graph / "host.py").read_text()
    )


@pytest.mark.long
@pytest.mark.parametrize("train", [gpt2, resnet18])
def test_every_stage_in_its_own_process(train: Any, tmp_path: Path) -> None:
    for number, graph in enumerate(train(tmp_path)):
        assert run(str(HERE / "stages.py"), str(graph), seed=number) == ""
        files = sorted(graph.glob("*.ir"))
        for seed, (file, following) in enumerate(pairwise(files)):
            following_pass = stages.pipeline(file, "next stage")
            text = run("-m", "tilewright.tools.opt", str(file), "-p", following_pass, seed=seed)
            assert text == stages.body(following), (graph.name, file.name)
