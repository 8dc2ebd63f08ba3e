"""What the host backend uses of torch beyond its documented interface: an upgrade of torch is checked here."""

# These parts of torch are private and carry few types; what is passed on from here has them.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd import profiler

if TYPE_CHECKING:
    Overload: TypeAlias = OpOverload[..., Any]
else:
    Overload = OpOverload

tensor_to_handle_capsule: Callable[[Tensor], object] = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor
"""Returns a capsule of a new handle to a tensor; the capsule does not own it."""

handle_capsules_to_tensors: Callable[[list[object]], list[Tensor]] = (
    torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs
)
"""Returns the tensors of the handles in capsules and gives up the handles.

(Its namesake for one tensor leaves the handle alone, whatever it says.)
"""


class Parameter(NamedTuple):
    """One parameter of an operator, as the installed torch has it."""

    name: str
    kwarg_only: bool


def find_overload(name: str) -> Overload | None:
    """Return the operator called `aten.add.Tensor`, or None if this torch has none."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, OpOverload) else None


def parameters(operator: Overload) -> list[Parameter]:
    """Return what an operator takes."""
    return [Parameter(a.name, a.kwarg_only) for a in operator._schema.arguments]


def profiler_is_on() -> bool:
    """Whether any of torch's profilers records."""
    return profiler._is_profiler_enabled


def is_view(tensor: Tensor) -> bool:
    """Whether autograd knows a tensor as a view of another."""
    return tensor._is_view()
