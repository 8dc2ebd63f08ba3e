"""The example in the docstring of a pass on loops is what the pass does."""

from __future__ import annotations

import re
import sys

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from tilewright.dialects.verifier import verify_module
from tilewright.passes.pipelines import load_passes
from tilewright.tools.universe import make_context

PASSES = [
    "canonicalize",
    "channels-last",
    "convert-loop-to-tt",
    "elide-copies",
    "generalize-kernels",
    "loop-fold-views",
    "loop-fuse",
    "loop-hoist",
    "loop-join-columns",
    "loop-scan-to-atomics",
    "loop-simplify-index",
    "loop-split-reductions",
    "loop-split-tails",
    "loop-tile-blocks",
    "order-writes",
    "pad-matmuls",
    "reinplace",
    "retarget",
    "split-bias",
    "tt-cse",
    "tt-merge-loops",
    "tt-split-odd-vectors",
    "tt-pipeline-loads",
    "tt-unroll-loops",
]


def parse(text: str) -> ModuleOp:
    module = Parser(make_context(), text).parse_module()
    verify_module(module)
    return module


@pytest.mark.parametrize("name", PASSES)
def test_the_example_of_the_pass_is_what_it_does(name: str) -> None:
    (step,) = load_passes(name)
    text = sys.modules[type(step).__module__].__doc__
    assert text is not None
    before, after = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    module = parse(before)
    step.apply(make_context(), module)
    verify_module(module)
    assert str(module) == str(parse(after))
