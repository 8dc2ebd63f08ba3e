"""Take each nest out of the host program into a kernel of its own, under canonical names.

What a kernel computes is then independent of the graph around it: its buffers are flat and start at the first element
of the caller's, its sizes are called `n0`, `n1`, .., its values are numbered, and nothing tells of layouts, locations
or names. So equal computations have equal text, which is what merging and caching of kernels rest on.

Before:
```
func.func @forward(%x : memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>)
    -> memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>> {
  %y = host.alloc : memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
  loop.nest (%i : s0, %j : 8) {
    %v = loop.load %x[%i, %j] : memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>> -> f32
    loop.store %v, %y[%i, %j] : f32, memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
  }
  func.return %y : memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
}
```
After:
```
loop.kernel @kernel_0(%x0 : memref<?xf32, #sym.layout<[8 * n0], [1]>>, %y0 : memref<?xf32, #sym.layout<[8 * n0], [1]>>)
    symbols [n0] {
  loop.nest (%i0 : n0, %i1 : 8) {
    %v0 = loop.load %x0[8 * %i0 + %i1] : memref<?xf32, #sym.layout<[8 * n0], [1]>> -> f32
    loop.store %v0, %y0[8 * %i0 + %i1] : f32, memref<?xf32, #sym.layout<[8 * n0], [1]>>
  }
}
func.func @forward(%x : memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>)
    -> memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>> {
  %y = host.alloc : memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
  host.launch @kernel_0(%x, %y) symbols [s0]
      : memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>, memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
  func.return %y : memref<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
}
```

The streams of random numbers in a kernel become sizes of it, too: two layers of a model differ in nothing else.

Buffers of a kernel do not overlap. Where a nest writes one of several views of a storage, the kernel gets the storage
once, and the views' offsets go into the accesses. Constants that a nest takes from around it are made again inside.
What the nest came from (`origin`) moves to the kernel, and so does the kind of device it runs on, where that is not the
CPU: `attributes {device = "cuda"}`. A nest with buffers on two devices is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sympy
from xdsl.context import Context
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import UNKNOWN_LOC, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import is_side_effect_free
from xdsl.utils.exceptions import PassFailedException

from tilewright.dialects import host, loop
from tilewright.dialects.arith_canonicalize import int_of
from tilewright.dialects.loop_access import layout_of
from tilewright.dialects.sym import LayoutAttr, MapAttr, free_symbols
from tilewright.dialects.sym_expr import Expr, Symbol, integer, simplify, symbol
from tilewright.dialects.type_guards import is_memref
from tilewright.passes.analysis.accesses import index_map
from tilewright.passes.analysis.aliasing import alias_sets
from tilewright.passes.analysis.layouts import address, memref_type, span
from tilewright.passes.rewriting.indices import set_index_map
from tilewright.passes.rewriting.kernel_names import number_values

_DIM = re.compile(r"d[0-9]+")


@dataclass(frozen=True)
class _Place:
    """How a kernel reaches a buffer: through which parameter, and how far into it, in elements."""

    base: SSAValue
    offset: Expr


class _Program:
    """What is known of the host program around the nests."""

    def __init__(self, function: func.FuncOp) -> None:
        self.name = function.sym_name.data
        self.sets = alias_sets(function.body.block)
        self._sizes = _size_arguments(function)
        self._addresses: dict[tuple[MapAttr, LayoutAttr, Expr], Expr] = {}

    def size(self, value: SSAValue) -> Expr | None:
        """Return the size that an i64 of the program holds, None if it is no size."""
        return value.owner.size.expr if isinstance(value.owner, host.SizeOp) else self._sizes.get(value)

    def linear(self, access: MapAttr, layout: LayoutAttr, offset: Expr) -> Expr:
        """Return how many elements after the first one of a parameter an access is, over its dims."""
        key = access, layout, offset
        found = self._addresses.get(key)
        if found is None:
            found = self._addresses[key] = simplify(sympy.expand(address(layout, access.exprs) + offset), {})
        return found

    def places(self, used: Sequence[SSAValue], written: set[SSAValue]) -> dict[SSAValue, _Place]:
        """Choose the parameters for the buffers that a nest uses, such that none that is written overlaps another."""
        groups: dict[int, list[SSAValue]] = {}
        for buffer in used:
            groups.setdefault(id(self.sets.members(buffer)), []).append(buffer)
        places: dict[SSAValue, _Place] = {}
        for group in groups.values():
            if len(group) > 1 and not written.isdisjoint(group):
                places.update((buffer, self._place_in_storage(buffer, group[0])) for buffer in group)
                continue
            first: dict[tuple[SSAValue, object], SSAValue] = {}
            for buffer in group:
                same = first.setdefault((self.sets.base(buffer), buffer.type), buffer)
                places[buffer] = _Place(same, integer(0))
        return places

    def _place_in_storage(self, buffer: SSAValue, other: SSAValue) -> _Place:
        base = self.sets.base(buffer)
        kind, whole = buffer.type, base.type
        assert is_memref(kind)
        assert is_memref(whole)
        if base is not self.sets.base(other) or kind.element_type != whole.element_type:
            raise PassFailedException(
                f"a nest of `@{self.name}` writes one of two buffers that share memory, {other.type} and {kind}; only "
                "views of one buffer with its element type have places that are known"
            )
        return _Place(base, layout_of(kind).offset - layout_of(whole).offset)


def _size_arguments(function: func.FuncOp) -> dict[SSAValue, Expr]:
    """Return the arguments that hold sizes, which `aten.symbol_args` lists."""
    given = function.attributes.get("aten.symbol_args")
    if not isinstance(given, DictionaryAttr):
        return {}
    arguments = function.body.block.args
    return {arguments[n.value.data]: symbol(name) for name, n in given.data.items() if isinstance(n, IntegerAttr)}


@dataclass(frozen=True)
class _Outliner:
    """Makes one nest a kernel."""

    program: _Program
    nest: loop.NestOp

    def run(self, name: str) -> tuple[loop.KernelOp, host.LaunchOp]:
        """Return a kernel called `name` with the nest, taken out of the program, and the launch that stands for it."""
        if self.nest.results:
            raise PassFailedException(
                f"found a `loop.nest` on tensors in `@{self.program.name}`; `bufferize` turns them into buffers"
            )
        given = self.rematerialize()
        streams = self.take_streams()
        ops = [*given, *self.nest.walk()]
        accesses = [op for op in ops if isinstance(op, (loop.LoadOp, loop.StoreOp))]
        buffers = list(dict.fromkeys(_buffer(a) for a in accesses))
        written = {_buffer(a) for a in accesses if isinstance(a, loop.StoreOp)}
        places = self.program.places(buffers, written)
        parameters = list(dict.fromkeys(place.base for place in places.values()))
        kinds = [(p.type.element_type, layout_of(p.type)) for p in parameters if is_memref(p.type)]
        exprs = {op: found for op in ops if (found := self.exprs(op, places)) is not None}
        sizes = [span(layout) for _, layout in kinds]
        symbols = _symbols(exprs, sizes)
        names = {s: symbol(f"n{i}") for i, s in enumerate(symbols)}
        flat = [
            memref_type(element, LayoutAttr.contiguous([size.xreplace(names)]))
            for (element, _), size in zip(kinds, sizes, strict=True)
        ]
        kernel = loop.KernelOp.get(name, flat, [s.name for s in names.values()])
        kernel.device = self.device([layout for _, layout in kinds])
        inside = dict(zip(parameters, kernel.buffers, strict=True))
        for op, found in exprs.items():
            operands = index_map(op)
            assert operands is not None
            set_index_map(op, [e.xreplace(names) for e in found], operands[1])
        for access in accesses:
            access.operands[_buffer_operand(access)] = inside[places[_buffer(access)].base]
        self.move_into(kernel, given)
        number_values(kernel)
        return kernel, host.LaunchOp.get(name, parameters, [streams.get(s, s) for s in symbols])

    def device(self, layouts: Sequence[LayoutAttr]) -> str:
        """Return the kind of the one device that all buffers are on; without buffers it is the CPU."""
        devices = list(dict.fromkeys(layout.device for layout in layouts))
        if len(devices) > 1:
            raise PassFailedException(
                f"a nest of `@{self.program.name}` has buffers on {' and '.join(devices)}, expected one device"
            )
        return layouts[0].device_kind if layouts else "cpu"

    def exprs(self, op: Operation, places: dict[SSAValue, _Place]) -> tuple[Expr, ...] | None:
        """Return the index expressions of `op`, those of loads and stores as distances; None if it has none."""
        found = index_map(op)
        if found is None:
            return None
        if not isinstance(op, (loop.LoadOp, loop.StoreOp)):
            return found[0].exprs
        buffer = _buffer(op)
        return (self.program.linear(op.access, layout_of(buffer.type), places[buffer].offset),)

    def rematerialize(self) -> list[Operation]:
        """Make the scalars that the nest takes from around it again: those in its bounds in front of it, others inside.

        Returns the operations that belong in front of the nest.
        """
        before: list[Operation] = []
        made: dict[SSAValue, SSAValue] = {}
        for number, operand in enumerate(self.nest.operands):
            self.nest.operands[number] = self.make_again(operand, before, made)
        inner: list[Operation] = []
        made = {}
        own: set[SSAValue] = set(self.nest.block.args)
        for op in self.nest.block.walk():
            for number, operand in enumerate(op.operands):
                if operand not in own and not is_memref(operand.type):
                    op.operands[number] = self.make_again(operand, inner, made)
            own.update(op.results)
            own.update(a for region in op.regions for block in region.blocks for a in block.args)
        first = self.nest.block.first_op
        for op in inner:
            assert first is not None
            self.nest.block.insert_op_before(op, first)
        return before

    def take_streams(self) -> dict[Symbol, Expr]:
        """Put a symbol in the place of each stream of random numbers; return what the symbols stand for.

        The streams tell operators of a program apart that are the same otherwise.
        """
        streams: dict[int, SSAValue] = {}
        found: dict[Symbol, Expr] = {}
        for op in list(self.nest.walk()):
            number = int_of(op.stream) if isinstance(op, loop.RandomOp) else None
            if number is None or not isinstance(op, loop.RandomOp):
                continue
            if number not in streams:
                stands_for = symbol(f"%stream{len(streams)}")
                found[stands_for] = integer(number)
                apply = loop.ApplyOp.get(stands_for, [])
                first = self.nest.block.first_op
                assert first is not None
                self.nest.block.insert_op_before(apply, first)
                streams[number] = apply.result
            constant = op.stream.owner
            op.operands[1] = streams[number]
            if isinstance(constant, Operation) and not any(r.uses for r in constant.results):
                constant.detach()
                constant.erase()
        return found

    def make_again(self, value: SSAValue, ops: list[Operation], made: dict[SSAValue, SSAValue]) -> SSAValue:
        """Return a value equal to `value` of the host program, by operations appended to `ops`."""
        if value in made:
            return made[value]
        owner, size = value.owner, self.program.size(value)
        if size is not None:
            apply = loop.ApplyOp.get(size, [])
            new: Operation = arith.IndexCastOp(apply.result, i64)
            ops += [apply, new]
        elif isinstance(owner, Operation) and not owner.regions and is_side_effect_free(owner):
            operands = [self.make_again(o, ops, made) for o in owner.operands]
            new = owner.clone(dict(zip(owner.operands, operands, strict=True)))
            ops.append(new)
        else:
            raise PassFailedException(
                f"a nest of `@{self.program.name}` uses a value of type {value.type} that is neither a buffer, nor a "
                "constant, nor a size"
            )
        made.update(zip(owner.results if isinstance(owner, Operation) else [value], new.results, strict=True))
        return made[value]

    def move_into(self, kernel: loop.KernelOp, given: Sequence[Operation]) -> None:
        """Move the nest and what is in front of it into the kernel, without what tells where they come from."""
        nest = self.nest
        nest.detach()
        kernel.block.add_ops([*given, nest])
        origin = nest.attributes.pop("origin", None)
        for op in kernel.walk():
            op.location = UNKNOWN_LOC
            op.attributes.pop("origin", None)
        if origin is not None:
            kernel.attributes["origin"] = origin


def _buffer_operand(access: loop.LoadOp | loop.StoreOp) -> int:
    return 0 if isinstance(access, loop.LoadOp) else 1


def _buffer(access: loop.LoadOp | loop.StoreOp) -> SSAValue:
    return access.operands[_buffer_operand(access)]


def _symbols(exprs: dict[Operation, tuple[Expr, ...]], sizes: Sequence[Expr]) -> list[Symbol]:
    """Return the size symbols of a nest in the order in which they occur, whatever they are called."""
    all_exprs = (expr for group in (*exprs.values(), sizes) for expr in group)
    return list(dict.fromkeys(s for expr in all_exprs for s in _sizes_in(expr)))


@lru_cache(maxsize=4096)
def _sizes_in(expr: Expr) -> tuple[Symbol, ...]:
    return tuple(s for s in free_symbols([expr]) if not _DIM.fullmatch(s.name))


def _fresh_names(module: ModuleOp) -> Iterator[str]:
    """Yield names for kernels that nothing in the module has."""
    taken = {name.data for op in module.ops if isinstance(name := op.properties.get("sym_name"), StringAttr)}
    number = 0
    while True:
        if f"kernel_{number}" not in taken:
            yield f"kernel_{number}"
        number += 1


@dataclass(frozen=True)
class OutlineKernelsPass(ModulePass):
    """Take each nest out of the host program into a kernel of its own, under canonical names."""

    name = "outline-kernels"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        names = _fresh_names(op)
        for function in list(op.ops):
            if not isinstance(function, func.FuncOp) or len(function.body.blocks) != 1:
                continue
            program = _Program(function)
            for nest in list(function.body.block.ops):
                if isinstance(nest, loop.NestOp):
                    _outline(op, function, program, nest, next(names))


def _outline(module: ModuleOp, function: func.FuncOp, program: _Program, nest: loop.NestOp, name: str) -> None:
    after = nest.next_op
    assert after is not None
    kernel, launch = _Outliner(program, nest).run(name)
    function.body.block.insert_op_before(launch, after)
    module.body.block.insert_op_before(kernel, function)
