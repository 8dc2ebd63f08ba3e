"""Whole programs on a CUDA device that is not there: the kernels for Triton run in the reference interpreter.

Everything is as on a device but for what Triton and the device do: what is captured on the CPU is moved to `cuda:0`,
lowered, and linked with a native host program that launches kernels through the driver's interface (`fake_cuda.py`).
"""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.adapter import compiled
from tests.backends.host.fake_cuda import FakeCode, FakeDevice
from torch import Tensor, nn
from xdsl.dialects.builtin import ModuleOp

import tilewright
from tilewright.backends.cuda import driver
from tilewright.backends.reference.buffers import Buffer
from tilewright.backends.reference.dtypes import register_dtype
from tilewright.backends.reference.frame import Frame
from tilewright.backends.reference.tt_launch import run_programs
from tilewright.backends.triton import compile as triton
from tilewright.backends.triton.ttir import ALL_EXPECTED, Expected
from tilewright.dialects import tt
from tilewright.passes.pipelines import PIPELINES

pytestmark = pytest.mark.usefixtures("fresh_compiler")

_numbers = itertools.count()


class Simulator(FakeDevice):
    """A device whose kernels are interpreted."""

    def compile_kernel(
        self, kernel: tt.FuncOp, arch: int, *, cache: object = None, expected: Expected = ALL_EXPECTED
    ) -> FakeCode:
        """Do as `backends/triton` does."""
        name = f"{kernel.sym_name.data}.{next(_numbers)}"
        self.functions[name] = lambda *arguments: self.interpret(kernel, arguments, expected == ALL_EXPECTED)
        self.arity[name] = len(kernel.args)
        self.compiled.append(name)
        return FakeCode(kernel.sym_name.data, name.encode(), arch=arch, key=name)

    def load_cubin(self, key: str, cache: object) -> FakeCode | None:
        return FakeCode(key.partition(".")[0], key.encode(), arch=self.driver.capability(0), key=key)

    def compile_kernels(
        self, kernels: Sequence[tuple[tt.FuncOp, Expected]], arch: int, *, cache: object = None
    ) -> list[FakeCode]:
        return [self.compile_kernel(kernel, arch, expected=expected) for kernel, expected in kernels]

    def interpret(self, kernel: tt.FuncOp, arguments: Sequence[int], aligned: bool) -> None:
        buffers = [
            Buffer(self.memory(a, register_dtype(p.type.pointee)))
            for a, p in zip(arguments, kernel.args, strict=True)
            if isinstance(p.type, tt.PointerType)
        ]
        run_programs(kernel, buffers, list(arguments[len(buffers) :]), Frame(ModuleOp([]), {}), aligned=aligned)

    def memory(self, address: int, dtype: torch.dtype) -> Tensor:
        """Return what lies behind an address in its storage, as a flat tensor."""
        count = self.bytes_from(address) // dtype.itemsize
        if count == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype=dtype)


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> Simulator:
    simulator = Simulator()
    simulator.install(monkeypatch)
    monkeypatch.setattr(driver, "cuda_driver", lambda: simulator.driver)
    monkeypatch.setattr(triton, "compile_kernel", simulator.compile_kernel)
    monkeypatch.setattr(triton, "compile_kernels", simulator.compile_kernels)
    monkeypatch.setattr(triton, "load_cubin", simulator.load_cubin)
    return simulator


