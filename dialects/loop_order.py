"""The order of reads and writes on tensors, as an operation: `loop.after`; see `dialects/loop.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, SSAValue, Use
from xdsl.irdl import (
    BaseAttr,
    IRDLOperation,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException


@irdl_op_definition
class AfterOp(IRDLOperation):
    """The tensor itself, behind what computes other values: an edge in the order of the program.

    `%y = loop.after %x behind %a, %b : tensor<...> behind tensor<...>, tensor<...>`. Whoever writes to `%y` runs after
    the operations that give `%a` and `%b`, which read what it overwrites; or whoever reads `%y` runs after those, which
    wrote to its memory. It moves nothing, and `%y` is in the memory of `%x`.
    """

    name = "loop.after"
    _T: ClassVar = VarConstraint[Attribute]("T", BaseAttr(TensorType))
    source = operand_def(_T)
    before = var_operand_def()
    result = result_def(_T)
    traits = traits_def(Pure())
    assembly_format = "$source `behind` $before attr-dict `:` type($source) `behind` type($before)"

    @staticmethod
    def get(source: SSAValue, before: Sequence[SSAValue]) -> AfterOp:
        op = AfterOp.create(operands=[source, *before], result_types=[source.type])
        op.result.name_hint = source.name_hint
        return op

    def verify_(self) -> None:
        if not self.before:
            raise VerifyException("`loop.after` waits for nothing, expected a value behind which the tensor is meant")

    def set_before(self, before: Iterable[SSAValue]) -> None:
        """Change what must come before, to these values in order and each once."""
        self.operands = [self.source, *dict.fromkeys(before)]


def is_order_use(use: Use) -> bool:
    """Whether a use of a value asks only that it has been computed."""
    return isinstance(use.operation, AfterOp) and use.index > 0


def data_uses(value: SSAValue) -> Iterator[Use]:
    """Yield the uses of a value that want the value."""
    return (use for use in value.uses if not is_order_use(use))


def is_wanted(value: SSAValue) -> bool:
    """Whether something uses a value as such."""
    return next(data_uses(value), None) is not None


def waiting(values: Iterable[SSAValue]) -> list[AfterOp]:
    """Return what must come behind the operations that give `values`."""
    found = {use.operation: None for value in values for use in value.uses if is_order_use(use)}
    return [op for op in found if isinstance(op, AfterOp)]
