"""What fusion needs to know of a loop nest: its space, what it reads and writes and where, what it computes."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects import arith
from xdsl.ir import BlockArgument, SSAValue

from tilewright.dialects.loop import (
    ApplyOp,
    CastOp,
    CheckOp,
    LoadOp,
    Loop,
    NestOp,
    StoreOp,
    YieldOp,
)
from tilewright.dialects.sym_expr import Expr
from tilewright.passes.analysis.heavy import is_heavy

_FREE = (ApplyOp, CastOp, CheckOp, LoadOp, StoreOp, YieldOp, arith.ConstantOp, Loop)


@dataclass
class NestInfo:
    """A nest with its accesses in program order."""

    nest: NestOp
    extents: tuple[Expr, ...] | None
    """The number of iterations of each of its outer loops; None if one of these does not count from zero by one, or if
    a destination begins as another tensor: what the nest stores is then not all there is to it."""
    is_flat: bool = True
    """Whether it has no loops inside: one iteration is straight-line code."""
    ops: int = 0
    """Operations that compute: no casts, constants, accesses."""
    heavy: int = 0
    """Those of them that are expensive."""
    loads: list[LoadOp] = field(default_factory=list[LoadOp])
    stores: list[StoreOp] = field(default_factory=list[StoreOp])

    @staticmethod
    def of(nest: NestOp) -> NestInfo:
        """Look at `nest`."""
        bounds = nest.loops
        plain = all(d.lower == 0 and d.step == 1 and not d.lanes for d in bounds.dims) and not bounds.operands
        plain = plain and nest.starts is None
        info = NestInfo(nest, tuple(d.upper for d in bounds.dims) if plain else None)
        for op in nest.body.walk():
            if isinstance(op, LoadOp):
                info.loads.append(op)
            elif isinstance(op, StoreOp):
                info.stores.append(op)
            elif isinstance(op, Loop):
                info.is_flat = False
            elif not isinstance(op, _FREE):
                info.ops += 1
                info.heavy += is_heavy(op)
        return info

    def destination(self, result: SSAValue) -> SSAValue:
        """Return the block argument that stands for `result` while it is computed."""
        return self.nest.destinations[self.nest.results.index(result)]

    def stores_to(self, destination: SSAValue) -> list[StoreOp]:
        """Return the stores to a destination, in program order."""
        return [s for s in self.stores if s.target is destination]

    def sources(self) -> dict[SSAValue, list[LoadOp]]:
        """Return the loads of each tensor that comes from outside."""
        found: dict[SSAValue, list[LoadOp]] = {}
        for load in self.loads:
            source = load.source
            if not (isinstance(source, BlockArgument) and source.owner is self.nest.block):
                found.setdefault(source, []).append(load)
        return found
