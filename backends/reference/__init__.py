"""The reference interpreter: runs every level above machine code on torch tensors, slowly and with checks."""

from tilewright.backends.reference.errors import ExecutionError
from tilewright.backends.reference.interpreter import run_function

__all__ = ["ExecutionError", "run_function"]
