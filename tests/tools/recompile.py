"""Compile many different small graphs one after another, and print what stays behind: run by `test_growth.py`.

python recompile.py BACKEND NUMBER WARM

prints the growth between graph number WARM and graph number NUMBER as JSON.
"""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import ctypes
import gc
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode


def graph(number: int) -> tuple[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor]:
    """Return a function like no other, and inputs for it; every second one is trained."""
    draw = random.Random(number)
    a, b, c = (draw.random() for _ in range(3))
    width = draw.randint(3, 40)

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = torch.softmax((torch.sin(x * a) + b) @ w, -1) * c
        if number % 3 == 0:
            y = F.gelu(y) + a
        if number % 5 == 0:
            y = F.layer_norm(y, (width,), eps=0.1)
        return y.sum(0)

    return f, torch.randn(draw.randint(2, 9), 7, requires_grad=number % 2 == 0), torch.randn(7, width)


def compile_and_forget(backend: str, number: int) -> None:
    """Compile one graph, run it, and give up everything that torch lets one give up."""
    f, x, w = graph(number)
    options: dict[str, Any] | None = {"strict": True, "cache": None} if backend == "tilewright" else None
    y = torch.compile(f, backend=backend, dynamic=number % 4 == 0, options=options)(x, w)
    torch.testing.assert_close(y, f(x, w))
    if y.requires_grad:
        y.sum().backward()
    torch._dynamo.reset()
    FakeTensorMode.cache_clear()


def bytes_in_memory() -> int:
    """Return the resident memory of this process, without what the allocator could give back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def our_objects() -> Counter[str]:
    """Count the objects that belong to this project or that only it makes, those in caches of limited size excepted."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tilewright."):
            for value in vars(module).values():
                if hasattr(value, "cache_parameters") and value.cache_parameters()["maxsize"] is not None:
                    value.cache_clear()
    gc.collect()
    names = (str(type(o)) for o in gc.get_objects())
    return Counter(name for name in names if name.startswith(_OURS))


_OURS = ("<class 'tilewright.", "<class 'xdsl.", "<class 'llvmlite.")


def main(backend: str, number: int, warm: int) -> None:
    """Print what the module says."""
    torch.set_num_threads(1)
    for i in range(warm):
        compile_and_forget(backend, i)
    memory, objects = bytes_in_memory(), our_objects()
    for i in range(warm, number):
        compile_and_forget(backend, i)
    grown = {name: n for name, n in (our_objects() - objects).items() if n > 2}
    print(json.dumps({"bytes": bytes_in_memory() - memory, "objects": grown, "libraries": libraries()}))


def libraries() -> int:
    """Return how many kernels are loaded."""
    runtime = sys.modules.get("tilewright.backends.llvm.runtime")
    return 0 if runtime is None else len(runtime._loaded)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
