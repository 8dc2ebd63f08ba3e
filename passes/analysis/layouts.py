"""Reasoning about layouts: how many elements they span, whether they are dense, whether a view has one.

Sizes and strides are symbolic, so an answer is what can be shown from the ranges of the symbols: "dense" means provably
dense, "may overlap" means not provably without overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import sympy
from xdsl.dialects.builtin import DYNAMIC_INDEX, ComplexType, FixedBitwidthType, MemRefType
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.sym import LayoutAttr, MapAttr
from tilewright.dialects.sym_expr import (
    Expr,
    Ranges,
    Symbol,
    dim,
    exact_quotient,
    integer,
    provably_at_most,
    provably_less,
    simplify,
)


@lru_cache(maxsize=4096)
def memref_type(element: Attribute, layout: LayoutAttr) -> MemRefType[Attribute]:
    """Return the type of a buffer of `element`s in `layout`."""
    return MemRefType(element, [int(s) if s.is_Integer else DYNAMIC_INDEX for s in layout.sizes], layout)


def element_bytes(element: Attribute) -> int:
    """Return the size of a tensor element in memory: a bool takes a whole byte."""
    if not isinstance(element, (FixedBitwidthType, ComplexType)):
        raise VerifyException(f"expected an element type of a tensor, found {element}")
    return element.size


def equal(a: Expr, b: Expr, ranges: Ranges) -> bool:
    """Whether `a == b` follows from `ranges`."""
    if a == b or (a.is_Integer and b.is_Integer):
        return bool(a == b)
    return bool(simplify(sympy.expand(a - b), ranges) == 0)


def all_equal(a: Sequence[Expr], b: Sequence[Expr], ranges: Ranges) -> bool:
    """Whether two lists of expressions have equal elements."""
    return a == b or (len(a) == len(b) and all(equal(x, y, ranges) for x, y in zip(a, b, strict=True)))


def is_empty(layout: LayoutAttr) -> bool:
    """Whether a layout provably has no elements."""
    return any(s == 0 for s in layout.sizes)


@lru_cache(maxsize=4096)
def span(layout: LayoutAttr) -> Expr:
    """Return the number of elements from the first to the last that a layout reaches, both included."""
    if is_empty(layout):
        return integer(0)
    steps = (stride * (size - 1) for size, stride in zip(layout.sizes, layout.strides, strict=True))
    return sympy.expand(sympy.Add(integer(1), *steps))


def is_dense(layout: LayoutAttr, ranges: Ranges) -> bool:
    """Whether the elements provably fill their span, each at a place of its own, in whatever order of the dims."""
    if is_empty(layout):
        return True
    left = _moving_dims(layout)
    expected = integer(1)
    while left:
        found = next((i for i, (_, stride) in enumerate(left) if equal(stride, expected, ranges)), None)
        if found is None:
            return False
        expected = expected * left.pop(found)[0]
    return True


def may_overlap(layout: LayoutAttr, ranges: Ranges) -> bool:
    """Whether two indices may lie on one element, as in an expanded tensor."""
    if is_dense(layout, ranges):
        return False
    left = _moving_dims(layout)
    reach = integer(0)
    while left:
        smallest = next((d for d in left if all(provably_at_most(d[1], other[1], ranges) for other in left)), None)
        if smallest is None or not provably_less(reach, smallest[1], ranges):
            return True
        reach = sympy.expand(reach + smallest[1] * (smallest[0] - 1))
        left.remove(smallest)
    return False


def _moving_dims(layout: LayoutAttr) -> list[tuple[Expr, Expr]]:
    """Return size and stride of each dim that may have more than one index."""
    return [(size, stride) for size, stride in zip(layout.sizes, layout.strides, strict=True) if size != 1]


def same_places(a: LayoutAttr, b: LayoutAttr, ranges: Ranges) -> bool:
    """Whether two layouts of equal sizes put each element at the same distance from the first one.

    The strides of dims of size one are never used, nor those of a tensor without elements.
    """
    if not all_equal(a.sizes, b.sizes, ranges):
        return False
    return is_empty(a) or all(
        size == 1 or equal(x, y, ranges) for size, x, y in zip(a.sizes, a.strides, b.strides, strict=True)
    )


def address(layout: LayoutAttr, indices: Iterable[Expr]) -> Expr:
    """Return the distance of an element from the first one, counted in elements."""
    return sympy.Add(*(stride * index for stride, index in zip(layout.strides, indices, strict=True)))


def view_layout(source: LayoutAttr, access: MapAttr, kind: LayoutAttr, ranges: Ranges) -> LayoutAttr | None:
    """Return the layout of the view whose element `j` is element `access(j)` of a buffer in layout `source`.

    None where there is none: the address is not linear in `j`, as for a reshape that joins dims which are not adjacent
    in memory. `kind` gives the sizes; where the view agrees with it, its strides and offset are returned as it writes
    them.
    """
    dims = [dim(i) for i in range(len(kind.sizes))]
    within = {d: (integer(0), size - 1) for d, size in zip(dims, kind.sizes, strict=True)}
    still = {d: integer(0) for d, size in zip(dims, kind.sizes, strict=True) if size == 1}
    place = sympy.expand(source.offset + address(source, (e.xreplace(still) for e in access.exprs)))
    linear = _linear(simplify(place, {**ranges, **within}), dims)
    if linear is None:
        return None
    offset, strides = linear
    for i, (size, stride) in enumerate(zip(kind.sizes, kind.strides, strict=True)):
        if size == 1 or is_empty(kind) or equal(strides[i], stride, ranges):
            strides[i] = stride
    if equal(offset, kind.offset, ranges):
        offset = kind.offset
    return LayoutAttr.get(kind.sizes, strides, offset, source.device)


def _linear(expr: Expr, dims: Sequence[Symbol]) -> tuple[Expr, list[Expr]] | None:
    """Split `expr` into a constant and one factor per dim; None where it is not linear in them."""
    constant: list[Expr] = []
    factors: list[list[Expr]] = [[] for _ in dims]
    number = {d: i for i, d in enumerate(dims)}
    for term in sympy.Add.make_args(sympy.expand(expr)):
        used = [d for d in term.free_symbols if d in number]
        if not used:
            constant.append(term)
            continue
        factor = exact_quotient(term, used[0]) if len(used) == 1 else None
        if factor is None or used[0] in factor.free_symbols:
            return None
        factors[number[used[0]]].append(factor)
    return sympy.Add(*constant), [sympy.Add(*f) for f in factors]
