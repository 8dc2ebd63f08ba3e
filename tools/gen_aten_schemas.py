"""Write `dialects/aten_schemas.txt` from the installed torch.

    python -m tilewright.tools.gen_aten_schemas

Run it after an upgrade of torch and commit the result: `tests/dialects/test_aten_schema.py` fails if the table lacks an
operator that the installed torch has. Operators that only TorchScript knows (`aten::append.t`) are left out: the
dispatcher never sees them, so no graph holds them.
"""

import torch

from tilewright.dialects.aten_schema import RANDOM_MARK, TABLE

NAMESPACES = ("aten", "prims", "_c10d_functional")
"""Operators that are part of torch. Others are libraries: their calls carry the argument names anyway."""


def torch_schemas() -> list[str]:
    """Return the lines of the table for the installed torch."""
    dispatched = set(torch._C._dispatch_get_all_op_names())
    lines: list[str] = []
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        namespace, _, operator = schema.name.partition("::")
        if name in dispatched and namespace in NAMESPACES:
            packet = getattr(getattr(torch.ops, namespace), operator)
            overload = getattr(packet, schema.overload_name or "default")
            lines.append(str(schema) + RANDOM_MARK * (torch.Tag.nondeterministic_seeded in overload.tags))
    return sorted(lines)


def main() -> None:
    """Rewrite the table in place."""
    header = f"# written by tools/gen_aten_schemas.py from torch {torch.__version__.partition('+')[0]}"
    TABLE.write_text("\n".join([header, *torch_schemas(), ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
