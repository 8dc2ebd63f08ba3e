"""How these tests run a piece of IR text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest
import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects import builtin, func, gpu, math, scf, vector
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from tilewright.backends.reference import run_function
from tilewright.dialects import arith_tensor, aten, cpu, host, loop, sym, tt
from tilewright.dialects.verifier import verify_module

DIALECTS = (
    builtin.Builtin,
    arith_tensor.Arith,
    math.Math,
    func.Func,
    vector.Vector,
    scf.Scf,
    gpu.GPU,
    sym.Sym,
    aten.Aten,
    loop.LoopDialect,
    host.Host,
    cpu.Cpu,
    tt.Tt,
)


class Runner:
    """Parses, verifies and runs modules."""

    @staticmethod
    @cache
    def parse(text: str) -> ModuleOp:
        """Return the module of a text, which running it does not change."""
        ctx = Context()
        for dialect in DIALECTS:
            ctx.load_dialect(dialect)
        module = Parser(ctx, text).parse_module()
        verify_module(module)
        return module

    def all(
        self, text: str, *inputs: Tensor | int, name: str = "forward", symbols: Mapping[str, int] | None = None
    ) -> list[Tensor | int | None]:
        """Return the results of a function."""
        return run_function(self.parse(text), inputs, name, symbols)

    def __call__(self, text: str, *inputs: Tensor | int) -> Tensor:
        """Return the one result of `@forward`, a tensor."""
        (result,) = self.all(text, *inputs)
        assert isinstance(result, Tensor)
        return result


@pytest.fixture
def run() -> Runner:
    torch.default_generator.manual_seed(0)
    return Runner()
