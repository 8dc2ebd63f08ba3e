"""Each lit test can fail: what it runs is checked, and each check belongs to a run."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

LIT_TESTS = Path(__file__).resolve().parents[2] / "lit_tests"
FILES = sorted(LIT_TESTS.rglob("*.ir"))

RUN = re.compile(r"//\s*RUN:(.*)")
# Of `FOO-NEXT:` the prefix is `FOO`.
DIRECTIVE = re.compile(r"//\s*([A-Z][A-Z0-9_-]*?)(?:-(?:NEXT|SAME|LABEL|NOT|DAG|EMPTY|COUNT-\d+))?:")
PREFIXES = re.compile(r"--?check-prefix(?:es)?[= ](\S+)")
TEMPORARY = re.compile(r"%t\S*")
EXPECTATION = re.compile(r"//.*\bexpected-error\b.*\{\{")
NOT_A_CHECK = {"RUN", "REQUIRES", "UNSUPPORTED", "XFAIL", "TODO", "NOTE"}


def runs(text: str) -> Iterator[str]:
    """Yield the commands of a lit test: continuation lines joined, `a && b` apart."""
    command = ""
    for line in RUN.findall(text):
        command += line.strip()
        if command.endswith("\\"):
            command = command[:-1]
            continue
        yield from command.split("&&")
        command = ""


def checks(command: str, text: str) -> bool:
    """Tell whether a wrong output or exit status, beyond a crash, makes a command of a lit test fail."""
    last = command.rpartition("|")[2].split()
    if last and (last[0] in ("filecheck", "diff", "not", "!") or "--compare" in last):
        return True
    # Without a comment that expects an error, any valid input passes.
    return "--verify-diagnostics" in last and EXPECTATION.search(text) is not None


def unchecked_runs(text: str) -> list[str]:
    """Return the commands whose output nothing looks at, be it by way of a temporary file."""
    commands = list(runs(text))
    checked = [command for command in commands if checks(command, text)]
    read = {name for command in checked for name in TEMPORARY.findall(command)}
    return [c for c in commands if c not in checked and not read.intersection(TEMPORARY.findall(c))]


def dead_checks(text: str) -> set[str]:
    """Return the check prefixes that no run uses."""
    used: set[str] = set()
    for command in runs(text):
        if "filecheck" in command:
            named = PREFIXES.findall(command)
            used.update(prefix for names in named for prefix in names.split(","))
            used.update([] if named else ["CHECK"])
    return set(DIRECTIVE.findall(text)) - used - NOT_A_CHECK


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(LIT_TESTS)))
def test_each_run_is_checked(file: Path) -> None:
    text = file.read_text()
    assert list(runs(text)) != []
    assert unchecked_runs(text) == []
    assert dead_checks(text) == set()


@pytest.mark.parametrize(
    "text",
    [
        "// RUN: tilewright-opt %s -p dce\n// CHECK: func.func",
        "// RUN: tilewright-opt %s | tilewright-opt --verify-diagnostics",
        "// RUN: not tilewright-opt %s && tilewright-opt %s",
        "// RUN: tilewright-opt %s -o %t\n// RUN: filecheck %s < %t2",
    ],
)
def test_an_unchecked_run_is_found(text: str) -> None:
    assert unchecked_runs(text) != []


@pytest.mark.parametrize(
    "text",
    [
        "// RUN: tilewright-opt %s \\\n// RUN:   -p dce | filecheck %s",
        "// RUN: not tilewright-opt %s",
        "// RUN: tilewright-opt %s --verify-diagnostics\n// expected-error @below {{no such operation}}",
        "// RUN: tilewright-opt %s -o %t && diff %t %S/expected.ir",
    ],
)
def test_a_checked_run_is_accepted(text: str) -> None:
    assert unchecked_runs(text) == []


def test_a_dead_check_is_found() -> None:
    text = "// RUN: tilewright-opt %s | filecheck %s --check-prefix=A\n// A-LABEL: x\n// CHECK-NEXT: y"
    assert dead_checks(text) == {"CHECK"}
