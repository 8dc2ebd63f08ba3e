"""How a kernel on the CPU level says that a check failed.

Such a kernel returns a status of type i32: 0, or the number from one on of the text in its attribute `cpu.errors` that
stands for the exception; see `dialects/loop_check.py`. A kernel without checks returns nothing.
"""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr, i32
from xdsl.dialects.func import FuncOp
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.loop_check import split_error
from tilewright.dialects.type_guards import is_array

ERRORS = "cpu.errors"
"""The attribute of a kernel's function with the texts of its checks."""


def errors_of(kernel: FuncOp) -> tuple[str, ...]:
    """Return the texts of the exceptions that the status of a kernel stands for; none if it has no checks.

    Raises `VerifyException` where they are malformed or the kernel does not return a status.
    """
    given = kernel.attributes.get(ERRORS)
    if given is None:
        return ()
    texts = [t.data for t in given.data if isinstance(t, StringAttr)] if is_array(given) else []
    if not is_array(given) or not texts or len(texts) != len(given.data):
        raise VerifyException(f"`{ERRORS}` is {given}, expected a list of texts")
    if list(kernel.function_type.outputs) != [i32]:
        raise VerifyException(f"a kernel with `{ERRORS}` returns a status of type i32")
    for text in texts:
        split_error(text)
    return tuple(texts)


def exception_of(errors: tuple[str, ...], status: int) -> Exception:
    """Return the exception that a status other than 0 stands for."""
    kind, message = split_error(errors[status - 1])
    return kind(message)
