"""Scatters as loops, compared with eager: on the CPU both write in the same order, so exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
from tests import adapter
from tests.passes.lowering_checks import (
    DTYPES,
    FLOATS,
    aten,
    calls,
    check,
    check_exactly,
    lowered,
    outputs,
    sample,
)
from torch import Tensor

from tilewright.backends.reference.interpreter import run_function
from tilewright.dialects.loop import ScanOp

pytestmark = pytest.mark.usefixtures("device")

Ternary: TypeAlias = Callable[[Tensor, Tensor, Tensor], Any]

FIXED_AND_SYMBOLIC = pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])


@FIXED_AND_SYMBOLIC
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("padding", [-1, 2])
def test_gradient_of_an_embedding(dtype: torch.dtype, padding: int, dynamic: bool) -> None:
    positions = torch.tensor([[1, 0, 6, 1, 2], [5, 2, 2, 1, 1]])
    check_exactly(
        lambda g, i: aten.embedding_dense_backward(g, i, 7, padding, False),
        sample(dtype, 2, 5, 4),
        positions,
        dynamic=dynamic,
    )


@pytest.mark.parametrize("positions", [(), (0, 3)], ids=str)
def test_gradient_of_an_embedding_of_few(positions: tuple[int, ...]) -> None:
    check_exactly(
        lambda g, i: aten.embedding_dense_backward(g, i, 7, -1, False),
        sample(torch.float32, *positions, 4),
        torch.zeros(positions, dtype=torch.int32),
    )


def test_gradient_scaled_by_frequency_stays_a_call() -> None:
    graph = lowered(
        lambda g, i: aten.embedding_dense_backward(g, i, 7, -1, True), sample(torch.float32, 3, 4), torch.arange(3)
    )
    assert calls(graph.module) == ["aten.embedding_dense_backward.default"]


WRITTEN = {
    "first": (0,),
    "middle": (None, 0),
    "last": (None, None, 0),
    "adjacent": (None, 0, 1),
    "apart": (0, None, 1),
    "all": (0, 1, 0),
    "broadcast": (None, 2, 0),
    "one": (3,),
}
POSITIONS = (
    torch.tensor([[1, -1], [0, 2], [3, -4]]),
    torch.tensor([0, -2]),
    torch.tensor([[3], [-1], [0]]),
    torch.tensor(2),
)


def to_replace(values: Tensor, of_places: Callable[[], Tensor]) -> Tensor:
    """Return what to write: on a device, the same for the same place.

    Which of several elements for one place stays is undefined where they do not accumulate, says PyTorch's
    documentation; on CUDA it is that of the thread that comes last, and differs from call to call.
    """
    return values if adapter.device is None else of_places()


@FIXED_AND_SYMBOLIC
@pytest.mark.parametrize("accumulate", [False, True], ids=["replace", "accumulate"])
@pytest.mark.parametrize("name", WRITTEN)
def test_index_put(name: str, accumulate: bool, dynamic: bool) -> None:
    which = WRITTEN[name]
    x = sample(torch.float32, 4, 7, 5)

    def indices(positions: tuple[Tensor, ...]) -> list[Tensor | None]:
        return [None if p is None else positions[p] for p in which]

    def program(x: Tensor, values: Tensor, *positions: Tensor) -> Any:
        return aten.index_put(x, indices(positions), values, accumulate)

    values = torch.randn(aten.index(x, indices(POSITIONS)).shape)
    if not accumulate:
        values = to_replace(values, lambda: aten.index(torch.randn(x.shape), indices(POSITIONS)))
    check_exactly(program, x, values, *POSITIONS, dynamic=dynamic)
    check_exactly(program, x, torch.tensor(1.5), *POSITIONS, dynamic=dynamic)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_index_put_of_any_dtype(dtype: torch.dtype) -> None:
    positions = torch.tensor([2, 0, -1, 2, 2])
    x, values = sample(dtype, 4, 3), sample(dtype, 5, 3)
    rows = to_replace(values, lambda: x.flip(0)[positions])
    check_exactly(lambda x, i, v: aten.index_put(x, [i], v), x, positions, rows)
    check_exactly(lambda x, i, v: aten.index_put(x, [i], v, True), x, positions, values)


def test_index_put_keeps_layouts_and_values() -> None:
    x = sample(torch.float32, 2, 3, 4, 5).to(memory_format=torch.channels_last)
    values = torch.tensor([float("nan"), -0.0, float("inf"), 1.0, 2.0])
    check_exactly(lambda x, i, v: aten.index_put(x, [None, i], v, True), x, torch.tensor([1, 1]), values)
    check_exactly(lambda x, i, v: aten.index_put(x, [i], v), x.permute(3, 0, 1, 2), torch.tensor([1]), values[:1])


@FIXED_AND_SYMBOLIC
@pytest.mark.parametrize("accumulate", [False, True], ids=["replace", "accumulate"])
def test_index_put_by_a_mask(accumulate: bool, dynamic: bool) -> None:
    x, mask = sample(torch.float32, 4, 7, 5), sample(torch.bool, 7)
    both = sample(torch.bool, 4, 7)

    def program(x: Tensor, m: Tensor, n: Tensor, one: Tensor, row: Tensor, rows: Tensor) -> Any:
        return [
            aten.index_put(x, [None, m], one, accumulate),
            aten.index_put(x, [None, m], row, accumulate),
            aten.index_put(x, [None, m], rows, accumulate),
            aten.index_put(x, [n], row, accumulate),
            aten.index_put(x, [aten.gt(x, 0)], one, accumulate),
        ]

    values = torch.tensor(1.5), sample(torch.float32, 5), sample(torch.float32, 4, 1, 5)
    check_exactly(program, x, mask, both, *values, dynamic=dynamic)


def test_index_put_nothing() -> None:
    nowhere = torch.zeros(0, dtype=torch.int64)
    check_exactly(lambda x, i, v: aten.index_put(x, [i], v), sample(torch.float32, 4, 3), nowhere, torch.zeros(0, 3))
    check_exactly(lambda x, i, v: aten.index_put(x, [i], v), torch.zeros(0, 3), nowhere, torch.zeros(0, 3))


@pytest.mark.parametrize("position", [4, -5])
def test_a_position_that_is_out_of_range(position: int) -> None:
    def program(x: Tensor, i: Tensor, v: Tensor) -> Any:
        return aten.index_put(x, [i], v, True)

    args = sample(torch.float32, 4, 3), torch.tensor([position]), torch.ones(3)
    graph = lowered(program, *args)
    with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 4"):
        run_function(graph.module, args)


SCATTERED: dict[str, Callable[[int], Ternary]] = {
    "replace": lambda d: lambda x, i, s: aten.scatter(x, d, i, s),
    "number": lambda d: lambda x, i, s: aten.scatter(x, d, i, 3),
    "add": lambda d: lambda x, i, s: aten.scatter_add(x, d, i, s),
    "reduce": lambda d: lambda x, i, s: aten.scatter(x, d, i, s, reduce="multiply"),
    "sum": lambda d: lambda x, i, s: aten.scatter_reduce(x, d, i, s, "sum"),
    "amax": lambda d: lambda x, i, s: aten.scatter_reduce(x, d, i, s, "amax"),
    "amin of what is written": lambda d: lambda x, i, s: aten.scatter_reduce(x, d, i, s, "amin", include_self=False),
    "prod of what is written": lambda d: lambda x, i, s: aten.scatter_reduce(x, d, i, s, "prod", include_self=False),
}


@FIXED_AND_SYMBOLIC
@pytest.mark.parametrize("d", [0, 1, -1])
@pytest.mark.parametrize("name", SCATTERED)
def test_scatter(name: str, d: int, dynamic: bool) -> None:
    x, source = sample(torch.float32, 4, 7, 5), torch.randn(3, 6, 5)
    positions = torch.randint(0, x.shape[d], (3, 6, 2), generator=torch.Generator().manual_seed(0))
    if name == "replace":
        source = to_replace(source, lambda: x.flip(d).gather(d, positions))
    check_exactly(SCATTERED[name](d), x, positions, source, dynamic=dynamic)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["replace", "add", "amax", "amin of what is written"])
def test_scatter_of_any_dtype(name: str, dtype: torch.dtype) -> None:
    positions = torch.tensor([[0, 2, 2], [1, 1, 0], [0, 0, 0]])
    x, source = sample(dtype, 4, 3), sample(dtype, 3, 3)
    if name == "replace":
        source = to_replace(source, lambda: x.flip(0).gather(0, positions))
    check_exactly(SCATTERED[name](0), x, positions, source)


def test_scatter_of_nan() -> None:
    x, source = torch.zeros(2, 3), torch.tensor([[1.0, float("nan"), 2.0], [float("nan"), 3.0, 4.0]])
    positions = torch.tensor([[0, 0, 1], [1, 1, 1]])
    for name in ("amax", "amin of what is written", "sum"):
        check_exactly(SCATTERED[name](1), x, positions, source)


def test_a_scatter_by_means_stays_a_call() -> None:
    args = sample(torch.float32, 3, 3), torch.zeros(2, 3, dtype=torch.int64), sample(torch.float32, 2, 3)
    graph = lowered(lambda x, i, s: aten.scatter_reduce(x, 0, i, s, "mean"), *args)
    assert calls(graph.module) == ["aten.scatter_reduce.two"]


@FIXED_AND_SYMBOLIC
@pytest.mark.parametrize("d", [0, 1, 2])
def test_writes_along_a_dimension(d: int, dynamic: bool) -> None:
    x, positions = sample(torch.float32, 4, 7, 5), torch.tensor([0, 3, 3, 1])
    source = torch.randn(*(4 if i == d else n for i, n in enumerate(x.shape)))
    check_exactly(lambda x, i, s: aten.index_add(x, d, i, s), x, positions, source, dynamic=dynamic)
    check(lambda x, i, s: aten.index_add(x, d, i, s, alpha=0.3), x, positions, source, dynamic=dynamic)
    copied = to_replace(source, lambda: x.flip(d).index_select(d, positions))
    check_exactly(lambda x, i, s: aten.index_copy(x, d, i, s), x, positions, copied, dynamic=dynamic)
    check_exactly(lambda x, i, s: aten.index_fill(x, d, i, 2), x, positions - 4, source, dynamic=dynamic)
    check_exactly(lambda x, i, s: aten.index_fill(x, d, i, aten.sum(s)), x, positions, source.round(), dynamic=dynamic)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_writes_along_a_dimension_of_any_dtype(dtype: torch.dtype) -> None:
    positions = torch.tensor([2, 0, 2])
    x, source = sample(dtype, 4, 3), sample(dtype, 3, 3)
    check_exactly(lambda x, i, s: aten.index_add(x, 0, i, s), x, positions, source)
    copied = to_replace(source, lambda: x.flip(0).index_select(0, positions))
    check_exactly(lambda x, i, s: aten.index_copy(x, 0, i, s), x, positions, copied)
    check_exactly(lambda x, i: aten.index_fill(x, 0, i, 1), x, positions)


def test_positions_that_may_be_equal_are_scanned() -> None:
    module = lowered(
        SCATTERED["add"](1), sample(torch.float32, 4, 7), torch.zeros(4, 7, dtype=torch.int64), torch.ones(4, 7)
    ).module
    (scan,) = [op for op in module.walk() if isinstance(op, ScanOp)]
    assert len(scan.indices) == 1


def test_outputs_are_all_loops() -> None:
    # The gradient of an index is a sum over the positions.
    def program(x: Tensor, i: Tensor) -> Any:
        return aten.index_put(aten.new_zeros(x, [9, 3]), [i], x, True)

    (pair,) = outputs(program, sample(torch.float32, 5, 3), torch.tensor([1, 1, 8, 0, 1]))
    if adapter.device is None:
        assert torch.equal(*pair)
    else:  # in another order than eager
        torch.testing.assert_close(*pair)


def test_channels_that_lie_side_by_side_are_innermost() -> None:
    x = sample(torch.float32, 2, 3, 4, 5).to(memory_format=torch.channels_last)
    values, rows = sample(torch.float32, 2, 3, 6, 5).to(memory_format=torch.channels_last), torch.randint(0, 4, (6,))
    check_exactly(lambda x, i, v: aten.index_put(x, [None, None, i], v, True), x, rows, values)
    positions = torch.randint(0, 4, (2, 3, 6, 5))
    check_exactly(lambda x, i, s: aten.scatter_add(x, 2, i, s), x, positions, values)
