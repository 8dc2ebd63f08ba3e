"""Verify a module: what xDSL's verifier checks, and what it does not.

That is dominance, the attributes of functions, and what the branches of `scf.if` give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects import scf
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.irdl.dominance import DominanceInfo
from xdsl.traits import IsolatedFromAbove, NoTerminator
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.cpu_errors import errors_of
from tilewright.dialects.program_attributes import verify_program


class InvalidOperation(VerifyException):
    """An operation that is not well formed; `op` is the operation."""

    def __init__(self, op: Operation, message: str) -> None:
        super().__init__(message)
        self.op = op


def verify_module(module: Operation) -> None:
    """Raise `InvalidOperation` unless `module` is well formed and every value is defined before it is used."""
    try:
        module.verify()
    except VerifyException as error:
        found = next(invalid_operations(module), None)
        raise (error if found is None else found) from None
    except ValueError:
        # xDSL stumbles over the parser's placeholder for a name that only an inner scope defines.
        verify_dominance(module)
        raise
    for op in module.walk():
        try:
            _verify_more(op)
        except VerifyException as error:
            raise InvalidOperation(op, str(error)) from None
    verify_dominance(module)


def _verify_more(op: Operation) -> None:
    """Raise `VerifyException` for what the operation's own verifier does not look at."""
    if isinstance(op, FuncOp):
        verify_program(op)
        errors_of(op)
    elif isinstance(op, scf.IfOp):
        expected = [r.type for r in op.results]
        for region in op.regions:
            last = region.block.last_op if region.blocks else None
            found = [] if last is None else [o.type for o in last.operands]
            if found != expected and (region.blocks or expected):
                raise VerifyException(f"`scf.if` of {_types(expected)} has a branch that yields {_types(found)}")


def _types(kinds: Sequence[Attribute]) -> str:
    return f"({', '.join(str(kind) for kind in kinds)})"


def invalid_operations(root: Operation) -> Iterator[InvalidOperation]:
    """Yield what is wrong with each operation in `root`, the innermost ones first; dominance is not looked at."""
    for region in root.regions:
        for block in region.blocks:
            for op in block.ops:
                yield from invalid_operations(op)
        if len(region.blocks) == 1 and region.block.is_empty and not root.has_trait(NoTerminator):
            yield InvalidOperation(root, f"`{root.name}` has an empty block, expected a terminator")
    try:
        root.verify(verify_nested_ops=False)
        _verify_more(root)
    except VerifyException as error:
        yield InvalidOperation(root, str(error))


def verify_dominance(root: Operation) -> None:
    """Raise `InvalidOperation` where a use inside `root` is not dominated by its definition; in linear time."""
    _verify_op(root, set())


def _verify_op(op: Operation, visible: set[SSAValue]) -> None:
    inherited: set[SSAValue] = set() if op.has_trait(IsolatedFromAbove) else visible
    for region in op.regions:
        if len(region.blocks) < 2:
            for block in region.blocks:
                _verify_block(block, inherited)
            continue
        dominance = DominanceInfo(region)
        for block in region.blocks:
            above = [b for b in region.blocks if dominance.strictly_dominates(b, block)]
            defined = {v for b in above for v in (*b.args, *(r for o in b.ops for r in o.results))}
            _verify_block(block, inherited | defined)


def _verify_block(block: Block, inherited: set[SSAValue]) -> None:
    """Check one block. `inherited` is given back as it was: to copy it for each block would be quadratic."""
    added: list[SSAValue] = [a for a in block.args if a not in inherited]
    inherited.update(added)
    for op in block.ops:
        for number, operand in enumerate(op.operands):
            if operand not in inherited:
                raise InvalidOperation(
                    op, f"operand {number} of `{op.name}`, {_describe(operand)}, is not defined where it is used"
                )
        if op.regions:
            _verify_op(op, inherited)
        inherited.update(op.results)
        added.extend(op.results)
    inherited.difference_update(added)


def _describe(value: SSAValue) -> str:
    name = f"%{value.name_hint}, " if value.name_hint else ""
    match value:
        case BlockArgument():
            return f"{name}an argument of a block"
        case OpResult():
            return f"{name}the result of `{value.op.name}`"
        case _:
            # The parser leaves a placeholder where a name comes to be defined in an inner scope.
            return f"{name}a name that means nothing there"
