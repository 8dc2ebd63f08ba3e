"""Cubins: every operation compiles, errors say where, equal kernels are compiled once, and nothing leaks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.backends.triton.conftest import needs_triton, read
from tests.backends.triton.kernels import BODIES, kernel_text

from tilewright.backends.cache import ObjectCache
from tilewright.backends.triton import compile as triton_compile
from tilewright.backends.triton import ttir, workers
from tilewright.backends.triton.compile import CompileError, Cubin, compile_kernel, compile_kernels, compile_stages
from tilewright.backends.triton.ttir import ALL_EXPECTED, Expected
from tilewright.dialects.tt import FuncOp
from tilewright.tools.compile import run_passes
from tilewright.tools.source import Source, read_module
from tilewright.tools.universe import make_context

SMALL = """tt.func public @small(%x : !tt.ptr<f32> {tt.divisibility = 16 : i32}) attributes {num_warps = 2 : i32} {
  %c = arith.constant 1.0 : f32
  tt.store %x, %c : !tt.ptr<f32>
  tt.return
}
"""


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("name", BODIES)
def test_each_operation_compiles(name: str, arch: int) -> None:
    stages = compile_stages(read(kernel_text(name)), arch)
    cubin = stages.cubin
    assert cubin.image.startswith(b"\x7fELF")
    assert (cubin.name, cubin.arch, cubin.num_warps, cubin.parameters) == (name, arch, 4, 3)
    assert re.search(rf"^\.target sm_{arch}", stages.ptx, re.MULTILINE)
    assert ("__assertfail" in stages.ptx) == (name == "memory")


@needs_triton
def test_hidden_parameters_are_pointers_behind_the_arguments() -> None:
    stages = compile_stages(read(SMALL), 90)
    kinds = re.findall(r"\.param \.(\w+)(?: \.ptr)?", stages.ptx.partition(".entry")[2].partition(")")[0])
    assert kinds == ["u64"] * (stages.cubin.parameters + stages.cubin.hidden)
    assert stages.cubin.hidden == 2


@needs_triton
def test_no_operations_are_fused_and_no_denormals_flushed() -> None:
    body = """tt.func public @f(%x : !tt.ptr<f32>) {
  %v = tt.load %x : !tt.ptr<f32>
  %e = tt.extern_elementwise %v {libname = "libdevice", libpath = "", symbol = "__nv_expf", pure = true} : (f32) -> f32
  %p = arith.mulf %e, %v : f32
  %s = arith.addf %p, %v : f32
  tt.store %x, %s : !tt.ptr<f32>
  tt.return
}
"""
    ptx = compile_stages(read(body), 90).ptx
    assert "mul.rn.f32" in ptx
    assert "add.rn.f32" in ptx
    # The exponential of CUDA itself has this one instruction, on an argument and result that it scales.
    assert ".ftz" not in ptx.replace("ex2.approx.ftz", "")


@needs_triton
@pytest.mark.slow
def test_16_bytes_are_moved_at_a_time_where_lengths_allow_it() -> None:
    """Lengths that are arguments, and those of a merged launch, which a program chooses its own of."""
    kind = 'memref<{0}xf32, #sym.layout<[{0}], [1], device "cuda:0">>'
    launches = [f"host.launch @negate(%x{n}) symbols [{n}] : {kind.format(n)}" for n in (1024, 4096, 2000)]
    arguments = ", ".join(f"%x{n} : {kind.format(n)}" for n in (1024, 4096, 2000))
    program = f"func.func @forward({arguments}) {{ {' '.join(launches)} func.return }}"
    loops = """
    !x = memref<?xf32, #sym.layout<[n0], [1]>>
    loop.kernel @negate(%y : !x) symbols [n0] attributes {device = "cuda"} {
      loop.nest (%i : n0) {
        %v = loop.load %y[%i] : !x -> f32
        %w = arith.negf %v : f32
        loop.store %w, %y[%i] : f32, !x
      }
    }
    """
    context = make_context()
    module = read_module(context, Source("<test>", loops + program)).module

    def widths(name: str, expected: Expected = ALL_EXPECTED) -> set[str]:
        (kernel,) = (op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == name)
        return set(re.findall(r"ld\.global\.(\S+)", compile_stages(kernel, 90, expected).ptx))

    run_passes(module, context, "loop-tile-blocks,convert-loop-to-tt")
    assert widths("negate") == widths("negate_wide") == {"v4.b32"}
    assert widths("negate", Expected(sizes=False)) == {"b32"}
    run_passes(module, context, "tt-merge-launches")
    assert widths("negate_x3") == {"v4.b32"}


@needs_triton
def test_a_cubin_depends_on_the_kernel_alone() -> None:
    first, second = (compile_kernel(read(kernel_text("memory")), 90) for _ in range(2))
    assert first == second


@needs_triton
def test_an_unaligned_kernel_is_another_one() -> None:
    kernel = read(kernel_text("casts"))
    assert compile_kernel(kernel, 90) != compile_kernel(kernel, 90, expected=Expected(pointers=False))


@needs_triton
def test_many_kernels_come_back_in_order() -> None:
    names = [f"small_{i}" for i in range(5)]
    cubins = compile_kernels([(read(SMALL.replace("@small", f"@{n}")), ALL_EXPECTED) for n in names], 80)
    assert [c.name for c in cubins] == names
    assert {c.num_warps for c in cubins} == {2}


@needs_triton
def test_the_cache_is_asked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, kernel = ObjectCache(tmp_path), read(SMALL)
    made = compile_kernel(kernel, 90, cache=cache)

    def no_compiler(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(triton_compile, "_compile", no_compiler)
    assert compile_kernel(kernel, 90, cache=cache) == made
    with pytest.raises(AssertionError):
        compile_kernel(kernel, 80, cache=cache)
    with pytest.raises(AssertionError):
        compile_kernel(kernel, 90, cache=cache, expected=Expected(pointers=False))


@needs_triton
def test_a_damaged_entry_is_compiled_again(tmp_path: Path) -> None:
    cache, kernel = ObjectCache(tmp_path), read(SMALL)
    made = compile_kernel(kernel, 90, cache=cache)
    (entry,) = (p for p in tmp_path.rglob("*") if p.is_file())
    content = bytearray(entry.read_bytes())
    content[-10] ^= 1
    entry.write_bytes(content)
    assert compile_kernel(kernel, 90, cache=cache) == made


@needs_triton
@pytest.mark.slow
def test_processes_share_a_cache(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from tests.backends.triton.conftest import read
from tilewright.backends.cache import ObjectCache
from tilewright.backends.triton.compile import compile_kernel
print(len(compile_kernel(read({SMALL!r}), 90, cache=ObjectCache(Path(sys.argv[1]))).image))
"""
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, env=environment)
        for _ in range(8)
    ]
    sizes = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0] * 8
    assert len(sizes) == 1
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 1


