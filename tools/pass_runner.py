"""Run passes on a module that was read from a file; whatever goes wrong becomes an error for the user."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException, ShrinkException

from tilewright.dialects.verifier import InvalidOperation
from tilewright.tools.observers import Observer, Timer
from tilewright.tools.reproducer import write_reproducer
from tilewright.tools.source import ParsedModule, SourceError, describe, one_line, read_module


@dataclass(frozen=True)
class PassRunner:
    """Runs `passes` in order, watched by `observers`."""

    context: Context
    passes: Sequence[ModulePass]
    observers: Sequence[Observer] = ()
    timer: Timer | None = None
    """One of the observers, which measures verification too."""
    verify_each: bool = True
    reproducer: str | None = None
    """Where to write the module on which a pass crashed; without a path, under a name of its own."""

    def run(self, parsed: ParsedModule) -> list[SourceError]:
        """Run the passes on `parsed.module`, up to the first that fails; return what is wrong with that one."""
        for number, running in enumerate(self.passes):
            for observer in self.observers:
                observer.before(running, parsed.module)
            error = self._apply(number, parsed)
            if error is not None:
                return [error]
            for observer in reversed(self.observers):
                observer.after(running, parsed.module)
            errors = self._verify(running, parsed) if self.verify_each else []
            if errors:
                where = self._reproduce(number, parsed, errors[0])
                return [*errors[:-1], extended(errors[-1], where)]
        return []

    def _apply(self, number: int, parsed: ParsedModule) -> SourceError | None:
        running = self.passes[number]
        try:
            running.apply(self.context, parsed.module)
        except ShrinkException:
            raise
        except InvalidOperation as error:
            return parsed.error_at(error.op, f"pass `{running.name}`: {one_line(str(error))}")
        except DiagnosticException as error:
            return parsed.source.error(f"pass `{running.name}`: {one_line(str(error))}")
        except Exception as error:  # noqa: BLE001 (a bug of the pass, to be reported with what it takes to see it again)
            found = parsed.source.error(f"pass `{running.name}` crashed: {describe(error)}")
            return extended(found, self._reproduce(number, parsed, error))
        return None

    def _verify(self, running: ModulePass, parsed: ParsedModule) -> list[SourceError]:
        with nullcontext() if self.timer is None else self.timer.measure("verify"):
            errors = list(parsed.verify())
        return [SourceError(e.name, f"after pass `{running.name}`: {e.message}", e.location, e.excerpt) for e in errors]

    def _reproduce(self, number: int, parsed: ParsedModule, error: Exception) -> str:
        """Write a reproducer for a pass; return a sentence that says where, or why there is none.

        The module has been changed by then. Passes keep no state, so those before give again what they gave.
        """
        try:
            again = read_module(self.context, parsed.source)
            for earlier in self.passes[:number]:
                earlier.apply(self.context, again.module)
            path = write_reproducer(self.reproducer, str(again.module), str(self.passes[number].spec()), error)
        except Exception as second:  # noqa: BLE001 (a second error must not hide the first)
            return f"no reproducer: {describe(second)}"
        return f"reproducer: {path} (run with --run-reproducer)"


def extended(error: SourceError, line: str) -> SourceError:
    """Return `error` with one more line below its excerpt."""
    excerpt = f"{error.excerpt}\n{line}" if error.excerpt else line
    return SourceError(error.name, error.message, error.location, excerpt)
