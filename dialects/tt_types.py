"""Types, attributes and shared checks of the `tt` dialect; see `dialects/tt.py`."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet

from xdsl.dialects.builtin import AnyFloat, IntegerType, NoneAttr, StringAttr, TensorType
from xdsl.ir import Attribute, Operation, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind, OpTrait
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.arith_tensor import element_of, like
from tilewright.dialects.type_guards import is_tensor

MAX_ELEMENTS = 1 << 20
"""The most elements that Triton lets a tensor have."""

CACHE_MODIFIERS = ("none", "ca", "cg", "wb", "cs", "wt", "cv")
EVICTION_POLICIES = ("evict_normal", "evict_first", "evict_last")


@irdl_attr_definition
class PointerType(ParametrizedAttribute, TypeAttribute):
    """A pointer to global memory: `!tt.ptr<f32>`."""

    name = "tt.ptr"
    pointee: Attribute

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            return [parser.parse_type()]

    def verify(self) -> None:
        if not isinstance(self.pointee, (AnyFloat, IntegerType)):
            raise VerifyException(f"`!tt.ptr` points to a float or an integer, found {self.pointee}")


@irdl_attr_definition
class CachePolicyAttr(ParametrizedAttribute):
    """Hints of an access: `#tt.cache_policy<cache_modifier = none, eviction_policy = evict_last>`."""

    name = "tt.cache_policy"
    cache_modifier: StringAttr
    eviction_policy: StringAttr

    @staticmethod
    def get(modifier: str = "none", eviction: str = "evict_normal") -> CachePolicyAttr | None:
        """Make the attribute, None where both hints say nothing."""
        if modifier == "none" and eviction == "evict_normal":
            return None
        return CachePolicyAttr(StringAttr(modifier), StringAttr(eviction))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            parser.parse_keyword("cache_modifier")
            parser.parse_punctuation("=")
            modifier = parser.parse_identifier()
            parser.parse_punctuation(",")
            parser.parse_keyword("eviction_policy")
            parser.parse_punctuation("=")
            return [StringAttr(modifier), StringAttr(parser.parse_identifier())]

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(
            f"<cache_modifier = {self.cache_modifier.data}, eviction_policy = {self.eviction_policy.data}>"
        )

    def verify(self) -> None:
        verify_choice("#tt.cache_policy", "cache_modifier", self.cache_modifier, CACHE_MODIFIERS)
        verify_choice("#tt.cache_policy", "eviction_policy", self.eviction_policy, EVICTION_POLICIES)


def verify_choice(owner: str, what: str, given: StringAttr, choices: tuple[str, ...]) -> None:
    """Raise `VerifyException` unless `given` is one of `choices`."""
    if given.data not in choices:
        raise VerifyException(f"`{owner}` has {what} `{given.data}`, expected one of {', '.join(choices)}")


def pointee_of(kind: Attribute) -> Attribute | None:
    """Return the type of what is accessed through a pointer or a tensor of pointers, of the same shape; else None."""
    element = element_of(kind)
    return like(kind, element.pointee) if isinstance(element, PointerType) else None


def shape_of(kind: Attribute) -> tuple[int, ...]:
    """Return the shape of a tensor; that of a scalar has no dimensions."""
    return kind.get_shape() if is_tensor(kind) else ()


def block_type(value: SSAValue) -> TensorType[Attribute]:
    """Return the type of a value that has been verified to be a tensor."""
    kind = value.type
    assert is_tensor(kind)
    return kind


def verify_pointer(op: Operation, kind: Attribute) -> Attribute:
    """Return what `kind` points to. Raises `VerifyException` if it is neither a pointer nor a tensor of pointers."""
    pointee = pointee_of(kind)
    if pointee is None:
        raise VerifyException(f"`{op.name}` takes a pointer or a tensor of pointers, found {kind}")
    return pointee


def verify_same(op: Operation, what: str, found: Attribute, expected: Attribute) -> None:
    """Raise `VerifyException` unless the type `found` of an operand or result is `expected`."""
    if found != expected:
        raise VerifyException(f"`{op.name}` has {what} of type {found}, expected {expected}")


def verify_block(op: Operation, kind: Attribute) -> None:
    """Raise `VerifyException` for a tensor that Triton does not have; scalars pass."""
    if not is_tensor(kind):
        return
    shape = kind.get_shape()
    if any(n < 1 or n & (n - 1) for n in shape):
        raise VerifyException(f"`{op.name}` gives {kind}, expected sizes that are powers of two")
    if math.prod(shape) > MAX_ELEMENTS:
        raise VerifyException(f"`{op.name}` gives {kind}, expected at most {MAX_ELEMENTS} elements")
    if not isinstance(kind.encoding, NoneAttr):
        raise VerifyException(f"`{op.name}` gives {kind}, expected a tensor without an encoding")
    if not isinstance(kind.element_type, (AnyFloat, IntegerType, PointerType)):
        raise VerifyException(f"`{op.name}` gives {kind}, expected floats, integers or pointers")


class GivesBlocks(OpTrait):
    """Every result that is a tensor is one that Triton has."""

    def verify(self, op: Operation) -> None:
        for result in op.results:
            verify_block(op, result.type)


class _Effects(MemoryEffect):
    """Base of effects that are the same for every operation of a kind."""

    KINDS: tuple[MemoryEffectKind, ...] = ()

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        return {EffectInstance(kind) for kind in cls.KINDS}


class Writes(_Effects):
    """The operation writes memory, or has an effect that must stay where it is."""

    KINDS = (MemoryEffectKind.WRITE,)


class ReadsAndWrites(_Effects):
    """The operation reads memory and writes to it."""

    KINDS = (MemoryEffectKind.READ, MemoryEffectKind.WRITE)
