"""Operators that give random numbers as a function of a seed: what random operators become before a graph is split.

They have no state, so that forward and backward may each compute them, and agree. They run in eager mode too, slowly.

    tilewright::random(seed, stream, size, order, distribution="uniform", dtype=float32)

is a dense tensor whose dims lie in memory in the given order, outermost first. Its element at distance `d` in memory is
number `d` of a stream of the seed, an int64 tensor without dimensions; `dialects/philox.py` says which number that is.
Distributions:

- `uniform`: from 0 up to but not including 1, with as many random bits as the dtype's significand has;
- `normal`: of mean 0 and variance 1, by the method of Box and Muller; float64 takes numbers of two streams;
- `exponential`: of rate 1, above zero.

`tilewright::random_integers` gives integers from `low` up to but not including `high`, all equally likely but for a
bias below `(high - low) / 2**32`, or `(high - low) / 2**63` for ranges of more than 32 bits.

`tilewright::rng_state` and `tilewright::set_rng_state` read and write the state of the default generator of a device,
of the CPU's if none is named.
"""

# torch.library carries few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor

from tilewright.dialects.philox import element_bits, normal_words, uniform_digits

NAMESPACE = "tilewright"

_SCHEMAS = (
    "random(Tensor seed, int stream, SymInt[] size, int[] order, *, str distribution, ScalarType dtype) -> Tensor",
    "random_integers(Tensor seed, int stream, SymInt[] size, int[] order, *, SymInt low, SymInt high, "
    "ScalarType dtype) -> Tensor",
    "rng_state(*, Device? device=None) -> Tensor",
    "set_rng_state(Tensor state, *, Device? device=None) -> ()",
)

SIGNIFICANDS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
"""The bits of a uniform number, by dtype."""

MAX_NARROW_RANGE = 2**32
"""The largest range of integers that 32 random bits are enough for."""

STREAMS = {"uniform": 1, "normal": 2, "exponential": 1}
"""The distributions, with the number of streams that one tensor takes."""


