"""A kernel on one CUDA device, as a host program launches it.

A host program reads a kernel's description: which function of the driver launches, and the kernel's variants. The first
expects that every buffer begins at a multiple of 16 bytes, that sizes are multiples of 16 where that helps, and that
indices fit 32 bits, as most do, and moves 16 bytes at a time. The others do without one or several of these. Those that
a program needs for the sizes that it was traced with are compiled with it, any other when it is first needed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tilewright.backends.cuda.driver import CudaError, Driver, Module

ALIGNMENT = 16
"""The multiple of bytes at which buffers begin for the first variant."""

DIVISOR = 16
"""What sizes are multiples of for the first variant, where it says so."""

UNALIGNED, UNEVEN, WIDE = 1, 2, 4
"""The parts of a variant's number: buffers may begin anywhere, sizes be anything, indices take 64 bits."""

NUM_VARIANTS = 8

SCRATCH_POINTERS = 2
"""How many null pointers come after a kernel's own arguments: Triton's compiler adds a parameter for memory shared by
all programs and one for its profiler. Its kernels here use neither."""

MAX_PROGRAMS = 2**31 - 1
"""How many programs one launch can start."""

LOST_CONTEXT = 201
"""The driver's status for a thread that has no context yet (CUDA_ERROR_INVALID_CONTEXT)."""

TOO_MANY_PROGRAMS = -1
"""The status, of ours, of a launch of more programs than can be."""

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

    @property
    def key(self) -> str:
        """The name under which it is cached."""
        ...


class VariantFields(ctypes.Structure):
    """One variant in a description; it has no function while it is not compiled."""

    _fields_ = [("function", ctypes.c_void_p), ("threads", ctypes.c_uint32), ("shared", ctypes.c_uint32)]


class DescriptionFields(ctypes.Structure):
    """What a host program reads of a kernel; `backends/host` numbers these fields in its text."""

    _fields_ = [
        ("launch", ctypes.c_void_p),
        ("set_context", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("variants", VariantFields * NUM_VARIANTS),
    ]


class Kernel:
    """A kernel on one device; its code stays loaded as long as the object lives."""

    def __init__(
        self, name: str, driver: Driver, device: int, codes: Mapping[int, Code], compile_variant: Callable[[int], Code]
    ):
        """Load `codes`, variants by number; `compile_variant` makes the others. Raises `CudaError`."""
        self.name = name
        self.keys = {number: code.key for number, code in codes.items()}
        """The names under which these are cached."""
        self._driver = driver
        self._device = device
        self._compile_variant = compile_variant
        self._modules: list[Module] = []
        self._lock = threading.Lock()
        self._description = DescriptionFields(
            driver.address("cuLaunchKernel"), driver.address("cuCtxSetCurrent"), driver.context(device)
        )
        self._launch = _LAUNCH(driver.address("cuLaunchKernel"))
        self._set_context = _SET_CONTEXT(driver.address("cuCtxSetCurrent"))
        for number, code in codes.items():
            self._load(number, code)

    @property
    def address(self) -> int:
        """The address of the description."""
        return ctypes.addressof(self._description)

    def provide(self, number: int) -> None:
        """See to it that there is the variant of a number. Raises `CudaError`, and what compiling raises."""
        with self._lock:
            if self._description.variants[number].function is None:
                self._load(number, self._compile_variant(number))

    def _load(self, number: int, code: Code) -> None:
        module = self._driver.load(self._device, code.image)
        function = self._driver.function(self._device, module, code.name, code.shared)
        self._modules.append(module)
        variant = self._description.variants[number]
        variant.threads = code.num_warps * _THREADS_PER_WARP
        variant.shared = code.shared
        variant.function = function  # last: other threads may be looking

    def launch(self, programs: int, number: int, stream: int, buffers: Sequence[int], sizes: Sequence[int]) -> None:
        """Launch so many programs on addresses and sizes, as native host programs do. Raises `CudaError`.

        `number` is the variant that the sizes want.
        """
        if programs < 1:
            return
        if any(b % ALIGNMENT for b in buffers):
            number |= UNALIGNED
        self.provide(number)
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
