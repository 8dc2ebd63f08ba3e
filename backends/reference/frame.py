"""Where the values of a running program are: buffers, and registers over a whole iteration space at once.

A scalar inside loops is one tensor that holds its value in every iteration. Its dims are the loops around its
definition, outermost first, of size one where the value is the same in all iterations; so a value from an outer loop is
used in an inner one by adding dims of size one behind. A vector has its lanes as one more dim, the last, and a tensor
of a kernel for a GPU its own dims; there the one dim in front is that of the programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch

from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from tilewright.backends.reference.buffers import Buffer
from tilewright.backends.reference.errors import ExecutionError, failure
from tilewright.backends.reference.expressions import Number, evaluate, evaluate_int
from tilewright.backends.reference.pointers import Pointers, Programs
from tilewright.backends.reference.races import AccessLog
from tilewright.dialects.sym_expr import Expr, Symbol, dim
from tilewright.dialects.type_guards import is_tensor, is_vector

Value = Tensor | Buffer | Pointers | None
"""A register, memory, addresses in it, or an undefined optional result."""


@dataclass(frozen=True)
class Space:
    """The iterations of the loops around an operation."""

    extents: tuple[int, ...] = ()
    loops: tuple[Operation, ...] = ()
    """For each dim the operation whose loop it is."""
    active: Tensor | None = None
    """Which points are iterations, where an inner loop's length depends on an outer one; None if all are."""

    @property
    def depth(self) -> int:
        return len(self.extents)


@dataclass(frozen=True)
class Frame:
    """The state of one function or kernel, at one place in its loops."""

    module: ModuleOp
    symbols: Mapping[Symbol, int]
    values: dict[SSAValue, Value] = field(default_factory=dict[SSAValue, Value])
    space: Space = Space()
    log: AccessLog | None = None
    """Where the accesses of the nest around this place are recorded."""
    prefixes: dict[Operation, list[Tensor]] | None = None
    """In a scan, what each prefix was in the iteration before; None outside of one."""
    programs: Programs | None = None
    """The programs of a kernel for a GPU that run at once, along the first dim of every register."""
    before: Callable[[Operation, Frame], None] | None = None
    """What is called before each operation is executed."""

    def inside(self, space: Space) -> Frame:
        """Return this frame inside more loops; values are shared."""
        return replace(self, space=space)

    def set(self, value: SSAValue, content: Value) -> None:
        self.values[value] = content

    def content(self, value: SSAValue) -> Value:
        """Return what a value is. Raises `ExecutionError` if it is a buffer that was freed."""
        if value not in self.values:
            name = f"`%{value.name_hint}`" if value.name_hint else "a buffer"
            raise ExecutionError(f"{name} is used after it was freed")
        return self.values[value]

    def free(self, value: SSAValue) -> None:
        """Forget a buffer. Memory is released with the last of its views."""
        del self.values[value]

    def buffer(self, value: SSAValue) -> Buffer:
        """Return the memory that a tensor or memref value stands for."""
        content = self.content(value)
        assert isinstance(content, Buffer)
        return content

    def register(self, value: SSAValue) -> Tensor:
        """Return a register with the dims of this place, and those of a vector or tensor behind."""
        content = self.content(value)
        assert isinstance(content, Tensor)
        return aligned(content, self.space.depth, len(lanes_of(value)))

    def pointers(self, value: SSAValue) -> Pointers:
        """Return addresses, with dims as `register` has them."""
        content = self.content(value)
        assert isinstance(content, Pointers)
        return content.map(lambda offsets: aligned(offsets, self.space.depth, len(lanes_of(value))))

    def registers(self, values: Sequence[SSAValue], lanes: bool) -> list[Tensor]:
        """Return registers that broadcast together; if `lanes`, scalars have a dim for them too."""
        found = [self.register(v) for v in values]
        return [t[..., None] if lanes and not is_vector(v.type) else t for t, v in zip(found, values, strict=True)]

    def operand(self, value: SSAValue) -> Tensor | Pointers:
        """Return a register or addresses."""
        return self.pointers(value) if isinstance(self.content(value), Pointers) else self.register(value)

    def integer(self, value: SSAValue) -> int:
        """Return a register that is the same in all iterations, as an int."""
        return int(self.register(value))

    def size(self, expr: Expr) -> int:
        """Return the value of an expression over size symbols."""
        return evaluate_int(expr, self.symbols)

    def sizes(self, exprs: Sequence[Expr]) -> list[int]:
        return [evaluate_int(e, self.symbols) for e in exprs]

    def evaluate(self, exprs: Sequence[Expr], operands: Sequence[SSAValue], lanes: bool) -> list[Number]:
        """Return the values of expressions in which `d<i>` is operand `i`; see `registers` for `lanes`."""
        if not operands:
            return [evaluate(e, self.symbols) for e in exprs]
        values: dict[Symbol, Number] = {**self.symbols}
        values |= {dim(i): t for i, t in enumerate(self.registers(operands, lanes))}
        return [evaluate(e, values) for e in exprs]


def lanes_of(value: SSAValue) -> tuple[int, ...]:
    """Return the shape of a vector or tensor; of a scalar, nothing."""
    kind = value.type
    return kind.get_shape() if is_vector(kind) or is_tensor(kind) else ()


def aligned(register: Tensor, depth: int, lanes: int = 0) -> Tensor:
    """Return a register with `depth` dims for loops, and its `lanes` dims behind."""
    missing = depth + lanes - register.ndim
    if missing == 0:
        return register
    outer = register.shape[: register.ndim - lanes]
    return register.reshape(*outer, *(1,) * missing, *register.shape[len(outer) :])


def run_block(block: Block, frame: Frame) -> None:
    """Execute the operations of a block in order."""
    for op in block.ops:
        if frame.before is not None:
            frame.before(op, frame)
        execute(op, frame)


@singledispatch
def execute(op: Operation, frame: Frame) -> None:
    """Execute one operation: compute its results into `frame`, write what it writes.

    Each kind of operation registers its own function.
    """
    raise failure(op, "the interpreter does not know this operation")
