"""Arguments that overlap in memory in one call and not in another, where one of them is written."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tilewright.frontends.overlaps import overlapping

Arguments = Callable[[], tuple[Tensor, Tensor]]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def apart() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 6), torch.randn(5, 6)


def part_of_one() -> tuple[Tensor, Tensor]:
    whole = torch.randn(8, 6)
    return whole[:5], whole[3:]


def halves() -> tuple[Tensor, Tensor]:
    whole = torch.randn(10, 6)
    return whole[:5], whole[5:]


def one_and_a_view() -> tuple[Tensor, Tensor]:
    whole = torch.randn(5, 6)
    return whole, whole.view(5, 6)


def the_same() -> tuple[Tensor, Tensor]:
    whole = torch.randn(5, 6)
    return whole, whole


def writes_one(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y * 2


def writes_both(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    y.add_(1)
    return x + y


def writes_from_the_other(x: Tensor, y: Tensor) -> Tensor:
    y.add_(x)
    return y * 1


def result_of(function: Callable[..., Any], make: Arguments) -> list[Tensor] | type[Exception]:
    """Return the result and the arguments afterwards, or the error."""
    torch.manual_seed(0)
    arguments = make()
    try:
        return [function(*arguments), *arguments]
    except RuntimeError as error:
        return type(error)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [writes_one, writes_both, writes_from_the_other])
@pytest.mark.parametrize(
    "calls",
    [
        (apart, part_of_one, halves, one_and_a_view, the_same, apart),
        (part_of_one, apart, one_and_a_view, part_of_one),
        (one_and_a_view, apart, halves),
    ],
)
def test_calls(calls: tuple[Arguments, ...], function: Callable[..., Tensor], dynamic: bool) -> None:
    compiled = torch.compile(function, backend="tilewright", dynamic=dynamic, options={"strict": True})
    for make in calls:
        expected = result_of(function, make)
        found = result_of(compiled, make)
        if function is writes_from_the_other and make is part_of_one and isinstance(expected, type):
            # Where the graph was traced for them, AOTAutograd has made it functional, and nothing is refused.
            continue
        torch.testing.assert_close(found, expected)


def test_which_arguments_overlap() -> None:
    whole = torch.zeros(10, 6)
    assert overlapping([whole[:5], 3, whole[5:], torch.zeros(2)]) == ()
    assert overlapping([whole[2:4], whole[5:], whole[3:5]]) == ((0, 0, (2, 6), (6, 1)), (2, 24, (2, 6), (6, 1)))
    assert overlapping([whole[:0], whole]) == ()
