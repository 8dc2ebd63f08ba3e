"""Elementwise operators as loops, compared with eager: on every 16-bit float bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from tests import adapter
from tests.passes.lowering_checks import (
    DTYPES,
    FLOATS,
    HALVES,
    INTEGERS,
    Binary,
    Unary,
    assert_close,
    aten,
    call_outputs,
    check,
    check_exactly,
    outputs,
    sample,
)
from torch import Tensor
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.usefixtures("device")


def _named(names: str) -> dict[str, Callable[..., Any]]:
    """Return the operators of some names."""
    return {name: getattr(aten, name) for name in names.split()}


UNARY: dict[str, Unary] = {
    **_named(
        """
    abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad erf erfc exp exp2 expm1 floor frac
    gelu hardsigmoid hardswish isfinite isinf isnan isneginf isposinf lgamma log log10 log1p log2
    log_sigmoid_forward logical_not logit mish nan_to_num neg positive rad2deg reciprocal relu relu6 round rsqrt
    sgn sigmoid sign signbit silu sin sinc sinh sqrt square tan tanh trunc
        """
    ),
    "celu": lambda x: aten.celu(x, 0.3),
    "clamp": lambda x: aten.clamp(x, -0.1, 0.3),
    "clamp above": lambda x: aten.clamp(x, None, 0.1),
    "clamp_min": lambda x: aten.clamp_min(x, 0.1),
    "elu": lambda x: aten.elu(x, 0.3, 1.1, 0.9),
    "gelu by tanh": lambda x: aten.gelu(x, approximate="tanh"),
    "hardshrink": lambda x: aten.hardshrink(x, 0.1),
    "hardtanh": lambda x: aten.hardtanh(x, -0.1, 0.3),
    "leaky_relu": lambda x: aten.leaky_relu(x, 0.3),
    "logit, clamped": lambda x: aten.logit(x, 0.1),
    "nan_to_num, given": lambda x: aten.nan_to_num(x, 0.1, 0.2, 0.3),
    "softplus": lambda x: aten.softplus(x, 0.3, 10.3),
    "softshrink": lambda x: aten.softshrink(x, 0.1),
    "threshold": lambda x: aten.threshold(x, 0.1, 0.3),
}
WITH_NUMBER: dict[str, Unary] = {
    "add": lambda x: aten.add(x, 0.1),
    "add, scaled": lambda x: aten.add(x, 2, alpha=3),
    "div": lambda x: aten.div(x, 0.1),
    "div, floor": lambda x: aten.div(x, 0.1, rounding_mode="floor"),
    "div, trunc": lambda x: aten.div(x, 0.1, rounding_mode="trunc"),
    "eq": lambda x: aten.eq(x, 0.1),
    "floor_divide": lambda x: aten.floor_divide(x, 3),
    "fmod": lambda x: aten.fmod(x, 0.1),
    "ge": lambda x: aten.ge(x, 2),
    "le": lambda x: aten.le(x, 0.1),
    "masked_fill": lambda x: aten.masked_fill(x, aten.gt(x, 0), 0.1),
    "mul": lambda x: aten.mul(x, 0.1),
    "pow 0": lambda x: aten.pow(x, 0),
    "pow 1": lambda x: aten.pow(x, 1),
    "pow 2": lambda x: aten.pow(x, 2),
    "pow 3": lambda x: aten.pow(x, 3),
    "pow 4": lambda x: aten.pow(x, 4),
    "pow of number": lambda x: aten.pow(1.1, x),
    "remainder": lambda x: aten.remainder(x, 0.1),
    "rsub": lambda x: aten.rsub(x, 0.1),
    "sub": lambda x: aten.sub(x, 0.1),
    "where": lambda x: aten.where(aten.gt(x, 0), x, 0.1),
}
POWERS: dict[str, Unary] = {
    "pow -1": lambda x: aten.pow(x, -1),
    "pow -2": lambda x: aten.pow(x, -2),
    "pow 1/2": lambda x: aten.pow(x, 0.5),
    "pow -1/2": lambda x: aten.pow(x, -0.5),
    "pow 2.3": lambda x: aten.pow(x, 2.3),
}
BINARY: dict[str, Binary] = {
    **_named(
        """
    _prelu_kernel add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign
    div eq floor_divide fmax fmin fmod gelu_backward hardsigmoid_backward hardswish_backward heaviside hypot
    logaddexp logaddexp2 logical_and logical_or logical_xor lt maximum minimum mish_backward mul ne pow
    remainder rsub sigmoid_backward silu_backward sub tanh_backward xlogy
        """
    ),
    "add, scaled": lambda x, y: aten.add(x, y, alpha=0.1),
    "addcdiv": lambda x, y: aten.addcdiv(x, y, y, value=0.1),
    "addcmul": lambda x, y: aten.addcmul(x, y, y, value=0.1),
    "clamp": lambda x, y: aten.clamp(x, y, x),
    "div, floor": lambda x, y: aten.div(x, y, rounding_mode="floor"),
    "div, trunc": lambda x, y: aten.div(x, y, rounding_mode="trunc"),
    "elu_backward": lambda g, x: aten.elu_backward(g, 0.3, 1.1, 1.2, False, x),
    "elu_backward of result": lambda g, x: aten.elu_backward(g, 0.3, 1.1, 1.2, True, x),
    "gelu_backward by tanh": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "hardshrink_backward": lambda g, x: aten.hardshrink_backward(g, x, 0.1),
    "hardtanh_backward": lambda g, x: aten.hardtanh_backward(g, x, -0.1, 0.3),
    "leaky_relu_backward": lambda g, x: aten.leaky_relu_backward(g, x, 0.3, False),
    "lerp": lambda x, y: aten.lerp(x, y, 0.1),
    "lerp by tensor": lambda x, y: aten.lerp(x, y, x),
    "softplus_backward": lambda g, x: aten.softplus_backward(g, x, 0.3, 10.3),
    "softshrink_backward": lambda g, x: aten.softshrink_backward(g, x, 0.1),
    "threshold_backward": lambda g, x: aten.threshold_backward(g, x, 0.1),
}
ONE_OPERAND = UNARY | WITH_NUMBER | POWERS

EAGER_IS_COARSER = {
    # Its erf, and the tanh inside its gelu, are polynomials with an absolute error of 1e-7.
    "erf": 1e-6,
    "gelu": 1e-6,
    "gelu by tanh": 1e-6,
    "gelu_backward": 1e-5,
    "gelu_backward by tanh": 1e-4,
}
ONE_ROUNDING_APART = {
    # Where the f32 results differ in the last bit (fused multiply-add, another square root), few round differently.
    *("addcmul", "elu_backward", "lerp", "lerp by tensor", "logaddexp2", "mish", "mish_backward"),
    *("pow 1/2", "pow 3", "pow -2", "silu_backward", "sin", "sqrt"),
}
SIGNS = {"copysign", "signbit"}
ROUNDED_STEPS = {"div, floor", "floor_divide"}
"""Eager rounds each step of a floor division of 16-bit floats, which may cost one; a nest rounds its result."""
APART_ON_A_DEVICE = {
    # The last bits of libdevice's functions, and what eager's kernels fuse inside of a gradient or a logarithm.
    **dict.fromkeys(("atan", "atan2"), 4),
    **dict.fromkeys(("celu", "logaddexp2", "mish_backward", "pow of number", "silu_backward"), 1),
    # `exp` and division of the hardware.
    **dict.fromkeys(("exp", "sigmoid", "silu"), 2),
    **dict.fromkeys(ROUNDED_STEPS, 77),
}
"""How many of 65536 numbers or pairs round in another way than eager's on an H200; where not listed, none."""


