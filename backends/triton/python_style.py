"""What makes generated Python read as if a person had written it: names, short assignments, wrapped lines."""

from __future__ import annotations

import re

from xdsl.dialects import arith
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import tt
from tilewright.dialects.arith_tensor import element_of
from tilewright.dialects.type_guards import is_tensor

ELIDED = (tt.SplatOp, tt.BroadcastOp, tt.UnsplatOp)
"""What is left to broadcasting."""


def assignment(name: str, code: str) -> str:
    """Return `name = code`, or `name += x` where that is what it says."""
    added = code.removeprefix(f"{name} + ")
    depth, single = 0, True
    for before, character in zip(f" {added}", added, strict=False):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        single &= depth > 0 or not (before == " " and character in "+-&|^<>=!")
    return f"{name} += {added}" if added != code and single else f"{name} = {code}"


def mentions(code: str, name: str) -> bool:
    """Tell whether an expression has a variable."""
    return re.search(rf"\b{name}\b", code) is not None


def uses_of(value: SSAValue) -> list[Operation]:
    """Return the operations that use `value`, itself or repeated."""
    found: list[Operation] = []
    for use in value.uses:
        if isinstance(use.operation, ELIDED):
            found += uses_of(use.operation.results[0])
        else:
            found.append(use.operation)
    return found


_CASTS = (arith.ExtFOp, arith.TruncFOp, arith.FPToSIOp, arith.SIToFPOp, arith.UIToFPOp, arith.ExtUIOp)
_HINTS = {
    "arith.addi": "i",
    "arith.andi": "mask",
    "arith.cmpf": "mask",
    "arith.cmpi": "mask",
    "arith.muli": "i",
    "arith.ori": "mask",
    "arith.select": "value",
    "tt.load": "x",
    "tt.reduce": "reduced",
}


def hint_of(value: SSAValue) -> str:
    """Return a name for `value`: its hint, or else one that says what computes it."""
    hint, owner = value.name_hint, value.owner
    if hint in ("and", "or", "not"):
        return "mask"
    if hint is not None:
        return f"row_{hint}" if isinstance(owner, tt.ReduceOp) and hint in ("max", "min", "sum") else hint
    if isinstance(owner, Block):
        return "k"
    if isinstance(owner, _CASTS):
        return f"{hint_of(owner.operands[0])}_{element_of(value.type)}"
    if isinstance(owner, tt.ExternElementwiseOp):
        return owner.symbol.data.removeprefix("__nv_").removesuffix("f")
    if isinstance(owner, (arith.AddiOp, arith.MuliOp)) and not is_tensor(value.type):
        return "start"
    return _HINTS.get(owner.name, owner.name.rpartition(".")[2].rpartition("_")[2])


def wrap_call(text: str) -> list[str]:
    """Return a statement that is too long with the arguments of its last call on lines of their own."""
    start, depth = text.index("("), 0
    for position in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[position], 0)
        if depth == 0:
            start = position
            break
    arguments: list[str] = [""]
    for character in text[start + 1 : -1]:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            arguments.append("")
        else:
            arguments[-1] += character
    return [text[: start + 1], *(f"    {a.strip()}," for a in arguments), ")"]
