"""Operators on lists of tensors against eager."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import pytest
import torch

from tilewright.frontends.decompositions import decomposition_table
from tilewright.frontends.foreach import foreach_decompositions
from tilewright.frontends.torch_internals import find_overload, schema_text

NAMES = [name for name in foreach_decompositions() if find_overload(f"aten.{name}") is not None]


def tensors(shift: float = 0.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(int(shift))
    shapes = ((3, 3), (4, 4), (1, 1))
    return [torch.rand(s, generator=generator) * 0.8 + 0.1 + shift for s in shapes]


def argument(kind: str, number: int) -> Any:
    if kind.startswith("Tensor[]"):
        return tensors(number)
    if kind.startswith("Scalar[]"):
        return [0.5, 2.0, 1.5]
    return torch.tensor([0.5, 2.0, 1.5]) if kind.startswith("Tensor") else 2.0


def arguments(text: str) -> list[Any]:
    given = text[text.index("(") + 1 : text.index(") ->")].split(", *,", maxsplit=1)[0].split(", ")
    return [argument(one, number) for number, one in enumerate(given) if not one.startswith(("ScalarType", "bool"))]


@pytest.mark.parametrize("name", NAMES)
def test_as_in_eager(name: str) -> None:
    overload = find_overload(f"aten.{name}")
    assert overload is not None
    given = arguments(schema_text(overload))
    if name in ("_foreach_add.Tensor", "_foreach_mul.Tensor", "_foreach_div.Tensor"):
        given[1] = torch.tensor(3.0)
    expected = overload(*given)
    found = decomposition_table()[overload](*given)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
