"""Pad the matrix products on a GPU whose rows do not begin at multiples of 16 bytes.

The fast kernels of a GPU's library load 16 bytes at a time. They need row lengths that are multiples of that; strides
alone do not help. On an H200, 4096 x 768 x 50257 in bf16 runs at 94 TFLOP/s and 4096 x 768 x 50264 at 704.

Before:
```
!X = tensor<2048x1024xbf16, #sym.layout<[2048, 1024], [1024, 1], device "cuda:0">>
!W = tensor<1024x4095xbf16, #sym.layout<[1024, 4095], [4095, 1], device "cuda:0">>
!Y = tensor<2048x4095xbf16, #sym.layout<[2048, 4095], [4095, 1], device "cuda:0">>
func.func @f(%x : !X, %w : !W) -> !Y {
  %y = aten.call "aten.mm.default"(self = %x, mat2 = %w) : (!X, !W) -> !Y
  func.return %y : !Y
}
```
After:
```
!X = tensor<2048x1024xbf16, #sym.layout<[2048, 1024], [1024, 1], device "cuda:0">>
!W = tensor<1024x4095xbf16, #sym.layout<[1024, 4095], [4095, 1], device "cuda:0">>
!WP = tensor<1024x4096xbf16, #sym.layout<[1024, 4096], [4096, 1], device "cuda:0">>
!YP = tensor<2048x4096xbf16, #sym.layout<[2048, 4096], [4096, 1], device "cuda:0">>
!YS = tensor<2048x4095xbf16, #sym.layout<[2048, 4095], [4096, 1], device "cuda:0">>
!Y = tensor<2048x4095xbf16, #sym.layout<[2048, 4095], [4095, 1], device "cuda:0">>
func.func @f(%x : !X, %w : !W) -> !Y {
  %padded = aten.call "aten.constant_pad_nd.default"(self = %w, pad = #sym.ints<[0, 1, 0, 0]>, value = 0 : i64)
      : (!W) -> !WP
  %mm = aten.call "aten.mm.default"(self = %x, mat2 = %padded) : (!X, !WP) -> !YP
  %slice = aten.call "aten.slice.Tensor"(self = %mm, dim = 1 : i64, start = 0 : i64, end = 4095 : i64) : (!YP) -> !YS
  %y = aten.call "aten.clone.default"(self = %slice) : (!YS) -> !Y
  func.return %y : !Y
}
```
The padding is a loop nest, which fusion lets the nest that made the factor do where it can. It is shared by the
products of a tensor and those of its transpose, as the gradients of a linear layer have them. The copy of the result
is the nest that reads it, or, where it leaves the graph, what gives it eager's strides. The sums get terms that are
zero, so they are the same.

What pays is told from a model of time: at the rates `odd` or `even`, and `aligned`, for the operations of the product,
at `bandwidth` for the bytes of the copies, of which none is taken to be fused away, and `launch` for each of them. The
defaults are those of an H200; other GPUs have other numbers, but similar ratios. Where the elements of the inner size
lie side by side in neither factor, it may be odd: nothing is loaded along it.

Left alone: products of 32-bit floats, which gain only where TF32 is allowed, and rows of which it is not known whether
they are aligned, because their size is symbolic.
(Inductor: `pad_mm`, which measures both.)
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, BFloat16Type, Float16Type, IntegerAttr, ModuleOp, TensorType, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dialects.aten import CallOp
from tilewright.dialects.call_syntax import OperandAttr
from tilewright.dialects.loop import layout_of
from tilewright.dialects.sym import IntsAttr, LayoutAttr, contiguous_strides
from tilewright.dialects.sym_expr import Expr, exact_quotient, integer
from tilewright.dialects.type_guards import is_tensor
from tilewright.passes.analysis.aliasing import call_memory
from tilewright.passes.analysis.sizes import SizeHints
from tilewright.passes.lowering.call import Call, Tensor, tensor_type, wrap_dim
from tilewright.passes.lowering.errors import NotLoweredError

_FACTORS = {
    "aten.mm.default": ("self", "mat2"),
    "aten.bmm.default": ("self", "mat2"),
    "aten.addmm.default": ("mat1", "mat2"),
    "aten.baddbmm.default": ("batch1", "batch2"),
}
_GRAIN = 8
"""How many elements of 16 bits the fast kernels load at a time."""

Amounts = tuple[int, ...]
"""By how much each dimension of a tensor grows."""


@dataclass(frozen=True)
class _Matrix:
    """The last two dimensions of a tensor of 16-bit floats on a GPU."""

    value: SSAValue
    layout: LayoutAttr
    dense_dim: int
    """The one of the two, counted from the end, along which elements lie side by side."""
    unit: int
    """How many elements divide its rows, and where they begin; at most those of a fast load."""

    @staticmethod
    def of(value: SSAValue) -> _Matrix | None:
        """Return a matrix whose rows are known to be aligned or not to be; None for other values."""
        kind = value.type
        if not is_tensor(kind) or not isinstance(kind.element_type, (BFloat16Type, Float16Type)):
            return None
        layout = layout_of(kind)
        dense = next((d for d in (-1, -2) if layout.strides[d] == 1), None)
        if layout.device_kind != "cuda" or 0 in layout.sizes or dense is None:
            return None
        outer = [s for d, s in enumerate(layout.strides, -len(layout.sizes)) if d != dense and layout.sizes[d] != 1]
        units = [_unit(e) for e in (layout.sizes[dense], layout.offset, *outer)]
        known = [unit for unit in units if unit is not None]
        return _Matrix(value, layout, dense, min(known)) if len(known) == len(units) else None

    @property
    def sizes(self) -> tuple[Expr, ...]:
        return self.layout.sizes

    @property
    def is_aligned(self) -> bool:
        return self.unit == _GRAIN


def _unit(expr: Expr) -> int | None:
    """Return the power of two that divides a number, at most that of a fast load; None where it is not known."""
    if expr.is_Integer:
        return gcd(_GRAIN, int(expr))
    return _GRAIN if exact_quotient(expr, integer(_GRAIN)) is not None else None


@dataclass(frozen=True)
class _Plan:
    """The arguments of a product to copy, and what its result has more of."""

    copies: Mapping[str, Amounts]
    rows: int
    columns: int


@dataclass(frozen=True)
class _Product:
    """A product of matrices `[batch,] rows x inner` and `[batch,] inner x columns`, perhaps added to something."""

    call: CallOp
    left: _Matrix
    right: _Matrix
    result: _Matrix
    added: SSAValue | None

    @staticmethod
    def of(op: Operation) -> _Product | None:
        """Return the product that an operation is, if it is one of 16-bit floats on a GPU."""
        if not isinstance(op, CallOp) or op.operator not in _FACTORS:
            return None
        call, names = Call(op, {}), _FACTORS[op.operator]
        try:
            left, right = (_Matrix.of(call.tensor(name)) for name in names)
            added = None if "self" in names else call.tensor("self")
        except NotLoweredError:
            return None
        result = _Matrix.of(op.results[0])
        if left is None or right is None or result is None or result.dense_dim != -1:
            return None
        return _Product(op, left, right, result, added)

    @property
    def is_odd(self) -> bool:
        """Whether the elements that are side by side cannot even be loaded by twos."""
        return 1 in (self.left.unit, self.right.unit, self.result.unit)

    def plan(self) -> _Plan | None:
        """Return how the rows of the factors and of the result come to begin aligned; None where they do."""
        left, right = self.left, self.right
        if left.is_aligned and right.is_aligned and self.result.is_aligned:
            return None
        odd_left = None if left.is_aligned else left.dense_dim
        odd_right = None if right.is_aligned else right.dense_dim
        rows = _lacking(left.sizes[-2]) if odd_left == -2 else 0
        inner = _lacking(left.sizes[-1]) if odd_left == -1 or odd_right == -2 else 0
        columns = _lacking(right.sizes[-1])
        copies: dict[str, Amounts] = {}
        for name, matrix, amounts in zip(
            _FACTORS[self.call.operator], (left, right), ((rows, inner), (inner, columns)), strict=True
        ):
            if any(amounts) or not matrix.is_aligned:
                copies[name] = (*[0] * (len(matrix.sizes) - 2), *amounts)
        if self.added is not None and any(amounts := _broadcast(self.added, (rows, columns))):
            copies["self"] = amounts
        return _Plan(copies, rows, columns)


def _lacking(size: Expr) -> int:
    """Return how many elements a row lacks: none if its size is symbolic, as it is known to be aligned then."""
    return -int(size) % _GRAIN if size.is_Integer else 0


def _broadcast(value: SSAValue, amounts: tuple[int, int]) -> Amounts:
    """Return by how much a tensor grows that is broadcast to a matrix that grows by `amounts`."""
    sizes = layout_of(value.type).sizes
    every = [0] * max(len(sizes) - 2, 0) + list(amounts)
    return tuple(0 if size == 1 else more for size, more in zip(sizes, every[len(every) - len(sizes) :], strict=True))


class _Padder:
    """Pads the products of one block."""

    def __init__(self, block: Block, hints: SizeHints, costs: PadMatmulsPass) -> None:
        self.block = block
        self.hints = hints
        self.costs = costs
        self.position: dict[Operation, int] = {op: number for number, op in enumerate(block.ops)}
        self.writes = [n for op, n in self.position.items() if isinstance(op, CallOp) and call_memory(op).writes]
        self.copies: dict[tuple[SSAValue, Amounts, int], SSAValue] = {}
        """Copies that are there already, by tensor, amounts, and how many calls have written to memory before."""

    def run(self) -> None:
        for op in list(self.position):
            product = _Product.of(op)
            plan = product.plan() if product is not None else None
            if product is not None and plan is not None and self.pays(product, plan):
                self.pad(product, plan)

    def pays(self, product: _Product, plan: _Plan) -> bool:
        """Whether the copies take less time than the faster product saves."""
        operands = Call(product.call, {})
        copied = [self.hints.elements(operands.tensor(name).type) for name in plan.copies]
        results = self.hints.elements(product.result.value.type)
        if plan.rows or plan.columns:
            copied.append(results)
        # In microseconds: a rate of 1 T/s is 1e6 per microsecond, one of 1 G/s is 1e3. Copies read and write 2 bytes.
        rate = self.costs.odd if product.is_odd else self.costs.even
        operations = 2 * results * self.hints.value(product.left.sizes[-1])
        saved = operations / 1e6 * (1 / rate - 1 / self.costs.aligned)
        return saved > 4 * sum(copied) / 1e3 / self.costs.bandwidth + self.costs.launch * len(copied)

    def pad(self, product: _Product, plan: _Plan) -> None:
        call = product.call
        self.at, self.epoch = call, bisect(self.writes, self.position[call])
        arguments, operands = dict(call.arguments.data), list[SSAValue]()
        for name, given in call.arguments.data.items():
            if isinstance(given, OperandAttr):
                value, amounts = call.operands[given.data], plan.copies.get(name)
                arguments[name] = OperandAttr(len(operands))
                operands.append(value if amounts is None else self.copy(value, amounts))
        old = call.results[0]
        sizes = list(product.result.sizes)
        sizes[-2:] = sizes[-2] + plan.rows, sizes[-1] + plan.columns
        result = self.insert(call.operator, arguments, operands, _dense(old, sizes, range(len(sizes))))
        if plan.rows or plan.columns:
            for dim, more in ((len(sizes) - 2, plan.rows), (len(sizes) - 1, plan.columns)):
                if more:
                    result = self.first(result, dim, product.result.sizes[dim])
            result = self.insert("aten.clone.default", {"self": OperandAttr(0)}, [result], tensor_type(old))
        result.name_hint = old.name_hint
        old.replace_all_uses_with(result)
        self.block.erase_op(call)

    def copy(self, value: SSAValue, amounts: Amounts) -> SSAValue:
        """Return a tensor padded by zeros at the end of its dimensions, aligned in memory."""
        key = (value, amounts, self.epoch)
        if key not in self.copies:
            self.copies[key] = self.copy_source(value, amounts) or self.make_copy(value, amounts)
        return self.copies[key]

    def copy_source(self, value: SSAValue, amounts: Amounts) -> SSAValue | None:
        """Return the copy of which `value` is a transpose, transposed; None where it is no transpose."""
        transpose = _transpose(value)
        if transpose is None:
            return None
        source, dims = transpose
        copied = self.copy(source, tuple(amounts[dims.index(d)] for d in range(len(dims))))
        layout = layout_of(copied.type)
        sizes, strides = ([one[d] for d in dims] for one in (layout.sizes, layout.strides))
        kind = _typed(value, LayoutAttr.get(sizes, strides, layout.offset, layout.device))
        arguments = {"self": OperandAttr(0), "dims": IntsAttr.get(tuple(map(integer, dims)))}
        return self.insert("aten.permute.default", arguments, [copied], kind)

    def make_copy(self, value: SSAValue, amounts: Amounts) -> SSAValue:
        layout = layout_of(value.type)
        sizes = [size + more for size, more in zip(layout.sizes, amounts, strict=True)]
        order = sorted(range(len(sizes)), key=lambda d: -self.hints.value(layout.strides[d]))
        widths = IntsAttr.get(tuple(integer(n) for more in reversed(amounts) for n in (0, more)))
        arguments = {"self": OperandAttr(0), "pad": widths, "value": IntegerAttr(0, i64)}
        padded = self.insert("aten.constant_pad_nd.default", arguments, [value], _dense(value, sizes, order))
        padded.name_hint = "padded"
        return padded

    def first(self, value: SSAValue, dim: int, size: Expr) -> SSAValue:
        """Return the first `size` elements along a dimension."""
        layout = layout_of(value.type)
        sizes = [size if d == dim else s for d, s in enumerate(layout.sizes)]
        numbers = {name: IntegerAttr(n, i64) for name, n in (("dim", dim), ("start", 0), ("end", int(size)))}
        part = _typed(value, LayoutAttr.get(sizes, layout.strides, layout.offset, layout.device))
        return self.insert("aten.slice.Tensor", {"self": OperandAttr(0), **numbers}, [value], part)

    def insert(
        self, operator: str, arguments: Mapping[str, Attribute], operands: Sequence[SSAValue], kind: Tensor
    ) -> SSAValue:
        """Add a call in front of the product, and return its result."""
        call = CallOp.get(operator, arguments, operands, [kind])
        call.location = self.at.location
        call.results[0].name_hint = operator.split(".")[1]
        self.block.insert_op_before(call, self.at)
        return call.results[0]


def _transpose(value: SSAValue) -> tuple[SSAValue, tuple[int, ...]] | None:
    """Return of what a tensor is a permutation, and the dimension of it that each of its own is."""
    owner, rank = value.owner, len(layout_of(value.type).sizes)
    if not isinstance(owner, CallOp):
        return None
    call, dims = Call(owner, {}), list(range(rank))
    try:
        match owner.operator:
            case "aten.t.default":
                dims.reverse()
            case "aten.transpose.int":
                first, second = call.dim("dim0", rank), call.dim("dim1", rank)
                dims[first], dims[second] = dims[second], dims[first]
            case "aten.permute.default":
                dims = [wrap_dim(d, rank) for d in call.integers("dims") or ()]
            case _:
                return None
        return call.tensor("self"), tuple(dims)
    except NotLoweredError:
        return None


def _dense(like: SSAValue, sizes: Sequence[Expr], order: Sequence[int]) -> Tensor:
    """Return the type of a tensor of other sizes without gaps, whose dimensions have an order, outermost first."""
    strides = dict(zip(order, contiguous_strides([sizes[d] for d in order]), strict=True))
    layout = LayoutAttr.get(sizes, [strides[d] for d in range(len(sizes))], device=layout_of(like.type).device)
    return _typed(like, layout)


def _typed(like: SSAValue, layout: LayoutAttr) -> Tensor:
    """Return the type of a tensor with the elements of another one."""
    shape = [int(s) if s.is_Integer else DYNAMIC_INDEX for s in layout.sizes]
    return TensorType(tensor_type(like).element_type, shape, layout)


@dataclass(frozen=True)
class PadMatmulsPass(ModulePass):
    """Pad the matrix products on a GPU whose rows are not aligned."""

    name = "pad-matmuls"

    odd: int = 130
    """10^12 operations per second of a product of rows with an odd number of elements."""

    even: int = 260
    """The same where all rows have an even number of elements."""

    aligned: int = 600
    """The same where all rows are aligned."""

    bandwidth: int = 3500
    """10^9 bytes per second that a copy reads and writes."""

    launch: int = 3
    """Microseconds that each copy takes beside."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, FuncOp) and not function.is_declaration:
                _Padder(function.body.block, SizeHints(function), self).run()
