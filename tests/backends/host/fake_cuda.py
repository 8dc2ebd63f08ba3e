"""A CUDA device that is not there: its memory is the CPU's, its kernels are Python functions, and it keeps a log.

What a host program and the driver's wrapper call of PyTorch's CUDA library and of the driver are functions here, so
that programs compiled for `cuda:0` run on any machine.
"""

# The fake of a C library is called through ctypes, which has no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from tilewright.backends.cuda.driver import Driver
from tilewright.backends.cuda.kernel import LOST_CONTEXT, SCRATCH_POINTERS, Kernel
from tilewright.backends.host import abi, callbacks, runtime

STREAM = 0x57
FAILED_KERNEL = 700
CUDA = 1

_i32, _u32, _i64, _ptr = ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_void_p


@dataclass(frozen=True)
class FakeCode:
    """A compiled kernel whose image is the name of a Python function."""

    name: str
    image: bytes
    shared: int = 0
    num_warps: int = 4
    arch: int = 90
    key: str = ""


@dataclass(frozen=True)
class Launch:
    """What the driver was asked to launch."""

    image: str
    programs: int
    threads: int
    shared: int
    stream: int
    arguments: tuple[int, ...]


@dataclass
class FakeDevice:
    """`functions` are the kernels, by image: each takes the addresses and sizes that a launch passes."""

    functions: dict[str, Callable[..., None]] = field(default_factory=dict[str, Callable[..., None]])
    arity: dict[str, int] = field(default_factory=dict[str, int])
    launches: list[Launch] = field(default_factory=list[Launch])
    log: list[str] = field(default_factory=list[str])
    compiled: list[str] = field(default_factory=list[str])
    """The variants that have been compiled after their kernels, `add_one.1`."""
    status: int = 0
    """What the next launches return."""
    failure: str = ""
    """What the last kernel that failed has raised."""
    has_context: bool = True
    _images: dict[int, str] = field(default_factory=dict[int, str])
    _ends: dict[int, int] = field(default_factory=dict[int, int])
    """Where the storage ends of each address that a program has asked for."""

    def __post_init__(self) -> None:
        self.driver = Driver(_Library(self))
        self.symbols = {name: _address(f) for name, f in self._torch_functions().items()}

    def kernel(self, name: str, shared: int = 0) -> Kernel:
        """Make a kernel on device 0."""

        def compile_variant(number: int) -> FakeCode:
            self.compiled.append(f"{name}.{number}")
            return FakeCode(name, f"{name}.{number}".encode(), shared)

        return Kernel(name, self.driver, 0, {0: FakeCode(name, name.encode(), shared)}, compile_variant)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let host programs find this device's functions."""

        def symbol(name: str) -> int | None:
            return self.symbols.get(name) or abi.torch_symbol(name)

        class WithCuda:
            cuda = True

        monkeypatch.setattr(runtime, "torch_symbol", symbol)
        monkeypatch.setattr(runtime, "capabilities", WithCuda)
        monkeypatch.setattr(callbacks, "last_error_text", lambda: None)

    def bytes_from(self, address: int) -> int:
        """Return how many bytes of a storage begin at an address in it."""
        newest_first = reversed(self._ends.items())
        return next((end for start, end in newest_first if start <= address <= end), address) - address

    def load(self, image: str) -> int:
        handle = 16 * (1 + len(self._images))
        self._images[handle] = image
        return handle

    def launch(self, function: int, x: int, threads: int, shared: int, stream: int, places: int) -> int:
        if not self.has_context:
            return LOST_CONTEXT
        image = self._images[function]
        name = image if image in self.arity else image.rpartition(".")[0]
        count = self.arity[name] + SCRATCH_POINTERS
        pointers = (_ptr * count).from_address(places)
        values = tuple(_i64.from_address(p or 0).value for p in pointers)
        assert values[-SCRATCH_POINTERS:] == (0,) * SCRATCH_POINTERS
        self.launches.append(Launch(image, x, threads, shared, stream or 0, values[:-SCRATCH_POINTERS]))
        if self.status == 0:
            try:
                self.functions[name](*values[:-SCRATCH_POINTERS])
            except Exception as error:  # noqa: BLE001  nothing is raised through native code: the launch fails with it
                self.failure = f"{type(error).__name__}: {error}"
                return FAILED_KERNEL
        return self.status

    def _torch_functions(self) -> dict[str, Any]:
        """PyTorch's functions of the C interface, with the device's memory on the CPU."""
        ask = abi.torch_function

        def guard(index: int, place: Any) -> int:
            self.log.append(f"enter {index}")
            place[0] = 1
            return 0

        def leave(handle: int | None) -> int:
            self.log.append("leave" if handle else "leave nothing")
            return 0

        def stream(index: int, place: Any) -> int:
            place[0] = STREAM
            return 0

        def empty(ndim: int, sizes: Any, strides: Any, dtype: int, kind: int, index: int, place: Any) -> int:
            self.log.append(f"allocate on {kind}:{index}")
            return ask("aoti_torch_empty_strided")(
                _i64(ndim), _ptr(sizes), _ptr(strides), _i32(dtype), _i32(0), _i32(0), _ptr(place)
            )

        def data_pointer(tensor: int, place: Any) -> int:
            status = ask("aoti_torch_get_data_ptr")(_ptr(tensor), place)
            size, offset, dtype = _i64(), _i64(), _i32()
            ask("aoti_torch_get_storage_size")(_ptr(tensor), ctypes.byref(size))
            ask("aoti_torch_get_storage_offset")(_ptr(tensor), ctypes.byref(offset))
            ask("aoti_torch_get_dtype")(_ptr(tensor), ctypes.byref(dtype))
            self._ends.pop(place[0], None)
            self._ends[place[0]] = place[0] + size.value - offset.value * _element_sizes()[dtype.value]
            return status

        def device_type(tensor: Any, place: Any) -> int:
            place[0] = CUDA
            return 0

        def device_index(tensor: Any, place: Any) -> int:
            place[0] = 0
            return 0

        words, numbers = ctypes.POINTER(_i64), ctypes.POINTER(_i32)
        return {
            "aoti_torch_create_cuda_guard": ctypes.CFUNCTYPE(_i32, _i32, words)(guard),
            "aoti_torch_delete_cuda_guard": ctypes.CFUNCTYPE(_i32, _ptr)(leave),
            "aoti_torch_get_current_cuda_stream": ctypes.CFUNCTYPE(_i32, _i32, words)(stream),
            "aoti_torch_empty_strided": ctypes.CFUNCTYPE(_i32, _i64, _ptr, _ptr, _i32, _i32, _i32, _ptr)(empty),
            "aoti_torch_get_data_ptr": ctypes.CFUNCTYPE(_i32, _ptr, words)(data_pointer),
            "aoti_torch_get_device_type": ctypes.CFUNCTYPE(_i32, _ptr, numbers)(device_type),
            "aoti_torch_get_device_index": ctypes.CFUNCTYPE(_i32, _ptr, numbers)(device_index),
        }


