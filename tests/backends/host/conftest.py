"""Host programs written by hand, with kernels written by hand as LLVM IR."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser

from tilewright.backends.host import abi
from tilewright.backends.host.runtime import Mode, Program, load_program
from tilewright.backends.llvm.jit import Function, compile_library
from tilewright.dialects.aten import Aten
from tilewright.dialects.host import Host
from tilewright.dialects.loop import LoopDialect
from tilewright.dialects.sym import Sym

KERNELS = """
; b[i] = a[i] + 1
define void @add_one(ptr %a, ptr %b, i64 %n) {
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %loop, label %exit
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %p = getelementptr float, ptr %a, i64 %i
  %q = getelementptr float, ptr %b, i64 %i
  %x = load float, ptr %p
  %y = fadd float %x, 1.0
  store float %y, ptr %q
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %exit
exit:
  ret void
}

; b[0] = how many threads OpenMP uses
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_num_threads()
define internal void @count_body(ptr %b) {
  %n = call i32 @omp_get_num_threads()
  %x = sitofp i32 %n to float
  store float %x, ptr %b
  ret void
}
define void @count_threads(ptr %a, ptr %b, i64 %n) {
  call void @GOMP_parallel(ptr @count_body, ptr %b, i32 0, i32 0)
  ret void
}

; b[0] = a[0] after %n microseconds of sleep
declare i32 @usleep(i32)
define void @sleep(ptr %a, ptr %b, i64 %n) {
  %m = trunc i64 %n to i32
  %r = call i32 @usleep(i32 %m)
  %x = load float, ptr %a
  store float %x, ptr %b
  ret void
}
"""

# What a kernel computes is not the host program's affair: to the verifier these bodies are as good as any.
DECLARATIONS = "".join(
    f"""
loop.kernel @{name}(
    %a : memref<?xf32, #sym.layout<[n0], [1]>>, %b : memref<?xf32, #sym.layout<[n0], [1]>>) symbols [n0] {{
  loop.nest (%i : n0) {{
    %v = loop.load %a[%i] : memref<?xf32, #sym.layout<[n0], [1]>> -> f32
    loop.store %v, %b[%i] : f32, memref<?xf32, #sym.layout<[n0], [1]>>
  }}
}}
"""
    for name in ("add_one", "count_threads", "sleep")
)


@cache
def kernel_functions() -> dict[str, Function]:
    library = compile_library(KERNELS, abi.native_target(), abi.kernel_symbol)
    return {name: library.function(name) for name in library.functions}


def parse(text: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, Sym, LoopDialect, Aten, Host):
        context.load_dialect(dialect)
    module = Parser(context, DECLARATIONS + text).parse_module()
    module.verify()
    return module


Load = Callable[..., Program]


@pytest.fixture
def parse_program() -> Callable[[str], ModuleOp]:
    """Reads the text of a host program; the kernels above are declared."""
    return parse


@pytest.fixture
def load() -> Load:
    """Loads the text of a host program."""

    def load_text(
        text: str, mode: Mode = "native", constants: Sequence[Tensor] = (), check_inputs: bool = True
    ) -> Program:
        return load_program(parse(text), kernel_functions(), constants, mode=mode, check_inputs=check_inputs)

    return load_text


@pytest.fixture(params=["native", "python"])
def load_either(request: pytest.FixtureRequest, load: Load) -> Load:
    """Loads the text of a host program in each mode: both must do the same."""

    def load_text(text: str, **options: Any) -> Program:
        return load(text, mode=request.param, **options)

    return load_text


@pytest.fixture
def define_operator() -> Iterator[Callable[[str, Callable[..., Tensor]], None]]:
    """Defines an operator `tilewright_test::..` with a schema, implemented in Python, for one test."""
    torch_library: Any = torch.library
    with torch_library._scoped_library("tilewright_test", "DEF") as library:

        def define(schema: str, function: Callable[..., Tensor]) -> None:
            library.define(schema)
            library.impl(schema[: schema.index("(")], function, "CPU")

        yield define
