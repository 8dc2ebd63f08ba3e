"""Indexing, rearrangements and creation as loops, compared with eager: no arithmetic, so exactly."""

from __future__ import annotations

from math import inf

import pytest
import torch
from tests.passes.lowering_checks import (
    DTYPES,
    Unary,
    assert_close,
    aten,
    call_outputs,
    calls,
    check,
    check_exactly,
    lowered,
    prims,
    sample,
)

from tilewright.dialects.loop import NestOp

pytestmark = pytest.mark.usefixtures("device")

REARRANGED: dict[str, Unary] = {
    "cat": lambda x: aten.cat([x, x, x], 1),
    "cat along the last": lambda x: aten.cat([x, aten.slice(x, 2, 1, 3)], -1),
    "cat of one": lambda x: aten.cat([x], 0),
    "cat with an empty one": lambda x: aten.cat([x, aten.slice(x, 1, 2, 2), x], 1),
    "flip": lambda x: aten.flip(x, [0, -1]),
    "pad": lambda x: aten.constant_pad_nd(x, [1, 2, 3, 0], 7),
    "pad rows": lambda x: aten.constant_pad_nd(x, [0, 0, 1, 2], 7),
    "pad and crop": lambda x: aten.constant_pad_nd(x, [-1, 2, 1, -2, 0, 0]),
    "pad on one side": lambda x: aten.constant_pad_nd(x, [0, 2], 1),
    "repeat": lambda x: aten.repeat(x, [2, 1, 3, 2]),
    "diag_embed": lambda x: aten.diag_embed(x, -1, 0, 2),
    "diag_embed above": lambda x: aten.diag_embed(x, 2),
    "roll all": lambda x: aten.roll(x, [3]),
    "roll all back": lambda x: aten.roll(x, [-150]),
    "roll": lambda x: aten.roll(x, [1, -2], [0, 2]),
    "roll beyond": lambda x: aten.roll(x, [100], [1]),
    "select_scatter": lambda x: aten.select_scatter(x, aten.select(x, 1, 0), 1, -2),
    "slice_scatter": lambda x: aten.slice_scatter(x, aten.slice(x, 1, 0, 2), 1, 2, 4),
    "slice_scatter by two": lambda x: aten.slice_scatter(x, aten.slice(x, 1, 0, 3), 1, 1, None, 2),
    "slice_scatter from the end": lambda x: aten.slice_scatter(x, aten.slice(x, 2, 0, 2), 2, -2),
    "stack": lambda x: aten.stack([x, aten.flip(x, [0]), x], -2),
    "tril": aten.tril,
    "tril above": lambda x: aten.tril(x, 1),
    "triu below": lambda x: aten.triu(x, -2),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", REARRANGED)
def test_rearrangements(name: str, dynamic: bool) -> None:
    check_exactly(REARRANGED[name], sample(torch.float32, 4, 7, 5), dynamic=dynamic)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["cat", "flip", "pad", "slice_scatter", "tril"])
def test_rearrangements_of_any_dtype(name: str, dtype: torch.dtype) -> None:
    check_exactly(REARRANGED[name], sample(dtype, 4, 7, 5))


def test_cat_converts_its_operands() -> None:
    x, y, z = sample(torch.float32, 3, 4), sample(torch.int64, 3, 2), sample(torch.bool, 3, 1)
    assert_close(call_outputs(aten.cat.default, [x, y, z], 1), rtol=0, atol=0)
    assert_close(call_outputs(aten.cat.default, [z, y, x], 1), rtol=0, atol=0)


def test_cat_leaves_out_the_empty_vector() -> None:
    assert_close(call_outputs(aten.cat.default, [torch.empty(0), sample(torch.float32, 3, 4)], 0), rtol=0, atol=0)


@pytest.mark.parametrize("positions", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 3)], ids=str)
def test_embedding(shape: tuple[int, ...], positions: torch.dtype) -> None:
    indices = sample(positions, *shape).abs() % 7
    check_exactly(aten.embedding, sample(torch.float32, 7, 4), indices)
    check_exactly(lambda w, i: aten.embedding(w, i, 0), sample(torch.bfloat16, 7, 4), indices)


def test_embedding_of_symbolic_sizes() -> None:
    indices = torch.tensor([[1, 0, 6], [5, 2, 2]])
    check_exactly(aten.embedding, sample(torch.float32, 7, 4), indices, dynamic=True)


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
def test_gather_and_index_select(dynamic: bool) -> None:
    x, positions = sample(torch.float32, 4, 7, 5), torch.randint(0, 4, (3, 6, 2))
    check_exactly(lambda x, i: aten.gather(x, 1, i), x, positions, dynamic=dynamic)
    check_exactly(lambda x, i: aten.gather(x, -1, i), x, positions, dynamic=dynamic)
    check_exactly(lambda x, i: aten.index_select(x, 1, i), x, torch.tensor([3, 0, 6, 6, 1]), dynamic=dynamic)
    check_exactly(lambda x, i: aten.index_select(x, 0, i), x, torch.tensor(2), dynamic=dynamic)


