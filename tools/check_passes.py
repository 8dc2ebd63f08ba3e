"""Find the first pass of a pipeline that changes what a program computes: run the module before and after each.

The reference interpreter runs every level, so this needs no compiler, and points at the pass and the element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects import host, loop, tt
from tilewright.dialects.verifier import verify_module

if TYPE_CHECKING:
    from tilewright.backends.reference.inputs import InputSpec
    from tilewright.backends.reference.interpreter import Input
    from tilewright.backends.reference.observe import Observation, Tolerance


@dataclass(frozen=True)
class Report:
    """The first pass after which the module does something else."""

    number: int
    """The place of the pass in the pipeline, from one."""
    step: ModulePass
    problem: str
    """The function and the element that differs, or the error that running or verifying the module gives."""
    before: ModuleOp
    """The module that the pass was given."""

    def __str__(self) -> str:
        return f"pass {self.number}, `{self.step.spec()}`, {self.problem}"


def run(
    ctx: Context,
    module: ModuleOp,
    passes: Sequence[ModulePass],
    *,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
) -> Report | None:
    """Check `passes` on inputs that are made up, with the given seed; see `check_passes`."""
    from tilewright.backends.reference.inputs import InputSpec

    return check_passes(ctx, module, passes, InputSpec(seed=seed), rtol=rtol, atol=atol)


def check_passes(
    ctx: Context,
    module: ModuleOp,
    passes: Sequence[ModulePass],
    inputs: InputSpec,
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> Report | None:
    """Run `passes` on `module`, which is changed, until one changes results, or arguments that are written, or strides.

    Every function is run, and every kernel that nothing launches. Returns a report on the first pass at fault, or None.
    Tolerances are by dtype where none is given. Raises what a pass raises, and `ExecutionError` if a function cannot be
    run before the first pass.
    """
    from tilewright.backends.reference.inputs import make_inputs
    from tilewright.backends.reference.observe import Tolerance, observe_function
    from tilewright.frontends.random_operators import load_operators

    load_operators()
    cases: list[_Case] = []
    for name in callees(module):
        given = make_inputs(module, name, inputs)
        cases.append(_Case(name, given, observe_function(module, given, name, inputs.seed), inputs.seed))
    for number, step in enumerate(passes, 1):
        before = module.clone()
        step.apply(ctx, module)
        problem = _first_problem(module, cases, Tolerance(rtol, atol))
        if problem is not None:
            return Report(number, step, problem, before)
    return None


@dataclass(frozen=True)
class _Case:
    """A function or kernel, its inputs, and what it does with them."""

    name: str
    inputs: Sequence[Input]
    expected: Observation
    seed: int


def callees(module: ModuleOp, *, with_launched: bool = False) -> list[str]:
    """Return the names of the functions and kernels in `module`, by default only of those that nothing launches."""
    launched: set[str] = set()
    if not with_launched:
        launched = {op.kernel_name for op in module.walk() if isinstance(op, host.LaunchOp)}
    return [
        op.sym_name.data
        for op in module.ops
        if isinstance(op, (loop.KernelOp, tt.FuncOp)) or (isinstance(op, FuncOp) and not op.is_declaration)
        if op.sym_name.data not in launched
    ]


def _first_problem(module: ModuleOp, cases: Sequence[_Case], tolerance: Tolerance) -> str | None:
    """Return what is wrong with a module, or None."""
    from tilewright.backends.reference import ExecutionError
    from tilewright.backends.reference.observe import first_difference, observe_function

    try:
        verify_module(module)
    except VerifyException as error:
        return f"makes a module that is not valid: {error}"
    for case in cases:
        try:
            found = observe_function(module, case.inputs, case.name, case.seed)
        except ExecutionError as error:
            return f"makes `@{case.name}` fail: {error}"
        difference = first_difference(case.expected, found, tolerance)
        if difference is not None:
            return f"changes `@{case.name}`: {difference}"
    return None
