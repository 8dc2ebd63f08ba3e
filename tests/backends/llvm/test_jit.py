"""Compilation and loading: semantics kept, errors told, code released, many threads."""

import ctypes
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tilewright.backends.llvm.elf import object_symbols
from tilewright.backends.llvm.jit import (
    CompileError,
    CompileOptions,
    compile_library,
    compile_object,
    emit_assembly,
    emit_optimized_ir,
    load_object,
    object_key,
)
from tilewright.backends.llvm.target import Target, UnsupportedTargetError, host_target

PROCESS = ctypes.CDLL(None)
TARGET = host_target()
AARCH64 = Target("aarch64-unknown-linux-gnu", "neoverse-v1", "", 128)
X86 = Target("x86_64-unknown-linux-gnu", "znver4", "", 512)


def resolve(name: str) -> int | None:
    function = getattr(PROCESS, name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def constant_function(value: int, name: str = "f") -> str:
    return f"define i64 @{name}() {{\n  ret i64 {value}\n}}\n"


def call(address: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64)(address)()


MULTIPLY_ADD = """
define float @plain(float %a, float %b, float %c) {
  %m = fmul float %a, %b
  %s = fadd float %m, %c
  ret float %s
}
define float @contracted(float %a, float %b, float %c) {
  %m = fmul contract float %a, %b
  %s = fadd contract float %m, %c
  ret float %s
}
"""


@pytest.mark.parametrize(("target", "fused"), [(X86, "vfmadd"), (AARCH64, "fmadd")])
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_only_contract_is_fused(target: Target, fused: str, level: int) -> None:
    text = emit_assembly(MULTIPLY_ADD, target, CompileOptions(opt_level=level, codegen_level=level))
    plain, contracted = text.split("contracted:")
    assert fused not in plain
    assert fused in contracted or level == 0


def test_additions_are_not_reassociated() -> None:
    chain = "\n".join(f"  %s{i + 1} = fadd float %s{i}, %x" for i in range(4))
    text = f"define float @f(float %s0, float %x) {{\n{chain}\n  ret float %s4\n}}"
    for level in (1, 2, 3):
        assert emit_optimized_ir(text, TARGET, CompileOptions(opt_level=level)).count("fadd float") == 4


def test_library_keeps_only_what_is_visible_and_finds_symbols() -> None:
    library = compile_library(
        """
declare i32 @abs(i32)
define internal i64 @hidden() noinline { ret i64 3 }
define i64 @f() {
  %x = call i64 @hidden()
  %y = call i32 @abs(i32 -4)
  %z = zext i32 %y to i64
  %s = add i64 %x, %z
  ret i64 %s
}
define void @clear(ptr %p, i64 %n) {
  call void @llvm.memset.p0.i64(ptr %p, i8 0, i64 %n, i1 false)
  ret void
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
""",
        TARGET,
        resolve,
    )
    assert sorted(library.functions) == ["clear", "f"]
    assert call(library.address("f")) == 7
    memory = ctypes.create_string_buffer(b"abcdefgh")
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library.function("clear").address)(memory, 4)
    assert memory.raw == b"\0\0\0\0efgh\0"
    with pytest.raises(KeyError):
        library.function("hidden")


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(CompileError, match="expected type"):
        compile_object("define void @f( {", TARGET)
    with pytest.raises(CompileError, match="LLVM"):
        compile_object("define i64 @f() {\n  %x = add i64 %x, 1\n  ret i64 %x\n}", TARGET)
    text = "declare i64 @no_such_function()\ndefine i64 @f() { %x = call i64 @no_such_function() ret i64 %x }"
    with pytest.raises(CompileError, match="missing: no_such_function"):
        compile_library(text, TARGET, resolve)
    with pytest.raises(ValueError, match="not a 64-bit little-endian ELF object"):
        load_object(b"\x7fELF\x01\x01 and so on", TARGET, resolve)


def test_equal_text_gives_equal_code_and_keys_tell_targets_apart() -> None:
    assert compile_object(MULTIPLY_ADD, X86) == compile_object(MULTIPLY_ADD, X86)
    options = CompileOptions()
    keys = [
        object_key(MULTIPLY_ADD, X86, options),
        object_key(MULTIPLY_ADD + "\n", X86, options),
        object_key(MULTIPLY_ADD, AARCH64, options),
        object_key(MULTIPLY_ADD, replace(X86, cpu="znver3"), options),
        object_key(MULTIPLY_ADD, X86, replace(options, opt_level=3)),
    ]
    assert len(set(keys)) == len(keys)


def test_function_keeps_its_library_and_the_last_user_releases_it() -> None:
    library = compile_library(constant_function(11), TARGET, resolve)
    function = library.function("f")
    reference = weakref.ref(library)
    del library
    gc.collect()
    assert call(function.address) == 11
    del function
    gc.collect()
    assert reference() is None


def test_many_libraries_live_and_die() -> None:
    image = compile_object(constant_function(5), TARGET)
    kept = [load_object(image, TARGET, resolve) for _ in range(10)]
    for _ in range(500):
        assert call(load_object(image, TARGET, resolve).address("f")) == 5
    assert [call(library.address("f")) for library in kept] == [5] * 10


def test_several_threads_compile() -> None:
    def work(number: int) -> int:
        library = compile_library(constant_function(number), TARGET, resolve)
        return call(library.address("f"))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(64))) == list(range(64))


def test_object_symbols() -> None:
    symbols = object_symbols(compile_object("declare void @g()\n" + constant_function(1) + MULTIPLY_ADD, X86))
    assert symbols.undefined == ()
    assert sorted(symbols.functions) == ["contracted", "f", "plain"]
    needy = "declare i64 @g()\ndefine i64 @f() { %x = call i64 @g() ret i64 %x }"
    assert object_symbols(compile_object(needy, X86)).undefined == ("g",)


def test_host_target(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_target() == TARGET
    assert not TARGET.has_sleef
    assert host_target(lambda name: 1 if name == "GOMP_parallel" else None).has_openmp
    assert X86.is_x86
    assert AARCH64.is_aarch64
    assert Target("x86_64", "c", "+avx2,-avx512f", 256).has_feature("avx2")
    assert not Target("x86_64", "c", "+avx2,-avx512f", 256).has_feature("avx512f")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(UnsupportedTargetError, match="found linux on riscv64"):
        host_target()
