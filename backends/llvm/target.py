"""The machine that code is compiled for, as a value that names everything the generated code may depend on."""

import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass

import llvmlite.binding as llvm

SymbolResolver = Callable[[str], int | None]
"""Gives the address of an external symbol, or None if this process does not have it."""


class UnsupportedTargetError(RuntimeError):
    """This machine is none that the backend generates code for."""


@dataclass(frozen=True)
class Target:
    """What code generation may assume of a machine and of the process that will run the code.

    Two equal targets give equal machine code for equal text, so a target is part of every cache key.
    """

    triple: str
    cpu: str
    """LLVM's name of the processor."""
    features: str
    """LLVM's feature string, `+avx2,-avx512f,...`, sorted."""
    vector_bits: int
    """The widest vector register that is worth using."""
    has_sleef: bool = False
    """Whether SLEEF's vector functions can be called; else vector math is a call per lane."""
    has_openmp: bool = False
    """Whether the OpenMP runtime that PyTorch uses can be called; else parallel regions run on one thread."""

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith("x86_64")

    @property
    def is_aarch64(self) -> bool:
        return self.triple.startswith("aarch64")

    def has_feature(self, name: str) -> bool:
        """Whether the processor has an LLVM feature such as `avx512f`."""
        return f"+{name}" in self.features.split(",")

    def describe(self) -> str:
        """One line that determines the target, for cache keys and messages."""
        return (
            f"{self.triple} {self.cpu} {self.features} "
            f"vector_bits={self.vector_bits} sleef={self.has_sleef:d} openmp={self.has_openmp:d}"
        )


def host_target(resolve: SymbolResolver | None = None) -> Target:
    """Return the target that is this machine.

    `resolve` tells which libraries the process has. Raises `UnsupportedTargetError` anywhere but on Linux with an
    x86-64 or aarch64 processor.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "aarch64"):
        raise UnsupportedTargetError(
            f"expected Linux on x86_64 or aarch64, found {sys.platform} on {machine}: no code generator for it"
        )
    features = llvm.get_host_cpu_features()
    vector_bits = _x86_vector_bits(features) if machine == "x86_64" else 128
    return Target(
        triple=llvm.get_process_triple(),
        cpu=llvm.get_host_cpu_name(),
        features=features.flatten(),
        vector_bits=vector_bits,
        has_sleef=resolve is not None and resolve(f"Sleef_expf{vector_bits // 32}_u10") is not None,
        has_openmp=resolve is not None and resolve("GOMP_parallel") is not None,
    )


def _x86_vector_bits(features: dict[str, bool]) -> int:
    """Choose as ATen does: 512 bits need all four extensions that its AVX-512 kernels are built with."""
    if all(features.get(name, False) for name in ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma")):
        return 512
    if features.get("avx2", False) and features.get("fma", False):
        return 256
    return 128
