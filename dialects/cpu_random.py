"""Random numbers of the `cpu` dialect: those of elements in a row, which share blocks of the generator."""

from __future__ import annotations

from xdsl.irdl import irdl_op_definition
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.loop_random import RandomOperation
from tilewright.dialects.type_guards import is_vector


def run_multiple(distribution: str) -> int:
    """Return of what the lanes of numbers in a row are a multiple: a block, or two where its words are paired."""
    return 8 if distribution == "normal" else 4


@irdl_op_definition
class RandomOp(RandomOperation):
    """The random numbers of consecutive elements, from `%e` on:
    `%u = cpu.random "uniform" seed %s stream %n element %e : vector<16xf32>`.

    They are those of `loop.random`, four (of 64-bit numbers two) from each evaluation of the generator.
    """

    name = "cpu.random"

    def verify_(self) -> None:
        super().verify_()
        kind = self.result.type
        multiple = run_multiple(self.distribution.data)
        if not is_vector(kind) or kind.get_shape()[0] % multiple:
            raise VerifyException(f"`cpu.random` gives a multiple of {multiple} lanes, found {kind}")
