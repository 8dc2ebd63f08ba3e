"""The IR in the docstrings of passes is what the passes do."""

import importlib
import re

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from tilewright.dialects.verifier import verify_module
from tilewright.passes import PASSES
from tilewright.tools.universe import make_context

EXAMPLE = re.compile(r"Before:\n```\n(.*?)```\nAfter:\n```\n(.*?)```", re.DOTALL)


def examples() -> list[tuple[str, str, str]]:
    """Return each example of a pass: its name, the IR before and after it."""
    found: list[tuple[str, str, str]] = []
    for name, target in PASSES.items():
        module = importlib.import_module(target.partition(":")[0])
        found += [(name, before, after) for before, after in EXAMPLE.findall(module.__doc__ or "")]
    return found


def parse(text: str) -> ModuleOp:
    module = Parser(make_context(), text).parse_module()
    verify_module(module)
    return module


def pass_of(name: str) -> ModulePass:
    module, _, attribute = PASSES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)()


@pytest.mark.parametrize(("name", "before", "after"), [pytest.param(*e, id=e[0]) for e in examples()])
def test_the_pass_does_what_its_docstring_shows(name: str, before: str, after: str) -> None:
    module = parse(before)
    pass_of(name).apply(Context(), module)
    verify_module(module)
    assert module.is_structurally_equivalent(parse(after)), str(module)
