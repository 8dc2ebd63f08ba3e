"""Let a matrix product add to the product before it: `add(mm(a, b), c)` becomes `addmm(c, a, b)`.

The gradient of a weight that is used in every step of a loop is a sum of products. Library kernels add to what is there
while they store, so the sum needs neither a kernel nor a buffer for each term. (Inductor: `mm_plus_add` patterns.)

Before:
```
!X = tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>
!W = tensor<8x8xf32, #sym.layout<[8, 8], [8, 1]>>
func.func @forward(%x : !X, %y : !X, %w : !W) -> !X {
  %p = aten.call "aten.mm.default"(self = %x, mat2 = %w) : (!X, !W) -> !X
  %q = aten.call "aten.mm.default"(self = %y, mat2 = %w) : (!X, !W) -> !X
  %s = aten.call "aten.add.Tensor"(self = %p, other = %q) : (!X, !X) -> !X
  func.return %s : !X
}
```
After:
```
!X = tensor<4x8xf32, #sym.layout<[4, 8], [8, 1]>>
!W = tensor<8x8xf32, #sym.layout<[8, 8], [8, 1]>>
func.func @forward(%x : !X, %y : !X, %w : !W) -> !X {
  %p = aten.call "aten.mm.default"(self = %x, mat2 = %w) : (!X, !W) -> !X
  %s = aten.call "aten.addmm.default"(self = %p, mat1 = %y, mat2 = %w) : (!X, !X, !W) -> !X
  func.return %s : !X
}
```

The other term must be a product too, of which nothing else is needed: any other addition is better fused with the
loops around it. A double transpose between the two, as autograd puts there, is looked through, and so is a view that
changes nothing.

Left alone: dtypes of less than 32 bits, where eager rounds the product before it adds.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Container
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import Float32Type, Float64Type, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dialects.aten import CallOp
from tilewright.dialects.call_syntax import OperandAttr
from tilewright.dialects.type_guards import is_tensor
from tilewright.passes.analysis.aliasing import call_memory
from tilewright.passes.rewriting.origins import fuse_locations


@dataclass(frozen=True)
class _Adding:
    """The operator that adds a product to its `self`, and what it calls the two factors."""

    operator: str
    left: str
    right: str


_ADDING = {
    "aten.mm.default": _Adding("aten.addmm.default", "mat1", "mat2"),
    "aten.bmm.default": _Adding("aten.baddbmm.default", "batch1", "batch2"),
}
_PRODUCTS = frozenset((*_ADDING, *(adding.operator for adding in _ADDING.values())))
_FLIP = "aten.t.default"
_VIEWS = frozenset({_FLIP, "aten.view.default", "aten.expand.default"})


@dataclass(frozen=True)
class _Term:
    """A product, and the views between it and the sum that change nothing together, last first."""

    product: CallOp
    path: tuple[CallOp, ...]


def _call_of(value: SSAValue, operators: Container[str]) -> CallOp | None:
    """Return the call of one of `operators` that made `value`."""
    owner = value.owner
    return owner if isinstance(owner, CallOp) and owner.operator in operators else None


def _same_tensor(value: SSAValue) -> list[CallOp]:
    """Return the calls, last first, of which `value` is the result and whose operand is the same tensor."""
    outer = _call_of(value, _VIEWS)
    if outer is None:
        return []
    if outer.operator != _FLIP:
        return [outer] if outer.operands[0].type == value.type else []
    inner = _call_of(outer.operands[0], (_FLIP,))
    return [] if inner is None or inner.operands[0].type != value.type else [outer, inner]


def _term(value: SSAValue) -> _Term | None:
    """Return the product that `value` is, if nothing else needs it or what lies between."""
    path: list[CallOp] = []
    kind = value.type
    while step := _same_tensor(value):
        path += step
        value = step[-1].operands[0]
    product = _call_of(value, _PRODUCTS)
    if product is None or value.type != kind or not all(r.has_one_use() for op in (product, *path) for r in op.results):
        return None
    return _Term(product, tuple(path))


def _is_plain_sum(op: Operation) -> bool:
    """Whether `op` adds two tensors of wide floats that have the type of its result, and scales neither."""
    if not isinstance(op, CallOp) or op.operator != "aten.add.Tensor":
        return False
    kind = op.results[0].type
    if not is_tensor(kind) or not isinstance(kind.element_type, (Float32Type, Float64Type)):
        return False
    plain = op.arguments.data == {"self": OperandAttr(0), "other": OperandAttr(1)}
    return plain and all(operand.type == kind for operand in op.operands)


class _Folder:
    """Folds the sums of one block."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.position: dict[Operation, int] = {op: number for number, op in enumerate(block.ops)}
        self.writes = [n for op, n in self.position.items() if isinstance(op, CallOp) and call_memory(op).writes]

    def run(self) -> None:
        for op in list(self.position):
            if isinstance(op, CallOp) and _is_plain_sum(op):
                self._fold(op)

    def _fold(self, add: CallOp) -> None:
        terms = [term for operand in add.operands if (term := _term(operand))]
        if len(terms) != 2:
            return
        terms.sort(key=lambda term: self.position[term.product])
        # The later one, which is computed about where the sum is.
        for term, other in (terms[::-1], terms):
            adding = _ADDING.get(term.product.operator)
            if adding is not None and self._fits(adding, term, other, add):
                self._replace(add, adding, term, other)
                return

    def _fits(self, adding: _Adding, term: _Term, other: _Term, add: CallOp) -> bool:
        """Whether the products are of one kind, and the factors are at `add` still what they were."""
        if other.product.operator not in (term.product.operator, adding.operator):
            return False
        return bisect(self.writes, self.position[term.product]) == bisect(self.writes, self.position[add])

    def _replace(self, add: CallOp, adding: _Adding, term: _Term, other: _Term) -> None:
        product = term.product
        arguments = {"self": OperandAttr(0), adding.left: OperandAttr(1), adding.right: OperandAttr(2)}
        operands = [other.product.results[0], *product.operands]
        total = CallOp.get(adding.operator, arguments, operands, add.result_types)
        total.location = fuse_locations(product.location, add.location)
        total.results[0].name_hint = add.results[0].name_hint
        self.block.insert_op_before(total, add)
        self.position[total] = self.position[add]
        add.results[0].replace_all_uses_with(total.results[0])
        for op in (add, *other.path, *term.path, product):
            self.block.erase_op(op)


@dataclass(frozen=True)
class FoldAddIntoMmPass(ModulePass):
    """Let a matrix product add to the product before it."""

    name = "fold-add-into-mm"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, FuncOp) and not function.is_declaration:
                _Folder(function.body.block).run()
