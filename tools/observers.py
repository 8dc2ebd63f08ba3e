"""What can watch a pipeline run: timing, statistics, printing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Protocol

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.printer import Printer

# How many kinds of operations a row of the statistics names.
_MAX_CHANGES = 8


class Observer(Protocol):
    """Sees the module before and after each pass, and says what it has to say at the end."""

    def before(self, running: ModulePass, module: ModuleOp) -> None: ...

    def after(self, running: ModulePass, module: ModuleOp) -> None: ...

    def finish(self, out: IO[str]) -> None: ...


@dataclass
class Timer:
    """Seconds per stage, in order of first appearance; passes are stages too, numbered as they ran."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    passes: int = 0
    _start: float = 0.0

    @contextmanager
    def measure(self, stage: str) -> Generator[None]:
        """Add the time spent inside to `stage`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def before(self, running: ModulePass, module: ModuleOp) -> None:
        self._start = time.perf_counter()

    def after(self, running: ModulePass, module: ModuleOp) -> None:
        self.passes += 1
        self.seconds[f"{self.passes}. {running.name}"] = time.perf_counter() - self._start

    def finish(self, out: IO[str]) -> None:
        total = sum(self.seconds.values())
        print("// timing", file=out)
        for stage, spent in (*self.seconds.items(), ("total", total)):
            share = 100 * spent / total if total else 0.0
            print(f"// {1000 * spent:10.2f} ms {share:5.1f} %  {stage}", file=out)


def _count(module: ModuleOp) -> Counter[str]:
    return Counter(op.name for op in module.walk())


@dataclass
class Statistics:
    """The number of operations before and after each pass, and the kinds whose number changed most."""

    rows: list[tuple[str, Counter[str], Counter[str]]] = field(
        default_factory=list[tuple[str, Counter[str], Counter[str]]]
    )
    _before: Counter[str] = field(default_factory=Counter[str])

    def before(self, running: ModulePass, module: ModuleOp) -> None:
        self._before = _count(module)

    def after(self, running: ModulePass, module: ModuleOp) -> None:
        self.rows.append((running.name, self._before, _count(module)))

    def finish(self, out: IO[str]) -> None:
        print("// operations before and after each pass", file=out)
        for name, before, after in self.rows:
            changes = {op: after[op] - before[op] for op in sorted({*before, *after}) if after[op] != before[op]}
            largest = sorted(changes.items(), key=lambda item: -abs(item[1]))[:_MAX_CHANGES]
            text = ", ".join(f"{delta:+} {op}" for op, delta in largest) or "no change of numbers"
            more = f", {len(changes) - len(largest)} more kinds" if len(changes) > len(largest) else ""
            print(f"// {before.total():7} -> {after.total():7}  {name}: {text}{more}", file=out)


@dataclass
class IRPrinter:
    """Print the module before and after the passes of some names; None stands for all passes, but not after `last`."""

    out: IO[str]
    names_before: Collection[str] | None = ()
    names_after: Collection[str] | None = ()
    last: ModulePass | None = None
    generic: bool = False

    def before(self, running: ModulePass, module: ModuleOp) -> None:
        if self.names_before is None or running.name in self.names_before:
            self._print(f"IR before {running.name}", module)

    def after(self, running: ModulePass, module: ModuleOp) -> None:
        if running.name in self.names_after if self.names_after is not None else running is not self.last:
            self._print(f"IR after {running.name}", module)

    def finish(self, out: IO[str]) -> None:
        pass

    def _print(self, heading: str, module: ModuleOp) -> None:
        print(f"// {heading}", file=self.out)
        Printer(stream=self.out, print_generic_format=self.generic).print_op(module)
        print(file=self.out)
