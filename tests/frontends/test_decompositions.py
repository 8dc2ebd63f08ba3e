"""Our table of decompositions: what it names exists, what must stay whole does, and its own part is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.frontends.conftest import Graphs, calls
from torch import Tensor
from torch.nn import functional

from tilewright.frontends import decompositions
from tilewright.frontends.decompositions import decomposition_table
from tilewright.frontends.torch_internals import find_overload, stock_decompositions

aten = torch.ops.aten

NAMES = (decompositions.RENAMED + decompositions.FORMULAS + decompositions.COPIED_VIEWS).split()


def test_names_are_overloads_of_this_torch_with_a_stock_decomposition() -> None:
    assert len(NAMES) == len(set(NAMES))
    unknown = [name for name in NAMES if find_overload(f"aten.{name}") not in stock_decompositions()]
    assert unknown == []


WHOLE = """
    _softmax.default _softmax_backward_data.default _log_softmax.default _log_softmax_backward_data.default gelu.default
    gelu_backward.default native_layer_norm.default native_layer_norm_backward.default native_group_norm.default
    native_group_norm_backward.default native_batch_norm.default native_batch_norm_backward.default embedding.default
    embedding_dense_backward.default addmm.default baddbmm.default convolution.default
    _scaled_dot_product_flash_attention_for_cpu.default native_dropout.default bernoulli.default select_scatter.default
    slice_scatter.default diagonal_scatter.default as_strided_scatter.default index_put.default index_add.default
    cumsum.default constant_pad_nd.default upsample_bilinear2d.vec all.dim
"""


@pytest.mark.parametrize("name", WHOLE.split())
def test_composites_stay_whole(name: str) -> None:
    overload = find_overload(f"aten.{name}")
    assert overload is not None
    assert overload not in decomposition_table()


def test_graphs_hold_composites_whole(graphs: Graphs) -> None:
    def program(x: Tensor) -> Tensor:
        x = functional.gelu(functional.layer_norm(x, [8]))
        return functional.log_softmax(x.softmax(-1), -1)

    assert [call.operator for call in calls(graphs.capture(program, torch.ones(4, 8)))] == [
        "aten.native_layer_norm.default",
        "aten.gelu.default",
        "aten._softmax.default",
        "aten._log_softmax.default",
    ]


def test_gradients_hold_composites_whole(graphs: Graphs) -> None:
    def program(x: Tensor) -> Tensor:
        return functional.gelu(functional.layer_norm(x, [8])).softmax(-1)

    _, backward = graphs.train(program, torch.ones(4, 8, requires_grad=True))
    operators = {call.operator for call in calls(backward)}
    assert {
        "aten._softmax_backward_data.default",
        "aten.gelu_backward.default",
        "aten.native_layer_norm_backward.default",
    } <= operators


def values(*shape: int) -> Tensor:
    """Return numbers between 0.1 and 0.9, where every formula is defined."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1


FORMULAS: dict[str, tuple[Any, ...]] = {
    "celu.default": (values(40) - 0.5, 0.7),
    "elu.default": (values(40) - 0.5, 0.7, 1.3, 0.9),
    "glu.default": (values(4, 10) * 4,),
    "hardswish.default": (values(40) * 8 - 4,),
    "logaddexp.default": (values(40), values(40) * 3),
    "logaddexp2.default": (values(40), values(40) * 3),
    "mish.default": (values(40) * 3,),
    "silu.default": (values(40) * 3,),
    "silu_backward.default": (values(40), values(40) * 3),
    "sinc.default": (values(40),),
    "softplus.default": (values(40) * 3, 1.5, 2.0),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_formulas_round_where_eager_does(name: str, dtype: torch.dtype) -> None:
    overload = find_overload(f"aten.{name}")
    assert overload is not None
    args = [arg.to(dtype) if isinstance(arg, Tensor) else arg for arg in FORMULAS[name]]
    found, expected = decomposition_table()[overload](*args), overload(*args)
    # In float32 the order of operations may differ; rounding to half precision once hides that.
    rtol = 4 * torch.finfo(dtype).eps if dtype == torch.float32 else 0.0
    torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol)


SPLITS: list[tuple[str, tuple[Any, ...]]] = [
    ("split.Tensor", (torch.arange(14.0).view(7, 2), 3)),
    ("split.Tensor", (torch.arange(14.0).view(2, 7), 7, -1)),
    ("split.Tensor", (torch.arange(14.0).view(2, 7), 9, 1)),
    ("split.Tensor", (torch.ones(0, 2), 3)),
    ("split.Tensor", (torch.ones(0, 2), 0)),
    ("split_with_sizes.default", (torch.arange(14.0).view(7, 2), [3, 0, 4])),
    ("split_with_sizes.default", (torch.arange(14.0).view(2, 7), [1, 6], -1)),
    ("unsafe_split.Tensor", (torch.arange(14.0).view(7, 2), 3)),
    ("unsafe_split_with_sizes.default", (torch.arange(14.0).view(7, 2), [3, 4])),
    ("unbind.int", (torch.arange(14.0).view(7, 2),)),
    ("unbind.int", (torch.arange(14.0).view(7, 2), -1)),
    ("unbind.int", (torch.ones(0, 2),)),
]


@pytest.mark.parametrize(("name", "args"), SPLITS)
def test_lists_of_views_are_single_views(name: str, args: tuple[Any, ...]) -> None:
    overload = find_overload(f"aten.{name}")
    assert overload is not None
    decomposition: Callable[..., list[Tensor]] = decomposition_table()[overload]
    expected, found = overload(*args), decomposition(*args)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()
        assert ours.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr()


def test_take_with_an_index_without_dims(graphs: Graphs) -> None:
    module = graphs.capture(torch.take, torch.ones(3, dtype=torch.bool), torch.tensor(-1))
    assert [call.operator for call in calls(module)] == ["aten.view.default", "aten.index.Tensor"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32])
def test_addcmul_of_integers_truncates_its_factor(dtype: torch.dtype) -> None:
    x, y = torch.arange(4), torch.arange(4).to(dtype)
    for value in (0.1, 2.7, 3):
        found = decomposition_table()[aten.addcmul.default](x, y, y, value=value)
        torch.testing.assert_close(found, torch.addcmul(x, y, y, value=value))
