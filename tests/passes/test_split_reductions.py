"""Reductions in two stages give what ATen's operators give, for sizes that no number of groups divides."""

from __future__ import annotations

import pytest
import torch
from xdsl.parser import Parser

from tilewright.backends.reference import run_function
from tilewright.backends.reference.inputs import InputSpec
from tilewright.dialects.call_syntax import OperatorCall
from tilewright.dialects.loop import KernelOp, NestOp
from tilewright.passes.pipelines import PIPELINES, load_passes
from tilewright.tools.check_passes import check_passes
from tilewright.tools.universe import make_context

SMALL = "loop-split-reductions{programs=6 columns=4 elements=2 rows=2 least=16}"

OPERATORS = {
    "sum": ('aten.sum.dim_IntList"(self = %x, dim = #sym.ints<[{dim}]>, keepdim = false)', "f32"),
    "amax": ('aten.amax.default"(self = %x, dim = #sym.ints<[{dim}]>, keepdim = false)', "f32"),
    "argmax": ('aten.argmax.default"(self = %x, dim = {dim} : i64, keepdim = false)', "i64"),
    "var": ('aten.var.correction"(self = %x, dim = #sym.ints<[{dim}]>, correction = 1 : i64, keepdim = false)', "f32"),
    "logsumexp": ('aten.logsumexp.default"(self = %x, dim = #sym.ints<[{dim}]>, keepdim = false)', "f32"),
}


def program(operator: str, sizes: tuple[str, str], reduced: int) -> str:
    """Return a graph that reduces one dim of a matrix, whose sizes may be symbols."""
    shape = "x".join(s if s.isdigit() else "?" for s in sizes)
    kept = sizes[1 - reduced]
    text, element = OPERATORS[operator]
    x = f"tensor<{shape}xf32, #sym.layout<[{', '.join(sizes)}], [{sizes[1]}, 1]>>"
    y = f"tensor<{kept if kept.isdigit() else '?'}x{element}, #sym.layout<[{kept}], [1]>>"
    call = text.format(dim=reduced)
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
    assert not any(isinstance(op, OperatorCall) for op in module.walk())