INDEXED = {
    "first": (0,),
    "middle": (None, 0),
    "last": (None, None, 0),
    "adjacent": (None, 0, 1),
    "apart": (0, None, 1),
    "all": (0, 1, 0),
    "broadcast": (None, 2, 0),
}
POSITIONS = (torch.tensor([[1, -1], [0, 2], [3, -4]]), torch.tensor([0, -2]), torch.tensor([[3], [-1], [0]]))


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", INDEXED)
def test_index(name: str, dynamic: bool) -> None:
    which = INDEXED[name]

    def program(x: torch.Tensor, *positions: torch.Tensor) -> torch.Tensor:
        return aten.index(x, [None if p is None else positions[p] for p in which])

    check_exactly(program, sample(torch.float32, 4, 7, 5), *POSITIONS, dynamic=dynamic)


def test_positions_of_32_bits_count_from_the_end_too() -> None:
    check_exactly(lambda x, i: aten.index(x, [i]), sample(torch.int16, 7, 3), torch.tensor([-1, 2], dtype=torch.int32))


def test_a_mask_as_positions_stays_a_call() -> None:
    # How many elements it picks depends on data, and so does which of the values goes where.
    x, mask = sample(torch.float32, 3, 4), torch.tensor([True, False, True])
    graph = lowered(lambda x, m, v: aten.index_put(x, [m], v), x, mask, torch.ones(2, 4))
    assert calls(graph.module) == ["aten.index_put.default"]


FILLED: dict[str, Unary] = {
    "fill": lambda x: aten.fill(x, 3),
    "fill by tensor": lambda x: aten.fill(x, x.new_ones(())),
    "full": lambda x: aten.full([2, x.shape[0]], 1.5),
    "full of symbolic": lambda x: aten.full([3], x.shape[0]),
    "full_like": lambda x: aten.full_like(x, 2),
    "new_full": lambda x: aten.new_full(x, [3], 1),
    "new_ones": lambda x: aten.new_ones(x, [2, 3]),
    "new_zeros": lambda x: aten.new_zeros(x, [2, 3]),
    "ones": lambda x: aten.ones([2, x.shape[1]]),
    "ones_like": lambda x: aten.ones_like(x, dtype=torch.bool),
    "scalar_tensor": lambda x: aten.scalar_tensor(-inf),
    "zeros": lambda x: aten.zeros([3], dtype=torch.int32),
    "zeros_like": lambda x: aten.zeros_like(aten.permute(x, [1, 0])),
    "zero": aten.zero,
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", FILLED)
def test_filled_tensors(name: str, dynamic: bool) -> None:
    check_exactly(FILLED[name], sample(torch.float32, 4, 5), dynamic=dynamic)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_filled_tensors_of_any_dtype(dtype: torch.dtype) -> None:
    check_exactly(FILLED["full_like"], sample(dtype, 3))
    check_exactly(FILLED["fill by tensor"], sample(dtype, 3))
    check_exactly(lambda x: aten.full_like(x, 0.1), sample(dtype, 3))


PROGRESSIONS: dict[str, Unary] = {
    "end": lambda x: aten.arange(x.shape[0]),
    "start": lambda x: aten.arange(3, x.shape[0] + 4),
    "step": lambda x: aten.arange(3, 20, 4),
    "down": lambda x: aten.arange(5, -3, -2),
    "of floats": lambda x: aten.arange(0.5, 3, 0.25),
    "to bf16": lambda x: aten.arange(0, 300, 1, dtype=torch.bfloat16),
    "to i32": lambda x: aten.arange(0, 10, dtype=torch.int32),
    "iota": lambda x: prims.iota(7, start=2, step=3, dtype=torch.int64, device="cpu", requires_grad=False),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", PROGRESSIONS)
def test_progressions(name: str, dynamic: bool) -> None:
    check_exactly(PROGRESSIONS[name], sample(torch.float32, 4, 5), dynamic=dynamic)


def test_a_progression_of_floats_is_computed_in_f64() -> None:
    # Eager's vectors add multiples of the step to their first element: one rounding more.
    check(lambda x: aten.arange(0, 3, 0.1, dtype=x.dtype), torch.zeros((), dtype=torch.float64), rtol=1e-15, atol=0)
    check(lambda x: aten.arange(0, 3, 0.1, dtype=x.dtype), torch.zeros(()), rtol=1e-7, atol=0)


def test_identities() -> None:
    check_exactly(lambda x: aten.eye(x.shape[0]), sample(torch.float32, 4))
    check_exactly(lambda x: aten.eye(3, x.shape[0], dtype=torch.int64), sample(torch.float32, 4), dynamic=True)


def test_masked_loads_make_a_concatenation_one_nest() -> None:
    module = lowered(REARRANGED["cat"], sample(torch.float32, 4, 7, 5)).module
    assert len([op for op in module.walk() if isinstance(op, NestOp)]) == 1
