"""Random numbers as loops, and as machine code, against their definition in eager."""

# The operators are not known to the type checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.passes.lowering_checks import FLOATS, call_outputs
from torch import Tensor

from tilewright.frontends.random_operators import RANDOM, RANDOM_INTEGERS

SEED = torch.tensor(-1234567890123456789)

LAYOUTS: list[tuple[list[int], list[int]]] = [([5, 7], [0, 1]), ([33, 64], [0, 1]), ([6, 40, 9], [2, 0, 1]), ([], [])]


def close(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("distribution", ["uniform", "normal", "exponential"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_distributions(distribution: str, dtype: torch.dtype) -> None:
    for size, order in LAYOUTS:
        close(call_outputs(RANDOM, SEED, 3, size, order, distribution=distribution, dtype=dtype))


@pytest.mark.parametrize(("low", "high"), [(0, 10), (-5, 2**32 - 5), (0, 2**40), (-(2**62), 2**62 - 1), (3, 4)])
def test_integers(low: int, high: int) -> None:
    ((found, expected),) = call_outputs(
        RANDOM_INTEGERS, SEED, 1, [37, 3], [0, 1], low=low, high=high, dtype=torch.int64
    )
    assert torch.equal(found, expected)
    assert int(found.min()) >= low
    assert int(found.max()) < high
