"""Operations on elements whose Python may go wrong in types, signs or precedence."""

from __future__ import annotations

import torch
from tests.reference.kernels import NAMES, elementwise
from torch import Tensor

I8, I32, I64, F16, F32, F64, BOOL = (
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.bool,
)
Operation = tuple[str, tuple[torch.dtype, ...], torch.dtype]

BINARY_INTEGER = ("addi", "subi", "muli", "andi", "ori", "xori", "maxsi", "minsi", "maxui", "minui")
COMPARISONS = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
FLOAT_COMPARISONS = ("oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno")
CASTS: list[tuple[str, torch.dtype, torch.dtype]] = [
    ("arith.extsi", I8, I32),
    ("arith.extui", I8, I32),
    ("arith.extui", I32, I64),
    ("arith.extui", BOOL, I32),
    ("arith.extsi", BOOL, I32),
    ("arith.trunci", I64, I8),
    ("arith.trunci", I32, BOOL),
    ("arith.sitofp", I32, F32),
    ("arith.sitofp", BOOL, F32),
    ("arith.uitofp", I32, F64),
    ("arith.uitofp", I8, F32),
    ("arith.uitofp", BOOL, F32),
    ("arith.extf", F16, F32),
    ("arith.truncf", F32, F16),
    ("arith.extf", F32, F64),
]


def _cast(name: str, source: torch.dtype, target: torch.dtype) -> Operation:
    kinds = ["!m" if d == BOOL else f"!v{n}" for n, d in enumerate((source, target))]
    return f"{name} %x0 : {kinds[0]} to {kinds[1]}", (source,), target


OPERATIONS: list[Operation] = [
    *((f"arith.{name} %x0, %x1 : !v0", (dtype, dtype), dtype) for name in BINARY_INTEGER for dtype in (I8, I32, I64)),
    *((f"arith.cmpi {name}, %x0, %x1 : !v0", (dtype, dtype), BOOL) for name in COMPARISONS for dtype in (I8, I64)),
    *((f"arith.cmpf {name}, %x0, %x1 : !v0", (F32, F32), BOOL) for name in FLOAT_COMPARISONS),
    *((f"arith.{name} %x0, %x1 : !v0", (F32, F32), F32) for name in ("addf", "subf", "mulf", "maximumf", "minimumf")),
    *((f"arith.{name} %x0, %x1 : !v0", (F16, F16), F16) for name in ("addf", "mulf", "maxnumf", "minnumf")),
    *((f"arith.{name} %x0, %x1 : !m", (BOOL, BOOL), BOOL) for name in ("andi", "ori", "xori")),
    ("arith.select %x0, %x1, %x2 : !m, !v1", (BOOL, F16, F16), F16),
    ("arith.select %x0, %x1, %x2 : !m, !v1", (BOOL, I8, I8), I8),
    ("tt.precise_divf %x0, %x1 : !v0", (F32, F32), F32),
    ("tt.bitcast %x0 : !v0 -> !v1", (F32,), I32),
    ("math.absf %x0 : !v0", (F32,), F32),
    ("math.floor %x0 : !v0", (F32,), F32),
    ("math.ceil %x0 : !v0", (F32,), F32),
    *(_cast(*c) for c in CASTS),
]
"""The text of `%r = ..`, the types of what `%x0`, `%x1`, .. hold, and of the result."""


def text_of(operation: Operation, name: str) -> str:
    """Return the kernel of an operation."""

    def element(dtype: torch.dtype) -> str:
        return "i1" if dtype == BOOL else NAMES[dtype]

    code, operands, result = operation
    text = elementwise(code, [element(d) for d in operands], element(result))
    return text.replace("@k(", f"@{name}(").replace("{grid =", "{num_warps = 4 : i32, grid =")


def numbers(dtype: torch.dtype, seed: int) -> Tensor:
    """Return 32 elements of a type."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == BOOL:
        return torch.randint(0, 2, (32,), generator=generator).bool()
    if dtype.is_floating_point:
        values = torch.randn(32, generator=generator) * 4
        values[:5] = torch.tensor([0.0, 1.0, float("inf"), float("-inf"), float("nan")])
        return values.to(dtype)[torch.randperm(32, generator=generator)]
    values = torch.randint(-20, 20, (32,), generator=generator)
    values[:3] = torch.tensor([torch.iinfo(dtype).min, torch.iinfo(dtype).max, 0])
    return values[torch.randperm(32, generator=generator)].to(dtype)