def _hard_data(kind: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return numbers of which the square of the mean, or of the first ones, is far above the variance."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    if kind == "far":
        return x + 1e4
    if kind == "outliers first":
        x[:2] = -1e4
    elif kind == "steps":
        x += 100 * torch.arange(shape[0]).view(-1, *[1] * (len(shape) - 1))
    elif kind == "equal":
        return torch.full(shape, 12345.678)
    elif kind == "large":
        return x * 5e17
    elif kind == "special":
        x[:, 0], x[3, 1], x[0, 2], x[-1, 2] = float("inf"), float("nan"), float("inf"), float("-inf")
        x[0, 3] = 1e30
    return x


def _variance(sizes: str, strides: str, dims: str) -> str:
    """Return a graph with the variance and the mean of a tensor, of which one dim, of size 5, is left."""
    shape = "x".join("?" if n.startswith("s") else n for n in sizes.split(", "))
    x = f"tensor<{shape}xf32, #sym.layout<[{sizes}], [{strides}]>>"
    y = "tensor<5xf32, #sym.layout<[5], [1]>>"
    arguments = f"self = %x, dim = #sym.ints<[{dims}]>, correction = 1 : i64, keepdim = false"
    return (
        f"func.func @forward(%x : {x}) -> ({y}, {y}) {{\n"
        f'  %v, %m = aten.call "aten.var_mean.correction"({arguments}) : ({x}) -> ({y}, {y})\n'
        f"  func.return %v, %m : {y}, {y}\n}}"
    )


@pytest.mark.parametrize(
    ("sizes", "strides", "dims", "programs"),
    [
        ("101, 5", "5, 1", "0", 6),
        ("7, 5, 40", "200, 40, 1", "0, 2", 6),
        ("s0, 5, 9", "45, 9, 1", "0, 2", 6),
        ("4, 5, 7, 11", "385, 1, 55, 5", "0, 2, 3", 60),
        ("4, 5, 7, 10", "350, 1, 50, 5", "0, 2, 3", 60),
    ],
)
def test_a_variance_in_one_pass_of_hard_data(sizes: str, strides: str, dims: str, programs: int) -> None:
    context = make_context()
    reduced = [int(d) for d in dims.split(", ")]
    module = Parser(context, _variance(sizes, strides, dims)).parse_module()
    small = SMALL.replace("programs=6", f"programs={programs}")
    graph = PIPELINES["graph"].replace("loop-split-reductions", small)
    for one in load_passes(f"retarget,{graph},{PIPELINES['buffers']},{PIPELINES['tt']}"):
        one.apply(context, module)
    assert not any(isinstance(op, OperatorCall) for op in module.walk())
    shape = tuple(83 if n == "s0" else int(n) for n in sizes.split(", "))
    for kind in ("plain", "far", "outliers first", "steps", "equal", "large", "special"):
        data = _hard_data(kind, shape)
        if len(shape) == 4:
            data = data.contiguous(memory_format=torch.channels_last)
        wide = data.double()
        expected = wide.var(dim=reduced), wide.mean(dim=reduced)  # `var_mean` has NaN as the mean of an infinity
        atol = {"plain": 1e-6, "equal": 1e-4}.get(kind, 0)
        for f, e in zip(run_function(module, [data]), expected, strict=True):
            torch.testing.assert_close(f, e.float(), rtol=1e-5, atol=atol, equal_nan=True, msg=kind)


def test_a_mean_near_0_in_one_pass() -> None:
    context = make_context()
    module = Parser(context, _variance("20000, 5", "5, 1", "0")).parse_module()
    for one in load_passes(f"retarget,{PIPELINES['graph'].replace('loop-split-reductions', SMALL)}"):
        one.apply(context, module)
    assert sum(isinstance(op, NestOp) for op in module.walk()) == 2
    # Sums of such numbers are exact: what is left are the roundings of the means of five groups, and of their sum. But
    # numbers of one binade less another one are all rounded alike.
    random = torch.Generator().manual_seed(3)
    sign = 2 * torch.randint(2, (20000, 5), generator=random) - 1
    data = sign * (1 + torch.randint(128, (20000, 5), generator=random) / 128)
    expected_variance, expected_mean = torch.var_mean(data.double(), dim=0)
    bound = 2 * torch.finfo(torch.float32).eps * float(data.view(5, 4000, 5).mean(dim=1).abs().max())
    variance, mean = run_function(module, [data])
    torch.testing.assert_close(mean, expected_mean.float(), rtol=0, atol=bound)
    torch.testing.assert_close(variance, expected_variance.float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", ["64", "4, 16"])
def test_sums_over_rows_join_these(rows: str) -> None:
    count, lead = len(rows.split(", ")), rows.replace(", ", "x")
    strides = "40, 1" if count == 1 else "640, 40, 1"
    x = f"tensor<{lead}x40xf32, #sym.layout<[{rows}, 40], [{strides}]>>"
    s = f"tensor<{lead}x1xf32, #sym.layout<[{rows}, 1], [{'1, 1' if count == 1 else '16, 1, 1'}]>>"
    w = "tensor<40xf32, #sym.layout<[40], [1]>>"
    dims = f"#sym.ints<[{', '.join(map(str, range(count)))}]>"
    context = make_context()
    module = Parser(
        context,
        f"func.func @forward(%x : {x}, %g : {x}) -> ({x}, {w}) {{\n"
        f'  %p = aten.call "aten.mul.Tensor"(self = %x, other = %g) : ({x}, {x}) -> {x}\n'
        f'  %w = aten.call "aten.sum.dim_IntList"(self = %p, dim = {dims}, keepdim = false) : ({x}) -> {w}\n'
        f'  %s = aten.call "aten.sum.dim_IntList"(self = %p, dim = #sym.ints<[-1]>, keepdim = true) : ({x}) -> {s}\n'
        f'  %y = aten.call "aten.mul.Tensor"(self = %g, other = %s) : ({x}, {s}) -> {x}\n'
        f"  func.return %y, %w : {x}, {w}\n}}",
    ).parse_module()
    graph = (
        PIPELINES["graph"].replace("loop-split-reductions", SMALL).replace("join-columns", "join-columns{programs=8}")
    )
    given = InputSpec(seed=1)
    report = check_passes(context, module, load_passes(f"retarget,{graph},{PIPELINES['buffers']}"), given)
    assert report is None, str(report)
    kernels = [op for op in module.ops if isinstance(op, KernelOp)]
    assert len(kernels) == 2
    report = check_passes(context, module, load_passes(PIPELINES["tt"]), given)
    assert report is None, str(report)
