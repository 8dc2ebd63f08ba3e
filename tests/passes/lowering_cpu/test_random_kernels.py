"""Kernels made at random: strided, broadcast and divided accesses, several types, reductions and what follows them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from tilewright.passes.convert_loop_to_tt import ConvertLoopToTtPass
from tilewright.passes.loop_collapse import LoopCollapsePass
from tilewright.passes.loop_tile_blocks import LoopTileBlocksPass
from tilewright.passes.retarget import RetargetPass

if TYPE_CHECKING:
    from tests.passes.lowering_cpu.conftest import Kernel

SHORT = (1, 2, 3, 4, 5, 8, 13, 16, 17, 20, 31, 33, 64, 65)
LONG = (1, 2, 7, 16, 100, 130, 600, 1100)
DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
}


@dataclass(frozen=True)
class Index:
    """A loop: its index, its extent as text (a number or a symbol), and the number."""

    name: str
    extent: str
    size: int


class KernelMaker:
    """Writes a kernel whose values have the type `kind`."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.kind = self.random.choice(["f32", "f32", "f32", "f64", "i64"])
        self.lines: list[str] = []
        self.buffers: dict[str, Tensor] = {}
        self.outputs: list[str] = []
        self.sizes: dict[str, int] = {}
        self.values = 0

    def loops(self, prefix: str, count: int, sizes: Sequence[int]) -> list[Index]:
        made: list[Index] = []
        for i in range(count):
            size, symbol = self.random.choice(sizes), f"{prefix}{i}"
            symbolic = self.random.random() < 0.5
            if symbolic:
                self.sizes[symbol] = size
            made.append(Index(f"%{symbol}", symbol if symbolic else str(size), size))
        return made

    def line(self, text: str) -> None:
        self.lines.append(text)

    def emit(self, text: str) -> str:
        self.values += 1
        self.line(f"%v{self.values} = {text}")
        return f"%v{self.values}"

    def access(self, indices: Sequence[Index]) -> tuple[str, int]:
        """Return the address of an element of a tensor over `indices` in some order, and the tensor's length."""
        terms, stride, length = ["0"], "1", 1
        for index in self.random.sample(list(indices), len(indices)):
            terms.append(f"{index.name} * ({stride})")
            gap = self.random.choice([1, 1, 1, 2])
            stride, length = f"{stride} * {index.extent} * {gap}", length * index.size * gap
        offset = self.random.choice([0, 0, 3])
        return f"{' + '.join(terms)} + {offset}", length + offset

    def load(self, indices: Sequence[Index]) -> str:
        kind = self.kind if self.random.random() < 0.7 else self.random.choice(list(DTYPES))
        used = [i for i in indices if self.random.random() < 0.8]
        place, length = self.access(used)
        if indices and self.random.random() < 0.15:
            index, by = self.random.choice(indices), self.random.choice([2, 3, 8, 64])
            place, length = f"{index.name} {self.random.choice(['floordiv', 'mod'])} {by}", max(index.size, by)
        name, dtype = f"x{len(self.buffers)}", DTYPES[kind]
        whole = not dtype.is_floating_point
        self.buffers[name] = torch.randint(-9, 9, (length,), dtype=dtype) if whole else torch.randn(length).to(dtype)
        value = self.emit(f"loop.load %{name}[{place}] : ${name} -> {kind}")
        return value if kind == self.kind else self.emit(f"loop.cast {value} : {kind} to {self.kind}")

    def compute(self, indices: Sequence[Index], given: Sequence[str] = ()) -> str:
        letter = "i" if self.kind == "i64" else "f"
        value, *others = [*given, *(self.load(indices) for _ in range(self.random.randint(1, 3)))]
        for other in others:
            operation = self.random.choice(["add", "sub", "mul"])
            value = self.emit(f"arith.{operation}{letter} {value}, {other} : {self.kind}")
        if letter == "f" and self.random.random() < 0.3:
            value = self.emit(f"math.tanh {value} : {self.kind}")
        return value

    def store(self, value: str, indices: Sequence[Index]) -> None:
        place, length = self.access(indices)
        name = f"y{len(self.buffers)}"
        self.buffers[name] = torch.zeros(length, dtype=DTYPES[self.kind])
        self.outputs.append(name)
        self.line(f"loop.store {value}, %{name}[{place}] : {self.kind}, ${name}")

    def body(self) -> str:
        nest = self.loops("i", self.random.randint(0, 3), SHORT)
        reduced = self.loops("k", self.random.choice([0, 1, 1, 2]), LONG)
        self.line(f"loop.nest ({_loops(nest)}) {{")
        if not reduced:
            self.store(self.compute(nest), nest)
        else:
            combiner = self.random.choice(["sum", "sum", "max", "min"])
            self.line(f'%r = loop.reduce "{combiner}" ({_loops(reduced)}) {{')
            value = self.compute([*nest, *reduced])
            if self.random.random() < 0.2:
                self.store(value, [*nest, *reduced])
            self.line(f"loop.yield {value} : {self.kind}\n}} : {self.kind}")
            if self.random.random() < 0.5:
                after = [Index(f"%p{i}", index.extent, index.size) for i, index in enumerate(reduced)]
                self.line(f"loop.for ({_loops(after)}) {{")
                self.store(self.compute([*nest, *after], ["%r"]), [*nest, *after])
                self.line("}")
            self.store("%r", nest)
        self.line("}")
        return "\n".join(self.lines)


def _small_kernel(seed: int) -> tuple[str, dict[str, Tensor], list[str], dict[str, int]]:
    """Return a kernel that the interpreter runs in little time: its body, buffers, outputs and sizes."""
    for attempt in range(1000 * seed, 1000 * seed + 1000):
        maker = KernelMaker(attempt)
        body = maker.body()
        if max(b.numel() for b in maker.buffers.values()) < 50_000:
            return body, maker.buffers, maker.outputs, maker.sizes
    raise AssertionError("no small kernel")


def _loops(indices: Sequence[Index]) -> str:
    return ", ".join(f"{i.name} : {i.extent}" for i in indices)


@pytest.mark.parametrize("seed", range(40))
def test_a_random_kernel(kernel: Callable[..., Kernel], seed: int) -> None:
    made = kernel(*_small_kernel(seed))
    expected = made.interpret()
    for name, found, wanted in zip(made.outputs, made.run(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3, msg=lambda text, name=name: f"%{name}: {text}")


SMALL_BLOCKS = LoopTileBlocksPass(tile=32, persistent=32, looped=16, rows=4, columns=8, programs=2)


@pytest.mark.parametrize("blocks", [LoopTileBlocksPass(), SMALL_BLOCKS], ids=["large", "small"])
@pytest.mark.parametrize("seed", range(30))
def test_a_random_kernel_in_blocks(kernel: Callable[..., Kernel], seed: int, blocks: LoopTileBlocksPass) -> None:
    passes = (RetargetPass(), LoopCollapsePass(), blocks, ConvertLoopToTtPass())
    made = kernel(*_small_kernel(seed), passes=passes)
    expected = made.interpret()
    for count in (3, None):
        for name, found, wanted in zip(made.outputs, made.interpret(count), expected, strict=True):
            torch.testing.assert_close(
                found, wanted, rtol=1e-4, atol=1e-3, msg=lambda text, name=name: f"%{name}: {text}"
            )
