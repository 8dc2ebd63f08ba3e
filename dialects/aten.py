"""The `aten` dialect: the graph that AOTAutograd gives, one operation per ATen call, on tensors (level 0).

Every tensor type carries a `#sym.layout` with sizes, strides and device; sizes may be symbolic. The dialect cannot
speak of loops: what an operator computes is known to the lowering and to the reference interpreter only.

```
func.func @forward(%x : tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>) -> tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
    attributes {aten.symbols = {s0 = #sym.symbol<hint 4, 2 to 1000>}} {
  %y = aten.call "aten._softmax.default"(self = %x, dim = -1 : i64, half_to_float = false)
      : (tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>) -> tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
  func.return %y : tensor<?x8xf32, #sym.layout<[s0, 8], [8, 1]>>
}
```

A function may carry these attributes:

- `aten.symbols`: a dictionary from symbol to `#sym.symbol` (its hint and range);
- `aten.symbol_args`: a dictionary from symbol to the number of the i64 argument that holds it; a symbol without one is
  read from the first argument that has it alone as a size or stride;
- `aten.mutates`: the numbers of the arguments that an `aten.copy_` writes to;
- `aten.output_alias`: for each result the number of the argument it shares memory with, or -1;
- `aten.constants`: the names of tensors that belong to the program (an exported one's parameters, for instance), which
  are the last arguments;
- `aten.none_outputs`: the positions, in the caller's list of outputs, that are None and have no result;
- `aten.free_results`: the numbers of results whose strides the program may choose. Up to a pass that does so, their
  types say what tracing saw.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from xdsl.dialects.builtin import i64
from xdsl.ir import Dialect, Operation
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, result_def, traits_def
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind, Pure

from tilewright.dialects import aten_schema
from tilewright.dialects.call_syntax import ARGUMENT_ATTRS, OperatorCall
from tilewright.dialects.sym import ExprAttr
from tilewright.dialects.sym_expr import Expr


class CallEffect(MemoryEffect):
    """A call writes where its schema says so, drawing random numbers writes the generator's state, a call without
    results is there for its effect, and an unknown operator may do anything; other calls are pure."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance] | None:
        assert isinstance(op, CallOp)
        schema = aten_schema.lookup(op.operator)
        if schema is None:
            return None
        writes = schema.is_mutable or schema.has_effect
        return {EffectInstance(MemoryEffectKind.WRITE)} if writes else set()


@irdl_op_definition
class CallOp(OperatorCall):
    """Call an ATen operator on tensors:
    `%y = aten.call "aten.add.Tensor"(self = %x, other = %z, alpha = 2 : i64) : (..) -> ..`.
    """

    name = "aten.call"
    traits = traits_def(CallEffect())


@irdl_op_definition
class SizeOp(IRDLOperation):
    """The value of a size expression, as an output of the graph needs it: `%n = aten.size <s0 + 1> : i64`."""

    name = "aten.size"
    size = prop_def(ExprAttr)
    result = result_def(i64)
    traits = traits_def(Pure())
    assembly_format = "$size attr-dict `:` type($result)"

    @staticmethod
    def get(expr: Expr) -> SizeOp:
        return SizeOp.create(result_types=[i64], properties={"size": ExprAttr(expr)})


Aten = Dialect("aten", [CallOp, SizeOp], list(ARGUMENT_ATTRS))
