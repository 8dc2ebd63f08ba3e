"""What a program must not do is an error that names the operation and the element."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.reference.conftest import Runner
from torch import Tensor

from tilewright.backends.reference import ExecutionError

X = "tensor<?x4xf32, #sym.layout<[s0, 4], [4, 1]>>"


def nest(body: str, loops: str = "%i : s0, %k : 4") -> str:
    return f"""
    !x = {X}
    func.func @forward(%x : !x) -> !x {{
      %y = loop.nest ({loops}) outs(%o : !x) {{
        {body}
      }}
      func.return %y : !x
    }}"""


COPY = """%v = loop.load %x[%i, %k] : !x -> f32
          loop.store %v, %o[%i, %k] : f32, !x"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            nest(COPY.replace("load %x[%i, %k]", "load %x[%i + 1, %k]")),
            r"`loop.load`: index 0 is 3, expected 0 to 2, in iteration \[2, 0\]\n  in: .*loop.load %x\[",
        ),
        (
            nest(COPY.replace("%o[%i, %k]", "%o[%i, %k - 1]")),
            r"`loop.store`: index 1 is -1, expected 0 to 3, in iteration \[0, 0\]",
        ),
        (
            nest(COPY.replace("%o[%i, %k]", "%o[%i, 0]")),
            r"`loop.store`: 4 iterations store to element \[0, 0\]",
        ),
        (nest(COPY, "%i : s0, %k : 3"), r"`loop.nest`: element \[0, 3\] of result 0 is never stored"),
        (
            nest(COPY + COPY.replace("%v", "%w")),
            r"`loop.store`: stores to element \[0, 0\] a second time",
        ),
        (
            nest("%v = loop.load %o[%i, %k] : !x -> f32\nloop.store %v, %o[%i, %k] : f32, !x"),
            r"`loop.load`: reads element \[0, 0\], which was never stored",
        ),
        (
            nest(COPY.replace("loop.store %v, %o[%i, %k]", 'loop.store %v, %o[%i, %k] combine "sum"')),
            r"`loop.store`: combines with element \[0, 0\], which was never stored",
        ),
        (
            nest(
                """%v = loop.load %x[%i, %k] : !x -> vector<4xf32>
                   loop.store %v, %o[%i, %k] : vector<4xf32>, !x""",
                "%k : 4, %i = 0 to s0 step 4 lanes",
            ),
            r"`loop.nest`: 4 lanes at a time leave the bounds of a loop that has no mask",
        ),
        (
            nest(COPY).replace("func.return", "%z = loop.view %y <(d0, d1) -> (d0, 3 - d1)> : !x to !x\nfunc.return"),
            r"`loop.view`: the map and the layout disagree on where element \[0, 0\] lies",
        ),
        (
            nest(COPY).replace("func.return", "%z = loop.view %y <(d0, d1) -> (d0, d1 + 1)> : !x to !x\nfunc.return"),
            r"`loop.view`: the map leaves the source: index 1 goes from 1 to 4, expected 0 to 3",
        ),
        (
            nest(COPY).replace(
                "func.return",
                '%z = aten.call "aten.sum.dim_IntList"(self = %y, dim = #sym.ints<[5]>) : (!x) -> !x\nfunc.return',
            ),
            r"`aten.call`: PyTorch refuses: Dimension out of range",
        ),
        (
            nest(COPY).replace(
                "func.return",
                '%z = aten.call "aten.t.default"(self = %y) : (!x) -> !x\nfunc.return',
            ),
            r"`aten.call`: PyTorch gives torch.float32 of sizes \[4, 3\], expected torch.float32 of \[3, 4\]",
        ),
    ],
)
def test_programs(run: Runner, text: str, message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        run(text, torch.randn(3, 4))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "`@forward` takes 1 arguments, found 0"),
        ([torch.zeros(3, 4, dtype=torch.float64)], "argument 0 has dtype torch.float64, expected torch.float32"),
        ([torch.zeros(3, 5)], r"argument 0 has sizes \[3, 5\], expected \[3, 4\]"),
        ([torch.zeros(12)], r"argument 0 has sizes \[12\], expected 2 of them"),
        ([torch.zeros(4, 3).t()], r"argument 0 has strides \[1, 3\], expected \[4, 1\]"),
        ([7], "argument 0 is 7, expected a tensor"),
    ],
)
def test_inputs(run: Runner, inputs: list[Any], message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        run.all(nest(COPY), *inputs)


def test_unknown_functions_and_symbols(run: Runner) -> None:
    with pytest.raises(ExecutionError, match="the module has no function `@backward`; it has `@forward`"):
        run.all(nest(COPY), torch.zeros(3, 4), name="backward")
    text = nest(COPY).replace("s0", "2 * s0")
    with pytest.raises(ExecutionError, match="the symbol `s0` has no value"):
        run.all(text, torch.zeros(4, 4))
    (found,) = run.all(text, torch.ones(4, 4), symbols={"s0": 2})
    assert isinstance(found, Tensor)


HOST = """
!x = memref<?x4xf32, #sym.layout<[s0, 4], [4, 1]>>
!t = memref<4x?xf32, #sym.layout<[4, s0], [1, 4]>>
!f = memref<?xf32, #sym.layout<[n0], [1]>>
loop.kernel @negate(%a : !f, %b : !f) symbols [n0] {{
  loop.nest (%i : n0) {{
    %v = loop.load %a[%i] : !f -> f32
    %n = arith.negf %v : f32
    loop.store %n, %b[%i] : f32, !f
  }}
}}
func.func @forward(%x : !x) -> !x {{
  {body}
}}"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            """%y = host.alloc : !x
               host.free %y : !x
               host.launch @negate(%x, %y) symbols [4 * s0] : !x, !x
               func.return %x : !x""",
            "`%y` is used after it was freed",
        ),
        (
            """%y = host.alloc : !x
               host.launch @negate(%y, %x) symbols [4 * s0] : !x, !x
               func.return %x : !x""",
            r"reads element \[0\], which was never stored, in kernel `@negate`\n  in: ",
        ),
        ("%y = host.alloc : !x\nfunc.return %y : !x", r"element \[0, 0\] of result 0 was never stored"),
        (
            """%y = host.alloc : !x
               %z = host.call "aten.relu.default"(self = %y) : (!x) -> !x
               func.return %z : !x""",
            r"`host.call`: reads element \[0, 0\] of operand 0, which was never stored",
        ),
        (
            """%y = host.alloc : !x
               host.launch @negate(%x, %y) symbols [4 * s0 + 1] : !x, !x
               func.return %y : !x""",
            "takes bytes 0 to 52 of a storage with 48 bytes, in kernel `@negate`\n  in: host.launch @negate",
        ),
        (
            "host.launch @negate(%x, %x) symbols [4 * s0] : !x, !x\nfunc.return %x : !x",
            "its buffer overlaps that of another access",
        ),
    ],
)
def test_host_programs(run: Runner, body: str, message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        run(HOST.format(body=body), torch.randn(3, 4))


IN_PLACE = """
!x = memref<4x4xf32, #sym.layout<[4, 4], [4, 1]>>
func.func @forward(%x : !x) -> !x {{
  loop.nest (%i : 4) {{
    {body}
  }}
  func.return %x : !x
}}"""

SHIFTED = """
loop.for (%k : 3) {{
  %v = loop.load %x[%i, %k{offset}] : !x -> f32
  loop.store %v, %x[%i, %k] : f32, !x
}}"""

ROW = """
%m = loop.reduce "max" (%k : 4) {{
  %v = loop.load %x[{row}, %k] : !x -> f32
  loop.yield %v : f32
}} : f32
loop.for (%k : 4) {{
  loop.store %m, %x[%i, %k] : f32, !x
}}"""


@pytest.mark.parametrize("body", [SHIFTED.format(offset=" + 1"), ROW.format(row="3 - %i")])
def test_races(run: Runner, body: str) -> None:
    with pytest.raises(
        ExecutionError, match=r"`loop.store`: accesses the same element as another iteration of `%v = loop.load"
    ):
        run(IN_PLACE.format(body=body), torch.randn(4, 4))


@pytest.mark.parametrize("body", [SHIFTED.format(offset=""), ROW.format(row="%i")])
def test_no_races(run: Runner, body: str) -> None:
    run(IN_PLACE.format(body=body), torch.randn(4, 4))


def test_a_nest_reads_what_another_iteration_stored(run: Runner) -> None:
    text = nest(
        """loop.for (%k : 4) {
             %v = loop.load %x[%i, %k] : !x -> f32
             loop.store %v, %o[%i, %k] : f32, !x
           }
           loop.for (%k : 4) {
             %w = loop.load %o[0, %k] : !x -> f32
           }""",
        "%i : s0",
    )
    with pytest.raises(ExecutionError, match="accesses the same element as another iteration"):
        run(text, torch.randn(3, 4))
