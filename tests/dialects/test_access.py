"""Accesses have one normal form, which the text shows: what is printed reads back as the same operation."""

from __future__ import annotations

from io import StringIO

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, BlockArgument, SSAValue
from xdsl.printer import Printer

from tilewright.dialects.access import normalize_access
from tilewright.dialects.loop import ApplyOp
from tilewright.dialects.sym_expr import Expr, FloorDiv, Min, Mod, dim, integer, symbol
from tilewright.tools.source import Source, read_module
from tilewright.tools.universe import make_context

relaxed = settings(deadline=None, derandomize=True)  # a busy machine is no failure, and a failure no surprise
COUNT = 12
dims = st.integers(0, COUNT - 1).map(dim)
atoms = st.one_of(dims, st.sampled_from([symbol("s0"), integer(1), integer(3)]))


def add(a: Expr, b: Expr) -> Expr:
    return a + b


def multiply(a: Expr, b: Expr) -> Expr:
    return a * b


def quarter(a: Expr) -> Expr:
    return FloorDiv(a, integer(4))


def remainder(a: Expr) -> Expr:
    return Mod(a, integer(4))


def minimum(a: Expr, b: Expr) -> Expr:
    return Min(a, b)


def larger(smaller: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(add, smaller, smaller),
        st.builds(multiply, smaller, smaller),
        st.builds(quarter, smaller),
        st.builds(remainder, smaller),
        st.builds(minimum, smaller, smaller),
    )


expressions = st.recursive(atoms, larger, max_leaves=8)
accesses = st.lists(expressions, max_size=3)


def operands() -> list[SSAValue]:
    return list(Block(arg_types=[IndexType()] * COUNT).args)


def number(value: SSAValue) -> int:
    assert isinstance(value, BlockArgument)
    return value.index


def applied(exprs: tuple[Expr, ...], values: list[SSAValue]) -> list[Expr]:
    """Return `exprs` with a symbol for each value in the place of its dim."""
    names = {dim(i): symbol(f"v{number(v)}") for i, v in enumerate(values)}
    return [e.xreplace(names) for e in exprs]


@relaxed
@given(accesses)
def test_the_normal_form_is_the_same_access(exprs: list[Expr]) -> None:
    values = operands()
    access, used = normalize_access(exprs, values)
    assert applied(access.exprs, used) == applied(tuple(exprs), values)


@relaxed
@given(accesses)
def test_the_normal_form_uses_each_operand_and_is_normal(exprs: list[Expr]) -> None:
    access, used = normalize_access(exprs, operands())
    assert len(set(used)) == len(used) == access.num_dims
    assert {s for e in access.exprs for s in e.free_symbols} >= {dim(i) for i in range(len(used))}
    assert normalize_access(access.exprs, used) == (access, used)


@relaxed
@given(accesses)
def test_an_operand_given_twice_is_one(exprs: list[Expr]) -> None:
    (value,) = operands()[:1]
    access, used = normalize_access(exprs, [value] * COUNT)
    assert used == ([value] if access.num_dims else [])
    assert access.num_dims <= 1


def printed(op: ApplyOp) -> str:
    out = StringIO()
    Printer(stream=out).print_op(op)
    return out.getvalue()


def text_of(arguments: int, applies: str) -> str:
    names = ", ".join(f"%a{i} : index" for i in range(arguments))
    return f"func.func @f({names}) {{\n{applies}  func.return\n}}\n"


def apply_ops(text: str) -> list[ApplyOp]:
    module = read_module(make_context(), Source("test.ir", text)).module
    return [op for op in module.walk() if isinstance(op, ApplyOp)]


@relaxed
@given(expressions)
def test_what_is_printed_reads_back_as_the_same_operation(expr: Expr) -> None:
    block = Block(arg_types=[IndexType()] * COUNT)
    for i, argument in enumerate(block.args):
        argument.name_hint = f"a{i}"
    op = ApplyOp.get(expr, block.args)
    (again,) = apply_ops(text_of(COUNT, f"  {printed(op)}\n"))
    assert again.access == op.access
    assert [v.name_hint for v in again.indices] == [v.name_hint for v in op.indices]


@pytest.mark.parametrize(
    ("access", "indices", "expected"),
    [
        # Operands that a rewrite made equal, that nothing uses, and that are numbered out of order.
        ("(d0, d1) -> (64 * d0 + d1)", "%a0, %a0", "(65 * %a0)"),
        ("(d0, d1) -> (d1)", "%a0, %a1", "(%a1)"),
        ("(d0, d1) -> (d1 * 2 + d0)", "%a1, %a0", "(2 * %a0 + %a1)"),
    ],
)
def test_another_form_is_printed_as_the_normal_one(access: str, indices: str, expected: str) -> None:
    kinds = ", ".join(["index"] * len(indices.split(",")))
    generic = f'  %r = "loop.apply"({indices}) <{{access = #sym.map<{access}>}}> : ({kinds}) -> index\n'
    (op,) = apply_ops(text_of(2, generic))
    assert f"loop.apply {expected} : index" in printed(op)
    (again,) = apply_ops(text_of(2, f"  {printed(op)}\n"))
    assert printed(again) == printed(op)


def test_a_sum_of_many_dims_has_a_normal_form() -> None:
    access, used = normalize_access([sympy.Add(*(dim(i) for i in range(COUNT)))], operands())
    assert [number(v) for v in used] == list(range(COUNT))
    assert str(access).count("+") == COUNT - 1
