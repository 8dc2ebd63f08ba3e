"""Every kind of argument that a schema knows, from FX to text and back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frontends.conftest import Graphs, calls, imported, parse
from torch import Tensor, fx
from torch.fx.node import map_aggregate
from xdsl.dialects.builtin import FloatAttr, IntegerAttr

from tilewright.frontends.unsupported import Unsupported

aten = torch.ops.aten


X = "x"
"""Stands for the one tensor of the graph, three by three, in the arguments of `call_of`."""


def call_of(target: Any, *args: Any, **kwargs: Any) -> str:
    """Return the text of the arguments of one call."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(3, 3)

    def with_tensors(value: Any) -> Any:
        return map_aggregate(value, lambda item: x if item is X else item)

    node = graph.call_function(target, with_tensors(args), with_tensors(kwargs))
    results = [torch.ones(3, 3) for _ in target._schema.returns]
    node.meta["val"] = results[0] if len(results) == 1 else results
    graph.output((x,))
    text = str(imported(fx.GraphModule({}, graph)))
    return text.split(f'"{target}"')[1].split(" : (", maxsplit=1)[0]


CASES: list[tuple[str, str]] = [
    # Tensors, numbers in their place, lists of them with holes.
    (call_of(aten.add.Tensor, X, X), "(self = %arg0, other = %arg0)"),
    (call_of(aten.add.Tensor, X, 3), "(self = %arg0, other = 3 : i64)"),
    (call_of(aten.mul.Tensor, X, -0.5), "(self = %arg0, other = -5.000000e-01 : f64)"),
    (call_of(aten.where.ScalarSelf, X, True, X), "(condition = %arg0, self = true, other = %arg0)"),
    (call_of(aten.cat.default, [X, X], 1), "(tensors = [%arg0, %arg0], dim = 1 : i64)"),
    (call_of(aten.index.Tensor, X, [None, X]), "(self = %arg0, indices = [none, %arg0])"),
    # Integers, booleans, floats, and what is optional.
    (call_of(aten.unsqueeze.default, X, -1), "(self = %arg0, dim = -1 : i64)"),
    (call_of(aten.sum.dim_IntList, X, [0, -1], True), "(self = %arg0, dim = #sym.ints<[0, -1]>, keepdim = true)"),
    (call_of(aten.sum.dim_IntList, X, None), "(self = %arg0, dim = none)"),
    (
        call_of(aten.var.correction, X, [1], correction=0),
        "(self = %arg0, dim = #sym.ints<[1]>, correction = 0 : i64)",
    ),
    (call_of(aten.celu.default, X, 2), "(self = %arg0, alpha = 2 : i64)"),
    (call_of(aten.clamp.default, X, None, 1.5), "(self = %arg0, max = 1.500000e+00 : f64)"),
    (call_of(aten.full.default, [2, 3], math.inf), "(size = #sym.ints<[2, 3]>, fill_value = 0x7ff0000000000000 : f64)"),
    (call_of(aten.full.default, [], True), "(size = #sym.ints<[]>, fill_value = true)"),
    (call_of(aten.native_dropout.default, X, 1, None), "(input = %arg0, p = 1.000000e+00 : f64, train = none)"),
    (call_of(aten.mul.Tensor, X, 1 + 2j), '(self = %arg0, other = #aten.complex<"1.0", "2.0">)'),
    # One number stands for a list of a stated length.
    (call_of(aten.avg_pool2d.default, X, 2), "(self = %arg0, kernel_size = #sym.ints<[2, 2]>)"),
    # Enumerations, devices and strings.
    (
        call_of(aten.zeros.default, [3], dtype=torch.bfloat16, layout=torch.strided, device=torch.device("cpu")),
        "(size = #sym.ints<[3]>, dtype = #aten.dtype<bf16>, "
        'layout = #aten.layout<"strided">, device = #aten.device<"cpu">)',
    ),
    (
        call_of(aten.clone.default, X, memory_format=torch.channels_last),
        '(self = %arg0, memory_format = #aten.memory_format<"channels_last">)',
    ),
    (call_of(aten.gelu.default, X, approximate="tanh"), '(self = %arg0, approximate = "tanh")'),
    # Lists of what has no list of its own.
    (
        call_of(aten.upsample_nearest2d.vec, X, None, [1.5, 2.0]),
        "(input = %arg0, output_size = none, scale_factors = [1.500000e+00 : f64, 2.000000e+00 : f64])",
    ),
    (
        call_of(aten.native_layer_norm_backward.default, X, X, [3], X, X, None, None, [True, False, True]),
        "(grad_out = %arg0, input = %arg0, normalized_shape = #sym.ints<[3]>, mean = %arg0, rstd = %arg0, "
        "weight = none, bias = none, output_mask = [true, false, true])",
    ),
    (
        call_of(aten._foreach_add.ScalarList, [X], [1, 2.5]),
        "(self = [%arg0], scalars = [1 : i64, 2.500000e+00 : f64])",
    ),
    # Arguments equal to their defaults are left out, and the order is the schema's.
    (call_of(aten.add.Tensor, X, X, alpha=1), "(self = %arg0, other = %arg0)"),
    (call_of(aten.clone.default, X, memory_format=None), "(self = %arg0)"),
    (call_of(aten.slice.Tensor, X, 0, None, 2), "(self = %arg0, end = 2 : i64)"),
    (call_of(aten.avg_pool2d.default, X, [2, 2], [], [0, 0]), "(self = %arg0, kernel_size = #sym.ints<[2, 2]>)"),
    (call_of(aten.any.dims, X, []), "(self = %arg0, dim = #sym.ints<[]>)"),
    (call_of(aten.hardtanh.default, X, max_val=2, min_val=0), "(self = %arg0, min_val = 0 : i64, max_val = 2 : i64)"),
    (call_of(aten.nan_to_num.default, X, -0.0), "(self = %arg0, nan = -0.000000e+00 : f64)"),
]


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[expected for _, expected in CASES])
def test_arguments(text: str, expected: str) -> None:
    assert text == expected


