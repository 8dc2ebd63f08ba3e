"""The committed schema table against the installed torch, and our parser against torch's own."""

# pyright: reportPrivateUsage=false

import math
import re
import subprocess
import sys

import pytest
import torch

from tilewright.dialects import aten_schema
from tilewright.dialects.aten_schema import RANDOM_MARK, Alias, Argument, Element, Return
from tilewright.tools import gen_aten_schemas

ALL_SCHEMAS = {str(schema): schema for schema in torch._C._jit_get_all_schemas()}


def committed_lines() -> list[str]:
    return aten_schema.TABLE.read_text(encoding="utf-8").splitlines()


def test_table_covers_installed_torch() -> None:
    header, *lines = committed_lines()
    installed = gen_aten_schemas.table_lines()
    assert lines == sorted(lines)
    # Another release of torch has operators that are gone in this one, such as those on named dims.
    if header.endswith(f"torch {torch.__version__.partition('+')[0]}"):
        missing = sorted(set(installed) - set(lines))
        assert not missing, f"run tools/gen_aten_schemas.py: the table lacks {missing}"
        assert lines == installed


TORCH_TYPE = re.compile(r"(Optional\[)?(List\[)?(Optional\[)?([\w.]+)")


def torch_kind(text: str) -> tuple[str, bool, bool, bool]:
    """(element type, is a list, optional elements, optional) from torch's print of a type."""
    match = TORCH_TYPE.match(text)
    assert match is not None
    optional, is_list, optional_elements, element = match.groups()
    return element, bool(is_list), bool(optional_elements), bool(optional)


# torch's printer of types has names of its own, and doesn't tell symbolic from plain.
TYPE_SPELLING = {Element.SCALAR: "number", Element.SYM_INT: "int", Element.SYM_BOOL: "bool"}


def check_value(ours: Argument | Return, theirs: torch._C.Argument) -> None:
    base, list_, optional_elements, optional = torch_kind(str(theirs.real_type))
    kind = ours.kind
    if kind.element is not Element.OTHER:
        assert TYPE_SPELLING.get(kind.element, kind.element) == base
        assert (kind.is_list, kind.optional_elements, kind.optional) == (list_, optional_elements, optional)
    alias = theirs.alias_info
    if alias is None:
        assert ours.alias is None
    else:
        assert ours.alias is not None
        assert ours.alias.is_write == alias.is_write
        # For a list of aliases torch leaves the outer sets empty and hides the inner ones.
        assert alias.before_set in (set(ours.alias.before), set()), theirs
        assert alias.after_set in (set(ours.alias.after), set()), theirs


def test_parser_agrees_with_torch_on_every_line() -> None:
    checked = 0
    for line in committed_lines()[1:]:
        theirs = ALL_SCHEMAS.get(line.removesuffix(RANDOM_MARK))
        if theirs is None:
            continue
        ours = aten_schema.parse_schema(line)
        assert len(ours.arguments) == len(theirs.arguments), line
        assert len(ours.returns) == len(theirs.returns), line
        for our_arg, their_arg in zip(ours.arguments, theirs.arguments, strict=True):
            assert our_arg.name == their_arg.name, line
            assert our_arg.kwarg_only == their_arg.kwarg_only, line
            assert our_arg.has_default == their_arg.has_default_value(), line
            if our_arg.has_default:
                check_default(our_arg, their_arg.default_value)
            check_value(our_arg, their_arg)
        for our_ret, their_ret in zip(ours.returns, theirs.returns, strict=True):
            assert (our_ret.name or "") == (their_ret.name or ""), line
            check_value(our_ret, their_ret)
        checked += 1
    assert checked > 3000


def check_default(argument: Argument, expected: object) -> None:
    """Compare a default; torch prints `[1, 1]` for a list that repeats one value as often as the type says."""
    default: object = list(argument.default) if isinstance(argument.default, tuple) else argument.default
    if isinstance(expected, list) and isinstance(default, int):
        assert argument.kind.length is not None
        default = [default] * argument.kind.length
    if isinstance(expected, float) and isinstance(default, float):
        assert math.isclose(default, expected)
    else:
        assert default == expected


def test_lookup_by_ir_name() -> None:
    add = aten_schema.lookup("aten.add.Tensor")
    assert add is not None
    assert add.name == "aten.add.Tensor"
    assert [str(a.kind) for a in add.arguments] == ["Tensor", "Tensor", "Scalar"]
    alpha = add.argument("alpha")
    assert alpha is not None
    assert (alpha.default, alpha.has_default, alpha.kwarg_only) == (1, True, True)
    assert add.argument("gamma") is None
    assert not add.is_mutable
    assert not add.is_view


def test_default_overload_is_spelt_out() -> None:
    relu = aten_schema.lookup("aten.relu.default")
    assert relu is not None
    assert relu.name == "aten.relu.default"
    assert aten_schema.lookup("aten.relu") is None


@pytest.mark.parametrize("name", ["aten.add.No", "mylib.op.default", "aten", "", "aten..", "aten.add.", "# written"])
def test_unknown_names_have_no_schema(name: str) -> None:
    assert aten_schema.lookup(name) is None


def test_mutation_and_views() -> None:
    copy_ = aten_schema.lookup("aten.copy_.default")
    assert copy_ is not None
    assert copy_.is_mutable
    assert [a.name for a in copy_.arguments if a.is_write] == ["self"]
    assert not copy_.is_view
    split = aten_schema.lookup("aten.split.Tensor")
    assert split is not None
    assert split.is_view
    assert split.arguments[0].alias == Alias(("a",), ("*",), False)
    assert split.returns == (Return(None, split.returns[0].kind, Alias(("a",), ("a",), False)),)
    assert split.returns[0].kind.is_list


def test_random_operators_are_marked() -> None:
    for name in ("aten.native_dropout.default", "aten.bernoulli.p", "aten.rand.default", "aten.randn_like.default"):
        schema = aten_schema.lookup(name)
        assert schema is not None
        assert schema.is_random, name
    relu = aten_schema.lookup("aten.relu.default")
    assert relu is not None
    assert not relu.is_random


@pytest.mark.parametrize(
    ("name", "has_effect"),
    [
        ("aten._linalg_check_errors.default", True),
        ("aten.bernoulli.p", True),
        ("aten.relu.default", False),
        ("aten._foreach_add_.Scalar", False),  # returns nothing, because it writes its arguments
    ],
)
def test_effects(name: str, has_effect: bool) -> None:
    schema = aten_schema.lookup(name)
    assert schema is not None
    assert schema.has_effect == has_effect


def test_optional_elements() -> None:
    index = aten_schema.lookup("aten.index.Tensor")
    assert index is not None
    assert str(index.arguments[1].kind) == "Tensor?[]"
    assert not index.arguments[1].kind.optional


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not an operator schema"),
        ("(Tensor x) -> Tensor", "not an operator schema"),
        ("aten::f", "not an operator schema"),
        ("aten::f(Tensor x) Tensor", "expected '\\) -> ' at column 16"),
        ("aten::f(Tensor x; int y) -> ()", "expected ', ' at column 16"),
        ("aten::f(, ) -> ()", "expected a type at column 8"),
    ],
)
def test_malformed_schema(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        aten_schema.parse_schema(text)


def test_lookup_needs_no_torch() -> None:
    program = """
import sys
from tilewright.dialects import aten_schema
aten_schema.lookup("aten.mm.default")
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
