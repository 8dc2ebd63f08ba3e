"""Views as loops: each is a `loop.view` whose map the reference interpreter checks against the layouts."""

from __future__ import annotations

import pytest
import torch
from tests.passes.lowering_checks import Unary, aten, calls, check_exactly, lowered, prims, sample

from tilewright.dialects.loop import NestOp, ViewOp

pytestmark = pytest.mark.usefixtures("device")

VIEWS: dict[str, Unary] = {
    "alias": aten.alias,
    "chunk": lambda x: aten.split(x, 5, 1),
    "detach": aten.detach,
    "diagonal": aten.diagonal,
    "diagonal above": lambda x: aten.diagonal(x, 2, 0, 2),
    "diagonal below": lambda x: aten.diagonal(x, -1, -1, 0),
    "expand": lambda x: aten.expand(aten.unsqueeze(x, 1), [-1, 3, -1, -1]),
    "expand in front": lambda x: aten.expand(x, [2, *x.shape]),
    "permute": lambda x: aten.permute(x, [2, 0, -2]),
    "select": lambda x: aten.select(x, 1, 2),
    "select from the end": lambda x: aten.select(x, -1, -2),
    "slice": lambda x: aten.slice(x, 1, 1, 5),
    "slice beyond the end": lambda x: aten.slice(x, 1, 2, 9223372036854775807),
    "slice from the end": lambda x: aten.slice(x, 2, -3, -1),
    "slice from before the start": lambda x: aten.slice(x, 1, -100, 3),
    "slice of nothing": lambda x: aten.slice(x, 0, 3, 3),
    "slice by two": lambda x: aten.slice(x, 1, 1, None, 2),
    "split with sizes": lambda x: aten.split_with_sizes(x, [1, 4, 2], 1),
    "squeeze": lambda x: aten.squeeze(aten.unsqueeze(aten.unsqueeze(x, 0), -1)),
    "squeeze of one": lambda x: aten.squeeze(aten.unsqueeze(aten.unsqueeze(x, 0), -1), 0),
    "squeeze of some": lambda x: aten.squeeze(aten.unsqueeze(aten.unsqueeze(x, 0), -1), [-1, 1]),
    "squeeze of none": lambda x: aten.squeeze(x, 1),
    "t": lambda x: aten.t(aten.select(x, 0, 0)),
    "t of a vector": lambda x: aten.t(aten.select(aten.select(x, 0, 0), 0, 0)),
    "transpose": lambda x: aten.transpose(x, 0, -1),
    "unbind": lambda x: aten.unbind(x, 1),
    "unfold": lambda x: aten.unfold(x, 1, 3, 2),
    "unsqueeze": lambda x: aten.unsqueeze(x, -2),
    "view_of": prims.view_of,
}
RESHAPES: dict[str, Unary] = {
    "flat": lambda x: aten.view(x, [-1]),
    "merge": lambda x: aten.view(x, [x.shape[0], -1]),
    "split": lambda x: aten.view(x, [x.shape[0], x.shape[1], 2, -1]),
    "with ones": lambda x: aten.view(x, [1, x.shape[0], 1, x.shape[1], x.shape[2]]),
    "shifted": lambda x: aten.view(x, [x.shape[0] * 2, x.shape[1] * x.shape[2] // 2]),
    "there and back": lambda x: aten.view(aten.view(x, [-1]), x.shape),
    "merge after slice": lambda x: aten.view(aten.slice(x, 0, 1, 3), [-1, x.shape[2]]),
    "unsafe": lambda x: aten._unsafe_view(x, [-1, x.shape[2]]),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str, dynamic: bool, device: torch.device | None) -> None:
    if name == "view_of" and device is not None:
        pytest.skip("AOTAutograd makes this operator, and takes none")
    check_exactly(VIEWS[name], sample(torch.float32, 4, 7, 6), dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", RESHAPES)
def test_reshapes(name: str, dynamic: bool) -> None:
    check_exactly(RESHAPES[name], sample(torch.int64, 4, 7, 6), dynamic=dynamic)


def test_a_view_moves_nothing() -> None:
    module = lowered(lambda x: aten.view(aten.permute(x, [0, 2, 1]), [4, 6, 7]), sample(torch.float32, 4, 7, 6)).module
    assert [op for op in module.walk() if isinstance(op, NestOp)] == []
    assert len([op for op in module.walk() if isinstance(op, ViewOp)]) == 2


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (), (1,), (1, 1)], ids=str)
def test_reshapes_of_few_elements(shape: tuple[int, ...]) -> None:
    check_exactly(lambda x: aten.view(x, [-1, 1]) if x.numel() else aten.view(x, [0, 5]), sample(torch.float32, *shape))


def test_views_keep_any_dtype() -> None:
    graph = lowered(lambda x: aten.permute(x, [1, 0]), torch.zeros(3, 2, dtype=torch.uint16))
    assert calls(graph.module) == []


def test_groups_of_a_reshape_stay_apart() -> None:
    # Dimensions that are not touched keep their own index: no division by a product of all.
    module = lowered(lambda x: aten.view(x, [4, 7, 2, 3, 5]), sample(torch.float32, 4, 7, 6, 5)).module
    (view,) = [op for op in module.walk() if isinstance(op, ViewOp)]
    assert str(view.access) == "#sym.map<(d0, d1, d2, d3, d4) -> (d0, d1, 3 * d2 + d3, d4)>"


def test_as_strided_is_a_view_of_a_tensor_that_is_its_storage() -> None:
    x = sample(torch.float32, 4, 4)
    check_exactly(lambda x: aten.as_strided(x, [2, 3], [1, 6], 2), x)
    assert not calls(lowered(lambda x: aten.as_strided(x, [2, 3], [1, 6], 2), x).module)
    # What lies around a tensor in its storage, a level of values does not have.
    for part in (x.t(), x[1:], x[:, 1:]):
        graph = lowered(lambda x: aten.as_strided(x, [2, 2], [1, 2]), part)
        assert calls(graph.module) == ["aten.as_strided.default"]
