"""The processes that compile: started when they are wanted, kept for the next kernel, gone with this process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_WORKER = Path(__file__).with_name("worker.py")
_PATIENCE_S = 2.0
"""How long a process that is still compiling is waited for when nobody wants the result any more."""


@dataclass(frozen=True)
class Answer:
    """What a worker found, or why it has no answer; and what was printed meanwhile."""

    facts: dict[str, object]
    error: str | None
    printed: str


class _Worker:
    """One process. It ends when its input is closed, which this process's end does, too."""

    def __init__(self) -> None:
        # What Triton does must follow from the request alone: its settings in the environment are left out.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("TRITON_", "MLIR_", "LLVM_", "NVPTX_"))}
        environment["TRITON_DISABLE_LINE_INFO"] = "1"
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # an interrupt from the keyboard is for this process alone
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout
        self._finalizer = weakref.finalize(self, _end, self._process)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def ask(self, request: dict[str, object]) -> dict[str, object] | None:
        """Return the answer; None if the process ended instead."""
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            line = self._answers.readline()
        except OSError:
            return None
        return json.loads(line) if line.endswith("\n") else None

    def end(self) -> int:
        """End the process and return its exit status."""
        self._finalizer()
        return self._process.returncode


def _end(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with contextlib.suppress(OSError):
            stream.close()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Workers:
    """Processes that are not in use. A thread takes one for a request, or starts one where there is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._owner = os.getpid()

    def compile(self, name: str, text: str, arch: int, options: dict[str, object], *, stages: bool) -> Answer:
        """Compile the kernel `name` in a folder that is gone afterwards; with `stages` show every text on the way."""
        worker = self._take()
        file = f"{name}.ttir"
        with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
            Path(folder, file).write_text(text, encoding="utf-8")
            request: dict[str, object] = {
                "folder": folder,
                "file": file,
                "arch": arch,
                "options": options,
                "stages": stages,
            }
            answer = worker.ask(request)
            if answer is None:
                status = worker.end()
                error: str | None = f"triton ended with status {status}"
            else:
                given = answer.get("error")
                error = given if isinstance(given, str) else None
                self._give_back(worker)
            printed = Path(folder, "printed")
            seen = printed.read_text(encoding="utf-8", errors="replace") if printed.exists() else ""
        return Answer(answer or {}, error, seen)

    def keep(self, count: int) -> None:
        """End the processes that are not in use, but for `count` of them."""
        with self._lock:
            ending, self._idle = self._idle[count:], self._idle[:count]
        for worker in ending:
            worker.end()

    def _take(self) -> _Worker:
        with self._lock:
            if self._owner != os.getpid():
                # A child of fork has the pipes of its parent, and must not use them.
                self._idle, self._owner = [], os.getpid()
            while self._idle:
                worker = self._idle.pop()
                if not worker.ended:
                    return worker
        return _Worker()

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            self._idle.append(worker)
