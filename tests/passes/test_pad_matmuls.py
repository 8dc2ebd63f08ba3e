"""Padded products give what they gave, in tensors with the strides that they had."""

from __future__ import annotations

import pytest
from xdsl.parser import Parser

from tilewright.backends.reference.inputs import InputSpec
from tilewright.dialects.aten import CallOp
from tilewright.passes.pipelines import PIPELINES, load_passes
from tilewright.tools.check_passes import check_passes
from tilewright.tools.universe import make_context

ALWAYS = "pad-matmuls{odd=1 even=1 aligned=1000 bandwidth=1000000 launch=0}"
GRAPH = PIPELINES["graph"].replace("pad-matmuls", ALWAYS)


def tensor(*sizes: int, flipped: bool = False, batch: int = 0, gap: int = 0) -> str:
    """Return the type of a matrix, or of `batch` of them; `flipped` is the transpose of one that is contiguous."""
    rows, columns = sizes
    strides = [1, rows + gap] if flipped else [columns + gap, 1]
    shape = [batch, *sizes] if batch else [*sizes]
    strides = [rows * columns + gap * (columns if flipped else rows), *strides] if batch else strides
    return f"tensor<{'x'.join(map(str, shape))}xbf16, #sym.layout<{shape}, {strides}>>"


def vector(*sizes: int) -> str:
    strides = [1] if len(sizes) == 1 else [sizes[1], 1]
    return f"tensor<{'x'.join(map(str, sizes))}xbf16, #sym.layout<{[*sizes]}, {strides}>>"


def check(text: str, padded: int) -> None:
    """Check all passes on a graph, and that padding leaves so many copies."""
    context = make_context()
    module = Parser(context, text).parse_module()
    passes = load_passes(f"retarget,{GRAPH},{PIPELINES['buffers']},{PIPELINES['tt']}")
    once = module.clone()
    for step in load_passes(f"retarget,{ALWAYS}"):
        step.apply(context, once)
    found = [op for op in once.walk() if isinstance(op, CallOp) and op.operator == "aten.constant_pad_nd.default"]
    assert len(found) == padded
    report = check_passes(context, module, passes, InputSpec(seed=1, symbols={"s0": 7}))
    assert report is None, str(report)


@pytest.mark.parametrize(
    ("batch", "sizes", "left", "right", "padded"),
    [
        (0, (8, 16, 11), False, False, 1),  # the columns, which lie in the right factor's rows
        (3, (8, 16, 11), False, True, 1),
        (3, (8, 13, 16), False, False, 2),
        (0, (8, 13, 16), True, False, 0),  # elements of the inner size lie side by side in neither
        (0, (5, 16, 8), False, False, 0),
        (0, (5, 16, 8), True, False, 1),
        (0, (5, 1027, 3), True, True, 2),
    ],
)
def test_layouts(batch: int, sizes: tuple[int, int, int], left: bool, right: bool, padded: int) -> None:
    rows, inner, columns = sizes
    x, w = tensor(rows, inner, flipped=left, batch=batch), tensor(inner, columns, flipped=right, batch=batch)
    y, name = tensor(rows, columns, batch=batch), "bmm" if batch else "mm"
    call = f'aten.call "aten.{name}.default"(self = %x, mat2 = %w) : ({x}, {w}) -> {y}'
    check(f"func.func @f(%x : {x}, %w : {w}) -> {y} {{ %y = {call} func.return %y : {y} }}", padded)


def test_rows_with_gaps_are_copied_only() -> None:
    x, w, y = tensor(8, 16, gap=1), tensor(16, 8), tensor(8, 8)
    call = f'aten.call "aten.mm.default"(self = %x, mat2 = %w) : ({x}, {w}) -> {y}'
    check(f"func.func @f(%x : {x}, %w : {w}) -> {y} {{ %y = {call} func.return %y : {y} }}", 1)


def test_a_number_of_rows_that_is_not_known() -> None:
    x, y = (f"tensor<?x{n}xbf16, #sym.layout<[s0, {n}], [{n}, 1]>>" for n in (11, 5))
    w = tensor(11, 5)
    call = f'aten.call "aten.mm.default"(self = %x, mat2 = %w) : ({x}, {w}) -> {y}'
    check(f"func.func @f(%x : {x}, %w : {w}) -> {y} {{ %y = {call} func.return %y : {y} }}", 2)


@pytest.mark.parametrize("bias", [vector(11), vector(8, 11), vector(8, 1)])
def test_what_a_product_is_added_to(bias: str) -> None:
    x, w, y = tensor(8, 16), tensor(16, 11), tensor(8, 11)
    arguments = "self = %b, mat1 = %x, mat2 = %w, beta = 2 : i64, alpha = 3 : i64"
    call = f'aten.call "aten.addmm.default"({arguments}) : ({bias}, {x}, {w}) -> {y}'
    text = f"func.func @f(%b : {bias}, %x : {x}, %w : {w}) -> {y} {{ %y = {call} func.return %y : {y} }}"
    check(text, 1 + ("11" in bias))


def test_a_tensor_and_its_transpose_share_a_copy_until_it_is_written() -> None:
    g, t, w, x, z = (tensor(16, 11), tensor(11, 16, flipped=True), tensor(11, 8), tensor(16, 8), tensor(11, 8))
    mm = 'aten.call "aten.mm.default"(self = '
    text = f"""
func.func @f(%g : {g}, %w : {w}, %x : {x}) -> ({x}, {z}, {z}) attributes {{aten.mutates = [0 : i64]}} {{
  %a = {mm}%g, mat2 = %w) : ({g}, {w}) -> {x}
  %t = aten.call "aten.t.default"(self = %g) : ({g}) -> {t}
  %b = {mm}%t, mat2 = %x) : ({t}, {x}) -> {z}
  %n = aten.call "aten.neg.default"(self = %g) : ({g}) -> {g}
  %s = aten.call "aten.copy_.default"(self = %g, src = %n) : ({g}, {g}) -> {g}
  %c = {mm}%t, mat2 = %x) : ({t}, {x}) -> {z}
  func.return %a, %b, %c : {x}, {z}, {z}
}}"""
    check(text, 3)
