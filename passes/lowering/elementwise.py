"""Elementwise operators: which dtype their operands meet in, how elements are loaded; what is computed is a rule.

A rule is a function of a body and one value per operand, in the compute type, and returns the result in it. The kinds
say how the result's dtype follows from the operands' (torch: ELEMENTWISE_TYPE_PROMOTION_KIND).

On 16-bit floats eager computes in f32 and rounds once, at the end of an operator; the rules state where it rounds in
between, and which numbers it rounds first (found by comparing with eager on all 65,536 values of each type).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from xdsl.dialects.builtin import f32, i1
from xdsl.ir import Attribute, SSAValue

from tilewright.dialects.loop import layout_of
from tilewright.passes.lowering.body import Body, Index, Value
from tilewright.passes.lowering.call import Call, element_of, sizes_of
from tilewright.passes.lowering.dtypes import Number, is_float, promote
from tilewright.passes.lowering.errors import NotLoweredError
from tilewright.passes.lowering.nest import broadcast, nest

UnaryRule = Callable[[Body, Value], Value]
BinaryRule = Callable[[Body, Value, Value], Value]
Rule = Callable[..., Value]
"""`rule(body, *operands)`: emit the computation of one element."""


class Kind(Enum):
    """How the dtype that the operands meet in, and the result's, follow from the operands'."""

    SAME = auto()
    """The result has the dtype that the operands promote to."""
    FLOAT = auto()
    """The same, but integers and bools become the default float."""
    BOOL = auto()
    """The operands promote, the result is i1: comparisons."""
    TRUTH = auto()
    """Each operand is tested for non-zero by itself, the result is i1: logic."""


@dataclass(frozen=True)
class Elementwise:
    """The lowering of an elementwise operator."""

    rule: Rule
    operands: tuple[str, ...] = ("self",)
    """The arguments that become the rule's operands, tensors or numbers. Those that are `none` become None."""
    kind: Kind = Kind.SAME
    promoted: tuple[str, ...] | None = None
    """The operands that decide the dtype, if not all do. The others are converted to it."""
    conditions: tuple[str, ...] = ()
    """Operands that come as truth values and take no part in promotion."""
    exact: tuple[str, ...] = ()
    """Operands that, as a number or a tensor without dimensions, are not rounded to the dtype the others meet in.

    On CUDA that tensor is one of the CPU.
    """
    exact_on_cuda: tuple[str, ...] = ()
    """Operands that are `exact` on CUDA only."""
    exclude_bool: bool = False
    """Whether eager refuses bools, or has a meaning for them that the rule does not."""

    def __call__(self, call: Call) -> Sequence[SSAValue]:
        names = dict.fromkeys((*self.operands, *(self.promoted or ())))
        given = {name: call.operand(name) for name in names if call.has(name)}
        element = self.element(call, given)
        loads = [self._loader(call, name, given.get(name)) for name in self.operands]

        def fill(body: Body, index: Index, destinations: Sequence[Value]) -> None:
            value = self.rule(body, *(load(body, index) for load in loads))
            store = body.store if self.kind in (Kind.SAME, Kind.FLOAT) else body.store_as
            store(value, destinations[0], index)

        return nest(call, element, layout_of(call.result).sizes, [call.result], fill)

    def element(self, call: Call, given: dict[str, SSAValue | Number]) -> Attribute:
        """Return the dtype that the operands meet in. Raises `NotLoweredError` if the result's is not as expected."""
        names = self.operands if self.promoted is None else self.promoted
        values = [given[name] for name in names if name in given and name not in self.conditions]
        tensors = [(element_of(v), len(sizes_of(v))) for v in values if isinstance(v, SSAValue)]
        element = promote(tensors, (v for v in values if not isinstance(v, SSAValue)))
        result = call.result.element_type
        if self.kind is Kind.FLOAT and not is_float(element):
            # The default float, which may be f64 for all that the operands tell.
            element = result if is_float(result) else f32
        if self.exclude_bool and element == i1:
            raise NotLoweredError("bools")
        expected = element if self.kind in (Kind.SAME, Kind.FLOAT) else i1
        if result != expected:
            raise NotLoweredError(f"a result of type {result}, expected {expected}")
        return element

    def _loader(
        self, call: Call, name: str, operand: SSAValue | Number | None
    ) -> Callable[[Body, Index], Value | None]:
        if operand is None:
            return lambda b, i: None
        exact = name in self.exact or (call.on_cuda and name in self.exact_on_cuda)
        truth = name in self.conditions or self.kind is Kind.TRUTH
        if not isinstance(operand, SSAValue):
            if truth:
                return lambda b, i: b.constant(bool(operand), i1)
            return lambda b, i: b.constant(operand, rounded=not exact)
        if truth:
            return lambda b, i: b.cast(b.load(operand, broadcast(operand, i)), element_of(operand), i1)
        exact = exact and not sizes_of(operand) and not (call.on_cuda and layout_of(operand.type).device_kind == "cuda")
        return lambda b, i: b.load_element(operand, broadcast(operand, i), exact=exact)
