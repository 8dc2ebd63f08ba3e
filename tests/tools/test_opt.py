"""`tilewright-opt` never shows a traceback, and what crashes can be seen again."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.test import TestOp as AnyOp
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from tilewright.tools import opt
from tilewright.tools.opt import OptMain
from tilewright.tools.pipeline_text import describe_pass, parse_passes
from tilewright.tools.source import Source, SourceError, read_module
from tilewright.tools.universe import make_context

LIT_TESTS = Path(__file__).resolve().parents[2] / "lit_tests"
FUNCTION = "func.func @f(%x : i32) -> i32 {\n  %y = arith.addi %x, %x : i32\n  func.return %y : i32\n}\n"


def first(op: Operation) -> Operation:
    """Return the first operation inside another."""
    found = op.regions[0].block.first_op
    assert found is not None
    return found


@dataclass(frozen=True)
class RenamePass(ModulePass):
    """Change the name of the first function."""

    name = "test-rename"

    to: str = "g"
    """The new name."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        first(op).properties["sym_name"] = StringAttr(self.to)


@dataclass(frozen=True)
class CrashPass(ModulePass):
    """Break the module, then crash."""

    name = "test-crash"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        op.body.block.erase_op(first(op))
        raise IndexError("list index out of range")


@dataclass(frozen=True)
class FailPass(ModulePass):
    """Refuse any module."""

    name = "test-fail"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        raise PassFailedException("expected something else\nentirely")


@dataclass(frozen=True)
class InvalidPass(ModulePass):
    """Put a use before its definition."""

    name = "test-invalid"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        function = first(op)
        defining = first(function)
        function.regions[0].block.insert_op_before(AnyOp.create(operands=[defining.results[0]]), defining)


def factory(found: type[ModulePass]) -> Callable[[], type[ModulePass]]:
    return lambda: found


TEST_PASSES = {p.name: factory(p) for p in (RenamePass, CrashPass, FailPass, InvalidPass)}


