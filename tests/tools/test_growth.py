"""Nothing stays behind when graphs are compiled and forgotten, however many."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("recompile.py")


def recompile(backend: str, number: int, warm: int) -> dict[str, Any]:
    """Return what `recompile.py` prints."""
    arguments = [sys.executable, str(PROGRAM), backend, str(number), str(warm)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_no_object_and_no_code_stays_behind() -> None:
    grown = recompile("tilewright", 24, 12)
    assert grown["objects"] == {}
    assert grown["libraries"] == 0


@pytest.mark.long
def test_memory_over_a_thousand_recompilations() -> None:
    """torch's own caches grow by 0.1 MB a graph; ours do not."""
    grown, torchs = recompile("tilewright", 1000, 200), recompile("aot_eager", 1000, 200)
    assert grown["objects"] == {}
    assert grown["libraries"] == 0
    assert grown["bytes"] - torchs["bytes"] < 16 << 20
