"""Which tensors or buffers may share memory, and what a call of an operator writes.

The annotations of the operator's schema say it: in `aten::add_.Tensor(Tensor(a!) self, ..) -> Tensor(a!)` the result is
`self`, which is written. An operator that the table does not know may return any of its operands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute, Block, SSAValue

from tilewright.dialects import aten_schema, host
from tilewright.dialects.aten_schema import Alias, Schema
from tilewright.dialects.call_syntax import OperandAttr, OperatorCall
from tilewright.dialects.loop import AfterOp, ViewOp
from tilewright.dialects.type_guards import is_array, is_tensor

# The schemas of these do not say that the result is the operand's memory, or that `self` takes over that of `source`.
_SHARES_ALL = frozenset(
    {"aten._unsafe_view.default", "aten.set_.source_Tensor", "aten.set_.source_Tensor_storage_offset"}
)
# These share memory where they can and copy where they cannot, whatever their overload.
_MAY_COPY = frozenset(
    f"aten.{name}"
    for name in (
        "_autocast_to_full_precision",
        "_autocast_to_reduced_precision",
        "contiguous",
        "flatten",
        "pin_memory",
        "ravel",
        "reshape",
        "reshape_as",
        "resolve_conj",
        "resolve_neg",
        "to",
        "type_as",
    )
)


@dataclass(frozen=True)
class CallMemory:
    """What a call does to memory, by operand and result number.

    `writes` are the operands whose elements change. `shares` has for each result the operands whose memory it may be.
    `is_view` says that results are views of operands with the layouts that their types say, counted from the start of
    the operands' storage.
    """

    writes: tuple[int, ...]
    shares: tuple[tuple[int, ...], ...]
    is_view: bool


def call_memory(call: OperatorCall) -> CallMemory:
    """Return what `call` does to memory."""
    operands, results = range(len(call.operands)), len(call.results)
    schema = aten_schema.lookup(call.operator)
    if schema is None or call.operator in _SHARES_ALL:
        writes = () if schema is None else _writes(schema, call)
        return CallMemory(writes, (tuple(operands),) * results, is_view=False)
    sets = [_sets(alias) for alias in _result_aliases(schema, results)]
    named = _named_operands(schema, call)
    shares = tuple(tuple(i for i, alias in named if alias is not None and _sets(alias) & s) for s in sets)
    is_view = schema.is_view and call.operator.rpartition(".")[0] not in _MAY_COPY
    return CallMemory(_writes(schema, call), shares, is_view)


def _writes(schema: Schema, call: OperatorCall) -> tuple[int, ...]:
    return tuple(i for i, alias in _named_operands(schema, call) if alias is not None and alias.is_write)


def _named_operands(schema: Schema, call: OperatorCall) -> list[tuple[int, Alias | None]]:
    """Return each operand of `call` with the annotation of the argument that it is given for."""
    aliases = {a.name: a.alias for a in schema.arguments}
    return [
        (item.data, aliases[name])
        for name, value in call.arguments.data.items()
        for item in _items(value)
        if isinstance(item, OperandAttr)
    ]


def _items(value: Attribute) -> Iterable[Attribute]:
    return value.data if is_array(value) else (value,)


@lru_cache(maxsize=1024)
def _sets(alias: Alias | None) -> frozenset[str]:
    """Return the alias sets that a value may be in; `*` is any set, and stands for what its other half names."""
    return frozenset() if alias is None else frozenset((*alias.before, *alias.after)) - {"*"}


def _result_aliases(schema: Schema, results: int) -> Sequence[Alias | None]:
    """Return the annotation of each result; the tensors of a list share that of the list."""
    lists = [i for i, r in enumerate(schema.returns) if r.kind.is_list]
    if not lists and results == len(schema.returns):
        return [r.alias for r in schema.returns]
    if len(lists) == 1:
        at, length = lists[0], results - len(schema.returns) + 1
        aliases = [r.alias for r in schema.returns]
        return [*aliases[:at], *([aliases[at]] * length), *aliases[at + 1 :]]
    # Which of several lists a result belongs to, the call does not say.
    names = tuple(sorted({s for r in schema.returns for s in _sets(r.alias)}))
    return [Alias(names, names, is_write=False) if names else None] * results


class AliasSets:
    """Sets of values that may share memory, built value by value in program order.

    Values of one set may be views of one buffer at known places (`base`), or related in a way that only a call knows.
    """

    def __init__(self) -> None:
        self._members: dict[SSAValue, list[SSAValue]] = {}
        self._base: dict[SSAValue, SSAValue] = {}

    def add(self, value: SSAValue, shares: Iterable[SSAValue] = (), *, base: SSAValue | None = None) -> None:
        """Add `value`, which may share memory with `shares`; or which is a view of `base`, placed in its storage."""
        if base is not None:
            shares = (base,)
        self._base[value] = value if base is None else self.base(base)
        members = [value]
        for other in shares:
            theirs = self._members[other]
            if theirs is members:
                continue
            small, members = sorted((members, theirs), key=len)
            members.extend(small)
            for member in small:
                self._members[member] = members
        self._members[value] = members

    def __contains__(self, value: SSAValue) -> bool:
        return value in self._base

    def base(self, value: SSAValue) -> SSAValue:
        """Return the buffer in whose storage the layout of `value` counts."""
        return self._base[value]

    def members(self, value: SSAValue) -> Sequence[SSAValue]:
        """Return every value that may share memory with `value`, itself included. One list object for one set."""
        return self._members[value]

    def may_alias(self, a: SSAValue, b: SSAValue) -> bool:
        """Whether two values may share memory."""
        return self._members[a] is self._members[b]

    def add_call(self, call: OperatorCall) -> None:
        """Add the results of a call."""
        memory = call_memory(call)
        for result, operands in zip(call.results, memory.shares, strict=True):
            shares = [o for i in operands if (o := call.operands[i]) in self]
            if memory.is_view and len(shares) == 1:
                self.add(result, base=shares[0])
            else:
                self.add(result, shares)


def alias_sets(program: Block) -> AliasSets:
    """Return which buffers of a host program may share memory. Distinct arguments do not, where one is written."""
    sets = AliasSets()
    for argument in program.args:
        sets.add(argument)
    for op in program.ops:
        if isinstance(op, host.ViewOp):
            sets.add(op.result, base=op.source)
        elif isinstance(op, host.CallOp):
            sets.add_call(op)
        else:
            for result in op.results:
                if isinstance(result.type, MemRefType):
                    sets.add(result)
    return sets


def tensor_alias_sets(block: Block) -> AliasSets:
    """Return which tensors of a program on tensors may share memory."""
    sets = AliasSets()
    for argument in block.args:
        sets.add(argument)
    for op in block.ops:
        if isinstance(op, (AfterOp, ViewOp)):
            sets.add(op.result, base=op.source)
        elif isinstance(op, OperatorCall):
            sets.add_call(op)
        else:
            for result in op.results:
                if is_tensor(result.type):
                    sets.add(result)
    return sets
