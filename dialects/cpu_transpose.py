"""`cpu.transpose`: a square of elements in registers; see `dialects/cpu.py`."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import VectorType
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, traits_def, var_operand_def, var_result_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.type_guards import is_vector


@irdl_op_definition
class TransposeOp(IRDLOperation):
    """Turn the rows of a square into its columns: lane `j` of result `i` is lane `i` of operand `j`.

    `%c0, %c1 = cpu.transpose %r0, %r1 : vector<2xf32>, vector<2xf32> to vector<2xf32>, vector<2xf32>`. There are as
    many operands as lanes, a power of two.
    """

    name = "cpu.transpose"
    rows = var_operand_def(VectorType)
    columns = var_result_def(VectorType)
    traits = traits_def(Pure())
    assembly_format = "$rows attr-dict `:` type($rows) `to` type($columns)"

    @staticmethod
    def get(rows: Sequence[SSAValue]) -> TransposeOp:
        """Transpose `rows`."""
        return TransposeOp.create(operands=rows, result_types=[r.type for r in rows])

    def verify_(self) -> None:
        count = len(self.rows)
        kinds = [v.type for v in (*self.rows, *self.columns)]
        if len(self.columns) != count or len(set(kinds)) != 1:
            raise VerifyException("`cpu.transpose` has operands and results that are not of one type and number")
        kind = kinds[0]
        if not is_vector(kind) or kind.get_shape() != (count,) or count & (count - 1):
            raise VerifyException(
                f"`cpu.transpose` of {count} vectors needs that many lanes, a power of two; found {kind}"
            )