def on_cuda(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile what is captured on the CPU for `cuda:0`."""
    graph = ",".join((PIPELINES["graph"], PIPELINES["buffers"], 'retarget{device="cuda:0"}'))
    return compiled(function, pipeline=f"{graph},{PIPELINES['tt']}", **options)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "add": (lambda x, y: x + y, ((1000,), (1000,))),
    "gelu": (lambda x, b: F.gelu(x + b), ((20, 40), (40,))),
    "softmax": (lambda x: x.softmax(-1), ((7, 100),)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (50,), w, w), ((9, 50), (50,))),
    "column_sum": (lambda x: x.sum(0), ((60, 40),)),
    "transpose": (lambda x, y: x.t() + y, ((30, 40), (40, 30))),
    "product": (lambda x, w: F.gelu(x @ w) + 1, ((10, 20), (20, 30))),
    "unaligned": (lambda x: x[1:] * 2, ((100,),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(simulator: Simulator, name: str) -> None:
    function, shapes = FUNCTIONS[name]
    inputs = [torch.randn(shape) for shape in shapes]
    torch.testing.assert_close(on_cuda(function)(*inputs), function(*inputs))
    assert simulator.launches
    assert simulator.log[-1] == "leave"


def test_training(simulator: Simulator) -> None:
    def steps(compile_function: Callable[..., Any]) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 11)
        )  # fmt: skip
        ids = torch.arange(24).reshape(4, 6) % 11
        optimizer = torch.optim.AdamW(model.parameters(), 0.05)

        def loss_of(ids: Tensor) -> Tensor:
            return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

        compiled_loss, update, losses = compile_function(loss_of), compile_function(optimizer.step), list[Tensor]()
        for _ in range(2):
            loss = compiled_loss(ids)
            loss.backward()
            update()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return [*losses, *(p.detach() for p in model.parameters())]

    torch.testing.assert_close(steps(on_cuda), steps(lambda f: f), rtol=1e-4, atol=1e-5)
    assert tilewright.last_compile_stats()["fallbacks"] == 0
    assert any("_x" in launch.image for launch in simulator.launches), "the updates of parameters are one launch"


def test_dynamic_sizes(simulator: Simulator) -> None:
    def f(x: Tensor) -> Tensor:
        return x.softmax(-1) + x.sum(0)

    g = on_cuda(f, dynamic=True)
    compiled: list[int] = []
    for sizes in ((3, 5), (40, 100), (7, 300), (40, 112), (8, 128)):
        x = torch.randn(sizes)
        torch.testing.assert_close(g(x), f(x))
        compiled.append(len(simulator.functions))
    # Rows whose length is a multiple of 16 want other variants, none before the first of these.
    assert compiled[0] == compiled[2] == len({launch.image.split(".")[0] for launch in simulator.launches})
    assert compiled[2] < compiled[3] == compiled[4]


def test_a_program_that_was_compiled_before(simulator: Simulator, tmp_path: Path) -> None:
    def f(x: Tensor) -> Tensor:
        return x.softmax(-1) + x.sum(0)

    def check(x: Tensor) -> set[str]:
        torch.compiler.reset()
        tilewright.reset_compile_stats()
        simulator.compiled.clear()
        g = on_cuda(f, cache=str(tmp_path), dynamic=True)
        torch.testing.assert_close(g(x), f(x))
        # The kernels as a cubin holds them are those for aligned buffers.
        torch.testing.assert_close(g(shifted), f(shifted))
        return {name.partition(".")[0] for name in simulator.compiled}

    x, shifted = torch.randn(6, 9), torch.randn(60)[1:55].view(6, 9)
    kernels = check(x)
    assert "loop-fuse" in tilewright.last_compile_stats()["compile_s"]
    assert check(x) == kernels  # the variants for buffers that begin anywhere, from the text that was kept
    assert set(tilewright.last_compile_stats()["compile_s"]) == {"import", "lookup", "host"}


def test_dump(simulator: Simulator, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="kernels are dumped as Triton compiles them")
    x = torch.randn(7, 100)
    torch.testing.assert_close(on_cuda(lambda x: x.softmax(-1), dump=str(tmp_path))(x), x.softmax(-1))
    (folder,) = tmp_path.iterdir()
    marks = {"py": "@triton.jit", "ttir": "tt.load", "ttgir": "ttg.", "ptx": ".visible .entry softmax_0"}
    for suffix, mark in marks.items():
        assert mark in (folder / f"softmax_0.{suffix}").read_text()


def test_the_pipeline_is_that_of_the_device() -> None:
    from tilewright.backends.llvm.target import Target
    from tilewright.tools.compile import pipeline_text
    from tilewright.tools.options import Options

    target = Target("x86_64", "generic", "", 256)
    assert pipeline_text(Options(), target, ["cpu"]) == PIPELINES["cpu-256"]
    assert pipeline_text(Options(), target, ["cuda", "cpu"]) == PIPELINES["cuda-256"]
    lowering = "convert-aten-to-loop"
    wanted = PIPELINES["cuda-256"].replace(lowering, f"{lowering}{{deterministic=true}}")
    assert pipeline_text(Options(deterministic=True), target, ["cuda"]) == wanted
    assert pipeline_text(Options(pipeline="cpu-128"), target, ["cuda"]) == PIPELINES["cpu-128"]
