"""Dominance: a value is defined before it is used, in every kind of region."""

from __future__ import annotations

import time

import pytest
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.dialects.test import TestOp as AnyOp
from xdsl.ir import Block, Region

from tilewright.dialects.verifier import InvalidOperation, verify_dominance, verify_module
from tilewright.tools.source import Source, read_module
from tilewright.tools.universe import make_context


def module(text: str) -> ModuleOp:
    return read_module(make_context(), Source("test.ir", text)).module


VALID = {
    "later in a block": "func.func @f() { %a = arith.constant 1 : i32 %b = arith.addi %a, %a : i32 func.return }",
    "in a region below": """func.func @f(%c : i1) {
      %a = arith.constant 1 : i32
      scf.if %c { %b = arith.addi %a, %a : i32 }
      func.return }""",
    "in a dominated block": """func.func @f(%c : i1) {
      %a = arith.constant 1 : i32
      cf.cond_br %c, ^one, ^two
    ^one:
      cf.br ^end(%a : i32)
    ^two:
      %b = arith.addi %a, %a : i32
      cf.br ^end(%b : i32)
    ^end(%x : i32):
      func.return }""",
    "in a loop of blocks": """func.func @f(%c : i1) {
      cf.br ^head
    ^head:
      %a = arith.constant 1 : i32
      cf.cond_br %c, ^head, ^end
    ^end:
      %b = arith.addi %a, %a : i32
      func.return }""",
}

INVALID = {
    "earlier in a block": (
        "func.func @f() { %b = arith.addi %a, %a : i32 %a = arith.constant 1 : i32 func.return }",
        "operand 0 of `arith.addi`, %a, the result of `arith.constant`, is not defined where it is used",
    ),
    "its own result": (
        "func.func @f() { %a = arith.addi %a, %a : i32 func.return }",
        "operand 0 of `arith.addi`, %a, the result of `arith.addi`, is not defined where it is used",
    ),
    "in a block beside": (
        """func.func @f(%c : i1) {
          cf.cond_br %c, ^one, ^two
        ^one:
          %a = arith.constant 1 : i32
          cf.br ^end
        ^two:
          %b = arith.addi %a, %a : i32
          cf.br ^end
        ^end:
          func.return }""",
        "operand 0 of `arith.addi`",
    ),
    "the argument of a block beside": (
        """func.func @f(%c : i1, %z : i32) {
          cf.cond_br %c, ^one(%z : i32), ^two
        ^one(%a : i32):
          cf.br ^end
        ^two:
          %b = arith.addi %a, %a : i32
          cf.br ^end
        ^end:
          func.return }""",
        "operand 0 of `arith.addi`, %a, an argument of a block, is not defined where it is used",
    ),
    "a name that an inner block defines": (
        """func.func @f(%n : index) {
          cpu.parallel %b grain 1 {
          ^bb0(%b : index, %e : index):
          }
          func.return }""",
        "operand 0 of `cpu.parallel`, a name that means nothing there, is not defined where it is used",
    ),
    "a branch of another type": (
        """func.func @f(%c : i1, %a : f32, %b : bf16) {
          %r = "scf.if"(%c) ({ scf.yield %a : f32 }, { scf.yield %b : bf16 }) : (i1) -> f32
          func.return }""",
        "`scf.if` of (f32) has a branch that yields (bf16)",
    ),
    "a branch that is missing": (
        """func.func @f(%c : i1, %a : f32) {
          %r = "scf.if"(%c) ({ scf.yield %a : f32 }, {}) : (i1) -> f32
          func.return }""",
        "`scf.if` of (f32) has a branch that yields ()",
    ),
}


@pytest.mark.parametrize("text", VALID.values(), ids=VALID)
def test_valid(text: str) -> None:
    verify_module(module(text))


@pytest.mark.parametrize(("text", "message"), INVALID.values(), ids=INVALID)
def test_invalid(text: str, message: str) -> None:
    with pytest.raises(InvalidOperation) as caught:
        verify_module(module(text))
    assert message in str(caught.value)
    assert caught.value.op.name in message


def test_nothing_from_outside_is_seen_where_it_is_isolated() -> None:
    outer = module('%a = "test.op"() : () -> i32\nfunc.func @f() { func.return }')
    defining, function = outer.ops
    (end,) = function.regions[0].block.ops
    # The parser refuses this; a pass could make it.
    function.regions[0].block.insert_op_before(AnyOp.create(operands=[defining.results[0]]), end)
    with pytest.raises(InvalidOperation, match=r"operand 0 of `test.op`, %a, the result of `test.op`"):
        verify_dominance(outer)
    with pytest.raises(InvalidOperation, match="out of its IsolatedFromAbove parent"):
        verify_module(outer)


def test_many_values_above_many_regions_take_no_time() -> None:
    values = [AnyOp.create(result_types=[i32]) for _ in range(20_000)]
    regions = [AnyOp.create(regions=[Region(Block([AnyOp.create()]))]) for _ in range(2_000)]
    many = ModuleOp([*values, *regions])
    start = time.perf_counter()
    verify_dominance(many)
    # To copy what is visible for each region would take minutes.
    assert time.perf_counter() - start < 10