def dense_strides(size: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor whose dims lie in memory in an order, outermost first."""
    strides = [1] * len(size)
    step: Any = 1
    for dim in reversed(order):
        strides[dim] = step
        # A tensor without elements has the strides that it would have with sizes of one.
        step = step * torch.sym_max(size[dim], 1)
    return tuple(strides)


def _places(size: Sequence[int], order: Sequence[int], device: torch.device) -> Tensor:
    """Return the distance of each element from the first in memory."""
    return torch.arange(math.prod(size), device=device).as_strided(tuple(size), dense_strides(size, order))


def _bits(seed: Tensor, stream: int, size: Sequence[int], order: Sequence[int], *, wide: bool) -> Tensor:
    """Return the random bits of each element, as int64."""
    return element_bits(seed, seed.new_tensor(stream), _places(size, order, seed.device), wide=wide)


def _uniform(bits: Tensor, digits: int, *, wide: bool) -> Tensor:
    """Return floats from 0 to 1 made of the highest bits."""
    width, _ = uniform_digits(wide=wide)
    high = bits >> width - digits & (1 << digits) - 1
    return high.to(torch.float64 if wide else torch.float32) * 2.0**-digits


def _normal(seed: Tensor, stream: int, size: Sequence[int], order: Sequence[int], *, wide: bool) -> Tensor:
    if wide:
        first, second = (_bits(seed, stream + i, size, order, wide=True) for i in range(2))
        radius, angle = (_uniform(b, 53, wide=True) for b in (first, second))
        return torch.sqrt(-2.0 * torch.log(1.0 - radius)) * torch.cos(angle * (2.0 * math.pi))
    place = _places(size, order, seed.device)
    radius, angle = normal_words(seed, seed.new_tensor(stream), place)
    length = torch.sqrt(-2.0 * torch.log((radius.to(torch.float32) + 0.5) * 2.0**-32))
    turn = (angle >> 8).to(torch.float32) * 2.0**-24 * (2.0 * math.pi)
    return length * torch.where(place & 1 == 0, torch.cos(turn), torch.sin(turn))


def _exponential(seed: Tensor, stream: int, size: Sequence[int], order: Sequence[int], *, wide: bool) -> Tensor:
    digits = 53 if wide else 24
    rest = 1.0 - _uniform(_bits(seed, stream, size, order, wide=wide), digits, wide=wide)
    return torch.clamp_min(-torch.log(rest), torch.finfo(rest.dtype).eps / 2)


def _random(
    seed: Tensor, stream: int, size: Sequence[int], order: Sequence[int], *, distribution: str, dtype: torch.dtype
) -> Tensor:
    wide = dtype == torch.float64
    match distribution:
        case "uniform":
            bits = _bits(seed, stream, size, order, wide=wide)
            value = _uniform(bits, SIGNIFICANDS[dtype], wide=wide)
        case "normal":
            value = _normal(seed, stream, size, order, wide=wide)
        case "exponential":
            value = _exponential(seed, stream, size, order, wide=wide)
        case _:
            raise ValueError(f"distribution {distribution!r}, expected one of {', '.join(STREAMS)}")
    return _strided(value, size, order, dtype)


def _random_integers(
    seed: Tensor, stream: int, size: Sequence[int], order: Sequence[int], *, low: int, high: int, dtype: torch.dtype
) -> Tensor:
    extent = high - low
    if extent <= MAX_NARROW_RANGE:
        bits = _bits(seed, stream, size, order, wide=False)
        # The product may not fit in 63 bits, so the mask takes away what an arithmetic shift brings.
        value = (bits * extent >> 32 & 0xFFFFFFFF) + low
    else:
        bits = _bits(seed, stream, size, order, wide=True)
        value = (bits >> 1 & 2**63 - 1) % extent + low
    return _strided(value, size, order, dtype)


def _strided(value: Tensor, size: Sequence[int], order: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(tuple(size), dense_strides(size, order), dtype=dtype, device=value.device).copy_(value)


def _fake(
    seed: Tensor, stream: int, size: Sequence[int], order: Sequence[int], *, dtype: torch.dtype, **_: object
) -> Tensor:
    return torch.empty_strided(tuple(size), dense_strides(size, order), dtype=dtype, device=seed.device)


def _state(*, device: torch.device | None = None) -> Tensor:
    return torch.cuda.get_rng_state(device) if _is_cuda(device) else torch.get_rng_state()


def _set_state(state: Tensor, *, device: torch.device | None = None) -> None:
    if _is_cuda(device):
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def _is_cuda(device: torch.device | None) -> TypeGuard[torch.device]:
    return device is not None and device.type == "cuda"


_STATE_BYTES, _CUDA_STATE_BYTES = torch.get_rng_state().numel(), 16


def _fake_state(*, device: torch.device | None = None) -> Tensor:
    return torch.empty(_CUDA_STATE_BYTES if _is_cuda(device) else _STATE_BYTES, dtype=torch.uint8)


def _fake_set_state(state: Tensor, *, device: torch.device | None = None) -> None:
    pass


def _register() -> torch.library.Library:
    library = torch.library.Library(NAMESPACE, "DEF")
    implementations: tuple[Callable[..., Any], ...] = (
        _random,
        _random_integers,
        _state,
        _set_state,
    )
    fakes: tuple[Callable[..., Any], ...] = (_fake, _fake, _fake_state, _fake_set_state)
    for schema, function, fake in zip(_SCHEMAS, implementations, fakes, strict=True):
        name = schema.partition("(")[0]
        moves_generator = "rng_state" in name
        library.define(schema, tags=(torch.Tag.nondeterministic_seeded,) if moves_generator else ())
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
    return library


_LIBRARY = _register()
"""What keeps the operators registered."""


def load_operators() -> None:
    """Make the operators known to torch: having imported this module is all that it takes."""


RANDOM = torch.ops.tilewright.random.default
RANDOM_INTEGERS = torch.ops.tilewright.random_integers.default
RNG_STATE = torch.ops.tilewright.rng_state.default
SET_RNG_STATE = torch.ops.tilewright.set_rng_state.default
