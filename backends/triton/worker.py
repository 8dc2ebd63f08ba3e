"""A process that compiles kernels with Triton, one at a time; run as a file, and asked through its standard input.

Triton reads settings from the environment, prints diagnostics to the standard streams and ends the process where an
assertion of its own fails. Here all of it stays in a process that is made for it. Each line that comes in is a request,
each line that goes out the answer, both JSON; the process ends with its input.

A request names a folder, which holds the kernel and takes what Triton prints, and says what to compile for:
`{"folder": "..", "file": "k.ttir", "arch": 90, "options": {"num_warps": 4}, "stages": false}`. The answer has either
an `error` or the facts that a launch needs, the cubin and the PTX; if asked for, all stages of the kernel.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any


def compile_kernel(file: str, arch: int, options: dict[str, object], *, stages: bool) -> dict[str, object]:
    """Compile a file of Triton's IR in the current folder; return texts and facts. Raises what Triton raises.

    The file's name goes into the kernel, as the place of its assertions. `triton.compile` does the same on an IR file,
    but for the passes on Triton's own IR, which it leaves out, and its cache, of which we have our own.
    """
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget, Language
    from triton.compiler.compiler import make_backend

    backend = make_backend(GPUTarget("cuda", arch, 32))
    parsed_options = backend.parse_options(dict(options))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    parsed = ir.parse_mlir_module(file, context)
    parsed.context = context
    steps: dict[str, Callable[[Any, dict[str, Any]], Any]] = {}
    backend.add_stages(steps, parsed_options, Language.TRITON)
    metadata: dict[str, Any] = {"num_warps": parsed_options.num_warps}
    texts: dict[str, str] = {}
    image, module = b"", parsed
    for name, step in steps.items():
        module = step(module, metadata)
        if name == "cubin":
            image = module
        elif stages or name == "ptx":
            texts[name] = str(module)
    facts = ("name", "num_warps", "shared", "global_scratch_size", "profile_scratch_size")
    return {**{fact: metadata[fact] for fact in facts}, **texts, "cubin": base64.b64encode(image).decode("ascii")}


def answer(request: dict[str, Any]) -> dict[str, object]:
    """Do what a request asks for; what is printed meanwhile goes to the file `printed` in its folder."""
    os.chdir(request["folder"])
    tempfile.tempdir = request["folder"]
    printed = os.open("printed", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    os.close(printed)
    try:
        return compile_kernel(request["file"], request["arch"], request["options"], stages=request["stages"])
    except Exception as error:  # noqa: BLE001 (Triton raises anything)
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
