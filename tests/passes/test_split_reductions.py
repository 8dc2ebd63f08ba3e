"""Reductions in two stages give what ATen's operators give, for sizes that no number of groups divides."""

from __future__ import annotations

import pytest
from xdsl.parser import Parser

from tilewright.backends.reference.inputs import InputSpec
from tilewright.passes.pipelines import PIPELINES, load_passes
from tilewright.tools.check_passes import check_passes
from tilewright.tools.universe import make_context

SMALL = "loop-split-reductions{programs=6 columns=4 elements=2 rows=2 least=16}"

OPERATORS = {
    "sum": ('aten.sum.dim_IntList"(self = %x, dim = [{dim}], keepdim = false)', "f32"),
    "amax": ('aten.amax.default"(self = %x, dim = [{dim}], keepdim = false)', "f32"),
    "argmax": ('aten.argmax.default"(self = %x, dim = {dim}, keepdim = false)', "i64"),
    "var": ('aten.var.correction"(self = %x, dim = [{dim}], correction = 1 : i64, keepdim = false)', "f32"),
    "logsumexp": ('aten.logsumexp.default"(self = %x, dim = [{dim}], keepdim = false)', "f32"),
}


def program(operator: str, sizes: tuple[str, str], reduced: int) -> str:
    """Return a graph that reduces one dim of a matrix, whose sizes may be symbols."""
    shape = "x".join(s if s.isdigit() else "?" for s in sizes)
    kept = sizes[1 - reduced]
    text, element = OPERATORS[operator]
    x = f"tensor<{shape}xf32, #sym.layout<[{', '.join(sizes)}], [{sizes[1]}, 1]>>"
    y = f"tensor<{kept if kept.isdigit() else '?'}x{element}, #sym.layout<[{kept}], [1]>>"
    call = text.format(dim=f"{reduced} : i64")
    return (
        f'func.func @forward(%x : {x}) -> {y} {{\n  %y = aten.call "{call} : ({x}) -> {y}\n  func.return %y : {y}\n}}'
    )


@pytest.mark.parametrize("sizes", [("101", "3"), ("7", "64"), ("s0", "5"), ("3", "s1"), ("1", "97")])
@pytest.mark.parametrize("reduced", [0, 1])
@pytest.mark.parametrize("operator", list(OPERATORS))
def test_a_reduction_in_two_stages(operator: str, reduced: int, sizes: tuple[str, str]) -> None:
    context = make_context()
    module = Parser(context, program(operator, sizes, reduced)).parse_module()
    graph = PIPELINES["graph"].replace("loop-split-reductions", SMALL)
    passes = load_passes(f"retarget,{graph},{PIPELINES['buffers']},{PIPELINES['tt']}")
    given = InputSpec(seed=1, symbols={"s0": 83, "s1": 131})
    report = check_passes(context, module, passes, given)
    assert report is None, str(report)
