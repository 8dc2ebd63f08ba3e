"""How long the axes of blocks are."""

from __future__ import annotations

from math import prod

import pytest
from xdsl.parser import Parser

from tilewright.dialects.loop import KernelOp, Loop, NestOp
from tilewright.dialects.type_guards import is_integer_constant
from tilewright.passes.analysis.kernels import nests_for
from tilewright.passes.blocks.choice import MAX_PROGRAMS
from tilewright.passes.blocks.sizes import power_at_least, power_at_most, tile_size
from tilewright.passes.loop_tile_blocks import LoopTileBlocksPass
from tilewright.tools.universe import make_context


@pytest.mark.parametrize(
    ("extent", "size"), [(None, 1024), (1024, 1024), (1000, 1024), (768, 256), (50257, 1024), (3, 4), (1, 1), (0, 1)]
)
def test_a_tile_leaves_few_threads_idle(extent: int | None, size: int) -> None:
    assert tile_size(extent, 1024) == size


def test_powers_of_two() -> None:
    assert [power_at_least(n) for n in (0, 1, 2, 3, 1000)] == [1, 1, 2, 4, 1024]
    assert [power_at_most(n) for n in (0, 1, 2, 3, 1000)] == [1, 1, 2, 2, 512]


def _pointwise(*extents: int) -> NestOp:
    """Return the nest of a kernel over contiguous elements, in blocks."""
    loops = ", ".join(f"%i{n} : {extent}" for n, extent in enumerate(extents))
    strides = [prod(extents[n + 1 :]) for n in range(len(extents))]
    place = " + ".join(["0", *(f"{stride} * %i{n}" for n, stride in enumerate(strides))])
    kind = "memref<?xf32, #sym.layout<[z], [1]>>"
    return _blocked(
        f'loop.kernel @k(%x : {kind}) symbols [z] attributes {{device = "cuda"}} {{ loop.nest ({loops}) {{\n'
        f"%v = loop.load %x[{place}] : {kind} -> f32\nloop.store %v, %x[{place}] : f32, {kind}\n}} }}"
    )


def _rows(length: int, *, written: bool = True) -> NestOp:
    """Return the nest of a kernel that goes over the same rows twice, in blocks."""
    kind = "memref<?xf32, #sym.layout<[z], [1]>>"
    difference = f"%v = loop.load %x[{length} * %i + %k] : {kind} -> f32\n%d = arith.subf %v, %s : f32\n"
    store = f"loop.store %d, %y[{length} * %i + %k] : f32, {kind}\n"
    second = (
        f"loop.for (%k : {length}) {{\n{difference}{store}}}"
        if written
        else f'%t = loop.reduce "max" (%k : {length}) {{\n{difference}loop.yield %d : f32\n}} : f32\n'
        f"loop.store %t, %y[%i] : f32, {kind}"
    )
    return _blocked(
        f'loop.kernel @k(%x : {kind}, %y : {kind}) symbols [z] attributes {{device = "cuda"}} {{\n'
        "loop.nest (%i : 4096) {\n"
        f'%s = loop.reduce "sum" (%k : {length}) {{\n'
        f"%v = loop.load %x[{length} * %i + %k] : {kind} -> f32\nloop.yield %v : f32\n}} : f32\n"
        f"{second} }} }}"
    )


def _blocked(text: str) -> NestOp:
    """Return the nest of the kernel in a text, in blocks."""
    context = make_context()
    module = Parser(context, text).parse_module()
    LoopTileBlocksPass().apply(context, module)
    module.verify()
    (nest,) = nests_for(module, "cuda")
    return nest


def _programs(nest: NestOp) -> int:
    count = 1
    for this in nest.loops.dims:
        count *= -(-int(this.upper - this.lower) // this.step)
    return count


def _blocks(nest: NestOp) -> list[tuple[int, ...]]:
    return [op.blocks for op in nest.walk() if isinstance(op, Loop) and op.blocks is not None]


def _warps(nest: NestOp) -> int:
    kernel = nest.parent_op()
    assert isinstance(kernel, KernelOp)
    warps = kernel.attributes["num_warps"]
    assert is_integer_constant(warps)
    return warps.value.data


def test_loops_without_points_and_with_one() -> None:
    assert _programs(_pointwise(0)) == 0
    assert _blocks(_pointwise(1)) == []
    assert _blocks(_pointwise(1, 100)) == [(128,)]
    assert _programs(_pointwise()) == 1


def test_a_grid_is_no_longer_than_cuda_has_it() -> None:
    assert _programs(_pointwise(3_000_000_000)) == -(-3_000_000_000 // 1024)
    nest = _pointwise(1 << 34, 1000)
    assert _programs(nest) <= MAX_PROGRAMS
    (points,) = [op for op in nest.block.ops if isinstance(op, Loop)]
    assert points.blocks is not None
    assert points.blocks[-1] == 1024


def test_few_elements_go_to_several_programs() -> None:
    nest = _pointwise(1 << 14)
    assert _blocks(nest) == [(128,)]
    assert _warps(nest) == 4


def test_a_kernel_says_how_many_warps_it_takes() -> None:
    assert _warps(_pointwise(1 << 22)) == 4


@pytest.mark.parametrize(
    ("length", "blocks", "warps"),
    [(1024, 1024, 2), (4096, 4096, 4), (16384, 16384, 16), (32768, 4096, 16)],
)
def test_threads_keep_the_elements_of_a_row_that_is_not_too_long(length: int, blocks: int, warps: int) -> None:
    nest = _rows(length)
    assert _blocks(nest) == [(blocks,), (blocks,)]
    assert _warps(nest) == warps


@pytest.mark.parametrize(("length", "blocks", "warps"), [(50257, 65536, 32), (65537, 4096, 16)])
def test_a_row_that_is_only_read_may_be_longer(length: int, blocks: int, warps: int) -> None:
    nest = _rows(length, written=False)
    assert _blocks(nest) == [(blocks,), (blocks,)]
    assert _warps(nest) == warps
