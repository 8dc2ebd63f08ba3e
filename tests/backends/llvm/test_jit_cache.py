"""The folder of objects: whole entries only, damage noticed, many processes, bounded size."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.backends.cache import ObjectCache
from tilewright.backends.llvm.jit import CompileOptions, compile_library, object_key
from tilewright.backends.llvm.target import host_target

TEXT = "define i64 @f() {\n  ret i64 42\n}\n"


def entries(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def test_what_is_put_comes_back(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "new" / "folder")
    assert cache.get("ab12") is None
    cache.put("ab12", b"object")
    assert cache.get("ab12") == b"object"
    assert ObjectCache(tmp_path / "new" / "folder").get("ab12") == b"object"


@pytest.mark.parametrize("position", [0, 25, -1])
def test_damaged_entry_is_removed(tmp_path: Path, position: int) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("ab12", b"object" * 100)
    (path,) = entries(tmp_path)
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    assert cache.get("ab12") is None
    assert entries(tmp_path) == []


@pytest.mark.parametrize("kept", [0, 10, 60])
def test_cut_entry_is_removed(tmp_path: Path, kept: int) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("ab12", b"object" * 100)
    (path,) = entries(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    assert cache.get("ab12") is None


def test_compiles_once_and_again_after_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def must_not_compile(*_: object) -> None:
        pytest.fail("compiled again")

    cache, target = ObjectCache(tmp_path), host_target()
    compile_library(TEXT, target, lambda _: None, store=cache)
    key = object_key(TEXT, target, CompileOptions())
    assert [path.stem for path in entries(tmp_path)] == [key]
    with monkeypatch.context() as patch:
        patch.setattr("tilewright.backends.llvm.jit.compile_object", must_not_compile)
        assert compile_library(TEXT, target, lambda _: None, store=cache).functions == ("f",)
    entries(tmp_path)[0].write_bytes(b"garbage")
    assert compile_library(TEXT, target, lambda _: None, store=cache).functions == ("f",)
    assert cache.get(key) is not None


def test_size_is_bounded_and_the_oldest_go_first(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, max_bytes=10_000)
    now = time.time() - 1000
    for number in range(9):
        cache.put(f"{number:04d}", bytes(1000))
        os.utime(tmp_path / "00" / f"{number:04d}.obj", (now + number, now + number))
    os.utime(tmp_path / "00" / "0000.obj", (now + 100, now + 100))
    cache.put("9999", bytes(1500))
    assert sum(path.stat().st_size for path in entries(tmp_path)) <= 10_000
    assert cache.get("0001") is None
    assert cache.get("0000") == bytes(1000)
    assert cache.get("9999") == bytes(1500)


def test_partial_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    old, new = tmp_path / "ab" / "old.tmp", tmp_path / "ab" / "new.tmp"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (1, 1))
    ObjectCache(tmp_path).put("ab12", b"object")
    assert not old.exists()
    assert new.exists()


def test_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ObjectCache(tmp_path / "file")
    cache.put("ab12", b"object")
    assert cache.get("ab12") is None


WORKER = """
import sys
from pathlib import Path
from tilewright.backends.cache import ObjectCache
cache = ObjectCache(Path(sys.argv[1]), max_bytes=40_000)
for step in range(300):
    key = f"{step % 20:02d}ab"
    value = cache.get(key)
    assert value in (None, key.encode() * 500), key
    cache.put(key, key.encode() * 500)
"""


def test_many_processes(tmp_path: Path) -> None:
    """Writers of the same entries, readers and evictions at once: whatever is read is whole."""
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)]) for _ in range(4)]
    assert [worker.wait() for worker in workers] == [0] * 4
    assert not [path for path in entries(tmp_path) if path.suffix == ".tmp"]