def all_values(dtype: torch.dtype) -> Tensor:
    """Return every value of a 16-bit float."""
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)


def values(dtype: torch.dtype) -> Tensor:
    """Return numbers of all kinds: special ones, small integers, random ones."""
    special = [0.0, -0.0, 1, -1, 2, 0.5, float("inf"), float("-inf"), float("nan"), 1e-40, -1e-40, 3e38, -3e38, 1e-7]
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(600, generator=generator) * 3
    return torch.cat([torch.tensor(special), torch.arange(-5, 6), numbers, torch.rand(200, generator=generator)]).to(
        dtype
    )


def shuffled(x: Tensor) -> Tensor:
    """Return the same values in another order."""
    return x[torch.randperm(x.numel(), generator=torch.Generator().manual_seed(1))]


def tamed(name: str, x: Tensor) -> Tensor:
    """Return the values, without those by which a gradient would scale up what eager is coarse in."""
    return x.clamp(-10, 10) if name in EAGER_IS_COARSER else x


def defined(name: str, x: Tensor) -> Tensor:
    """Return the values, without those that eager's gelu has NaN for: in PyTorch 2.11 infinity, with AVX-512.

    On a device without NaN where signs are read: a conversion from half precision drops that of a NaN.
    """
    if adapter.device is not None and name in SIGNS:
        return x[x == x]
    if name != "gelu" or not torch.nn.functional.gelu(torch.full((64,), float("inf"))).isnan().any():
        return x
    bound = torch.finfo(x.dtype).max / 8
    return x.clamp(-bound, bound)


