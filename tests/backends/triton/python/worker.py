"""Runs and compiles generated files of Triton's Python, in a process of its own.

`worker.py run FOLDER` calls `launch` of each `FOLDER/*.py` on the tensors of its `.pt`, in Triton's interpreter, and
saves them again; `worker.py compile FOLDER` compiles the kernel of each for sm_90, with the argument types that are in
its `.json`, and writes the IR that Triton makes of it to `.ttir`. What goes wrong is written to `.error`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def give_libdevice() -> None:
    """Let libdevice's functions compute with torch: the interpreter has none of them."""
    import torch
    from triton.language import core
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import TensorHandle

    def elementwise(function: Callable[..., torch.Tensor]) -> Callable[..., core.tensor]:
        def apply(*arguments: Any, **_: object) -> core.tensor:
            first = next(a for a in arguments if isinstance(a, core.tensor))
            values = [torch.as_tensor(a.handle.data if isinstance(a, core.tensor) else a) for a in arguments]
            result = function(*values).numpy()
            return core.tensor(TensorHandle(result, first.dtype), first.type)

        return apply

    functions = {"exp": torch.exp, "tanh": torch.tanh, "log": torch.log, "erf": torch.erf, "rsqrt": torch.rsqrt}
    functions |= {"log1p": torch.log1p, "pow": torch.pow, "sin": torch.sin, "cos": torch.cos, "expm1": torch.expm1}
    for name, function in functions.items():
        setattr(libdevice, name, elementwise(function))


def run(path: Path) -> None:
    import torch

    tensors = torch.load(path.with_suffix(".pt"))
    load(path).launch(*tensors)
    torch.save(tensors, path.with_suffix(".out"))


def compile_kernel(path: Path) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, facts = load(path), json.loads(path.with_suffix(".json").read_text())
    kernel = getattr(module, path.stem)
    signature = dict(zip(kernel.arg_names, facts["types"], strict=False))
    sizes = dict(zip(kernel.arg_names[len(signature) :], facts["blocks"], strict=True))
    source = ASTSource(kernel, {**signature, **dict.fromkeys(sizes, "constexpr")}, sizes)
    compiled = triton.compile(source, GPUTarget("cuda", 90, 32), {"enable_fp_fusion": False})
    assert compiled.asm["cubin"][:4] == b"\x7fELF"
    path.with_suffix(".ttir").write_text(str(compiled.asm["ttir"]))


def main() -> None:
    work, folder = sys.argv[1], Path(sys.argv[2])
    if work == "run":
        os.environ["TRITON_INTERPRET"] = "1"
        give_libdevice()
    for path in sorted(folder.glob("*.py")):
        try:
            (run if work == "run" else compile_kernel)(path)
        except Exception:  # noqa: BLE001 (a test shows it)
            path.with_suffix(f".{work}.error").write_text(traceback.format_exc())


if __name__ == "__main__":
    main()
