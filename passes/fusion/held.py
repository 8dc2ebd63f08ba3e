"""Memory that a fusion would keep alive: what a producer reads, until its consumer runs.

A sum of two products takes one buffer where the products took two. Fused into a consumer at the end of the program, all
products of a long sum are alive together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.ir import Operation, OpResult, SSAValue

from tilewright.dialects.call_syntax import OperatorCall
from tilewright.dialects.loop_order import data_uses
from tilewright.passes.analysis.order import ProgramOrder, statement_of
from tilewright.passes.analysis.sizes import SizeHints


@dataclass(frozen=True)
class HeldMemory:
    """Tells which producers should run where they stand, because they free more memory than they take."""

    order: ProgramOrder
    sizes: SizeHints
    ratio: int
    """How many times the bytes of a producer's results its inputs may keep alive until a consumer behind a call."""

    def is_excessive(self, producer: Operation, sources: Iterable[SSAValue], consumer: Operation) -> bool:
        """Whether computing `producer`, which reads `sources`, at `consumer` keeps too much memory alive for long.

        Inputs of the program count for nothing: its caller may keep them anyway. Nor does a consumer before the next
        call, which is what takes memory meanwhile.
        """
        allowed = self.ratio * sum(self.sizes.bytes_of(result.type) for result in producer.results)
        held = sum(self.sizes.bytes_of(source.type) for source in sources if self._ends_at(source, producer))
        return held > allowed and self._calls_between(producer, consumer)

    def _ends_at(self, source: SSAValue, producer: Operation) -> bool:
        if not isinstance(source, OpResult):
            return False
        users = (statement_of(use.operation, self.order.block) for use in data_uses(source))
        return all(self.order.distance(user, producer) >= 0 for user in users)

    @staticmethod
    def _calls_between(producer: Operation, consumer: Operation) -> bool:
        op = producer.next_op
        while op is not None and op is not consumer:
            if isinstance(op, OperatorCall):
                return True
            op = op.next_op
        return False
