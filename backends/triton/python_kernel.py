"""The statements of a kernel in Triton's Python.

A value that is used once becomes part of the expression that uses it, up to a readable length; others get a name, from
their hint. Only operations without an effect move, and only within their block. What a tensor repeats along a
dimension, or for all elements, is left to Triton's broadcasting, until an operation needs the whole shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr
from xdsl.ir import Block, Operation, SSAValue

from tilewright.backends.triton.python_combine import CombineFunctions
from tilewright.backends.triton.python_expressions import cast, elementwise, typed
from tilewright.backends.triton.python_style import ELIDED, assignment, hint_of, mentions, uses_of, wrap_call
from tilewright.backends.triton.python_values import (
    ATOM,
    Names,
    SourceError,
    Text,
    broadcast,
    dtype_name,
    literal,
    shape_text,
)
from tilewright.dialects import tt
from tilewright.dialects.tt import shape_of
from tilewright.dialects.type_guards import is_integer_constant

_MAX_INLINE = 48
_MAX_OPERANDS = 72
_LINE = 100
_ATOMICS = {
    "add": "atomic_add",
    "fadd": "atomic_add",
    "and": "atomic_and",
    "or": "atomic_or",
    "xor": "atomic_xor",
    "max": "atomic_max",
    "min": "atomic_min",
    "exch": "atomic_xchg",
}
_ENDS = (scf.YieldOp, tt.ReturnOp, tt.ReduceReturnOp, tt.ScanReturnOp)
_NAMED = (tt.LoadOp, tt.ReduceOp, tt.ScanOp, tt.AtomicRMWOp, tt.AtomicCASOp, tt.DotOp, tt.HistogramOp)
"""What has an effect, or is a step of its own to a reader: never part of another expression."""


def constant_number(op: arith.ConstantOp) -> float:
    """Return the number that a constant, or each element of it, is. Raises `SourceError` for different numbers."""
    match op.value:
        case IntegerAttr() | FloatAttr() as attribute:
            return attribute.value.data
        case DenseIntOrFPElementsAttr() as dense if dense.is_splat():
            number = next(iter(dense.iter_values()))
            assert not isinstance(number, tuple)
            return number
        case _:
            raise SourceError(f"triton's Python has no constant of different numbers such as {op.value}")


def _loop_options(op: scf.ForOp) -> Iterator[tuple[str, int]]:
    """Yield what a loop asks Triton for, as arguments of `tl.range`."""
    for name in ("num_stages", "loop_unroll_factor"):
        value = op.attributes.get(f"tt.{name}")
        if value is not None and is_integer_constant(value):
            yield name, value.value.data


class KernelSource:
    """Writes the body of one kernel, or of a function that combines two elements."""

    def __init__(self, names: Names, combiners: CombineFunctions, blocks: dict[int, str], indent: int = 1) -> None:
        self.lines: list[str] = []
        self._names = names
        self._combiners = combiners
        self._blocks = blocks
        self._indent = indent
        self._texts: dict[SSAValue, Text] = {}
        self._same: dict[SSAValue, SSAValue] = {}
        """Values that are others repeated."""

    def define(self, value: SSAValue, text: Text) -> None:
        """Let `value` be written as `text`."""
        self._texts[value] = text

    def block(self, block: Block) -> None:
        """Write the operations of a block but for its terminator."""
        for op in block.ops:
            if not isinstance(op, _ENDS):
                self._operation(op)

    def text(self, value: SSAValue) -> Text:
        """Return the expression of `value`."""
        known = self._texts.get(self._root(value))
        if known is None:
            owner = value.owner
            if not isinstance(owner, arith.ConstantOp):
                raise SourceError("triton's Python has no combination of elements that uses other values")
            known = literal(constant_number(owner), owner.result.type)
        return known

    def _root(self, value: SSAValue) -> SSAValue:
        return self._same.get(value, value)

    def _line(self, text: str) -> None:
        lead = "    " * self._indent
        if len(lead) + len(text) > _LINE and text.endswith(")") and "(" in text:
            wrapped = wrap_call(text)
            self.lines += [lead + line for line in wrapped]
            return
        self.lines.append(lead + text)

    def _whole(self, value: SSAValue) -> Text:
        """Return an expression of `value` in its whole shape."""
        text, shape = self.text(value), shape_of(value.type)
        if text.shape == shape and not text.literal:
            return text
        if not shape:
            return typed(text, value.type)
        sizes = shape_text(shape, self._blocks)
        if text.literal and text.code in ("0", "0.0"):
            return Text(f"tl.zeros({sizes}, {dtype_name(value.type)})", shape=shape)
        if text.literal:
            return Text(f"tl.full({sizes}, {text.code}, {dtype_name(value.type)})", shape=shape)
        return Text(f"tl.broadcast_to({text.code}, {sizes})", shape=shape)

    def _operands(self, op: Operation) -> list[Text]:
        """Return the expressions of the operands, of which too long ones have become names."""
        while True:
            texts = [self.text(v) for v in op.operands]
            longest = max(texts, key=lambda t: len(t.code), default=None)
            if longest is None or sum(len(t.code) for t in texts) <= _MAX_OPERANDS or len(longest.code) <= 12:
                return texts
            value = self._root(op.operands[texts.index(longest)])
            if longest.is_name or longest.literal:
                return texts
            self._assign(value, longest)

    def _assign(self, value: SSAValue, text: Text) -> None:
        name = self._names.fresh(hint_of(value))
        self._line(f"{name} = {text.code}")
        self._texts[value] = Text(name, shape=text.shape)

    def _set(self, op: Operation, text: Text) -> None:
        """Let the result of `op` be `text`: in place where it is used once, else under a name."""
        result = op.results[0]
        uses = uses_of(result)
        if not uses and not isinstance(op, _NAMED):
            return
        once = len(uses) == 1 and uses[0].parent is op.parent
        once &= len(text.code) <= (_MAX_OPERANDS if once and isinstance(uses[0], _ENDS) else _MAX_INLINE)
        if isinstance(op, tt.ExpandDimsOp) and text.code.partition("[")[0].isidentifier():
            once = True
        if text.literal or text.is_name or (once and not isinstance(op, _NAMED)):
            self._texts[result] = text
        else:
            self._assign(result, text)

    def _operation(self, op: Operation) -> None:
        if isinstance(op, ELIDED):
            self._repeat(op)
        elif isinstance(op, arith.ConstantOp):
            self._texts[op.result] = literal(constant_number(op), op.result.type)
        elif isinstance(op, scf.ForOp):
            self._for(op)
        elif isinstance(op, scf.IfOp):
            self._if(op)
        elif isinstance(op, (tt.ReduceOp, tt.ScanOp)):
            self._combine(op)
        else:
            self._simple(op)

    def _repeat(self, op: tt.SplatOp | tt.BroadcastOp | tt.UnsplatOp) -> None:
        if isinstance(op, tt.UnsplatOp) and self.text(op.src).shape:
            raise SourceError("triton's Python has no `tt.unsplat`")
        self._same[op.result] = self._root(op.src)

    def _simple(self, op: Operation) -> None:
        values = self._operands(op)
        text = elementwise(op, values)
        if text is not None:
            self._set(op, text)
            return
        match op:
            case tt.GetProgramIdOp():
                self._set(op, Text(f"tl.program_id({'xyz'.index(op.axis.data)})"))
            case tt.GetNumProgramsOp():
                self._set(op, Text(f"tl.num_programs({'xyz'.index(op.axis.data)})"))
            case tt.MakeRangeOp():
                end = op.end.value.data
                code = f"tl.arange({op.start.value.data}, {self._blocks.get(end, end)})"
                self._set(op, Text(code, shape=shape_of(op.result.type)))
            case tt.ExpandDimsOp():
                self._set(op, self._expand(op, values[0]))
            case tt.LoadOp():
                self._set(op, self._load(op))
            case tt.StoreOp():
                self._store(op)
            case tt.AtomicRMWOp() | tt.AtomicCASOp():
                self._atomic(op)
            case tt.AssertOp():
                self._line(f'tl.device_assert({values[0].code}, "{op.message.data}")')
            case tt.SplitOp():
                lhs, rhs = (self._names.fresh(hint_of(r)) for r in op.results)
                self._line(f"{lhs}, {rhs} = tl.split({self._whole(op.src).code})")
                for result, name in ((op.lhs, lhs), (op.rhs, rhs)):
                    self._texts[result] = Text(name, shape=shape_of(result.type))
            case _ if op.name == "gpu.barrier":
                self._line("tl.debug_barrier()")
            case _:
                self._set(op, self._shaped(op))

    def _expand(self, op: tt.ExpandDimsOp, value: Text) -> Text:
        rank = len(shape_of(op.src.type))
        if not value.shape:
            return value
        axis = op.axis.value.data
        shape = (*value.shape[:axis], 1, *value.shape[axis:])
        if value.code.endswith("]") and value.code.partition("[")[0].isidentifier():
            return Text(f"tl.expand_dims({value.code}, {axis})", shape=shape)
        index = [":"] * rank
        index.insert(axis, "None")
        return Text(f"{value.within(ATOM)}[{', '.join(index)}]", shape=shape)

    def _shaped(self, op: Operation) -> Text:
        """Return the expression of an operation that needs the whole shape of its operands."""
        if len(op.results) != 1:
            raise SourceError(f"triton's Python has no `{op.name}`")
        shape = shape_of(op.results[0].type)
        values = [self._whole(v).code for v in op.operands]
        match op:
            case tt.ReshapeOp():
                reorder = ", can_reorder=True" if op.allow_reorder is not None else ""
                code = f"tl.reshape({values[0]}, {shape_text(shape, self._blocks)}{reorder})"
            case tt.TransOp():
                order = ", ".join(str(i) for i in op.order.get_values())
                code = f"tl.trans({values[0]})" if order == "1, 0" else f"tl.permute({values[0]}, ({order}))"
            case tt.DotOp():
                a, b, c = values
                start = "" if self.text(op.c).code == "0.0" else f", {c}"
                code = f'tl.dot({a}, {b}{start}, input_precision="{op.inputPrecision.data}")'
            case tt.JoinOp():
                code = f"tl.join({', '.join(values)})"
            case tt.CatOp():
                code = f"tl.cat({', '.join(values)}, can_reorder=True)"
            case tt.GatherOp():
                code = f"tl.gather({', '.join(values)}, {op.axis.value.data})"
            case tt.HistogramOp():
                code = f"tl.histogram({values[0]}, {shape[0]})"
            case _:
                raise SourceError(f"triton's Python has no `{op.name}`")
        return Text(code, shape=shape)

    def _pointer(self, pointer: SSAValue, *others: SSAValue | None) -> Text:
        """Return pointers of a shape to which Triton can bring masks and values."""
        text = self.text(pointer)
        shapes = [self.text(v).shape for v in others if v is not None]
        return text if broadcast([text.shape, *shapes]) == text.shape else self._whole(pointer)

    def _load(self, op: tt.LoadOp) -> Text:
        pointer = self._pointer(op.ptr, op.mask, op.other)
        arguments = [pointer.code]
        if op.mask is not None:
            arguments.append(f"mask={self.text(op.mask).code}")
        if op.other is not None:
            arguments.append(f"other={self.text(op.other).code}")
        arguments += _hints(op.cachePolicy)
        if op.isVolatile is not None and op.isVolatile.value.data:
            arguments.append("volatile=True")
        return Text(f"tl.load({', '.join(arguments)})", shape=pointer.shape)

    def _store(self, op: tt.StoreOp) -> None:
        arguments = [self._whole(op.ptr).code, self.text(op.value).code]
        if op.mask is not None:
            arguments.append(f"mask={self.text(op.mask).code}")
        self._line(f"tl.store({', '.join([*arguments, *_hints(op.cachePolicy)])})")

    def _atomic(self, op: tt.AtomicRMWOp | tt.AtomicCASOp) -> None:
        shape = shape_of(op.result.type)
        if isinstance(op, tt.AtomicCASOp):
            function = "atomic_cas"
            values = [op.ptr, op.cmp, op.val]
        else:
            kind = op.atomic_rmw_op.data
            if kind not in _ATOMICS:
                raise SourceError(f"triton's Python has no `tt.atomic_rmw {kind}`")
            function = _ATOMICS[kind]
            values = [op.ptr, op.val]
        arguments = [self._whole(v).code for v in values]
        if isinstance(op, tt.AtomicRMWOp) and op.mask is not None and self.text(op.mask).code != "True":
            arguments.append(f"mask={self.text(op.mask).code}")
        code = f'tl.{function}({", ".join(arguments)}, sem="{op.sem.data}", scope="{op.scope.data}")'
        if uses_of(op.result):
            self._assign(op.result, Text(code, shape=shape))
        else:
            self._line(code)

    def _combine(self, op: tt.ReduceOp | tt.ScanOp) -> None:
        operands = [self._whole(v) for v in op.srcs]
        if not any(uses_of(r) for r in op.results):
            return
        code = self._combiners.call(op, [t.code for t in operands])
        names = [self._names.fresh(hint_of(r)) for r in op.results]
        self._line(f"{', '.join(names)} = {code}")
        for result, name in zip(op.results, names, strict=True):
            self._texts[result] = Text(name, shape=shape_of(result.type))

    def _for(self, op: scf.ForOp) -> None:
        index, *carried = op.body.block.args
        names = [self._carried_name(result, argument) for result, argument in zip(op.res, carried, strict=True)]
        for name, start in zip(names, op.iter_args, strict=True):
            self._line(f"{name} = {self._whole(start).code}")
        for name, argument, result in zip(names, carried, op.res, strict=True):
            self._texts[argument] = self._texts[result] = Text(name, shape=shape_of(argument.type))
        bounds = [self.text(v) for v in (op.lb, op.ub, op.step)]
        variable = self._names.fresh(hint_of(index))
        arguments = ", ".join(self._bounds(*bounds))
        options = [f", {name}={value}" for name, value in _loop_options(op)]
        self._line(f"for {variable} in {'tl.range' if options else 'range'}({arguments}{''.join(options)}):")
        wide = dtype_name(index.type) == "tl.int64"
        plain = Text(variable, plain=True)
        self._texts[index] = cast(plain, "tl.int64") if wide else plain
        self._indent += 1
        before = len(self.lines)
        self.block(op.body.block)
        self._yield(op.body.block, names)
        if len(self.lines) == before:
            self._line("pass")
        self._indent -= 1

    def _carried_name(self, result: SSAValue, argument: SSAValue) -> str:
        return self._names.fresh(result.name_hint or argument.name_hint or "carried")

    def _bounds(self, start: Text, stop: Text, step: Text) -> list[str]:
        if step.code == "1":
            return [stop.code] if start.code == "0" else [start.code, stop.code]
        size = self._blocks.get(int(step.code), step.code) if step.literal else step.code
        return [start.code, stop.code, size]

    def _yield(self, block: Block, names: Sequence[str]) -> None:
        """Assign what a block yields to variables, all at once where one is part of what another becomes."""
        last = block.last_op
        values = list(last.operands) if isinstance(last, scf.YieldOp) else []
        changed = [(n, self._whole(v).code) for n, v in zip(names, values, strict=True)]
        changed = [(name, code) for name, code in changed if name != code]
        if any(mentions(code, name) for i, (_, code) in enumerate(changed) for name, _ in changed[:i]):
            self._line(f"{', '.join(n for n, _ in changed)} = {', '.join(c for _, c in changed)}")
            return
        for name, code in changed:
            self._line(assignment(name, code))

    def _if(self, op: scf.IfOp) -> None:
        names = [self._names.fresh(hint_of(r)) for r in op.results]
        self._line(f"if {self.text(op.cond).code}:")
        self._branch(op.true_region.block, names)
        if op.false_region.blocks and (names or len(list(op.false_region.block.ops)) > 1):
            self._line("else:")
            self._branch(op.false_region.block, names)
        for name, result in zip(names, op.results, strict=True):
            self._texts[result] = Text(name, shape=shape_of(result.type))

    def _branch(self, block: Block, names: Sequence[str]) -> None:
        self._indent += 1
        before = len(self.lines)
        self.block(block)
        self._yield(block, names)
        if len(self.lines) == before:
            self._line("pass")
        self._indent -= 1


def _hints(policy: tt.CachePolicyAttr | None) -> list[str]:
    if policy is None:
        return []
    modifier, eviction = policy.cache_modifier.data, policy.eviction_policy.data
    hints = [] if modifier == "none" else [f'cache_modifier=".{modifier}"']
    return hints if eviction == "evict_normal" else [*hints, f'eviction_policy="{eviction}"']