def differing(result: Tensor, expected: Tensor) -> Tensor:
    """Return where two tensors differ, NaN being equal to itself."""
    return (result != expected) & ~((result != result) & (expected != expected))


def allowed(name: str) -> int:
    """Return how many numbers may be rounded in another way."""
    if adapter.device is not None and adapter.device.type != "cpu":
        return APART_ON_A_DEVICE.get(name, 0)
    return 1000 if name in ROUNDED_STEPS else 20 if name in ONE_ROUNDING_APART else 0


def compare_halves(name: str, pairs: list[tuple[Tensor, Tensor]]) -> None:
    for result, expected in pairs:
        assert result.dtype == expected.dtype
        if name in EAGER_IS_COARSER:
            assert_close([(result, expected)], rtol=1e-2, atol=EAGER_IS_COARSER[name])
        else:
            assert int(differing(result, expected).sum()) <= allowed(name)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ONE_OPERAND)
def test_every_16_bit_float(name: str, dtype: torch.dtype) -> None:
    compare_halves(name, outputs(ONE_OPERAND[name], defined(name, all_values(dtype))))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", [n for n in BINARY if not n.startswith("bitwise")])
def test_pairs_of_every_16_bit_float(name: str, dtype: torch.dtype) -> None:
    x = defined(name, tamed(name, all_values(dtype)))
    compare_halves(name, outputs(BINARY[name], x, shuffled(x)))


def refused(program: Callable[..., Any], *args: Tensor) -> bool:
    """Tell whether eager does not have an operator for a dtype."""
    try:
        program(*args)
    except RuntimeError:
        return True
    return False


