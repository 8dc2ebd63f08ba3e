"""Print the last stage of a file as target source.

tilewright-translate model.ir -t llvm-ir
tilewright-translate model.ir -t asm --triple aarch64-unknown-linux-gnu --cpu neoverse-v1 --vector-bits 128
tilewright-translate model.ir -t host-py
tilewright-translate model.ir -t triton --kernel softmax_0
tilewright-translate model.ir -t ptx --arch 90

`llvm-ir` and `asm` take the kernels, which `convert-loop-to-cpu` must have lowered, for this machine or another;
`triton`, `ttir` and `ptx` take those that `convert-loop-to-tt` has lowered, as Triton's Python, as its IR, and as what
it makes of that; `host-llvm` and `host-py` take the program around them, on any stage from `outline-kernels` on.
Nothing is decided here: what is printed is what runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from xdsl.dialects.func import FuncOp
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects import aten, host, loop, tt
from tilewright.tools.entry import run_tool
from tilewright.tools.source import ParsedModule, read_file
from tilewright.tools.universe import make_context

TARGETS = ("llvm-ir", "asm", "triton", "ttir", "ptx", "host-llvm", "host-py")

_TOO_EARLY = {
    aten.CallOp: "`aten.call` is of an earlier stage: `bufferize` makes a host program of the graph",
    loop.NestOp: "`loop.nest` is of an earlier stage: `outline-kernels` and `convert-loop-to-cpu` lower it",
    loop.KernelOp: "`loop.kernel` is of an earlier stage: `convert-loop-to-cpu` lowers it",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool. Returns 1 for a bad file or one of another stage, otherwise 0."""
    arguments = _parser().parse_args(argv)
    return run_tool("tilewright-translate", lambda: _translate(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "tilewright-translate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="the module")
    parser.add_argument("-t", "--target", choices=TARGETS, required=True, help="what to print")
    parser.add_argument("--triple", help="LLVM's name of the machine (default: this one)")
    parser.add_argument("--cpu", help="LLVM's name of the processor")
    parser.add_argument("--features", default="", help="LLVM's features of the processor, as +avx2,-avx512f")
    parser.add_argument("--vector-bits", type=int, default=128, help="the widest vector register (default: 128)")
    parser.add_argument("--arch", type=int, default=90, help="the GPU's compute capability for `ptx` (default: 90)")
    parser.add_argument("--triton-version", default="3.9", help="whose syntax `ttir` has (default: 3.9)")
    parser.add_argument("--kernel", help="of `triton`, `ttir` and `ptx`, the one to print (default: all)")
    return parser


def _translate(arguments: argparse.Namespace) -> int:
    file = read_file(make_context(), arguments.file)
    match arguments.target:
        case "llvm-ir" | "asm":
            text = _kernel_code(file, arguments)
        case "triton" | "ttir" | "ptx":
            text = _triton_code(file, arguments)
        case _:
            text = _host_code(file, arguments)
    print(text, end="")
    return 0


def _refuse_earlier_stages(file: ParsedModule, *refused: type[aten.CallOp | loop.NestOp | loop.KernelOp]) -> None:
    for op in file.module.walk():
        for kind in refused:
            if isinstance(op, kind):
                raise file.error_at(op, _TOO_EARLY[kind])


def _kernel_code(file: ParsedModule, arguments: argparse.Namespace) -> str:
    from tilewright.backends.llvm.emit import emit_module
    from tilewright.backends.llvm.jit import CompileError, emit_assembly
    from tilewright.backends.llvm.target import Target
    from tilewright.backends.llvm.types import EmitError

    _refuse_earlier_stages(file, aten.CallOp, loop.NestOp, loop.KernelOp)
    functions = [op for op in file.module.ops if isinstance(op, FuncOp)]
    kernels = [f for f in functions if not any(op.name.startswith("host.") for op in f.walk())]
    if not kernels:
        raise file.source.error("there is no kernel in the file")
    if arguments.triple is None:
        from tilewright.backends.host.abi import native_target

        target = native_target()
    else:
        target = Target(arguments.triple, arguments.cpu or "generic", arguments.features, arguments.vector_bits)
    try:
        text = emit_module(kernels, target)
        return text if arguments.target == "llvm-ir" else emit_assembly(text, target)
    except (EmitError, CompileError) as error:
        raise file.source.error(str(error)) from error


def _triton_code(file: ParsedModule, arguments: argparse.Namespace) -> str:
    from tilewright.backends.triton.compile import CompileError, compile_stages
    from tilewright.backends.triton.python_source import emit_python
    from tilewright.backends.triton.python_values import SourceError
    from tilewright.backends.triton.ttir import emit_ttir, parse_version

    kernels = [op for op in file.module.ops if isinstance(op, tt.FuncOp)]
    if not kernels:
        for op in file.module.walk():
            if isinstance(op, loop.KernelOp):
                raise file.error_at(op, "`loop.kernel` is of an earlier stage: `convert-loop-to-tt` lowers it")
        raise file.source.error("there is no kernel for a CUDA device in the file")
    if arguments.kernel is not None:
        named = [k for k in kernels if k.sym_name.data == arguments.kernel]
        if not named:
            names = ", ".join(f"`{k.sym_name.data}`" for k in kernels)
            raise file.source.error(f"there is no kernel `{arguments.kernel}`, expected one of {names}")
        kernels = named
    try:
        if arguments.target == "triton":
            return emit_python(kernels)
        if arguments.target == "ptx":
            return "\n".join(compile_stages(k, arguments.arch).ptx for k in kernels)
        version = parse_version(arguments.triton_version)
        return "// -----\n".join(emit_ttir(k, version) for k in kernels)
    except (CompileError, SourceError, ValueError) as error:
        raise file.source.error(str(error)) from error


def _host_code(file: ParsedModule, arguments: argparse.Namespace) -> str:
    from tilewright.backends.host.emit_llvm import emit_llvm
    from tilewright.backends.host.emit_python import emit_python
    from tilewright.backends.host.plan import find_program, make_plan

    for op in file.module.walk():
        if isinstance(op, (aten.CallOp, loop.NestOp)) and isinstance(op.parent_op(), FuncOp):
            raise file.error_at(op, _TOO_EARLY[type(op)])
    if not any(isinstance(op, (host.LaunchOp, host.CallOp, host.AllocOp, host.ViewOp)) for op in file.module.walk()):
        raise file.source.error("there is no host program in the file")
    try:
        plan = make_plan(find_program(file.module))
        return emit_python(plan) if arguments.target == "host-py" else emit_llvm(plan).text
    except VerifyException as error:
        raise file.source.error(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
