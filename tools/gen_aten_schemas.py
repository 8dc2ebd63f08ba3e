"""Write `dialects/aten_schemas.txt` from the installed torch.

    python -m tilewright.tools.gen_aten_schemas

Run it after an upgrade of torch and commit the result: `tests/dialects/test_aten_schema.py` fails if the table lacks an
operator that the installed torch has. Operators that only TorchScript knows (`aten::append.t`) are left out: the
dispatcher never sees them, so no graph holds them.
"""

import torch

from tilewright.dialects.aten_schema import RANDOM_MARK, TABLE
from tilewright.frontends.torch_internals import operator_schemas

NAMESPACES = ("aten", "prims", "_c10d_functional", "tilewright")
"""Operators that are part of torch, and our own. Others are libraries: their calls carry the argument names anyway."""


def table_lines() -> list[str]:
    """Return the lines of the table for the installed torch, without the header."""
    return sorted(
        text + RANDOM_MARK * is_random
        for text, is_random in operator_schemas()
        if text.partition("::")[0] in NAMESPACES
    )


def main() -> None:
    """Rewrite the table in place."""
    header = f"# written by tools/gen_aten_schemas.py from torch {torch.__version__.partition('+')[0]}"
    TABLE.write_text("\n".join([header, *table_lines(), ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
