"""Kernels as text: parsed, lowered pass by pass, and run by the reference interpreter or as machine code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects import arith, builtin, func, math, memref, scf, vector
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from tilewright.backends.host.abi import native_target, torch_symbol
from tilewright.backends.llvm.runtime import compile_kernel
from tilewright.backends.reference import run_function
from tilewright.dialects import cpu, host, loop, sym
from tilewright.dialects.verifier import verify_module
from tilewright.passes.convert_loop_to_cpu import ConvertLoopToCpuPass
from tilewright.passes.loop_collapse import LoopCollapsePass
from tilewright.passes.loop_save_values import LoopSaveValuesPass
from tilewright.passes.loop_tile import LoopTilePass
from tilewright.passes.vectorize import VectorizePass

DIALECTS = (
    builtin.Builtin,
    arith.Arith,
    math.Math,
    func.Func,
    vector.Vector,
    scf.Scf,
    memref.MemRef,
    sym.Sym,
    loop.LoopDialect,
    host.Host,
    cpu.Cpu,
)

ELEMENTS = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.uint8: "ui8",
    torch.bool: "i1",
}


def passes(lanes: int = native_target().vector_bits // 32) -> tuple[ModulePass, ...]:
    """Return the passes from a kernel to CPU operations, for registers of `lanes` f32, by default this machine's."""
    return (
        LoopCollapsePass(),
        LoopSaveValuesPass(),
        LoopTilePass(),
        VectorizePass(lanes=lanes),
        ConvertLoopToCpuPass(),
    )


@dataclass
class Kernel:
    """The body of a kernel, in which `$x` stands for the type of buffer `%x`, and what to run it on.

    Buffers named in `outputs` are written and compared; `sizes` are the kernel's symbols.
    """

    body: str
    buffers: dict[str, Tensor]
    outputs: Sequence[str]
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    passes: Sequence[ModulePass] = field(default_factory=passes)

    def type_of(self, name: str) -> str:
        # The number of elements is a symbol of its own: what a kernel accesses never follows from it.
        return f"memref<?x{ELEMENTS[self.buffers[name].dtype]}, #sym.layout<[z{list(self.buffers).index(name)}], [1]>>"

    @property
    def symbols(self) -> dict[str, int]:
        return {**self.sizes, **{f"z{i}": b.numel() for i, b in enumerate(self.buffers.values())}}

    def text(self) -> str:
        """Return a module with the kernel, and a function `@forward` that launches it."""
        body = self.body
        for name in sorted(self.buffers, key=len, reverse=True):
            body = body.replace(f"${name}", self.type_of(name))
        arguments = ", ".join(f"%{name} : {self.type_of(name)}" for name in self.buffers)
        symbols, names = ", ".join(self.symbols), ", ".join(f"%{name}" for name in self.buffers)
        kinds = ", ".join(self.type_of(name) for name in self.buffers)
        return (
            f"loop.kernel @k0({arguments}) symbols [{symbols}] {{\n{body}\n}}\n"
            f"func.func @forward({arguments}) {{\n"
            f"  host.launch @k0({names}) symbols [{symbols}] : {kinds}\n  func.return\n}}\n"
        )

    def parse(self) -> ModuleOp:
        context = Context()
        for dialect in DIALECTS:
            context.load_dialect(dialect)
        module = Parser(context, self.text()).parse_module()
        verify_module(module)
        return module

    def lowered(self, count: int | None = None) -> ModuleOp:
        """Return the module after the first `count` passes, or all, with the verifier run after each."""
        module = self.parse()
        for lowering in self.passes[:count]:
            lowering.apply(Context(), module)
            verify_module(module)
        return module

    def _fresh(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.buffers.items()}

    def interpret(self, count: int | None = 0) -> list[Tensor]:
        """Return the outputs of the reference interpreter, after the first `count` passes."""
        return self._interpret(self.lowered(count))

    def _interpret(self, module: ModuleOp) -> list[Tensor]:
        buffers = self._fresh()
        run_function(module, list(buffers.values()), "forward", self.symbols)
        return [buffers[name] for name in self.outputs]

    def compile(self, module: ModuleOp | None = None) -> Callable[[Sequence[Tensor]], None]:
        """Compile the kernel, which `module` has lowered already, and return how to call it on its buffers."""
        ops = (module or self.lowered()).ops
        kernel = next(op for op in ops if isinstance(op, func.FuncOp) and op.sym_name.data == "k0")
        function = compile_kernel(kernel, native_target(), torch_symbol)
        kinds = [ctypes.c_void_p] * len(self.buffers) + [ctypes.c_int64] * len(self.symbols)
        address = ctypes.CFUNCTYPE(None, *kinds)(function.address)

        def call(buffers: Sequence[Tensor], _owner: object = function) -> None:
            address(*(b.data_ptr() for b in buffers), *self.symbols.values())

        return call

    def run(self) -> list[Tensor]:
        """Return the outputs of the machine code."""
        return self._run(self.lowered())

    def _run(self, module: ModuleOp) -> list[Tensor]:
        buffers = self._fresh()
        self.compile(module)(list(buffers.values()))
        return [buffers[name] for name in self.outputs]

    def check(self, expected: Sequence[Tensor] | None = None, *, rtol: float = 1e-5, atol: float = 1e-5) -> None:
        """Compare each level, and the machine code, with `expected`, or else with the kernel as it was written."""
        module = self.parse()
        first = self._interpret(module)
        wanted = first if expected is None else expected
        self._compare("as written", first, wanted, rtol, atol)
        for lowering in self.passes:
            before = str(module)
            lowering.apply(Context(), module)
            verify_module(module)
            if str(module) != before:
                self._compare(f"after {lowering.name}", self._interpret(module), wanted, rtol, atol)
        self._compare("as machine code", self._run(module), wanted, rtol, atol)

    def _compare(self, when: str, found: Sequence[Tensor], wanted: Sequence[Tensor], rtol: float, atol: float) -> None:
        for name, ours, theirs in zip(self.outputs, found, wanted, strict=True):
            torch.testing.assert_close(
                ours,
                theirs.reshape(ours.shape),
                rtol=rtol,
                atol=atol,
                equal_nan=True,
                msg=lambda text, name=name: f"%{name} {when}: {text}",
            )


@pytest.fixture
def kernel() -> Callable[..., Kernel]:
    torch.default_generator.manual_seed(0)
    return Kernel
