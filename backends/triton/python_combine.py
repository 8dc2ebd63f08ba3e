"""Reductions and scans in Triton's Python: functions of Triton's own, or ours that combine two elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import Float32Type, Float64Type
from xdsl.ir import Attribute, Operation

from tilewright.backends.triton.python_values import COMBINE, Names
from tilewright.dialects import tt
from tilewright.dialects.arith_tensor import element_of
from tilewright.dialects.type_guards import is_integer

_REDUCTIONS: dict[type[Operation], str] = {
    arith.AddfOp: "sum",
    arith.AddiOp: "sum",
    arith.MaxSIOp: "max",
    arith.MaxnumfOp: "max",
    arith.MinSIOp: "min",
    arith.MinnumfOp: "min",
    arith.XOrIOp: "xor_sum",
}
_SCANS: dict[type[Operation], str] = {
    arith.AddfOp: "cumsum",
    arith.AddiOp: "cumsum",
    arith.MulfOp: "cumprod",
    arith.MuliOp: "cumprod",
}

WriteBody = Callable[[tt.ReduceOp | tt.ScanOp, Sequence[str]], list[str]]
"""Writes the lines of a function that combines two elements, whose arguments have the names given."""


class CombineFunctions:
    """The functions of one file that combine elements; equal ones are one."""

    def __init__(self, names: Names, write_body: WriteBody) -> None:
        self._names = names
        self._write_body = write_body
        self._known: dict[tuple[str, ...], str] = {}
        self.lines: list[str] = []

    def call(self, op: tt.ReduceOp | tt.ScanOp, values: Sequence[str]) -> str:
        """Return a call that combines `values` as `op` does."""
        axis = op.axis.value.data
        reverse = isinstance(op, tt.ScanOp) and op.reverse is not None and bool(op.reverse.value.data)
        last = ", reverse=True" if reverse else ""
        known = _simple_function(op)
        if known is not None:
            return f"tl.{known}({values[0]}, axis={axis}{last})"
        function = "reduce" if isinstance(op, tt.ReduceOp) else "associative_scan"
        given = values[0] if len(values) == 1 else f"({', '.join(values)})"
        return f"tl.{function}({given}, {axis}, {self._function(op)}{last})"

    def _function(self, op: tt.ReduceOp | tt.ScanOp) -> str:
        count = len(op.srcs)
        numbers = [""] if count == 1 else [str(i) for i in range(count)]
        arguments = [f"{side}{number}" for side in ("a", "b") for number in numbers]
        body = self._write_body(op, arguments)
        key = (*arguments, *body)
        if key not in self._known:
            name = self._names.fresh(f"{COMBINE}{_purpose(op)}", top=True)
            self._known[key] = name
            self.lines += ["@triton.jit", f"def {name}({', '.join(arguments)}):", *body, "", ""]
        return self._known[key]


def _purpose(op: tt.ReduceOp | tt.ScanOp) -> str:
    """Return what a combination is for: the name of its result, or of its only operation."""
    hint = op.results[0].name_hint
    if hint is not None:
        return hint
    first = op.block.first_op
    return "values" if first is None else first.name.partition(".")[2]


def _simple_function(op: tt.ReduceOp | tt.ScanOp) -> str | None:
    """Return Triton's function that combines elements just as `op`, if there is one: it widens narrow elements."""
    if len(op.srcs) != 1 or not _keeps_type(element_of(op.srcs[0].type)):
        return None
    first, last = op.block.first_op, op.block.last_op
    if first is None or last is None or first.next_op is not last:
        return None
    if list(first.operands) != list(op.block.args) or list(last.operands) != list(first.results):
        return None
    return (_REDUCTIONS if isinstance(op, tt.ReduceOp) else _SCANS).get(type(first))


def _keeps_type(element: Attribute) -> bool:
    return isinstance(element, (Float32Type, Float64Type)) or (is_integer(element) and element.width.data in (32, 64))
