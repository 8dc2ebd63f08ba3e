"""Give back the memory that LLVM's code takes while nothing is compiled.

A compilation touches some 60 MB of the library's code. These pages are copies of a file: dropped, they cost no writing,
and the next compilation gets them from the page cache within a millisecond or two.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm


def release_code_pages() -> None:
    """Drop the resident pages of LLVM's code. Does nothing where the system has no such thing."""
    for begin, length in _code():
        _libc().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), mmap.MADV_DONTNEED)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@cache
def _code() -> tuple[tuple[int, int], ...]:
    """Return where the code of the library lies: begin and length of each mapping that can be run and not written."""
    if not sys.platform.startswith("linux"):
        return ()
    folder = str(Path(llvm.__file__).parent.resolve())
    ranges: list[tuple[int, int]] = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            place, access, _, _, _, *path = line.split(maxsplit=5)
            if access == "r-xp" and path and path[0].startswith(folder):
                begin, end = (int(part, 16) for part in place.split("-"))
                ranges.append((begin, end - begin))
    return tuple(ranges)
