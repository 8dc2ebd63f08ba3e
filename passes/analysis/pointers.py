"""Where the pointers of a Triton kernel come from, and which buffers its operations store to."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import BlockArgument, Operation, SSAValue

from tilewright.dialects import tt

_MOVES = (tt.SplatOp, tt.BroadcastOp, tt.ExpandDimsOp, tt.ReshapeOp, tt.TransOp, tt.AddPtrOp)


def base_of(pointer: SSAValue) -> SSAValue | None:
    """Return the argument of the kernel into whose buffer a pointer goes; None where that is not known."""
    while isinstance(pointer.owner, _MOVES):
        pointer = pointer.owner.operands[0]
    if isinstance(pointer, BlockArgument) and isinstance(pointer.block.parent_op(), tt.FuncOp):
        return pointer
    return None


def writes(op: Operation) -> Sequence[SSAValue | None]:
    """Return the buffers that an operation by itself may store to; None stands for any of them."""
    if isinstance(op, (tt.StoreOp, tt.AtomicRMWOp, tt.AtomicCASOp)):
        return [base_of(op.ptr)]
    return []
