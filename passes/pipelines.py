"""The pipelines, as text, and how text becomes passes.

A driver runs nothing that is not here: `tilewright-opt -p '...'` with the text of a pipeline does the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import parse_pipeline

from tilewright.passes import PASSES

_GRAPH = (
    "fold-add-into-mm",  # before sums become loops
    "pad-matmuls",  # before calls become nests: padding is one
    "recompose-upsampling",  # while positions are calls whose elements can be told
    "split-bias",  # before layouts are chosen: the sum has that of the convolution
    "channels-last",  # before calls become loops, which are written for the layout of what they read
    "reinplace",  # before scatters become nests: what follows are nests, of which nobody can tell that they scatter
    "convert-aten-to-loop",  # whatever has no lowering stays a call of ATen
    "loop-fold-views",  # before fusion: a view between two nests would hide that one reads the other
    "loop-simplify-index",  # composed maps are long; fusion compares simple ones
    "canonicalize",  # equal loads and dead nests go, so that fusion counts what is really there
    "loop-split-reductions",  # of GPUs; before fusion computes what they read in place, which is then done in parallel
    "order-writes",  # before anything moves
    "loop-split-tails",  # fusion computes the elements where they are read
    "loop-fuse",
    "loop-simplify-index",  # fusion substitutes indices
    "loop-hoist",  # and computes in each pass over a row what belongs to the row
    "canonicalize",  # equal values that are left
    "loop-join-columns",  # of GPUs; when it can be seen which nest reads all that a sum over rows reads
)
"""Level 0 to fused loops on tensors; the same for all targets."""

_BUFFERS = (
    "assign-layouts",  # the last that may choose one: a buffer's layout is its type's
    "bufferize",
    "elide-copies",  # before reuse, which would give the copied buffer another one's memory
    "buffer-reuse",  # before outlining: whether a buffer may be overwritten is seen in the loops that read it
    "outline-kernels",
    "loop-simplify-index",  # strides have entered the addresses
    "loop-collapse",
    "canonicalize",
    "generalize-kernels",  # the updates of parameters of different sizes are one kernel
    "merge-kernels",  # before anything expensive happens to a kernel
)
"""Loops on tensors to a host program with kernels."""


def _cpu(lanes: int) -> tuple[str, ...]:
    """Kernels for the CPU to structured CPU operations, for registers of `lanes` times 32 bits."""
    return (
        "loop-split-ranges",
        "loop-simplify-index",  # what a part's range decides
        "canonicalize",  # the masks that are decided
        "loop-save-values",  # whole rows: tiling would put the loops apart
        "loop-tile",
        f"vectorize{{lanes={lanes}}}",
        "convert-loop-to-cpu",
    )


_TT = (
    "loop-scan-to-atomics",
    "loop-collapse",  # loops that are parallel now belong to the nest
    "loop-tile-blocks",
    "convert-loop-to-tt",
    "tt-cse",  # the passes over a row load the same elements
    "tt-merge-loops",  # which tell by their bounds, now one value, that they run over the same
    "tt-cse",  # what is equal in the merged loops
    "tt-split-odd-vectors",
    "tt-cache-hints",  # of the loads that are left; lines that loads of single elements share are to stay
    "tt-pipeline-loads",  # of loops that are not merged any more
    "tt-unroll-loops",  # of those that nothing has loaded for them
    "tt-approximate",  # what the rounding behind it hides
    "tt-merge-launches",  # what a program's part decides hides where its pointers come from
)
"""Kernels for CUDA to Triton's IR; all others are left alone."""


def _pipelines() -> Iterator[tuple[str, Sequence[str]]]:
    yield "graph", _GRAPH
    yield "buffers", _BUFFERS
    yield "tt", _TT
    for lanes in (4, 8, 16):
        cpu = _cpu(lanes)
        yield f"cpu-{32 * lanes}", (*_GRAPH, *_BUFFERS, *cpu)
        yield f"cuda-{32 * lanes}", (*_GRAPH, *_BUFFERS, *_TT, *cpu)  # the CPU has kernels, too: counters of optimizers


PIPELINES: dict[str, str] = {name: ",".join(passes) for name, passes in _pipelines()}
"""`graph`, `buffers` and `tt` are parts. `cpu-<bits>` goes from a graph to code for vector registers of that many bits;
`cuda-<bits>` also takes the kernels for CUDA to Triton's IR."""


def load_passes(pipeline: str) -> list[ModulePass]:
    """Return the passes of a pipeline's text. Raises `ValueError` for a pass or option that does not exist."""
    passes: list[ModulePass] = []
    for spec in parse_pipeline(pipeline):
        if spec.name not in PASSES:
            raise ValueError(f"there is no pass `{spec.name}`")
        module, _, name = PASSES[spec.name].partition(":")
        passes.append(getattr(importlib.import_module(module), name).from_spec(spec))
    return passes
