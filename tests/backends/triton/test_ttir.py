"""The text for Triton: without our attributes, in the syntax of a version."""

# ruff: noqa: E501 (lines of IR)

import pytest
from tests.backends.triton.conftest import read
from tests.backends.triton.kernels import kernel_text

from tilewright.backends.triton.ttir import Expected, emit_ttir, parse_version

HINTS = """tt.func public @f(%x : !tt.ptr<f32> {tt.divisibility = 16 : i32, tt.pointer_range = 32 : i32}, %m : i1) {
  %a = tt.load %x {cachePolicy = #tt.cache_policy<cache_modifier = cg, eviction_policy = evict_last>} : !tt.ptr<f32>
  %b = tt.load %x, %m {cachePolicy = #tt.cache_policy<cache_modifier = none, eviction_policy = evict_first>, isVolatile = true} : !tt.ptr<f32>
  tt.store %x, %a {cachePolicy = #tt.cache_policy<cache_modifier = wt, eviction_policy = evict_normal>} : !tt.ptr<f32>
  tt.return
}
"""


def test_our_attributes_are_left_out() -> None:
    kernel = read(kernel_text("shapes", ", noinline = false"))
    text = emit_ttir(kernel)
    assert text.startswith("module {\n  tt.func public @shapes(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}, ")
    assert ", %n: i64) attributes {noinline = false} {\n" in text
    assert "grid" in kernel.attributes


def test_hints_are_an_attribute_from_3_9_on() -> None:
    assert "{cachePolicy = #tt.cache_policy<cache_modifier = cg, eviction_policy = evict_last>}" in emit_ttir(
        read(HINTS)
    )


def test_hints_are_words_before_3_9() -> None:
    text = emit_ttir(read(HINTS), (3, 6))
    assert "%a = tt.load %x cacheModifier = cg evictionPolicy = evict_last : !tt.ptr<f32>" in text
    assert "%b = tt.load %x, %m evictionPolicy = evict_first {isVolatile = true} : !tt.ptr<f32>" in text
    assert "tt.store %x, %a cacheModifier = wt : !tt.ptr<f32>" in text


def test_variants_that_expect_less_say_nothing_of_it() -> None:
    kernel = read(HINTS.replace("%m : i1)", "%m : i1, %n : i64 {tt.divisibility = 16 : i32})"))
    divided = "{tt.divisibility = 16 : i32}"
    text = emit_ttir(kernel, expected=Expected(pointers=False))
    assert f"(%x: !tt.ptr<f32> {{tt.pointer_range = 32 : i32}}, %m: i1, %n: i64 {divided})" in text
    text = emit_ttir(kernel, expected=Expected(sizes=False))
    assert "(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32, tt.pointer_range = 32 : i32}, %m: i1, %n: i64)" in text


def test_a_version_is_two_numbers() -> None:
    assert parse_version("3.9.0+git123") == (3, 9)
    with pytest.raises(ValueError, match=r"`new` is no version of Triton, expected one such as 3.9"):
        parse_version("new")
