from collections.abc import Callable
from enum import Enum
from typing import Any

from triton._C.libtriton import ir

class Language(Enum):
    TRITON = 0

class GPUTarget:
    def __init__(self, backend: str, arch: int, warp_size: int) -> None: ...

class Options:
    num_warps: int

class BaseBackend:
    def parse_options(self, opts: dict[str, object]) -> Options: ...
    def load_dialects(self, ctx: ir.context) -> None: ...
    def add_stages(
        self, stages: dict[str, Callable[[Any, dict[str, Any]], Any]], options: Options, language: Language
    ) -> None: ...
