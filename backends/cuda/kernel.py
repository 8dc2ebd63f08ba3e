"""A kernel on one CUDA device, as a host program launches it.

A host program reads a kernel's description: which function of the driver launches, and the kernel's two variants. One
expects that every buffer begins at a multiple of 16 bytes, which most do, and moves 16 bytes at a time. The other
expects nothing. It is compiled when a program first meets a buffer that begins elsewhere.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from tilewright.backends.cuda.driver import CudaError, Driver, Module

ALIGNMENT = 16
"""The multiple of bytes at which buffers begin for the first variant."""

SCRATCH_POINTERS = 2
"""How many null pointers come after a kernel's own arguments: Triton's compiler adds a parameter for memory shared by
all programs and one for its profiler. Its kernels here use neither."""

MAX_PROGRAMS = 2**31 - 1
"""How many programs one launch can start."""

LOST_CONTEXT = 201
"""The driver's status for a thread that has no context yet (CUDA_ERROR_INVALID_CONTEXT)."""

TOO_MANY_PROGRAMS = -1
"""The status, of ours, of a launch of more programs than can be."""

_ALIGNED, _UNALIGNED = 0, 1
_THREADS_PER_WARP = 32


class Code(Protocol):
    """A compiled kernel."""

    @property
    def name(self) -> str:
        """The name of the function in the image."""
        ...

    @property
    def image(self) -> bytes:
        """A cubin for the device."""
        ...

    @property
    def shared(self) -> int:
        """The bytes of shared memory that it needs."""
        ...

    @property
    def num_warps(self) -> int: ...


class VariantFields(ctypes.Structure):
    """One variant in a description; it has no function while it is not compiled."""

    _fields_ = [("function", ctypes.c_void_p), ("threads", ctypes.c_uint32), ("shared", ctypes.c_uint32)]


class DescriptionFields(ctypes.Structure):
    """What a host program reads of a kernel; `backends/host` numbers these fields in its text."""

    _fields_ = [
        ("launch", ctypes.c_void_p),
        ("set_context", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("variants", VariantFields * 2),
    ]


class Kernel:
    """A kernel on one device; its code stays loaded as long as the object lives."""

    def __init__(self, name: str, driver: Driver, device: int, code: Code, compile_unaligned: Callable[[], Code]):
        """Load `code`, the variant for aligned buffers. Raises `CudaError`."""
        self.name = name
        self._driver = driver
        self._device = device
        self._compile_unaligned = compile_unaligned
        self._modules: list[Module] = []
        self._lock = threading.Lock()
        self._description = DescriptionFields(
            driver.address("cuLaunchKernel"), driver.address("cuCtxSetCurrent"), driver.context(device)
        )
        self._launch = _LAUNCH(driver.address("cuLaunchKernel"))
        self._set_context = _SET_CONTEXT(driver.address("cuCtxSetCurrent"))
        self._load(_ALIGNED, code)

    @property
    def address(self) -> int:
        """The address of the description."""
        return ctypes.addressof(self._description)

    def provide_unaligned(self) -> None:
        """See to it that buffers may begin anywhere. Raises `CudaError`, and what compiling raises."""
        with self._lock:
            if self._description.variants[_UNALIGNED].function is None:
                self._load(_UNALIGNED, self._compile_unaligned())

    def _load(self, number: int, code: Code) -> None:
        module = self._driver.load(self._device, code.image)
        function = self._driver.function(self._device, module, code.name, code.shared)
        self._modules.append(module)
        variant = self._description.variants[number]
        variant.threads = code.num_warps * _THREADS_PER_WARP
        variant.shared = code.shared
        variant.function = function  # last: other threads may be looking

    def launch(self, programs: int, stream: int, buffers: Sequence[int], sizes: Sequence[int]) -> None:
        """Launch so many programs on addresses and sizes, as native host programs do. Raises `CudaError`."""
        if programs < 1:
            return
        number = _ALIGNED if all(b % ALIGNMENT == 0 for b in buffers) else _UNALIGNED
        if number == _UNALIGNED:
            self.provide_unaligned()
        variant = self._description.variants[number]
        values = [*buffers, *sizes, *(0,) * SCRATCH_POINTERS]
        places = (ctypes.c_int64 * len(values))(*(v - 2**64 if v >= 2**63 else v for v in values))
        first = ctypes.addressof(places)
        pointers = (ctypes.c_void_p * len(values))(*(first + 8 * i for i in range(len(values))))
        if programs > MAX_PROGRAMS:
            raise self.error(TOO_MANY_PROGRAMS)

        def launch() -> int:
            grid, block = (programs, 1, 1), (variant.threads, 1, 1)
            return self._launch(variant.function, *grid, *block, variant.shared, stream, pointers, None)

        status = launch()
        if status == LOST_CONTEXT:
            self._set_context(self._description.context)
            status = launch()
        if status:
            raise self.error(status)

    def error(self, status: int) -> CudaError:
        """Return the exception for a launch that failed."""
        if status == TOO_MANY_PROGRAMS:
            return CudaError(f"cannot launch `@{self.name}`: expected at most {MAX_PROGRAMS} programs, found more")
        return CudaError(f"cannot launch `@{self.name}`: {self._driver.describe(status)}")


_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    *(ctypes.c_uint32,) * 7,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
"""The type of `cuLaunchKernel`: function, three sizes of the grid, three of a block, shared bytes, stream, arguments,
extra."""

_SET_CONTEXT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
