"""LLVM's code leaves memory after a compilation and comes back for the next."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilewright.backends.llvm.jit import compile_library
from tilewright.backends.llvm.pages import release_code_pages
from tilewright.backends.llvm.target import host_target

TEXT = "define i64 @answer(i64 %x) {\n  %y = mul i64 %x, 6\n  ret i64 %y\n}\n"


def _no_symbol(name: str) -> int | None:
    return None


def resident_file_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssFile"].split()[0]) * 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_code_is_dropped_and_used_again() -> None:
    for _ in range(2):
        compile_library(TEXT, host_target(), _no_symbol)
        before = resident_file_bytes()
        release_code_pages()
        assert resident_file_bytes() < before - (10 << 20)
