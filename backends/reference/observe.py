"""What one run of a function does that its caller can see, and how two runs differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from tilewright.backends.reference.buffers import first_true
from tilewright.backends.reference.interpreter import Input, Output, run_function

TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
"""Relative and absolute tolerance by dtype, those of `torch.testing`; all other dtypes are compared exactly.

The absolute one counts for tensors whose elements are at most one; for larger ones it grows with the largest, as the
rounding errors of what is summed up in between do.
"""


@dataclass(frozen=True)
class Tolerance:
    """How much results may differ; what is None is the dtype's own."""

    rtol: float | None = None
    atol: float | None = None

    def of(self, expected: Tensor) -> tuple[float, float]:
        """Return the relative and the absolute tolerance for a tensor."""
        rtol, atol = TOLERANCES.get(expected.dtype, (0.0, 0.0))
        if self.atol is None and atol:
            sizes = expected[expected.isfinite()].abs().double()
            atol *= max(1.0, float(sizes.max()) if sizes.numel() else 0.0)
        return (rtol if self.rtol is None else self.rtol, atol if self.atol is None else self.atol)


@dataclass(frozen=True)
class Observation:
    """The results of one run, and its inputs as they are afterwards."""

    results: list[Output]
    inputs: list[Input]

    def values(self) -> dict[str, Output]:
        """Return all values with what they are called."""
        named: dict[str, Output] = {f"result {n}": v for n, v in enumerate(self.results)}
        named.update({f"argument {n} afterwards": v for n, v in enumerate(self.inputs)})
        return named


def observe(run: Callable[[list[Input]], Sequence[Output]], inputs: Sequence[Input], seed: int = 0) -> Observation:
    """Call `run` on a copy of `inputs`, which keeps strides and shared storages, with the random generator seeded."""
    given = deepcopy(list(inputs))
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        return Observation(list(run(given)), given)
    finally:
        torch.default_generator.set_state(state)


def observe_function(module: ModuleOp, inputs: Sequence[Input], name: str, seed: int = 0) -> Observation:
    """Run a function or kernel of a module by the interpreter."""
    return observe(lambda given: run_function(module, given, name), inputs, seed)


@dataclass(frozen=True)
class Difference:
    """Where two runs differ first."""

    place: str
    """The value: `result 0`, `argument 1 afterwards`."""
    expected: str
    found: str
    index: tuple[int, ...] | None = None
    """The element, if the values differ in elements."""
    count: int = 0
    """How many elements differ."""
    total: int = 0

    def __str__(self) -> str:
        if self.index is None:
            return f"{self.place} is {self.found}, expected {self.expected}"
        return (
            f"{self.place} at {list(self.index)} is {self.found}, expected {self.expected} "
            f"({self.count} of {self.total} elements differ)"
        )


def first_difference(expected: Observation, found: Observation, tolerance: Tolerance) -> Difference | None:
    """Return the first difference between two runs beyond `tolerance`, or None. Shapes, dtypes and strides count."""
    if len(expected.results) != len(found.results):
        return Difference("the number of results", str(len(expected.results)), str(len(found.results)))
    others = found.values()
    for place, value in expected.values().items():
        difference = _compare(place, value, others[place], tolerance)
        if difference is not None:
            return difference
    return None


def _compare(place: str, expected: Output, found: Output, tolerance: Tolerance) -> Difference | None:
    if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
        same = type(expected) is type(found) and expected == found
        return None if same else Difference(place, describe_type(expected), describe_type(found))
    if describe_type(expected) != describe_type(found):
        return Difference(place, describe_type(expected), describe_type(found))
    wrong = ~_close(expected, found, tolerance)
    if not wrong.any():
        return None
    index = first_true(wrong)
    return Difference(
        place, format_number(expected[index]), format_number(found[index]), index, int(wrong.sum()), wrong.numel()
    )


def _close(expected: Tensor, found: Tensor, tolerance: Tolerance) -> Tensor:
    dtype = expected.dtype
    if not dtype.is_floating_point and not dtype.is_complex:
        return expected == found
    rtol, atol = tolerance.of(expected)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.isclose(found.to(wide), expected.to(wide), rtol=rtol, atol=atol, equal_nan=True)


def describe_type(value: Output) -> str:
    """Return what a value is, but for its elements: `float32[3, 8] strides [8, 1]`."""
    if not isinstance(value, Tensor):
        return str(value)
    name = str(value.dtype).removeprefix("torch.")
    # The stride of a dim with one element is anybody's guess.
    strides = [s if n > 1 else 1 for n, s in zip(value.shape, value.stride(), strict=True)] if value.numel() else []
    return f"{name}{list(value.shape)}" + (f" strides {strides}" if strides else "")


def format_number(element: Tensor, digits: int = 9) -> str:
    """Return one element of a tensor; a float with so many digits."""
    number = element.item()
    return f"{number:.{digits}g}" if isinstance(number, float) else str(number)


_ALL_ELEMENTS = 64
_SOME_ELEMENTS = 8


def describe(value: Output) -> str:
    """Return what a value is and its elements, or for a large tensor a summary and the first elements."""
    if not isinstance(value, Tensor):
        return str(value)
    text = describe_type(value)
    if value.numel() == 0:
        return text
    if value.numel() <= _ALL_ELEMENTS:
        return f"{text}\n  {_nested(value, '   ')}"
    flat = value.flatten()
    if not value.dtype.is_complex:
        numbers = flat.double()
        text += f"\n  min {float(numbers.min()):.6g}, max {float(numbers.max()):.6g}, mean {float(numbers.mean()):.6g}"
    first = ", ".join(format_number(e, 6) for e in flat[:_SOME_ELEMENTS])
    return f"{text}\n  {first}, .."


def _nested(value: Tensor, indent: str) -> str:
    """Return all elements in brackets, each row on a line of its own."""
    if value.ndim == 0:
        return format_number(value, 6)
    separator = f",\n{indent}" if value.ndim > 1 else ", "
    return f"[{separator.join(_nested(part, indent + ' ') for part in value)}]"


def is_same(a: Output, b: Output) -> bool:
    """Whether two values are equal in every element; NaN is equal to itself."""
    return _compare("", a, b, Tolerance(0.0, 0.0)) is None