@cache
def _element_sizes() -> dict[int, int]:
    return {abi.dtype_code(dtype): dtype.itemsize for dtype in abi.DTYPES.values()}


_kept: list[Any] = []


def _address(function: Any) -> int:
    _kept.append(function)
    address = ctypes.cast(function, _ptr).value
    assert address is not None
    return address


class _Library:
    """The driver's functions."""

    def __init__(self, device: FakeDevice):
        self._device = device
        launch_type = ctypes.CFUNCTYPE(_i32, _ptr, *(_u32,) * 7, _ptr, _ptr, _ptr)

        def launch(function: Any, x: int, y: int, z: int, t: int, u: int, v: int, shared: int, *rest: Any) -> int:
            assert (y, z, u, v) == (1, 1, 1, 1)
            stream, places, _ = rest
            return device.launch(function, x, t, shared, stream, places)

        def set_current(context: Any) -> int:
            device.log.append(f"context {context}")
            device.has_context = True
            return 0

        self.cuLaunchKernel = launch_type(launch)
        self.cuCtxSetCurrent = ctypes.CFUNCTYPE(_i32, _ptr)(set_current)

    def cuInit(self, flags: int) -> int:
        return 0

    def cuGetErrorName(self, status: int, text: Any) -> int:
        text._obj.value = b"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" if status == 701 else b"CUDA_ERROR"
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:
        refused = "too many resources requested for launch"
        text._obj.value = (self._device.failure if status == FAILED_KERNEL else refused).encode()
        return 0

    def cuDeviceGet(self, place: Any, number: int) -> int:
        place._obj.value = number
        return 0 if number == 0 else 101

    def cuDeviceGetAttribute(self, place: Any, attribute: int, device: int) -> int:
        place._obj.value = {75: 9, 76: 0, 97: 232448}[attribute]
        return 0

    def cuDevicePrimaryCtxRetain(self, place: Any, device: int) -> int:
        place._obj.value = 0xC0
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        return 0

    def cuCtxPopCurrent_v2(self, place: Any) -> int:
        return 0

    def cuModuleLoadData(self, place: Any, image: bytes) -> int:
        place._obj.value = self._device.load(image.decode())
        return 0

    def cuModuleUnload(self, module: Any) -> int:
        self._device.log.append("unload")
        return 0

    def cuModuleGetFunction(self, place: Any, module: Any, name: Any) -> int:
        place._obj.value = module.value
        return 0

    def cuFuncSetCacheConfig(self, function: Any, config: int) -> int:
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        self._device.log.append(f"attribute {attribute} is {value}")
        return 0