def add_a_number(number: Any) -> Any:
    """Import `x + number`; return the attribute that the number became, after a trip through text."""
    graph = fx.Graph()
    x = graph.placeholder(X)
    x.meta["val"] = torch.ones(3)
    node = graph.call_function(aten.add.Tensor, (x, number))
    node.meta["val"] = torch.ones(3)
    graph.output((node,))
    module = imported(fx.GraphModule({}, graph))
    (call,) = calls(parse(str(module)))
    return call.arguments.data["other"]


@settings(max_examples=50)
@given(st.floats())
def test_floats_keep_every_bit(number: float) -> None:
    attribute = add_a_number(number)
    assert isinstance(attribute, FloatAttr)
    found = attribute.value.data
    assert (math.isnan(found) and math.isnan(number)) or (
        found == number and math.copysign(1, found) == math.copysign(1, number)
    )


@settings(max_examples=50)
@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_keep_every_bit(number: int) -> None:
    attribute = add_a_number(number)
    assert isinstance(attribute, IntegerAttr)
    assert attribute.value.data == number


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_integers_beyond_64_bits_are_refused(number: int) -> None:
    with pytest.raises(Unsupported, match="does not fit in 64 bits"):
        add_a_number(number)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dtype": torch.quint8}, "dtype torch.quint8 has no element type in the IR"),
        ({"layout": torch.sparse_coo}, "layout torch.sparse_coo, expected torch.strided"),
    ],
)
def test_values_that_the_ir_lacks(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=f"`aten.empty.memory_format`: {message}"):
        call_of(aten.empty.memory_format, [3], **kwargs)


@torch.library.custom_op("tilewright_tests::scale", mutates_args=())
def scale(x: Tensor, by: float, *, shifts: list[int]) -> Tensor:
    return x * by + sum(shifts)


def scale_shape(x: Tensor, by: float, *, shifts: list[int]) -> Tensor:
    return torch.empty_like(x)


def test_a_custom_operator_takes_its_names_from_its_schema(graphs: Graphs) -> None:
    def program(x: Tensor) -> Tensor:
        return scale(x, 2.5, shifts=[1, 2])

    scale.register_fake(scale_shape)  # pyright: ignore[reportUnknownMemberType]
    text = str(graphs.capture(program, torch.ones(3)))
    assert '"tilewright_tests.scale.default"(x = %arg0, by = 2.500000e+00 : f64, shifts = #sym.ints<[1, 2]>)' in text
