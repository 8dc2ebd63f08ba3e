"""CUDA's driver through ctypes: devices, contexts, code.

The library comes with the device's driver, not with PyTorch, and is loaded when it is first asked for, so this file can
be imported anywhere. Code is loaded into a device's primary context, the one that PyTorch uses. A process that has used
CUDA cannot use it in its children after `fork`; there nothing is unloaded either.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from typing import Any

_LIBRARY = "libcuda.so.1"

_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _MAX_SHARED_BYTES = 75, 76, 97  # CU_DEVICE_ATTRIBUTE_..
_MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_..
_PREFER_SHARED = 1  # CU_FUNC_CACHE_..

FREE_SHARED_BYTES = 48 * 1024
"""The shared memory that a kernel may use without saying so before it is launched."""


class CudaError(RuntimeError):
    """The driver refused something; the text has its name for the reason."""


class Module:
    """Code loaded into a device's primary context, and unloaded with the last reference."""

    def __init__(self, handle: int):
        self.handle = handle


class Driver:
    """The functions of a driver's library, which tests replace."""

    def __init__(self, library: Any):
        self._library = library
        self._contexts: dict[int, int] = {}
        self._modules: weakref.WeakValueDictionary[tuple[int, str], Module] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        self.check(library.cuInit(0), "cuInit")

    def address(self, name: str) -> int:
        """Return the address of one of the driver's functions."""
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        assert address is not None
        return address

    def check(self, status: int, what: str) -> None:
        """Raise `CudaError` unless a status is 0."""
        if status:
            raise CudaError(f"{what}: {self.describe(status)}")

    def describe(self, status: int) -> str:
        """Return the name and the explanation of a status, as `CUDA_ERROR_INVALID_VALUE (invalid argument)`."""
        texts: list[str] = []
        for function in (self._library.cuGetErrorName, self._library.cuGetErrorString):
            text = ctypes.c_char_p()
            if function(status, ctypes.byref(text)) == 0 and text.value is not None:
                texts.append(text.value.decode(errors="replace"))
        return f"{texts[0]} ({', '.join(texts[1:])})" if texts else f"error {status}"

    def capability(self, device: int) -> int:
        """Return a device's compute capability: 90 for 9.0."""
        return 10 * self._attribute(device, _CAPABILITY_MAJOR) + self._attribute(device, _CAPABILITY_MINOR)

    def context(self, device: int) -> int:
        """Return the primary context of a device."""
        with self._lock:
            if device not in self._contexts:
                context = ctypes.c_void_p()
                status = self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), self._device(device))
                self.check(status, f"cannot use cuda:{device}")
                assert context.value is not None
                self._contexts[device] = context.value
            return self._contexts[device]

    def load(self, device: int, image: bytes) -> Module:
        """Load a cubin, or return it if it is loaded. Raises `CudaError`."""
        key = device, sha256(image).hexdigest()
        with self._lock:
            module = self._modules.get(key)
            if module is None:
                module = self._modules[key] = self._load(device, image)
            return module

    def function(self, device: int, module: Module, name: str, shared_bytes: int) -> int:
        """Return the handle of a function that may be launched with so much shared memory. Raises `CudaError`."""
        function = ctypes.c_void_p()
        library = self._library
        with self._current(device):
            status = library.cuModuleGetFunction(
                ctypes.byref(function), ctypes.c_void_p(module.handle), ctypes.c_char_p(name.encode())
            )
            self.check(status, f"cannot find `{name}` in its code")
            if shared_bytes > FREE_SHARED_BYTES:
                most = self._attribute(device, _MAX_SHARED_BYTES)
                if shared_bytes > most:
                    raise CudaError(
                        f"`{name}` needs {shared_bytes} bytes of shared memory, cuda:{device} has {most} for a block"
                    )
                self.check(library.cuFuncSetCacheConfig(function, _PREFER_SHARED), f"cannot configure `{name}`")
                status = library.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
                self.check(status, f"cannot give `{name}` {shared_bytes} bytes of shared memory")
        assert function.value is not None
        return function.value

    def _device(self, number: int) -> int:
        device = ctypes.c_int()
        self.check(self._library.cuDeviceGet(ctypes.byref(device), number), f"cannot find cuda:{number}")
        return device.value

    def _attribute(self, device: int, attribute: int) -> int:
        value = ctypes.c_int()
        status = self._library.cuDeviceGetAttribute(ctypes.byref(value), attribute, self._device(device))
        self.check(status, f"cannot ask what cuda:{device} is")
        return value.value

    def _load(self, device: int, image: bytes) -> Module:
        handle = ctypes.c_void_p()
        with self._current(device):
            self.check(
                self._library.cuModuleLoadData(ctypes.byref(handle), image), f"cannot load code on cuda:{device}"
            )
        assert handle.value is not None
        module = Module(handle.value)
        weakref.finalize(module, self._unload, device, handle.value, os.getpid()).atexit = False
        return module

    def _unload(self, device: int, handle: int, process: int) -> None:
        # Nothing is raised: at the end of the process the driver may be gone before the last module.
        if os.getpid() == process and self._library.cuCtxPushCurrent_v2(ctypes.c_void_p(self._contexts[device])) == 0:
            self._library.cuModuleUnload(ctypes.c_void_p(handle))
            self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    @contextmanager
    def _current(self, device: int) -> Generator[None]:
        """Make a device's primary context the calling thread's for a while."""
        context = ctypes.c_void_p(self.context(device))
        self.check(self._library.cuCtxPushCurrent_v2(context), f"cannot use cuda:{device}")
        try:
            yield
        finally:
            self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


@cache
def cuda_driver() -> Driver:
    """Return this machine's driver. Raises `CudaError` if it has none, or no device."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise CudaError(f"this machine has no CUDA driver: {error}") from error
    return Driver(library)
