"""The one exception by which the interpreter says that a program cannot be run on its inputs."""

from __future__ import annotations

from xdsl.ir import Operation

from tilewright.dialects.loop_check import split_error


class ExecutionError(Exception):
    """A program does what its dialect forbids, such as an access out of bounds, or its inputs do not fit it."""

    def __init__(self, message: str, op: Operation | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.op = op
        """The operation that cannot be executed, if it is known."""
        self.kernel: str | None = None
        """The kernel that the operation is in."""

    def __str__(self) -> str:
        kernel = "" if self.kernel is None else f", in kernel `@{self.kernel}`"
        if self.op is None:
            return self.message + kernel
        return f"{self.message}{kernel}\n  in: {summary(self.op)}"


class _CheckIndexError(ExecutionError, IndexError):
    pass


class _CheckRuntimeError(ExecutionError, RuntimeError):
    pass


_CHECK_ERRORS: dict[type[Exception], type[ExecutionError]] = {
    IndexError: _CheckIndexError,
    RuntimeError: _CheckRuntimeError,
}


def check_failure(op: Operation, error: str) -> ExecutionError:
    """Return the error of a failed check, which is also the exception that the text `error` stands for."""
    kind, message = split_error(error)
    return _CHECK_ERRORS[kind](message, op)


def failure(op: Operation, message: str) -> ExecutionError:
    """Return the error that `op` cannot be executed."""
    return ExecutionError(f"`{op.name}`: {message}", op)


def summary(op: Operation) -> str:
    """Return the first line of the text of `op`."""
    return str(op).partition("\n")[0].strip()
