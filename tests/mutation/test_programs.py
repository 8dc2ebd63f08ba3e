"""Programs that mutate and alias, compared with eager in all that a caller can see."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.mutation.observed import observe
from tests.mutation.programs import PROGRAMS
from tests.mutation.random_programs import RandomProgram

pytestmark = pytest.mark.usefixtures("on_device")

ONE_CALL = {"writes_an_input_with_grad"}
"""A second call would go on with the graph of the first, through which the first has gone backward."""

OTHER_VERSIONS = {"data_write"}
"""AOTAutograd sees through `.data`, so that the write counts."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, dynamic: bool) -> None:
    function, make = PROGRAMS[name]
    calls = 1 if name in ONE_CALL else 2
    torch.manual_seed(0)
    expected = observe(function, make(), calls=calls)
    compiled = torch.compile(function, backend="tilewright", dynamic=dynamic, options={"strict": True})
    torch.manual_seed(0)
    found = observe(compiled, make(), calls=calls)
    if name in OTHER_VERSIONS:
        del expected["written"], found["written"]
    _assert_same(found, expected)


def _assert_same(found: Any, expected: Any, path: str = "") -> None:
    if isinstance(expected, dict):
        for key, value in expected.items():
            _assert_same(found[key], value, f"{path}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for number, value in enumerate(expected):
            _assert_same(found[number], value, f"{path}[{number}]")
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, equal_nan=True, msg=lambda text: f"{path}: {text}")
    else:
        assert found == expected, path


@pytest.mark.parametrize("seed", range(24))
def test_random_program(seed: int) -> None:
    choose = random.Random(seed)
    program = RandomProgram(choose).grow(choose.randint(1, 10))
    torch.manual_seed(seed)
    arguments = program.arguments()
    mine = [_copied(a) for a in arguments]
    expected = program(*arguments)

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        return program(*given)

    compiled = torch.compile(run, backend="tilewright", dynamic=seed % 3 == 0, options={"strict": True})
    _assert_same(list(compiled(*mine)), expected, "outputs")
    _assert_same(mine, arguments, "arguments")


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor with its strides."""
    whole = tensor.as_strided([tensor.untyped_storage().nbytes() // tensor.itemsize], [1], 0).clone()
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
