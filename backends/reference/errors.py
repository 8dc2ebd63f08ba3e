"""The one exception by which the interpreter says that a program cannot be run on its inputs."""

from __future__ import annotations

from xdsl.ir import Operation


class ExecutionError(Exception):
    """A program does what its dialect forbids, such as an access out of bounds, or its inputs do not fit it."""


def failure(op: Operation, message: str) -> ExecutionError:
    """Return the error that `op` cannot be executed, with the first line of its text."""
    text = str(op).partition("\n")[0].strip()
    return ExecutionError(f"`{op.name}`: {message}\n  in: {text}")
