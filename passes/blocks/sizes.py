"""The lengths of axes: powers of two that leave few threads without an element."""

from __future__ import annotations

SHORTEST = 16
"""A tile along memory is no shorter than this, if the loop is not."""

_HALVING = 0.05
"""What a tile loses that is half as long, as a part of the threads that have an element."""


def power_at_least(n: int) -> int:
    """Return the smallest power of two that is at least `n`; 1 for what is smaller."""
    return 1 << (max(n, 1) - 1).bit_length()


def power_at_most(n: int) -> int:
    """Return the largest power of two that is at most `n`; 1 for what is smaller."""
    return 1 << (max(n, 1).bit_length() - 1)


def tile_size(extent: int | None, most: int, *, least: int = SHORTEST, halving: float = _HALVING) -> int:
    """Return how many of the `extent` points of a loop go into one tile: `most`, a power of two, or fewer.

    A tile of 1024 would leave a quarter of the threads idle where there are 768 points, and one of 256 none.
    """
    if extent is None:
        return most
    longest = min(most, power_at_least(extent))
    best, best_cost = longest, float("inf")
    size = longest
    while size >= min(least, longest):
        padded = -(-extent // size) * size
        cost = padded / max(extent, 1) + halving * (longest.bit_length() - size.bit_length())
        if cost < best_cost:
            best, best_cost = size, cost
        size //= 2
    return best
