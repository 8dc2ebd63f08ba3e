"""Texts of small kernels for a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

NAMES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "i8",
    torch.bool: "i8",
}
"""What memory of a dtype is called."""


def kernel(body: str, elements: Sequence[str], *, grid: int | str = 1, symbols: Sequence[str] = ()) -> str:
    """Return a kernel `@k` with pointers `%p0`, `%p1`, .. to `elements`, and symbols behind.

    In the body `%pid` is the program, `%at` are its 16 elements, and `%a0`, `%a1`, .. their addresses, of types `!p0`,
    `!p1`, .. The values there have types `!v0`, `!v1`, ..
    """
    aliases = [f"!p{n} = tensor<16x!tt.ptr<{e}>>\n!v{n} = tensor<16x{e}>" for n, e in enumerate(elements)]
    arguments = [f"%p{n} : !tt.ptr<{e}>" for n, e in enumerate(elements)] + [f"%{s} : i64" for s in symbols]
    addresses = [
        f"%s{n} = tt.splat %p{n} : !tt.ptr<{e}> -> !p{n}\n%a{n} = tt.addptr %s{n}, %at : !p{n}, !i"
        for n, e in enumerate(elements)
    ]
    names = ", ".join(f'"{s}"' for s in symbols)
    newline = "\n"
    return f"""
    {newline.join(aliases)}
    !i = tensor<16xi32>
    !m = tensor<16xi1>
    tt.func public @k({", ".join(arguments)}) attributes {{grid = #sym.expr<{grid}>, symbols = [{names}]}} {{
      %pid = tt.get_program_id x : i32
      %sixteen = arith.constant 16 : i32
      %first = arith.muli %pid, %sixteen : i32
      %range = tt.make_range {{end = 16 : i32, start = 0 : i32}} : !i
      %firsts = tt.splat %first : i32 -> !i
      %at = arith.addi %firsts, %range : !i
      {newline.join(addresses)}
      {body}
      tt.return
    }}"""


def elementwise(operation: str, operands: Sequence[str], result: str) -> str:
    """Return a kernel of two programs that applies `%r = <operation>` to elements `%x0`, `%x1`, .. of its buffers.

    In the operation `!v0`, `!v1`, .. are the types of the operands, and the last of them that of the result. Elements
    of i1 are bytes in memory.
    """
    memory = ["i8" if e == "i1" else e for e in (*operands, result)]
    last = len(operands)
    lines: list[str] = []
    for n, element in enumerate(operands):
        name, kind = (f"%l{n}", f"!v{n}") if element == "i1" else (f"%x{n}", "")
        lines.append(f"{name} = tt.load %a{n} : !p{n}")
        if kind:
            lines.append(f"%x{n} = arith.trunci {name} : {kind} to !m")
    lines.append(f"%r = {operation}")
    stored = "%r"
    if result == "i1":
        lines.append(f"%w = arith.extui %r : !m to !v{last}")
        stored = "%w"
    lines.append(f"tt.store %a{last}, {stored} : !p{last}")
    return kernel("\n".join(lines), memory, grid=2)
