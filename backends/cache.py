"""A folder of compiled objects, shared by any number of processes.

An entry's file name is the hash of everything that the object depends on, so an entry is never out of date. It is
written under another name and moved into place, so a reader sees it whole or not at all, and it carries a checksum,
because LLVM and CUDA load and run an object with flipped bytes. The cache never raises: what cannot be read is compiled
again, what cannot be written is not kept.
"""

import contextlib
import hashlib
import os
import tempfile
import threading
import time
from pathlib import Path

_MAGIC = b"tilewright object 1\n"
_DIGEST_SIZE = hashlib.sha256().digest_size
_SUFFIX = ".obj"
_PARTIAL_SUFFIX = ".tmp"
_PARTIAL_LIFETIME_S = 3600.0

# Eviction goes this far below the limit, so that it does not run at every write.
_KEPT_FRACTION = 0.8


class ObjectCache:
    """At most `max_bytes` of entries in `directory`; the least recently used go first."""

    def __init__(self, directory: Path, max_bytes: int = 1 << 30):
        self._directory = directory
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._known_bytes: int | None = None

    def get(self, key: str) -> bytes | None:
        """Return the entry, or None if there is none; one that is damaged is removed."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        header = len(_MAGIC) + _DIGEST_SIZE
        value = content[header:]
        if content[:header] != _MAGIC + hashlib.sha256(value).digest():
            _remove(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Write an entry, then remove old ones if there are too many bytes."""
        path = self._path(key)
        content = _MAGIC + hashlib.sha256(value).digest() + value
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, partial = tempfile.mkstemp(suffix=_PARTIAL_SUFFIX, dir=path.parent)
        except OSError:
            return
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
            os.replace(partial, path)
        except OSError:
            _remove(Path(partial))
            return
        self._account(len(content))

    def _path(self, key: str) -> Path:
        return self._directory / key[:2] / f"{key}{_SUFFIX}"

    def _account(self, added: int) -> None:
        with self._lock:
            if self._known_bytes is not None:
                self._known_bytes += added
                if self._known_bytes <= self._max_bytes:
                    return
            self._known_bytes = self._evict()

    def _evict(self) -> int:
        """Remove what is too much, and partial files that a killed process left; return how many bytes stay."""
        entries: list[tuple[float, int, Path]] = []
        for path in self._directory.glob(f"*/*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                status = path.stat()
                entries.append((status.st_mtime, status.st_size, path))
        for path in self._directory.glob(f"*/*{_PARTIAL_SUFFIX}"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _PARTIAL_LIFETIME_S:
                    _remove(path)
        total = sum(size for _, size, _ in entries)
        if total <= self._max_bytes:
            return total
        for _, size, path in sorted(entries):
            if total <= self._max_bytes * _KEPT_FRACTION:
                break
            _remove(path)
            total -= size
        return total


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
