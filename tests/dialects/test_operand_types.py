"""No operation of a GPU's kernels takes an operand of another type than Triton takes; what is lowered is verified."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from xdsl.dialects.builtin import AnyFloat, ModuleOp, TensorType, bf16, f32, i8, i32, i64
from xdsl.dialects.test import TestOp
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects import tt
from tilewright.dialects.arith_tensor import element_of, like
from tilewright.tools.source import Source, read_module
from tilewright.tools.universe import make_context

LIT = Path(__file__).resolve().parents[2] / "lit_tests" / "dialects"

CONVERSIONS = {
    *("arith.extf", "arith.extsi", "arith.extui", "arith.fptosi", "arith.fptoui", "arith.sitofp", "arith.truncf"),
    *("arith.trunci", "arith.uitofp", "tt.bitcast", "tt.fp_to_fp", "tt.int_to_ptr", "tt.ptr_to_int"),
}
ANY_INTEGER = {("tt.addptr", 1), ("tt.gather", 1)}
ANY_SHAPE = {("tt.assert", 0)}
WHAT_THE_LOOP_AROUND_VERIFIES = {"func.return", "tt.reduce.return", "tt.scan.return", "tt.return"}


def modules() -> Iterator[ModuleOp]:
    for folder in ("tt", "arith"):
        for part in (LIT / folder / "ops.ir").read_text().split("// -----"):
            yield read_module(make_context(), Source("<test>", part)).module


def operations() -> dict[str, Operation]:
    """Return the first operation of each kind that has operands."""
    found: dict[str, Operation] = {}
    for op in (op for module in modules() for op in module.walk()):
        if op.operands and op.name not in WHAT_THE_LOOP_AROUND_VERIFIES:
            found.setdefault(op.name, op)
    return found


OPERATIONS = operations()


def other_element(kind: Attribute) -> Attribute:
    """Return the element type of another float, integer or pointer."""
    element = element_of(kind)
    if isinstance(element, tt.PointerType):
        return tt.PointerType(i8 if element.pointee != i8 else f32)
    if isinstance(element, AnyFloat):
        return bf16 if element == f32 else f32
    return i32 if element != i32 else i64


def others(op: Operation, number: int) -> Iterator[Attribute]:
    """Yield types that an operand must not have."""
    kind = op.operands[number].type
    if op.name not in CONVERSIONS and (op.name, number) not in ANY_INTEGER:
        yield like(kind, other_element(kind))
    if (op.name, number) not in ANY_SHAPE:
        yield TensorType(element_of(kind), [2, 4096])


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operand_of_another_type(name: str) -> None:
    op = OPERATIONS[name]
    op.verify()
    for number, operand in enumerate(op.operands):
        for kind in others(op, number):
            op.operands[number] = TestOp(result_types=[kind]).results[0]
            with pytest.raises(VerifyException):
                op.verify(verify_nested_ops=False)
            op.operands[number] = operand
