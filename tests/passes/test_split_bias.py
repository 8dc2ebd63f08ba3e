"""A convolution whose bias is added apart gives what eager gives, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from tests.passes.lowering_checks import aten
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from tilewright.backends.reference import run_function
from tilewright.frontends.fx import import_graph
from tilewright.tools.compile import run_passes
from tilewright.tools.universe import make_context


def test_forward_and_gradients() -> None:
    # Integers, so that the order of sums does not matter.
    x, weight, bias = (torch.randint(-3, 4, sizes).float() for sizes in ((2, 3, 6, 5), (4, 3, 3, 3), (4,)))
    options: Any = ([2, 1], [1, 1], [1, 1], False, [0, 0], 1)

    def program(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        y = aten.convolution(x, weight, bias, *options)
        return y, *aten.convolution_backward(y * y, x, weight, [4], *options, [True, True, True])

    module = import_graph(make_fx(program, tracing_mode="fake")(x, weight, bias)).module
    run_passes(module, make_context(), 'retarget{device="cuda:0"},split-bias,retarget{device="cpu"}', verify=True)
    text = str(module)
    assert "bias = %" not in text
    assert "output_mask = [true, true, false]" in text
    for found, expected in zip(run_function(module, [x, weight, bias]), program(x, weight, bias), strict=True):
        torch.testing.assert_close(found, expected)
