"""The generator against the published values of its authors."""

from __future__ import annotations

import pytest
import torch

from tilewright.dialects.philox import WORD, element_bits, philox

KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""Counters, keys and words from the file `kat_vectors` of the Random123 distribution."""


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]) -> None:
    assert philox(counter, key) == words
    tensors = philox([torch.tensor(c) for c in counter], [torch.tensor(k) for k in key])
    assert tuple(int(w) for w in tensors) == words


def test_elements_take_the_words_in_order() -> None:
    assert [element_bits(0, 0, i, wide=False) for i in range(4)] == list(KNOWN[0][2])
    low, high = (element_bits(0, 0, i, wide=True) for i in range(2))
    assert [low & WORD, low >> 32, high & WORD, high >> 32] == list(KNOWN[0][2])


def test_elements_beyond_32_bits_are_others() -> None:
    far = [element_bits(1, 0, i, wide=False) for i in (0, 2**32, 2**34, 2**35, 2**36)]
    assert len(set(far)) == len(far)
    tensors = element_bits(torch.tensor(1), torch.tensor(0), torch.tensor([0, 2**32, 2**34, 2**35, 2**36]), wide=False)
    assert tensors.tolist() == far
