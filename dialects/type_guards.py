"""Tests of xDSL's generic types whose parameters `isinstance` leaves unknown to a type checker."""

from __future__ import annotations

from typing import TypeGuard

from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    Signedness,
    TensorType,
    VectorType,
)
from xdsl.ir import Attribute


def is_array(attribute: Attribute) -> TypeGuard[ArrayAttr[Attribute]]:
    """Whether `attribute` is an array attribute."""
    return isinstance(attribute, ArrayAttr)


def is_float_constant(attribute: Attribute) -> TypeGuard[FloatAttr[AnyFloat]]:
    """Whether `attribute` is a float with its type."""
    return isinstance(attribute, FloatAttr)


def is_integer_constant(attribute: Attribute) -> TypeGuard[IntegerAttr[IntegerType | IndexType]]:
    """Whether `attribute` is an integer with its type."""
    return isinstance(attribute, IntegerAttr)


def is_vector(kind: Attribute) -> TypeGuard[VectorType[Attribute]]:
    """Whether `kind` is a vector type."""
    return isinstance(kind, VectorType)


def is_tensor(kind: Attribute) -> TypeGuard[TensorType[Attribute]]:
    """Whether `kind` is a tensor type of known rank."""
    return isinstance(kind, TensorType)


def is_memref(kind: Attribute) -> TypeGuard[MemRefType[Attribute]]:
    """Whether `kind` is a memref type of known rank."""
    return isinstance(kind, MemRefType)


def is_integer(kind: Attribute) -> TypeGuard[IntegerType[int, Signedness]]:
    """Whether `kind` is an integer type of any width; `index` is not one."""
    return isinstance(kind, IntegerType)