@needs_triton
def test_what_ptxas_refuses_is_said_in_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    kernel = read(
        """tt.func public @f(%x : !tt.ptr<i64>) {
  %v = tt.load %x : !tt.ptr<i64>
  %w = math.ctpop %v : i64
  %u = tt.extern_elementwise %w {libname = "", libpath = "", symbol = "nothing", pure = true} : (i64) -> i64
  tt.store %x, %u : !tt.ptr<i64>
  tt.return
}
"""
    )
    with pytest.raises(CompileError) as caught:
        compile_kernel(kernel, 90)
    assert str(caught.value) == ("triton cannot compile kernel `f`: ptxas says: Unresolved extern function 'nothing'")
    assert capfd.readouterr() == ("", "")


@needs_triton
def test_text_that_triton_cannot_parse_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    kernel = read(SMALL.replace("tt.return", "%e = loop.cast %c : f32 to f16\n  tt.return"))
    with pytest.raises(CompileError) as caught:
        compile_kernel(kernel, 90)
    message, line, mark = str(caught.value).split("\n")
    assert message.startswith("triton cannot compile kernel `small`: 5:10: ")
    assert "loop" in message
    assert line == "      %e = loop.cast %c : f32 to f16"
    assert mark.index("^") == line.index("loop.cast")
    assert capfd.readouterr() == ("", "")


@needs_triton
def test_a_compiler_that_dies_is_an_error_and_the_next_kernel_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_WORKER", Path(__file__).with_name("dying_worker.py"))
    pool = workers.Workers()
    assert pool.compile("k", "", 90, {}, stages=False).error == "triton ended with status -9"
    monkeypatch.undo()
    assert isinstance(compile_kernel(read(SMALL), 90), Cubin)


@needs_triton
def test_an_idle_compiler_that_is_gone_is_not_asked() -> None:
    compile_kernel(read(SMALL), 90)
    for child in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        for number in child.read_text().split():
            if b"worker.py" in Path(f"/proc/{number}/cmdline").read_bytes():
                os.kill(int(number), signal.SIGKILL)
                os.waitid(os.P_PID, int(number), os.WEXITED | os.WNOWAIT)
    assert isinstance(compile_kernel(read(SMALL), 90), Cubin)


@needs_triton
def test_neither_triton_nor_the_environment_come_into_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/nonexistent")
    before = dict(os.environ)
    known = "triton" in sys.modules
    compile_kernel(read(SMALL), 90)
    assert dict(os.environ) == before
    assert ("triton" in sys.modules) == known


def test_without_triton_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_compile, "installed_version", lambda: None)
    assert ttir.installed_version is not triton_compile.installed_version
    with pytest.raises(CompileError, match=r"triton is not installed.*pip install tilewright\[cuda\]"):
        compile_kernel(read(SMALL), 90)


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(CompileError, match="cannot compile for sm_91, expected one of 75, 80, "):
        compile_kernel(read(SMALL), 91)
