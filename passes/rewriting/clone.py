"""Compute a producer's element again where a consumer loads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, IndexType, IntegerAttr, i1
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.dialects.arith_canonicalize import float_constant, integer_constant
from tilewright.dialects.canonicalization import constant
from tilewright.dialects.loop import ApplyOp, CheckOp, IntrinsicOp, LoadOp, SelectOp, StoreOp
from tilewright.dialects.sym_expr import Expr
from tilewright.passes.analysis.accesses import IndexNames, index_map
from tilewright.passes.rewriting.indices import from_names

_DIVISIONS = (arith.CeilDivSIOp, arith.CeilDivUIOp, arith.DivSIOp, arith.DivUIOp, arith.FloorDivSIOp, arith.RemSIOp)


def backward_slice(store: StoreOp) -> list[Operation]:
    """Return the operations of the store's block that its value depends on, in order; none of them has a region."""
    block = store.parent
    assert block is not None
    needed: set[Operation] = set()
    pending = [store.value]
    while pending:
        owner = pending.pop().owner
        if isinstance(owner, Operation) and owner.parent is block and owner not in needed:
            needed.add(owner)
            pending.extend(owner.operands)
    return [op for op in block.ops if op in needed]


def may_trap(ops: Sequence[Operation]) -> bool:
    """Whether some operation must not run on arbitrary operands: an integer division by zero stops the program."""
    return any(
        isinstance(op, _DIVISIONS) or (isinstance(op, IntrinsicOp) and not isinstance(op.result.type, AnyFloat))
        for op in ops
    )


@dataclass
class _Copier:
    """Copies operations in front of `at`, under the mask of that load if it has one."""

    at: LoadOp
    block: Block
    rules: dict[Expr, Expr]
    names: IndexNames
    values: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])

    def insert(self, op: Operation) -> SSAValue:
        self.block.insert_op_before(op, self.at)
        return op.results[0]

    def value(self, old: SSAValue) -> SSAValue:
        """Return what stands for `old` in the copy; an index of the producer is computed from those at the load."""
        if old not in self.values and isinstance(old.type, IndexType) and self.names.symbol(old) in self.rules:
            (expr,), operands = from_names(self.names, [self.rules[self.names.symbol(old)]])
            plain = expr.is_Symbol and bool(operands)
            self.values[old] = operands[0] if plain else self.insert(ApplyOp.get(expr, operands))
        return self.values.get(old, old)

    def copy(self, op: Operation) -> Operation:
        found = index_map(op)
        if found is None:
            operands = [self.value(o) for o in op.operands]
            if isinstance(op, CheckOp) and self.at.mask is not None:
                operands[0] = self.insert(arith.OrIOp(operands[0], self.masked_off(self.at.mask)))
            return type(op).create(
                operands=operands,
                result_types=[r.type for r in op.results],
                properties=op.properties.copy(),
                attributes=op.attributes.copy(),
            )
        exprs, operands = from_names(self.names, [e.xreplace(self.rules) for e in self.names.exprs(*found)])
        if isinstance(op, ApplyOp):
            return ApplyOp.get(exprs[0], operands)
        assert isinstance(op, LoadOp)
        mask = None if op.mask is None else self.value(op.mask)
        otherwise = None if op.otherwise is None else self.value(op.otherwise)
        if self.at.mask is not None:
            mask = self.at.mask if mask is None else self.insert(arith.AndIOp(mask, self.at.mask))
            otherwise = self.insert(_one(op.result.type)) if otherwise is None else otherwise
        return LoadOp.get(op.source, exprs, operands, mask=mask, otherwise=otherwise)

    def masked_off(self, mask: SSAValue) -> SSAValue:
        """Return whether the load's mask is false: then nothing can fail."""
        true = self.insert(constant(IntegerAttr(1, i1)))
        return self.insert(arith.XOrIOp(mask, true))

    def record(self, old: Operation, new: Operation) -> None:
        for before, after in zip(old.results, new.results, strict=True):
            self.values[before] = after
            after.name_hint = before.name_hint
            if isinstance(before.type, IndexType):
                self.rules[self.names.symbol(before)] = self.names.symbol(after)


def _one(kind: Attribute) -> Operation:
    """Return a constant for elements that are not there; one, so that it may divide."""
    one = float_constant(1.0, kind) or integer_constant(1, kind)
    assert one is not None, "elements are floats or integers"
    return constant(one)


def inline_at(
    load: LoadOp, store: StoreOp, ops: Sequence[Operation], rules: dict[Expr, Expr], names: IndexNames
) -> list[LoadOp]:
    """Replace `load` by a copy of `ops`, which compute the value of `store`; return the loads in the copy.

    `rules` gives the producer's indices, as symbols in `names`, in terms of the indices at the load.
    """
    block = load.parent
    assert block is not None
    copier = _Copier(load, block, dict(rules), names)
    loads: list[LoadOp] = []
    for op in ops:
        new = copier.copy(op)
        new.location = op.location
        copier.insert(new)
        copier.record(op, new)
        if isinstance(new, LoadOp):
            loads.append(new)
    value = copier.value(store.value)
    if load.mask is not None and load.otherwise is not None:
        value = copier.insert(SelectOp.get(load.mask, value, load.otherwise))
    load.result.replace_all_uses_with(value)
    load.detach()
    load.erase()
    return loads
