"""The combiners of reductions: how two partial results become one.

A combiner works on a tuple of slots. `sum` and `max` have one slot; `argmax` has two (value and index), `welford` three
(mean, sum of squared deviations, count). All are associative, so a reduction may be split over lanes and threads; a
floating point sum then rounds differently, which a reduction marked `ordered` forbids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IntegerAttr, i1
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.loop_scalar import CmpOp, IntrinsicOp, SelectOp
from tilewright.dialects.type_guards import is_integer, is_vector

Slots = Sequence[SSAValue]
Emit = Callable[[Operation], SSAValue]


def element_type(kind: Attribute) -> Attribute:
    """Return the element type of a vector, any other type itself."""
    return kind.element_type if is_vector(kind) else kind


def is_float(kind: Attribute) -> bool:
    """Whether `kind` is a float or a vector of floats."""
    return isinstance(element_type(kind), AnyFloat)


@dataclass(frozen=True)
class Combiner:
    """A way to combine tuples of `arity` slots.

    `identity(types)` gives the neutral constants; `combine(emit, a, b)` emits the operations that combine two tuples,
    on scalars or on vectors lane by lane, and returns the result. In `b` are the later elements. `extend`, if there is
    one, is a cheaper `combine` for when the index in `b` is above that in `a`.
    """

    arity: int
    identity: Callable[[Sequence[Attribute]], tuple[FloatAttr | IntegerAttr, ...]]
    combine: Callable[[Emit, Slots, Slots], list[SSAValue]]
    extend: Callable[[Emit, Slots, Slots], list[SSAValue]] | None = None


def _constant(kind: Attribute, value: float) -> FloatAttr | IntegerAttr:
    if isinstance(kind, AnyFloat):
        return FloatAttr(float(value), kind)
    assert is_integer(kind)
    return IntegerAttr(int(value), kind)


def _lowest(kind: Attribute) -> FloatAttr | IntegerAttr:
    if isinstance(kind, AnyFloat):
        return FloatAttr(float("-inf"), kind)
    assert is_integer(kind)
    return IntegerAttr(0 if kind.width.data == 1 else -(1 << (kind.width.data - 1)), kind)


def _highest(kind: Attribute) -> FloatAttr | IntegerAttr:
    if isinstance(kind, AnyFloat):
        return FloatAttr(float("inf"), kind)
    assert is_integer(kind)
    return IntegerAttr(1 if kind.width.data == 1 else (1 << (kind.width.data - 1)) - 1, kind)


# A register holds true as -1, which is below false.
_ON_BOOLS: Mapping[type[Operation], type[Operation]] = MappingProxyType(
    {arith.MaxSIOp: arith.OrIOp, arith.MinSIOp: arith.AndIOp}
)


def _compare(predicate: str, x: SSAValue, y: SSAValue) -> CmpOp:
    return CmpOp.get(predicate, x, y, unsigned=element_type(x.type) == i1)


def _binary(on_float: type[Operation], on_int: type[Operation]) -> Callable[[Emit, Slots, Slots], list[SSAValue]]:
    def combine(emit: Emit, a: Slots, b: Slots) -> list[SSAValue]:
        kind = a[0].type
        op = on_float if is_float(kind) else on_int
        if element_type(kind) == i1:
            op = _ON_BOOLS.get(op, op)
        return [emit(op(a[0], b[0]))]  # pyright: ignore[reportCallIssue]

    return combine


def _arg(predicate: str, *, first: bool = True) -> Callable[[Emit, Slots, Slots], list[SSAValue]]:
    """Keep the better value and its index; a NaN is better than any number, and the `first` or last index wins ties."""

    def combine(emit: Emit, a: Slots, b: Slots) -> list[SSAValue]:
        better = emit(_compare(predicate, b[0], a[0]))
        same = emit(CmpOp.get("eq", b[0], a[0]))
        if is_float(a[0].type):
            a_nan, b_nan = emit(CmpOp.get("ne", a[0], a[0])), emit(CmpOp.get("ne", b[0], b[0]))
            true = emit(CmpOp.get("eq", a[1], a[1]))
            b_only = emit(arith.AndIOp(b_nan, emit(arith.XOrIOp(a_nan, true))))
            better = emit(arith.OrIOp(better, b_only))
            same = emit(arith.OrIOp(same, emit(arith.AndIOp(a_nan, b_nan))))
        wins = emit(CmpOp.get("lt" if first else "gt", b[1], a[1]))
        take = emit(arith.OrIOp(better, emit(arith.AndIOp(same, wins))))
        return [emit(SelectOp.get(take, x, y)) for x, y in zip(b, a, strict=True)]

    return combine


def _extend_arg(worse_or_same: str) -> Callable[[Emit, Slots, Slots], list[SSAValue]]:
    """Do as `_arg` where all of `b` comes after all of `a`: a tie stays with `a`, and so does a NaN."""

    def extend(emit: Emit, a: Slots, b: Slots) -> list[SSAValue]:
        keep = emit(_compare(worse_or_same, b[0], a[0]))
        if is_float(a[0].type):
            keep = emit(arith.OrIOp(keep, emit(CmpOp.get("ne", a[0], a[0]))))
        return [emit(SelectOp.get(keep, x, y)) for x, y in zip(a, b, strict=True)]

    return extend


def _extend_last_arg(better_or_same: str) -> Callable[[Emit, Slots, Slots], list[SSAValue]]:
    """Do as `_arg` of the last index where all of `b` comes after all of `a`: `b` wins ties, also between NaN."""

    def extend(emit: Emit, a: Slots, b: Slots) -> list[SSAValue]:
        take = emit(_compare(better_or_same, b[0], a[0]))
        if is_float(a[0].type):
            take = emit(arith.OrIOp(take, emit(CmpOp.get("ne", b[0], b[0]))))
        return [emit(SelectOp.get(take, x, y)) for x, y in zip(b, a, strict=True)]

    return extend


def _logaddexp(emit: Emit, a: Slots, b: Slots) -> list[SSAValue]:
    """Add two numbers that are given by their logarithms; equal infinities stay what they are."""
    low, high = emit(arith.MinimumfOp(a[0], b[0])), emit(arith.MaximumfOp(a[0], b[0]))
    total = emit(arith.AddfOp(emit(math.Log1pOp(emit(math.ExpOp(emit(arith.SubfOp(low, high)))))), high))
    same = emit(CmpOp.get("eq", low, high))
    alike = emit(arith.AndIOp(same, emit(IntrinsicOp.get("isinf", low))))
    return [emit(SelectOp.get(alike, a[0], total))]


def _welford(emit: Emit, a: Slots, b: Slots) -> list[SSAValue]:
    """Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances (1979)."""
    count = emit(arith.AddfOp(a[2], b[2]))
    delta = emit(arith.SubfOp(b[0], a[0]))
    share = emit(arith.DivfOp(b[2], count))
    empty = emit(CmpOp.get("ne", share, share))
    share = emit(SelectOp.get(empty, b[2], share))
    mean = emit(arith.AddfOp(a[0], emit(arith.MulfOp(delta, share))))
    between = emit(arith.MulfOp(emit(arith.MulfOp(delta, delta)), emit(arith.MulfOp(a[2], share))))
    return [mean, emit(arith.AddfOp(emit(arith.AddfOp(a[1], b[1])), between)), count]


_MAX_INDEX = (1 << 63) - 1

COMBINERS: dict[str, Combiner] = {
    "sum": Combiner(1, lambda t: (_constant(t[0], 0),), _binary(arith.AddfOp, arith.AddiOp)),
    "prod": Combiner(1, lambda t: (_constant(t[0], 1),), _binary(arith.MulfOp, arith.MuliOp)),
    "max": Combiner(1, lambda t: (_lowest(t[0]),), _binary(arith.MaximumfOp, arith.MaxSIOp)),
    "min": Combiner(1, lambda t: (_highest(t[0]),), _binary(arith.MinimumfOp, arith.MinSIOp)),
    "umax": Combiner(1, lambda t: (_constant(t[0], 0),), _binary(arith.MaximumfOp, arith.MaxUIOp)),
    "umin": Combiner(1, lambda t: (_constant(t[0], -1),), _binary(arith.MinimumfOp, arith.MinUIOp)),
    "any": Combiner(1, lambda t: (_constant(t[0], 0),), _binary(arith.MaximumfOp, arith.OrIOp)),
    "all": Combiner(1, lambda t: (_constant(t[0], 1),), _binary(arith.MinimumfOp, arith.AndIOp)),
    "argmax": Combiner(2, lambda t: (_lowest(t[0]), _constant(t[1], _MAX_INDEX)), _arg("gt"), _extend_arg("le")),
    "argmin": Combiner(2, lambda t: (_highest(t[0]), _constant(t[1], _MAX_INDEX)), _arg("lt"), _extend_arg("ge")),
    "last_argmax": Combiner(
        2, lambda t: (_lowest(t[0]), _constant(t[1], -1)), _arg("gt", first=False), _extend_last_arg("ge")
    ),
    "last_argmin": Combiner(
        2, lambda t: (_highest(t[0]), _constant(t[1], -1)), _arg("lt", first=False), _extend_last_arg("le")
    ),
    "logaddexp": Combiner(1, lambda t: (_lowest(t[0]),), _logaddexp),
    "welford": Combiner(3, lambda t: (_constant(t[0], 0), _constant(t[1], 0), _constant(t[2], 0)), _welford),
}
"""Every combiner by name. NaN propagates through `max` and `min`; `umax` and `umin` take integers as unsigned; `any`
and `all` work on i1."""


def slots_fit(name: str, kinds: Sequence[Attribute]) -> bool:
    """Whether the slots of the combiner `name` may have the types `kinds`, all scalars or all vectors."""
    first, *others = (element_type(k) for k in kinds)
    if name in ("welford", "logaddexp"):
        return all(isinstance(k, AnyFloat) for k in (first, *others))
    if name in ("any", "all"):
        return first == i1
    if name in ("umax", "umin"):
        return is_integer(first)
    return (isinstance(first, AnyFloat) or is_integer(first)) and all(is_integer(k) for k in others)


def verify_combine(op: str, name: str, kind: Attribute) -> None:
    """Raise `VerifyException` unless the combiner `name` can combine single values of type `kind`."""
    if name not in COMBINERS or COMBINERS[name].arity != 1:
        raise VerifyException(f"`{op}` needs a combiner with one slot, found `{name}`")
    if not slots_fit(name, [kind]):
        raise VerifyException(f"`{op}` cannot combine {kind} by `{name}`")
