"""How tests compile by the name of the entry point, and on which device."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

device: torch.device | None = None
"""What `--device` says; None without it."""


def compiled(function: Callable[..., Any], *, dynamic: bool | None = None, **options: Any) -> Callable[..., Any]:
    """Compile with failures raised, so that nothing is left to eager unseen."""
    return torch.compile(function, backend="tilewright", dynamic=dynamic, options={"strict": True, **options})
