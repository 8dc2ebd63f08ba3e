"""The places from which a native program calls back into Python, and why it does."""

from dataclasses import dataclass
from enum import IntEnum

from xdsl.ir import Operation, SSAValue

from tilewright.backends.host.routes import Route
from tilewright.dialects import host


class Reason(IntEnum):
    """Why a program calls back."""

    RUN = 0
    """The call can only be made in Python."""
    FAILED = 1
    """PyTorch returned an error."""
    CONFORM = 2
    """A result has not the layout that the program was compiled for."""


@dataclass(frozen=True)
class InputSite:
    """The check of an input."""

    argument: SSAValue
    number: int


@dataclass(frozen=True)
class RankSite:
    """The check that an input has as many dimensions as its type, before sizes are read from it."""

    argument: SSAValue
    number: int


@dataclass(frozen=True)
class MemorySite:
    """The making of a buffer or of a view."""

    op: Operation


@dataclass(frozen=True)
class CallSite:
    """The call of an operator."""

    call: host.CallOp
    route: Route


@dataclass(frozen=True)
class KernelSite:
    """A kernel that failed; the reason is its status."""

    errors: tuple[str, ...]


@dataclass(frozen=True)
class DeviceSite:
    """The device on which kernels are to run."""

    device: str


@dataclass(frozen=True)
class LaunchSite:
    """The launch of a kernel on a device that failed; the reason is the driver's status."""

    kernel: str


@dataclass(frozen=True)
class VariantSite:
    """A variant of a kernel that has not been needed before; the reason is one more than its number."""

    kernel: str


Site = InputSite | RankSite | MemorySite | CallSite | KernelSite | DeviceSite | LaunchSite | VariantSite
