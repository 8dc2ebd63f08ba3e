"""What generated code must not do with bad positions and divisors: eager's exception instead of a crash."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tilewright

Function = Callable[..., Tensor]

LENGTHS = [1, 3, 16, 1003]
"""Of positions: less than a vector, several and a tail."""


pytestmark = pytest.mark.usefixtures("fresh_compiler")


def compiled(function: Function, *, dynamic: bool | None = None, **options: Any) -> Function:
    return torch.compile(
        function, backend="tilewright", dynamic=dynamic, options={"strict": True, "verify": True, **options}
    )


def spoiled(positions: Tensor, value: int, place: int = -1) -> Tensor:
    """Return a copy with one bad position."""
    result = positions.clone()
    result.view(-1)[place] = value
    return result


def raises_as_eager(function: Function, found: Function, *inputs: Tensor) -> None:
    """Both raise an exception of the same type."""
    with pytest.raises((IndexError, RuntimeError)) as expected:
        function(*inputs)
    with pytest.raises(type(expected.value)):
        found(*inputs)


INDEXED: dict[str, Function] = {
    "embedding": F.embedding,
    "index": lambda p, w: w[p],
    "index of the last": lambda p, w: w.T[:, p],
    "index with arithmetic": lambda p, w: w[p] * 2 + 1,
    "index_select": lambda p, w: torch.index_select(w, 0, p),
    "gather": lambda p, w: torch.gather(w, 0, p[:, None].expand(-1, 3)),
    "in a cat": lambda p, w: torch.cat([w[p], w[:2]]),
    "padded": lambda p, w: F.pad(w[p], (1, 0, 2, 0)),
    "reduced": lambda p, w: w[p].amax(0),
}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", INDEXED)
def test_position_out_of_range(name: str, length: int) -> None:
    function = INDEXED[name]
    table, positions = torch.randn(50, 3), torch.randint(0, 50, (length,))
    found = compiled(function)
    torch.testing.assert_close(found(positions, table), function(positions, table), rtol=0, atol=0)
    for bad in (50, -51, 1 << 62, -(1 << 63)):
        raises_as_eager(function, found, spoiled(positions, bad), table)
    raises_as_eager(function, found, spoiled(positions, 50, 0), table)
    torch.testing.assert_close(found(positions, table), function(positions, table), rtol=0, atol=0)
    assert tilewright.last_compile_stats()["extern"] == []


def test_messages() -> None:
    table, positions = torch.randn(5, 3), torch.tensor([7])
    with pytest.raises(IndexError, match=r"^index out of range in self$"):
        compiled(F.embedding)(positions, table)
    with pytest.raises(IndexError, match=r"^index out of bounds for dimension 1 with size 3$"):
        compiled(lambda p, w: w[:, p])(positions, table)
    with pytest.raises(RuntimeError, match=r"^ZeroDivisionError$"):
        compiled(lambda p, w: p // (p - 7))(positions, table)


def test_the_first_of_several_checks_is_reported() -> None:
    """What fails after it may do so only because it failed."""
    found = compiled(lambda p, q, w: w[p, q])
    with pytest.raises(IndexError, match="dimension 0"):
        found(torch.tensor([9, 0]), torch.tensor([0, 9]), torch.randn(5, 3))


@pytest.mark.parametrize("host", ["native", "python"])
def test_negative_positions(host: str) -> None:
    table, positions = torch.randn(50), torch.randint(-50, 50, (1003,))
    found = compiled(lambda p, w: w[p], host=host)
    assert torch.equal(found(positions, table), table[positions])
    with pytest.raises(IndexError):
        found(spoiled(positions, -51), table)
    embedded = compiled(F.embedding, host=host)
    with pytest.raises(IndexError, match="in self"):
        embedded(spoiled(positions.abs().clamp(max=49), -1), table[:, None])


def test_positions_of_32_bits() -> None:
    table, positions = torch.randn(50, 3), torch.randint(0, 50, (1003,), dtype=torch.int32)
    found = compiled(F.embedding)
    assert torch.equal(found(positions, table), F.embedding(positions, table))
    for bad in (50, -1, (1 << 31) - 1, -(1 << 31)):
        with pytest.raises(IndexError):
            found(spoiled(positions, bad), table)


def test_sizes_that_are_not_constant() -> None:
    found = compiled(lambda p, w: w[p], dynamic=True)
    for rows in (5, 9):
        table, positions = torch.randn(rows, 3), torch.randint(0, rows, (rows * 3,))
        assert torch.equal(found(positions, table), table[positions])
        with pytest.raises(IndexError, match=r"^index out of bounds for dimension 0$"):
            found(spoiled(positions, rows), table)


def test_table_without_rows() -> None:
    table = torch.randn(0, 3)
    found = compiled(lambda p, w: w[p])
    with pytest.raises(IndexError):
        found(torch.zeros(17, dtype=torch.int64), table)
    torch._dynamo.reset()
    assert compiled(lambda p, w: w[p])(torch.zeros(0, dtype=torch.int64), table).shape == (0, 3)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_thread_reports(threads: int) -> None:
    table, positions = torch.randn(50), torch.randint(0, 50, (300_000,))
    found = compiled(lambda p, w: w[p])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(found(positions, table), table[positions])
        for place in (0, 150_000, 299_999):
            with pytest.raises(IndexError):
                found(spoiled(positions, 50, place), table)
        with pytest.raises(IndexError):
            found(positions + 1000, table)
    finally:
        torch.set_num_threads(before)


def test_positions_that_are_known_are_not_checked(tmp_path: Path) -> None:
    """The rows of `arange` are there: the kernel has no status."""
    table = torch.randn(50, 3)
    found = compiled(lambda w: F.embedding(torch.arange(20), w), dump=str(tmp_path))
    assert torch.equal(found(table), table[:20])
    (last,) = tmp_path.rglob("*-convert-loop-to-cpu.ir")
    assert "cpu.load" in last.read_text()
    assert "cpu.errors" not in last.read_text()


DIVISIONS: dict[str, Function] = {
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "fmod": torch.fmod,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("name", DIVISIONS)
def test_division_by_zero(name: str, dtype: torch.dtype) -> None:
    function = DIVISIONS[name]
    x, y = torch.randint(0, 100, (1003,)).to(dtype), torch.randint(1, 9, (1003,)).to(dtype)
    found = compiled(function)
    assert torch.equal(found(x, y), function(x, y))
    for place in (0, 1002):
        with pytest.raises(RuntimeError, match=r"^ZeroDivisionError$"):
            found(x, spoiled(y, 0, place))
    assert torch.equal(found(x, y), function(x, y))


@pytest.mark.parametrize("name", DIVISIONS)
def test_division_that_overflows_wraps(name: str) -> None:
    x, y = torch.full((35,), -(1 << 63)), torch.full((35,), -1)
    assert torch.equal(compiled(DIVISIONS[name])(x, y), x if name in ("//", "trunc") else torch.zeros_like(x))


@pytest.mark.slow
def test_failing_calls_leak_nothing() -> None:
    table, positions = torch.randn(50, 64), torch.randint(0, 50, (1000,))
    found = compiled(lambda p, w: w[p] + 1)
    bad = spoiled(positions, 50)

    def fail(times: int) -> None:
        for _ in range(times):
            with pytest.raises(IndexError):
                found(bad, table)

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() // 1024

    fail(100)
    gc.collect()
    before = resident()
    fail(300)
    gc.collect()
    # One leaked tensor of 250 KiB in each call would be 75 MB.
    assert resident() - before < 8192
