"""Inputs that are made up or read, and the comparison of two runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.reference.conftest import Runner
from torch import Tensor

from tilewright.backends.reference import ExecutionError
from tilewright.backends.reference.inputs import InputSpec, load_inputs, make_inputs
from tilewright.backends.reference.interpreter import Input
from tilewright.backends.reference.observe import Observation, Tolerance, describe, first_difference, observe

TEXT = """
!x = tensor<?x8xf32, #sym.layout<[s0, 8], [1, s0], offset 3>>
!n = tensor<6xi64, #sym.layout<[6], [1]>>
!b = tensor<6xi1, #sym.layout<[6], [1]>>
!u = tensor<?xui8, #sym.layout<[s1], [1]>>
func.func @forward(%x : !x, %s : i64, %n : !n, %b : !b, %u : !u) -> !x
    attributes {aten.symbols = {s0 = #sym.symbol<hint 4, 2 to 9>, s1 = #sym.symbol<7 to 9>},
                aten.symbol_args = {s0 = 1}} {
  func.return %x : !x
}"""


def tensors(values: list[Input]) -> list[Tensor]:
    return [v for v in values if isinstance(v, Tensor)]


def test_made_up_inputs_fit_the_types(run: Runner) -> None:
    inputs = make_inputs(run.parse(TEXT), "forward", InputSpec())
    x, n, b, u = tensors(inputs)
    assert (x.shape, x.stride(), x.storage_offset()) == ((4, 8), (1, 4), 3)
    assert inputs[1] == 4
    assert set(map(int, n)) == {0, 1}
    assert b.dtype == torch.bool
    assert u.shape == (7,)
    run.all(TEXT, *inputs)


def test_made_up_inputs_follow_the_spec(run: Runner) -> None:
    module = run.parse(TEXT)
    first = make_inputs(module, "forward", InputSpec(seed=1, symbols={"s0": 2}, int_range=(5, 7)))
    again = make_inputs(module, "forward", InputSpec(seed=1, symbols={"s0": 2}, int_range=(5, 7)))
    other = make_inputs(module, "forward", InputSpec(seed=2, symbols={"s0": 2}))
    assert first[1] == 2
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    x, n, _, u = tensors(first)
    assert set(map(int, n)) == {5, 6}
    assert int(u.min()) >= 5
    assert not x.equal(tensors(other)[0])
    assert all(bool((t == 1).all()) for t in tensors(make_inputs(module, "forward", InputSpec(ones=True))))


def test_inputs_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "inputs.pt"
    torch.save([torch.arange(3), 5], path)
    torch.testing.assert_close(load_inputs(str(path)), [torch.arange(3), 5])
    torch.save({"x": torch.arange(3)}, path)
    with pytest.raises(ExecutionError, match="holds a dict, expected a list of tensors and ints"):
        load_inputs(str(path))
    torch.save([torch.arange(3), "x"], path)
    with pytest.raises(ExecutionError, match=r"input 1 in .* is a str"):
        load_inputs(str(path))
    path.write_bytes(b"nothing")
    with pytest.raises(ExecutionError, match="cannot be read as inputs"):
        load_inputs(str(path))


def difference(expected: Input, found: Input, tolerance: Tolerance | None = None) -> str:
    report = first_difference(Observation([expected], []), Observation([found], []), tolerance or Tolerance())
    return "" if report is None else str(report)


def test_the_first_difference_is_named() -> None:
    x = torch.arange(6.0).view(2, 3)
    y = x.clone()
    y[1, 0], y[1, 2] = 3.5, torch.nan
    assert difference(x, x.clone()) == ""
    assert difference(x, y) == "result 0 at [1, 0] is 3.5, expected 3 (2 of 6 elements differ)"
    assert difference(y, y.clone()) == ""
    assert difference(3, 4) == "result 0 is 4, expected 3"
    assert difference(x, 4) == "result 0 is 4, expected float32[2, 3] strides [3, 1]"


def test_dtypes_shapes_and_strides_count() -> None:
    x = torch.zeros(2, 3)
    assert "float64[2, 3]" in difference(x, x.double())
    assert "float32[6] strides [1], expected float32[2, 3] strides [3, 1]" in difference(x, x.flatten())
    assert "strides [1, 2]" in difference(x, x.t().contiguous().t())
    assert difference(torch.zeros(1, 3), torch.zeros(3, 1).t()) == ""


def test_tolerances_are_by_dtype_and_grow_with_the_largest_element() -> None:
    x = torch.tensor([1000.0, 1.0])
    assert difference(x, x + torch.tensor([0, 0.005])) == ""
    assert difference(x[1:], x[1:] + 0.005) != ""
    assert difference(x, x + torch.tensor([0, 0.005]), Tolerance(atol=1e-5)) != ""
    assert difference(x.bfloat16(), (x * 1.01).bfloat16()) == ""
    assert difference(x.long(), x.long() + 1) != ""
    assert difference(x.long(), x.long() + 1, Tolerance(0, 10)) != ""


def test_a_run_gets_a_copy_of_its_inputs_with_their_aliases() -> None:
    storage = torch.zeros(6)

    def write(given: list[Input]) -> list[Input]:
        a, b = tensors(given)
        a.fill_(1)
        return [b.clone(), torch.rand(1)]

    first = observe(write, [storage[:4].view(2, 2).t(), storage[2:]], seed=3)
    second = observe(write, [storage[:4].view(2, 2).t(), storage[2:]], seed=3)
    assert first_difference(first, second, Tolerance(0, 0)) is None
    assert storage.count_nonzero() == 0
    torch.testing.assert_close(first.results[0], torch.tensor([1.0, 1.0, 0.0, 0.0]))
    x = first.inputs[0]
    assert isinstance(x, Tensor)
    assert x.stride() == (1, 2)


def test_descriptions() -> None:
    assert describe(torch.tensor([[1, 2], [3, 4]])) == "int64[2, 2] strides [2, 1]\n  [[1, 2],\n   [3, 4]]"
    assert describe(torch.tensor(0.5)) == "float32[]\n  0.5"
    assert describe(torch.zeros(0, 2)) == "float32[0, 2]"
    assert describe(7) == "7"
    assert describe(torch.arange(100.0)) == (
        "float32[100] strides [1]\n  min 0, max 99, mean 49.5\n  0, 1, 2, 3, 4, 5, 6, 7, .."
    )
