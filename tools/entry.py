"""What the command line tools share at their outermost: every failure is an error message and an exit status."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from xdsl.utils.exceptions import ArgSpecParseError, ShrinkException

from tilewright.tools.source import SourceError, describe


def run_tool(program: str, execute: Callable[[], int]) -> int:
    """Return the exit status of `execute`; 1, after a message to standard error, for whatever it raises."""
    try:
        with no_garbage_collection():
            return execute()
    except SourceError as error:
        print(error, file=sys.stderr)
    except ArgSpecParseError as error:
        print(f"{program}: error: {str(error).strip()}", file=sys.stderr)
    except BrokenPipeError:
        # Whoever read the output has what they wanted. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ShrinkException:
        raise
    except Exception as error:  # noqa: BLE001 (the last resort)
        print(f"{program}: internal error: {describe(error)}", file=sys.stderr)
    return 1


@contextmanager
def no_garbage_collection() -> Generator[None]:
    """Keep the collector from walking the IR again and again while it is built."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
