"""The check names the first pass that changes what a module computes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from tests.reference.conftest import Runner
from xdsl.context import Context
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from tilewright.backends.reference import ExecutionError
from tilewright.backends.reference.inputs import InputSpec
from tilewright.dialects import aten, loop
from tilewright.tools.check_passes import Report, check_passes

TEXT = """
!x = tensor<?x2xf32, #sym.layout<[s0, 2], [2, 1]>>
!f = memref<?xf32, #sym.layout<[n0], [1]>>
func.func @first(%x : !x) -> !x {
  %y = loop.nest (%i : s0, %j : 2) outs(%o : !x) {
    %v = loop.load %x[%i, %j] : !x -> f32
    %w = arith.addf %v, %v : f32
    loop.store %w, %o[%i, %j] : f32, !x
  }
  func.return %y : !x
}
func.func @second(%x : !x) -> !x {
  %y = aten.call "aten.copy_.default"(self = %x, src = %x) : (!x, !x) -> !x
  func.return %x : !x
}
loop.kernel @third(%a : !f, %b : !f) symbols [n0] {
  loop.nest (%i : n0) {
    %v = loop.load %a[%i] : !f -> f32
    %w = arith.mulf %v, %v : f32
    loop.store %w, %b[%i] : f32, !f
  }
}"""


@dataclass(frozen=True)
class Nothing(ModulePass):
    name = "nothing"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pass


@dataclass(frozen=True)
class SubtractInstead(ModulePass):
    name = "subtract-instead"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for add in [o for o in op.walk() if isinstance(o, arith.AddfOp)]:
            Rewriter.replace_op(add, arith.SubfOp(add.lhs, add.rhs))


@dataclass(frozen=True)
class SquareLess(ModulePass):
    name = "square-less"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for product in [o for o in op.walk() if isinstance(o, arith.MulfOp)]:
            product.result.replace_all_uses_with(product.lhs)


@dataclass(frozen=True)
class NegateInput(ModulePass):
    name = "negate-input"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for call in [o for o in op.walk() if isinstance(o, aten.CallOp)]:
            kind = call.operands[0].type
            negated = aten.CallOp.get(
                "aten.neg.default", {"self": call.arguments.data["self"]}, [call.operands[0]], [kind]
            )
            block = call.parent_block()
            assert block is not None
            block.insert_op_before(negated, call)
            call.operands[1] = negated.results[0]


@dataclass(frozen=True)
class ReadBeyond(ModulePass):
    name = "read-beyond"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for load in [o for o in op.walk() if isinstance(o, loop.LoadOp)]:
            exprs = [e + 1 for e in load.access.exprs]
            Rewriter.replace_op(load, loop.LoadOp.get(load.source, exprs, load.indices))


@dataclass(frozen=True)
class DropReturns(ModulePass):
    name = "drop-returns"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for end in [o for o in op.walk() if isinstance(o, func.ReturnOp)]:
            Rewriter.erase_op(end)
            return


Check = Callable[[Sequence[ModulePass]], Report | None]


@pytest.fixture
def check(run: Runner) -> Check:
    return lambda passes: check_passes(Context(), run.parse(TEXT).clone(), passes, InputSpec())


def test_passes_that_change_nothing(check: Check) -> None:
    assert check([Nothing(), Nothing()]) is None


@pytest.mark.parametrize(
    ("culprit", "message"),
    [
        (
            SubtractInstead(),
            r"changes `@first`: result 0 at \[0, 0\] is 0, expected -?[0-9.]+ \(10 of 10 elements differ\)$",
        ),
        (NegateInput(), r"changes `@second`: result 0 at \[0, 0\] is"),
        (SquareLess(), r"changes `@third`: argument 1 afterwards at \[0\] is"),
        (ReadBeyond(), r"makes `@first` fail: `loop.load`: index 0 is 5, expected 0 to 4, in iteration \[4, 0\]\n"),
        (DropReturns(), r"makes a module that is not valid: "),
    ],
)
def test_the_first_pass_at_fault_is_named(check: Check, culprit: ModulePass, message: str) -> None:
    report = check([Nothing(), culprit, SubtractInstead()])
    assert report is not None
    assert report.number == 2
    assert report.step is culprit
    assert str(report).startswith(f"pass 2, `{culprit.name}`, ")
    assert re.search(message, str(report))


def test_the_module_before_is_kept(check: Check, run: Runner) -> None:
    report = check([SubtractInstead()])
    assert report is not None
    assert str(report.before) == str(run.parse(TEXT))


def test_a_function_that_cannot_be_run_is_an_error(run: Runner) -> None:
    module = run.parse(TEXT).clone()
    ReadBeyond().apply(Context(), module)
    with pytest.raises(ExecutionError, match="expected 0 to 4"):
        check_passes(Context(), module, [Nothing()], InputSpec())
