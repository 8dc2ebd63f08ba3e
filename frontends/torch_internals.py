"""What the frontends use of torch beyond its documented interface: an upgrade of torch is checked here."""

# pyright: reportPrivateUsage=false

from collections.abc import Iterator

import torch
from torch._ops import OpOverload


def operator_schemas() -> Iterator[tuple[str, bool]]:
    """Yield the schema of each operator that the dispatcher has, and whether it draws random numbers.

    Operators that only TorchScript knows (`aten::append.t`) are left out: no graph holds them.
    """
    dispatched = set(torch._C._dispatch_get_all_op_names())
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        if name in dispatched:
            namespace, _, operator = schema.name.partition("::")
            overload = getattr(getattr(getattr(torch.ops, namespace), operator), schema.overload_name or "default")
            assert isinstance(overload, OpOverload)
            yield str(schema), torch.Tag.nondeterministic_seeded in overload.tags
