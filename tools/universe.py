"""What the tools know: our dialects, passes and the `.ir` frontend, each imported when it is first used.

xDSL's own tools find `UNIVERSE` by entry point, so `xdsl-opt` reads our files too. It tolerates no name twice, and our
`canonicalize` is not xDSL's: passes and dialects whose name xDSL has are ours in `tilewright-opt` alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import get_all_dialects
from xdsl.frontend.mlir import MLIRFrontend
from xdsl.ir import Dialect
from xdsl.passes import ModulePass
from xdsl.transforms import get_all_passes
from xdsl.universe import Universe
from xdsl.utils.frontend import Frontend

from tilewright.passes import PASSES

DIALECTS = {
    "arith": "tilewright.dialects.arith_tensor:Arith",
    "aten": "tilewright.dialects.aten:Aten",
    "cpu": "tilewright.dialects.cpu:Cpu",
    "host": "tilewright.dialects.host:Host",
    "loop": "tilewright.dialects.loop:LoopDialect",
    "sym": "tilewright.dialects.sym:Sym",
    "tt": "tilewright.dialects.tt:Tt",
}
"""For each dialect of ours its object as `module:name`; `arith` is xDSL's with more types."""


@dataclass(frozen=True)
class IRFrontend(MLIRFrontend):
    """Files named `.ir`: MLIR's syntax."""

    name = "ir"


def _load(target: str) -> object:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _dialect(target: str) -> Callable[[], Dialect]:
    def load() -> Dialect:
        found = _load(target)
        assert isinstance(found, Dialect)
        return found

    return load


def _pass(target: str) -> Callable[[], type[ModulePass]]:
    def load() -> type[ModulePass]:
        found = _load(target)
        assert isinstance(found, type)
        assert issubclass(found, ModulePass)
        return found

    return load


def _ir_frontend() -> type[Frontend]:
    return IRFrontend


def our_dialects() -> dict[str, Callable[[], Dialect]]:
    """Return what loads each dialect of ours."""
    return {name: _dialect(target) for name, target in DIALECTS.items()}


def our_passes() -> dict[str, Callable[[], type[ModulePass]]]:
    """Return what loads each pass of ours."""
    return {name: _pass(target) for name, target in PASSES.items()}


def all_passes() -> dict[str, Callable[[], type[ModulePass]]]:
    """Return what loads each pass of ours and of xDSL; of two with one name, ours."""
    return {**get_all_passes(), **our_passes()}


def all_dialects() -> dict[str, Callable[[], Dialect]]:
    """Return what loads each dialect of xDSL and of ours."""
    return {**get_all_dialects(), **our_dialects()}


def make_context() -> Context:
    """Return a context in which every dialect of ours and of xDSL is registered, to be loaded when a file names it."""
    context = Context()
    for name, load in all_dialects().items():
        context.register_dialect(name, load)
    return context


UNIVERSE = Universe(
    all_dialects={name: load for name, load in our_dialects().items() if name not in get_all_dialects()},
    all_passes={name: load for name, load in our_passes().items() if name not in get_all_passes()},
    all_frontends={"ir": _ir_frontend},
)
