"""Where the values of a host program are during a call.

A call has a frame of two arrays. `slots` holds a tensor handle per value: inputs, then what the program makes, then
results, then constants. `scalars` holds 64-bit integers: integer inputs, size symbols, then what the program computes.
Whoever calls the program owns the frame: inputs and constants are put in before, results are taken out after, and every
other handle that is then still there is given up, whether the call worked or not. Constants are borrowed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Operation, SSAValue

from tilewright.backends.host.plan import HostPlan, is_buffer
from tilewright.dialects import host
from tilewright.dialects.sym_expr import Symbol


@dataclass(frozen=True)
class Frame:
    """The numbers of slots and scalars."""

    slots: Mapping[SSAValue, int]
    scalars: Mapping[SSAValue, int]
    symbols: Mapping[Symbol, int]
    """The scalar of each size symbol."""
    first_result: int
    """The slot of the first result that is a tensor; the others follow."""
    first_constant: int
    num_slots: int
    num_scalars: int

    @property
    def num_owned(self) -> int:
        """How many slots hold handles that the frame owns: all but the constants', which are last."""
        return self.first_constant


def make_frame(plan: HostPlan) -> Frame:
    """Number the values of a program."""
    inputs = plan.arguments[: plan.num_inputs]
    tensors = [a for a in inputs if is_buffer(a)]
    slots = {value: number for number, value in enumerate(tensors)}
    scalars = {value: number for number, value in enumerate(a for a in inputs if not is_buffer(a))}
    symbols: dict[Symbol, int] = {}
    num_scalars = len(scalars)
    for source in plan.symbols:
        if source.dim is None:
            symbols[source.name] = scalars[plan.arguments[source.argument]]
        else:
            symbols[source.name] = num_scalars
            num_scalars += 1
    num_slots = len(slots)
    for op in plan.ops:
        for value in _slot_values(op, plan):
            slots[value] = num_slots
            num_slots += 1
        for value in op.results:
            if isinstance(value.type, IntegerType):
                scalars[value] = num_scalars
                num_scalars += 1
    first_result = num_slots
    first_constant = first_result + sum(map(is_buffer, plan.results))
    for number, constant in enumerate(plan.arguments[plan.num_inputs :]):
        slots[constant] = first_constant + number
    return Frame(
        slots=slots,
        scalars=scalars,
        symbols=symbols,
        first_result=first_result,
        first_constant=first_constant,
        num_slots=first_constant + plan.num_constants,
        num_scalars=num_scalars,
    )


def _slot_values(op: Operation, plan: HostPlan) -> Sequence[SSAValue]:
    """Return the results that have a slot. All of a call's have: they lie side by side, undefined tensors included."""
    match op:
        case host.AllocOp() | host.CallOp():
            return op.results
        case host.ViewOp() if op.result in plan.handles:
            return op.results
        case _:
            return ()
