"""Fusion changes no bit of any result: programs of random nests, run before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects import arith, func, math
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    DictionaryAttr,
    FloatAttr,
    IndexType,
    ModuleOp,
    TensorType,
    f32,
    i1,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.backends.reference import run_function
from tilewright.dialects.aten import CallOp
from tilewright.dialects.call_syntax import OperandAttr
from tilewright.dialects.loop import (
    Bounds,
    CastOp,
    ForOp,
    LoadOp,
    NestOp,
    ReduceOp,
    StoreOp,
    ViewOp,
    YieldOp,
    layout_of,
)
from tilewright.dialects.sym import LayoutAttr, MapAttr, SymbolAttr, SymbolInfo
from tilewright.dialects.sym_expr import Expr, FloorDiv, Mod, dim, integer, symbol
from tilewright.dialects.verifier import verify_module
from tilewright.passes.canonicalize import CanonicalizePass
from tilewright.passes.loop_fold_views import LoopFoldViewsPass
from tilewright.passes.loop_fuse import LoopFusePass
from tilewright.passes.loop_hoist import LoopHoistPass
from tilewright.passes.loop_simplify_index import LoopSimplifyIndexPass
from tilewright.passes.loop_split_tails import LoopSplitTailsPass
from tilewright.passes.order_writes import OrderWritesPass

S0 = symbol("s0")
S0_VALUE = 3
SHAPES: list[tuple[Expr, ...]] = [
    (S0,),
    (S0, integer(4)),
    (integer(4), S0),
    (S0, integer(2), integer(4)),
    (2 * S0, integer(4)),
    (8 * S0,),
]
FUSE_OPTIONS = [
    LoopFusePass(),
    LoopFusePass(small=0, min_parallel=1),
    LoopFusePass(inline=False),
    LoopFusePass(small=0, inline=False, siblings=False),
    LoopFusePass(recompute_ops=0, horizontal=False),
]


def tensor(shape: Sequence[Expr], element: Attribute = f32) -> TensorType[Attribute]:
    sizes = [int(s) if s.is_Integer else DYNAMIC_INDEX for s in shape]
    return TensorType(element, sizes, LayoutAttr.contiguous(shape))


def shape_of(value: SSAValue) -> tuple[Expr, ...]:
    return layout_of(value.type).sizes


def number(shape: Sequence[Expr]) -> Expr:
    """Return the number of elements."""
    count = integer(1)
    for size in shape:
        count = count * size
    return count


def linear(index: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    """Return the row-major place of an index."""
    place = integer(0)
    for i, size in zip(index, shape, strict=True):
        place = place * size + i
    return place


def identity(shape: Sequence[Expr]) -> list[Expr]:
    return [dim(i) for i in range(len(shape))]


def split(place: Expr, shape: Sequence[Expr]) -> list[Expr]:
    """Return the index at a row-major place."""
    index: list[Expr] = []
    for size in reversed(shape):
        index.append(Mod(place, size))
        place = FloorDiv(place, size)
    return index[::-1]


def ways_to_read(source: Sequence[Expr], target: Sequence[Expr]) -> list[list[Expr]]:
    """Return in-bounds indices of a tensor of shape `source` over the dims of a space of shape `target`."""
    dims = [dim(i) for i in range(len(target))]
    ways = [[Mod(dims[i % len(dims)] if dims else integer(0), size) for i, size in enumerate(source)]]
    for chosen in permutations(range(len(target)), len(source)):
        if all(target[d] == size for d, size in zip(chosen, source, strict=True)):
            ways.append([dims[d] for d in chosen])
            ways.append([size - 1 - dims[d] for d, size in zip(chosen, source, strict=True)])
    if number(source) == number(target):
        ways.append(split(linear(dims, target), source))
    return ways


UNARY: list[Callable[[SSAValue], Operation]] = [arith.NegfOp, math.AbsFOp, math.TanhOp, math.ExpOp]
BINARY: list[Callable[[SSAValue, SSAValue], Operation]] = [arith.AddfOp, arith.SubfOp, arith.MulfOp, arith.MaximumfOp]


@dataclass
class Program:
    """A function that is being written, with the tensors that later statements may read."""

    draw: Callable[[st.SearchStrategy[int]], int]
    block: Block
    tensors: list[SSAValue] = field(default_factory=list[SSAValue])

    def pick(self, count: int) -> int:
        return self.draw(st.integers(0, count - 1))

    def a_tensor(self) -> SSAValue:
        """Return a tensor, the latest ones more often: what is chained is what fuses."""
        back = min(self.pick(len(self.tensors)), self.pick(len(self.tensors)))
        return self.tensors[-1 - back]

    def load(self, block: Block, indices: Sequence[SSAValue], space: Sequence[Expr]) -> SSAValue:
        source = self.a_tensor()
        ways = ways_to_read(shape_of(source), space)
        return add(block, LoadOp.get(source, ways[-1 - self.pick(len(ways))], indices))

    def value(self, block: Block, indices: Sequence[SSAValue], space: Sequence[Expr]) -> SSAValue:
        """Emit an expression of one or two loads."""
        value = self.load(block, indices, space)
        if self.pick(2):
            value = add(block, UNARY[self.pick(len(UNARY))](value))
        if self.pick(2):
            value = add(block, BINARY[self.pick(len(BINARY))](value, self.load(block, indices, space)))
        return value

    def pointwise(self) -> None:
        shape = SHAPES[self.pick(len(SHAPES))]
        nest = NestOp.get(Bounds.extents(shape), [tensor(shape)])
        value = self.value(nest.block, nest.indices, shape)
        nest.block.add_op(StoreOp.get(value, nest.destinations[0], identity(shape), nest.indices))
        self.add(nest)

    def reduction(self) -> None:
        """A reduction of the last or the first dimension, perhaps with a normalised row."""
        full = SHAPES[self.pick(len(SHAPES))]
        along = -1 if self.pick(3) else 0
        outer = full[:-1] if along else full[1:]
        outs = [tensor(outer), tensor(full)][: 1 + self.pick(2)]
        nest = NestOp.get(Bounds.extents(outer), outs)
        name = ("sum", "max")[self.pick(2)]
        loop = ReduceOp.get([name], Bounds.extents([full[along]]), [f32])
        inner = self.inner(loop, nest, along)
        loop.block.add_op(YieldOp.get(self.value(loop.block, inner, full)))
        nest.block.add_op(loop)
        total = loop.results_[0]
        nest.block.add_op(StoreOp.get(total, nest.destinations[0], identity(outer), nest.indices))
        if len(outs) == 2:
            rows = ForOp.get(Bounds.extents([full[along]]))
            inner = self.inner(rows, nest, along)
            value = add(rows.block, arith.SubfOp(self.value(rows.block, inner, full), total))
            rows.block.add_op(StoreOp.get(value, nest.destinations[1], identity(full), inner))
            nest.block.add_op(rows)
        self.add(nest)

    def inner(self, loop: ReduceOp | ForOp, nest: NestOp, along: int) -> list[SSAValue]:
        return [*nest.indices, loop.indices[0]] if along else [loop.indices[0], *nest.indices]

    def gather(self) -> None:
        """Rows at loaded indices, masked."""
        source = self.a_tensor()
        if len(shape_of(source)) != 2:
            return
        shape = (S0, shape_of(source)[1])
        nest = NestOp.get(Bounds.extents(shape), [tensor(shape)])
        block, indices = nest.block, nest.indices
        loaded = add(block, LoadOp.get(self.block.args[0], [dim(0)], [indices[0]]))
        row = add(block, CastOp.get(loaded, IndexType()))
        zero = add(block, arith.ConstantOp(FloatAttr(0.0, f32)))
        mask = add(block, LoadOp.get(self.block.args[1], [dim(0)], [indices[0]]))
        exprs = [Mod(dim(0), shape_of(source)[0]), dim(1)]
        value = add(block, LoadOp.get(source, exprs, [row, indices[1]], mask=mask, otherwise=zero))
        block.add_op(StoreOp.get(value, nest.destinations[0], identity(shape), indices))
        self.add(nest)

    def view(self) -> None:
        source = self.a_tensor()
        shape = SHAPES[self.pick(len(SHAPES))]
        if number(shape) == number(shape_of(source)):
            access = split(linear([dim(i) for i in range(len(shape))], shape), shape_of(source))
            self.add(ViewOp.get(source, MapAttr.get(len(shape), access), tensor(shape)))

    def call(self) -> None:
        """A call that is not lowered; one in three writes an argument of the function."""
        source = self.a_tensor()
        if self.pick(3):
            self.add(CallOp.get("aten.sigmoid.default", {"self": OperandAttr(0)}, [source], [source.type]))
            return
        written = next((a for a in self.block.args if a.type == source.type), None)
        if written is not None and written is not source:
            arguments = {"self": OperandAttr(0), "src": OperandAttr(1)}
            self.block.add_op(CallOp.get("aten.copy_.default", arguments, [written, source], [source.type]))

    def add(self, op: Operation) -> None:
        self.block.add_op(op)
        self.tensors += op.results


def add(block: Block, op: Operation) -> SSAValue:
    block.add_op(op)
    return op.results[0]


@st.composite
def programs(draw: Callable[[st.SearchStrategy[int]], int]) -> ModuleOp:
    """A module with a function of nests, views and calls; every tensor that nothing else could see may be a result."""
    kinds = [tensor((S0,), i64), tensor((S0,), i1), *(tensor(shape) for shape in SHAPES)]
    function = func.FuncOp("forward", (kinds, []), visibility=None)
    block = function.body.block
    program = Program(draw, block, list(block.args[2:]))
    statements = [program.pointwise, program.reduction, program.view, program.gather, program.call]
    for _ in range(draw(st.integers(2, 9))):
        statements[min(program.pick(len(statements)), program.pick(len(statements)))]()
    made = program.tensors[len(SHAPES) :] or program.tensors
    results = [v for v in made if v is made[-1] or not program.pick(3)]
    block.add_op(func.ReturnOp(*results))
    function.update_function_type()
    function.attributes["aten.symbols"] = DictionaryAttr({"s0": SymbolAttr(SymbolInfo(S0_VALUE, 2, 1000))})
    return ModuleOp([function])


def arguments() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = [[int(size.xreplace({S0: integer(S0_VALUE)})) for size in shape] for shape in SHAPES]
    rows = torch.randint(0, 24, (S0_VALUE,), generator=generator)
    return [rows, rows % 2 == 0, *(torch.randn(s, generator=generator) for s in sizes)]


def outcome(module: ModuleOp) -> list[Tensor]:
    """Return the results of a module and what it wrote to its arguments."""
    given = arguments()
    results = run_function(module, given)
    assert all(isinstance(r, Tensor) for r in results)
    return [*(r for r in results if isinstance(r, Tensor)), *given]


@pytest.mark.parametrize("fuse", FUSE_OPTIONS, ids=str)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(module=programs())
def test_fusion_changes_no_bit(fuse: LoopFusePass, module: ModuleOp) -> None:
    ctx = Context()
    verify_module(module)
    module = module.clone()
    before = outcome(module)
    for step in (
        LoopFoldViewsPass(),
        LoopSimplifyIndexPass(),
        CanonicalizePass(),
        OrderWritesPass(),
        LoopSplitTailsPass(few=0),
        fuse,
        LoopSimplifyIndexPass(),
        LoopHoistPass(),
        CanonicalizePass(),
    ):
        step.apply(ctx, module)
        verify_module(module)
        after = outcome(module)
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), f"{step}\n{module}"