def check_each(program: Callable[..., Any], operands: list[tuple[Tensor, ...]], rtol: float, atol: float) -> None:
    """Assert that a program is right for each of some operands; in one graph, since tracing takes longest."""
    accepted = [each for each in operands if not refused(program, *each)]
    if not accepted:
        pytest.skip("not in eager")
    arity = len(accepted[0])

    def together(*flat: Tensor) -> list[Tensor]:
        return tree_leaves([program(*flat[i : i + arity]) for i in range(0, len(flat), arity)])

    check(together, *(x for each in accepted for x in each), rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", ONE_OPERAND)
def test_functions(name: str) -> None:
    operands = [(defined(name, values(dtype)),) for dtype in FLOATS[2:]]
    check_each(ONE_OPERAND[name], operands, atol=EAGER_IS_COARSER.get(name, 1e-7), rtol=2e-6)


@pytest.mark.parametrize("name", [n for n in BINARY if not n.startswith("bitwise")])
def test_functions_of_two(name: str) -> None:
    numbers = [tamed(name, values(dtype)) for dtype in FLOATS[2:]]
    operands = [(x, shuffled(x)) for x in numbers]
    check_each(BINARY[name], operands, atol=EAGER_IS_COARSER.get(name, 1e-6), rtol=4e-6)


def integers(dtype: torch.dtype) -> Tensor:
    """Return small integers, the largest and the smallest ones."""
    if dtype is torch.bool:
        return sample(dtype, 64)
    info = torch.iinfo(dtype)
    return torch.cat([torch.arange(max(info.min, -40), 41).to(dtype), torch.tensor([info.max, info.min], dtype=dtype)])


@pytest.mark.parametrize("name", ONE_OPERAND)
def test_integers(name: str) -> None:
    operands = [(integers(dtype),) for dtype in (torch.bool, *INTEGERS)]
    check_each(ONE_OPERAND[name], operands, atol=1e-6, rtol=2e-6)


@pytest.mark.parametrize("name", BINARY)
def test_pairs_of_integers(name: str) -> None:
    numbers = [integers(dtype) for dtype in (torch.bool, *INTEGERS)]
    divides = name in ("fmod", "remainder", "floor_divide", "div, floor", "div, trunc")
    # A zero divisor is an error in eager.
    operands = [(x, shuffled(x).where(shuffled(x) != 0, x.new_ones(())) if divides else shuffled(x)) for x in numbers]
    check_each(BINARY[name], operands, atol=1e-6, rtol=2e-6)


MIXED: dict[str, Binary] = {
    "add": aten.add,
    "atan2": aten.atan2,
    "div": aten.div,
    "eq": aten.eq,
    "logical_and": aten.logical_and,
    "lt": aten.lt,
    "maximum": aten.maximum,
    "mul": aten.mul,
    "where": lambda x, y: aten.where(aten.gt(x, y), x, y),
}


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [((5, 3), (5, 3)), ((5, 3), ()), ((), (5, 3)), ((), ())], ids=str)
@pytest.mark.parametrize("first", DTYPES, ids=str)
def test_promotion(first: torch.dtype, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    # One graph for all the operators and second dtypes, since tracing takes longest.
    def program(x: Tensor, *others: Tensor) -> list[Tensor]:
        return [f(x, y) for (name, f), y in product(MIXED.items(), others) if not refused(f, x, y) or name == "eq"]

    others = [sample(second, *shapes[1]) for second in DTYPES]
    check(program, sample(first, *shapes[0]), *others, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_promotion_with_numbers(dtype: torch.dtype) -> None:
    def program(x: Tensor) -> list[Tensor]:
        return [f(x, y) for f, y in product(MIXED.values(), (2, 2.5, True, -3)) if not refused(f, x, y)]  # type: ignore[arg-type]

    check(program, sample(dtype, 6), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "shapes", [((5, 1), (3,)), ((1,), (4, 1, 3)), ((2, 1, 3), (5, 1)), ((0, 3), (3,)), ((1, 0), (1,))], ids=str
)
def test_broadcasting(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check_exactly(BINARY["sub"], sample(torch.float32, *shapes[0]), sample(torch.float32, *shapes[1]))
    x, y = (sample(torch.float32, *shape) for shape in shapes)
    check_exactly(lambda x, y: aten.where(aten.lt(x, y), y, x), x, y)


def test_broadcasting_of_symbolic_sizes() -> None:
    x, y = sample(torch.float32, 4, 1, 6), sample(torch.float32, 5, 6)
    check_exactly(BINARY["sub"], x, y, dynamic=True)
    check_exactly(lambda x: aten.mul(x, x.shape[0] + 1), x, dynamic=True)


@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_conversions(source: torch.dtype, target: torch.dtype) -> None:
    x = sample(source, 4, 5)
    check_exactly(lambda x: aten._to_copy(x, dtype=target), x)
    check_exactly(lambda x: torch.ops.prims.convert_element_type(x, target), x)


def test_large_integers_round_by_way_of_f32() -> None:
    # 2**24 + 1 is a tie in f32 that decides the second rounding.
    x = torch.tensor([2**24 + 1, 2**31 + 2**23 + 1, 2**62 + 2**54 + 1, -(2**40) - 2**32 - 1])
    for half in HALVES:
        check_exactly(lambda x, half=half: aten._to_copy(x, dtype=half), x)  # type: ignore[misc]
        check_exactly(lambda x, half=half: aten._to_copy(x.double(), dtype=half), x)  # type: ignore[misc]


def test_copies_take_the_layout_of_their_result() -> None:
    x = sample(torch.float32, 2, 3, 4, 5).permute(0, 3, 1, 2)
    check_exactly(aten.clone, x)
    check_exactly(lambda x: aten.clone(x, memory_format=torch.contiguous_format), x)
    check_exactly(lambda x: aten.clone(x, memory_format=torch.channels_last), x)
    check_exactly(lambda x: aten.copy(x, aten.select(x, 0, 1)), x)
    assert_close(call_outputs(aten.contiguous.default, x.contiguous().permute(1, 0, 2, 3)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_16_bit_floats_are_computed_with_in_f32(dtype: torch.dtype) -> None:
    check_exactly(lambda x: aten.sub(aten.mul(x, x), x), sample(dtype, 100))
