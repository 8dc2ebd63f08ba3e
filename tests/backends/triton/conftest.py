"""Kernels of the `tt` dialect as text; each test of this folder that compiles needs Triton, and no device."""

from __future__ import annotations

import pytest

from tilewright.backends.triton.ttir import installed_version
from tilewright.dialects.tt import FuncOp
from tilewright.tools.source import Source, read_module
from tilewright.tools.universe import make_context

needs_triton = pytest.mark.skipif(installed_version() is None, reason="triton is not installed")


def read(text: str) -> FuncOp:
    """Return the one kernel in a text, verified."""
    parsed = read_module(make_context(), Source("kernel.ir", text))
    assert list(parsed.verify()) == []
    (kernel,) = parsed.module.ops
    assert isinstance(kernel, FuncOp)
    return kernel