@pytest.fixture(autouse=True)
def test_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tool know the passes above, as passes of ours."""
    known = {**opt.all_passes(), **TEST_PASSES}
    monkeypatch.setattr(opt, "all_passes", lambda: known)
    monkeypatch.setattr(opt, "PASSES", {**opt.PASSES, **dict.fromkeys(TEST_PASSES, "")})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.ir"
    path.write_text(FUNCTION)
    return path


def reproducer_of(error: str) -> Path:
    match = re.search(r"reproducer: (\S+) \(run with --run-reproducer\)", error)
    assert match is not None, error
    return Path(match[1])


def test_a_crash_leaves_a_reproducer(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main([str(file), "-p", "test-rename{to=h},test-crash,test-rename"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{file}: error: pass `test-crash` crashed: IndexError: list index out of range\n")
    assert "Traceback" not in error
    reproducer = reproducer_of(error)
    text = reproducer.read_text()
    # The module as it was before the pass, and after those before it.
    assert "@h" in text
    assert "// PIPELINE: test-crash\n" in text
    assert "// IndexError: list index out of range\n" in text

    assert opt.main([str(reproducer), "--run-reproducer"]) == 1
    error = capsys.readouterr().err
    assert "pass `test-crash` crashed: IndexError: list index out of range" in error
    reproducer.unlink()
    reproducer_of(error).unlink(missing_ok=True)


def test_a_reproducer_goes_where_it_is_wanted(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = tmp_path / "wanted.ir"
    assert opt.main([str(file), "-p", "test-crash", "--reproducer", str(wanted)]) == 1
    assert reproducer_of(capsys.readouterr().err) == wanted
    missing = tmp_path / "none" / "wanted.ir"
    assert opt.main([str(file), "-p", "test-crash", "--reproducer", str(missing)]) == 1
    error = capsys.readouterr().err
    assert "pass `test-crash` crashed" in error
    assert "no reproducer: FileNotFoundError" in error


def test_a_pass_that_fails_cleanly_leaves_none(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main([str(file), "-p", "test-fail"]) == 1
    assert capsys.readouterr().err == f"{file}: error: pass `test-fail`: expected something else entirely\n"


def test_a_pass_that_makes_an_invalid_module_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main([str(file), "-p", "test-rename,test-invalid,cse"]) == 1
    error = capsys.readouterr().err
    message = "operand 0 of `test.op`, %y, the result of `arith.addi`, is not defined where it is used"
    # The operation is new: what is shown is where the one around it was read.
    assert error.startswith(f"{file}:1:1: error: after pass `test-invalid`: {message}\n  func.func @f(%x : i32)")
    reproducer_of(error).unlink()


def test_verification_after_each_pass_can_be_left_out(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main([str(file), "-p", "test-invalid", "--no-verify-each"]) == 0
    assert '"test.op"(%y)' in capsys.readouterr().out


def test_nothing_is_written_to_a_file_where_something_is_wrong(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.ir"
    assert opt.main([str(file), "-p", "test-fail", "-o", str(out)]) == 1
    assert not out.exists()
    assert opt.main([str(file), "-p", "test-rename", "-o", str(out)]) == 0
    assert "@g" in out.read_text()


def test_the_last_resort(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(self: OptMain) -> int:
        raise KeyError("bug")

    monkeypatch.setattr(OptMain, "execute", fail)
    assert opt.main([str(file)]) == 1
    assert capsys.readouterr().err == "tilewright-opt: internal error: KeyError: 'bug'\n"


@pytest.mark.parametrize("start", ['"test.op"() ({\n', "func.func @f(%x : " + "tuple<" * 1000])
def test_deep_nesting(start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep = tmp_path / "deep.ir"
    deep.write_text(start * 2000)
    assert opt.main([str(deep)]) == 1
    assert "error: nested too deeply" in capsys.readouterr().err


def test_a_module_too_deep_to_verify() -> None:
    op = AnyOp.create()
    for _ in range(2000):
        op = AnyOp.create(regions=[Region(Block([op]))])
    parsed = read_module(make_context(), Source("f.ir", FUNCTION))
    parsed.module.body.block.add_op(op)
    assert [e.message for e in parsed.verify()] == ["operations are nested too deeply"]


@pytest.mark.parametrize("text", ["9" * 5000, "0x" + "f" * 5000, "1e" + "9" * 400])
def test_huge_numbers(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "huge.ir"
    file.write_text(f'"test.op"() {{a = #sym.expr<{text}>}} : () -> ()\n')
    assert opt.main([str(file)]) == 1
    assert re.search(r"huge.ir:1:\d+: error: ", capsys.readouterr().err)


def test_a_reader_that_leaves(file: Path) -> None:
    file.write_text("".join(FUNCTION.replace("@f", f"@f{i}") for i in range(2000)))
    command = f"{sys.executable} -m tilewright.tools.opt {file} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout == "builtin.module {\n"
    assert done.stderr == ""


TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[%#!@^]?[A-Za-z_][\w.$]*|\d+(?:\.\d+)?|->|\s+|.', re.DOTALL)
ODD = ["99999999999999999999", "-", "\0", "\xff", "½", '"', "<", ">", "(", "{", "}", "[", "]", "loc(", "dense<", "?"]


def token_lists() -> list[list[str]]:
    """Return the tokens of each module in the lit tests of dialects."""
    texts = [p for f in sorted((LIT_TESTS / "dialects").rglob("*.ir")) for p in f.read_text().split("// -----")]
    code = ["\n".join(line for line in t.split("\n") if not line.lstrip().startswith("//")) for t in texts]
    return [TOKEN.findall(c) for c in code if len(c) < 4000]


def mutated(tokens: list[str], pool: list[str], draw: random.Random) -> str:
    tokens = list(tokens)
    for _ in range(draw.choice([1, 1, 2, 4])):
        i = draw.randrange(len(tokens))
        match draw.randrange(6):
            case 0:
                tokens[i] = draw.choice(pool)
            case 1:
                tokens[i] = draw.choice(ODD)
            case 2:
                tokens.insert(i, draw.choice(pool + ODD))
            case 3:
                del tokens[i : i + draw.randrange(1, 6)]
                tokens = tokens or [" "]
            case 4:
                tokens[i:i] = tokens[i : i + draw.randrange(1, 12)]
            case _:
                j = draw.randrange(len(tokens))
                tokens[i], tokens[j] = tokens[j], tokens[i]
    return "".join(tokens)


def first_error(text: str) -> SourceError | None:
    """Read and verify a text; what is printed must read back as the same module."""
    try:
        parsed = read_module(make_context(), Source("f.ir", text))
    except SourceError as error:
        return error
    for error in parsed.verify():
        return error
    again = read_module(make_context(), Source("printed.ir", str(parsed.module)))
    assert str(again.module) == str(parsed.module), text
    return None


@pytest.mark.parametrize("seed", range(4))
def test_mutated_files_are_read_or_refused_with_a_place(seed: int) -> None:
    draw = random.Random(seed)
    originals = token_lists()
    pool = sorted({t for tokens in originals for t in tokens if not t.isspace()})
    texts = [mutated(draw.choice(originals), pool, draw) for _ in range(200)]
    errors = [(text, error) for text in texts if (error := first_error(text)) is not None]
    assert len(errors) > 100
    for text, error in errors:
        assert re.match(r"f\.ir:\d+:\d+: error: .", error.headline()), text
        assert "\n" not in error.message, text


@pytest.mark.parametrize("seed", range(2))
def test_bytes_are_refused(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bytes.ir"
    file.write_bytes(random.Random(seed).randbytes(2000))
    assert opt.main([str(file)]) == 1
    assert re.match(rf"{re.escape(str(file))}:\d+:\d+: error: ", capsys.readouterr().err)


def test_the_text_of_a_pass_runs_the_same_pass() -> None:
    (given,) = parse_passes('test-rename{to="a b"}', TEST_PASSES, {})
    assert given == RenamePass("a b")
    assert parse_passes(str(given.spec()), TEST_PASSES, {}) == [given]


def test_a_named_pipeline_has_no_names_in_it() -> None:
    assert parse_passes("@two", TEST_PASSES, {"two": "test-fail,test-fail"}) == [FailPass(), FailPass()]
    with pytest.raises(SourceError, match="there is no pipeline `two`"):
        parse_passes("@two", TEST_PASSES, {"two": "@two"})


def test_the_description_of_a_pass_has_its_options() -> None:
    text = describe_pass(RenamePass)
    assert "Change the name of the first function." in text
    assert "  to: str = g\n      The new name." in text
    assert "no options" in describe_pass(FailPass)
