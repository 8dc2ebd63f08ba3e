"""The C interface of the PyTorch in this process: which functions it has, where, and its codes for dtypes and others.

PyTorch promises this interface to be stable, but it grows from release to release, so each function is looked for
before it is used. `libtorch_cpu` also brings SLEEF's vector math and the OpenMP runtime whose threads eager uses; these
two are not promised, hence `Capabilities`. What concerns CUDA is in a library of its own, which PyTorch may lack.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import torch
from xdsl.dialects import builtin
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from tilewright.backends.llvm.jit import CompileOptions, Library, compile_library
from tilewright.backends.llvm.target import Target, host_target


@cache
def _torch_library() -> ctypes.CDLL:
    """The library with the C interface; a lookup in it also finds what it depends on: OpenMP, libm, libc, libstdc++."""
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


@cache
def _cuda_library() -> ctypes.CDLL | None:
    path = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    return ctypes.CDLL(str(path)) if path.exists() else None


@cache
def torch_symbol(name: str) -> int | None:
    """Return the address of a function of PyTorch or of a library that it loads, or None if there is none."""
    function = getattr(_torch_library(), name, None) or getattr(_cuda_library(), name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


@cache
def torch_function(name: str) -> Callable[..., int]:
    """Return a function of the C interface that gives an int32 status. Raises AttributeError if there is none."""
    return _torch_library()[name]


def python_symbol(name: str) -> int | None:
    """Return the address of a function of Python's C interface, or None if there is none."""
    function = getattr(ctypes.pythonapi, name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


_SERIAL_OPENMP = """
define void @GOMP_parallel(ptr %function, ptr %data, i32 %threads, i32 %flags) {
  call void %function(ptr %data)
  ret void
}
define i32 @omp_get_max_threads() { ret i32 1 }
define i32 @omp_get_num_threads() { ret i32 1 }
define i32 @omp_get_thread_num() { ret i32 0 }
"""


@cache
def _serial_openmp() -> Library:
    return compile_library(_SERIAL_OPENMP, host_target(), torch_symbol, CompileOptions(opt_level=0))


def kernel_symbol(name: str) -> int | None:
    """Resolve what a kernel may call. Where there is no OpenMP runtime a parallel region runs on one thread."""
    address = torch_symbol(name)
    if address is None and torch_symbol("GOMP_parallel") is None and name in _serial_openmp().functions:
        return _serial_openmp().address(name)
    return address


@cache
def native_target() -> Target:
    """The target for code that this process runs."""
    return host_target(torch_symbol)


@dataclass(frozen=True)
class Capabilities:
    """What the installed PyTorch offers beyond the functions that every supported release has."""

    sleef: bool
    """SLEEF's vector math."""
    openmp: bool
    """The OpenMP runtime; else kernels run on one thread."""
    dispatcher: bool
    """`aoti_torch_call_dispatcher` and lists to pass to it."""
    error_text: bool
    """The message of the last error (PyTorch 2.13); else a failed call is repeated in Python for its message."""
    record_function: bool
    """Ranges for the profiler."""
    thread_count: bool
    """`torch_get_num_threads`, which makes the calling thread take over `torch.set_num_threads`."""
    cuda: bool
    """A device guard and the current stream; else there are no programs with kernels on CUDA devices."""


@cache
def capabilities() -> Capabilities:
    """Look for the optional functions of the installed PyTorch."""

    def have(*names: str) -> bool:
        return all(torch_symbol(name) is not None for name in names)

    return Capabilities(
        sleef=native_target().has_sleef,
        openmp=native_target().has_openmp,
        dispatcher=have("aoti_torch_call_dispatcher", "torch_new_list_reserve_size", "torch_list_push_back"),
        error_text=have("torch_exception_get_what_without_backtrace"),
        record_function=have("aoti_record_function_start", "aoti_record_function_end"),
        thread_count=have("torch_get_num_threads"),
        cuda=have("aoti_torch_get_current_cuda_stream", "aoti_torch_create_cuda_guard", "aoti_torch_delete_cuda_guard"),
    )


def last_error_text() -> str | None:
    """Return the message of the last call that failed in this thread, or None if this PyTorch does not keep it."""
    if not capabilities().error_text:
        return None
    address = torch_symbol("torch_exception_get_what_without_backtrace")
    assert address is not None
    text = ctypes.CFUNCTYPE(ctypes.c_char_p)(address)()
    return None if text is None else text.decode(errors="replace")


DTYPES: Mapping[Attribute, torch.dtype] = MappingProxyType(
    {
        builtin.f64: torch.float64,
        builtin.f32: torch.float32,
        builtin.f16: torch.float16,
        builtin.bf16: torch.bfloat16,
        builtin.Float8E4M3FNType(): torch.float8_e4m3fn,
        builtin.Float8E4M3FNUZType(): torch.float8_e4m3fnuz,
        builtin.Float8E5M2Type(): torch.float8_e5m2,
        builtin.Float8E5M2FNUZType(): torch.float8_e5m2fnuz,
        builtin.i64: torch.int64,
        builtin.i32: torch.int32,
        builtin.i16: torch.int16,
        builtin.i8: torch.int8,
        builtin.IntegerType(8, builtin.Signedness.UNSIGNED): torch.uint8,
        builtin.IntegerType(16, builtin.Signedness.UNSIGNED): torch.uint16,
        builtin.IntegerType(32, builtin.Signedness.UNSIGNED): torch.uint32,
        builtin.IntegerType(64, builtin.Signedness.UNSIGNED): torch.uint64,
        builtin.i1: torch.bool,
        builtin.ComplexType(builtin.f16): torch.complex32,
        builtin.ComplexType(builtin.f32): torch.complex64,
        builtin.ComplexType(builtin.f64): torch.complex128,
    }
)
"""The dtype of tensors with a given element type."""


def dtype_of(element_type: Attribute) -> torch.dtype:
    """Return the dtype of tensors with that element type. Raises `VerifyException` if no tensor has it."""
    dtype = DTYPES.get(element_type)
    if dtype is None:
        raise VerifyException(f"expected an element type of a tensor, found {element_type}")
    return dtype


@cache
def dtype_code(dtype: torch.dtype) -> int:
    """Return the number by which the C interface knows a dtype."""
    return _code(f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}")


@cache
def layout_code(name: str) -> int:
    """Return the number of a layout such as `strided`."""
    return _code(f"aoti_torch_layout_{name}")


@cache
def memory_format_code(name: str) -> int:
    """Return the number of a memory format such as `channels_last`."""
    return _code(f"aoti_torch_memory_format_{name}")


@cache
def device_code(device: str) -> tuple[int, int]:
    """Return the numbers of a device's type and of its index: `cpu`, `cuda:1`."""
    parsed = torch.device(device)
    index: int | None = parsed.index
    return _code(f"aoti_torch_device_type_{parsed.type}"), index or 0


def _code(function: str) -> int:
    """Call a function that takes nothing and returns a number. Raises ValueError if this PyTorch does not have it."""
    address = torch_symbol(function)
    if address is None:
        raise ValueError(f"this PyTorch ({torch.__version__}) has no `{function}`")
    return ctypes.CFUNCTYPE(ctypes.c_int32)(address)()
