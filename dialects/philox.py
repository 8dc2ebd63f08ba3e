"""Philox4x32-10: random numbers as a function of a key and a counter, without state.

From Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The functions here are the
definition; they work on anything with integer arithmetic of at least 64 bits that wraps around or has no bounds, so on
Python's ints and on int64 tensors alike. `backends/llvm/emit_random.py` computes the same in vectors.

The words of a program's random numbers are laid out so that consecutive elements share a block: the key is the seed,
the counter is made of the number of the block in its low half and of the stream in its high half. An element of 32 bits
has one of the four words of block `element // 4`, one of 64 bits has two of the words of block `element // 2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
"""What is added to each half of the key from round to round (Weyl sequences)."""

WORD = 0xFFFFFFFF

Integer: TypeAlias = Any
"""An int or an int64 tensor."""


def philox(counter: Sequence[Integer], key: Sequence[Integer]) -> tuple[Integer, Integer, Integer, Integer]:
    """Return the four random words of a counter of four words; all are from 0 to 2**32 - 1."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        low, high = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        # An arithmetic shift of a product that wrapped around brings ones, which the mask takes away.
        c0, c1, c2, c3 = (high >> 32 & WORD) ^ c1 ^ k0, high & WORD, (low >> 32 & WORD) ^ c3 ^ k1, low & WORD
        k0, k1 = k0 + KEY_STEPS[0] & WORD, k1 + KEY_STEPS[1] & WORD
    return c0, c1, c2, c3


def element_bits(seed: Integer, stream: Integer, element: Integer, *, wide: bool) -> Integer:
    """Return the 32 random bits of an element of a stream, or 64 of them, which may wrap around, if `wide`."""
    number = element >> (1 if wide else 2)
    words = philox((*_halves(number), *_halves(stream)), _halves(seed))
    if wide:
        first, second = words[0] | words[1] << 32, words[2] | words[3] << 32
        return first + (second - first) * (element & 1)
    odd = element & 1
    lower, upper = (words[i] + (words[i + 1] - words[i]) * odd for i in (0, 2))
    return lower + (upper - lower) * (element >> 1 & 1)


def normal_words(seed: Integer, stream: Integer, element: Integer) -> tuple[Integer, Integer]:
    """Return the two words that a normal number is made of: a block has two pairs, and a pair makes two elements.

    By the method of Box and Muller (1958) the first word is the radius and the second the angle of a point in the
    plane, whose coordinates are the elements: the cosine for the even one, the sine for the odd one.
    """
    words = philox((*_halves(element >> 2), *_halves(stream)), _halves(seed))
    second = element >> 1 & 1
    radius, angle = (words[i] + (words[i + 2] - words[i]) * second for i in range(2))
    return radius, angle


def uniform_digits(*, wide: bool) -> tuple[int, int]:
    """Return how many bits an element has, and how many of them, the highest, make a number from 0 to 1."""
    return (64, 53) if wide else (32, 24)


def _halves(value: Integer) -> tuple[Integer, Integer]:
    """Return the low and the high word of 64 bits."""
    return value & WORD, value >> 32 & WORD
