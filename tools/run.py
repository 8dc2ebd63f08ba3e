"""Run a file of any level on made-up or given inputs, and print the results or compare them with another file's.

tilewright-run model.ir --symbol s0=3
tilewright-run model.ir --compare fused.ir --rtol 1e-5
tilewright-run model.ir --args inputs.pt --backend native
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.utils.exceptions import PassFailedException, VerifyException

from tilewright.dialects import aten, loop
from tilewright.dialects.type_guards import is_array, is_tensor
from tilewright.tools.check_passes import callees
from tilewright.tools.entry import run_tool
from tilewright.tools.source import ParsedModule, describe, read_file
from tilewright.tools.universe import make_context

if TYPE_CHECKING:
    from tilewright.backends.reference.interpreter import Input, Output
    from tilewright.backends.reference.observe import Observation


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool. Returns 1 for a bad file, a program that fails, or files that differ; otherwise 0."""
    arguments = _parser().parse_args(argv)
    return run_tool("tilewright-run", lambda: _run(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "tilewright-run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="the program")
    parser.add_argument(
        "--args",
        default="random",
        metavar="random|ones|FILE.pt",
        help="make inputs up for the types of the arguments, or read a list that torch.save wrote (default: random)",
    )
    parser.add_argument(
        "--constants",
        metavar="FILE.pt",
        help="read the constants that the function names, its last arguments, from a dictionary that torch.save wrote",
    )
    parser.add_argument("--seed", type=int, default=0, help="where random inputs, and random operators, start")
    parser.add_argument(
        "--symbol",
        type=_symbol,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the value of a size symbol; otherwise its hint, or a small one",
    )
    parser.add_argument(
        "--int-range", type=_range, metavar="LOW:HIGH", help="made-up integers are at least LOW and below HIGH"
    )
    parser.add_argument("--function", metavar="NAME", help="what to run (default: forward, or the only function)")
    parser.add_argument("--compare", metavar="OTHER", help="run another file on the same inputs and compare")
    parser.add_argument("--rtol", type=float, help="relative tolerance (default: by dtype, as in torch.testing)")
    parser.add_argument("--atol", type=float, help="absolute tolerance")
    parser.add_argument(
        "--backend",
        choices=("reference", "native"),
        default="reference",
        help="interpret, with checks; or run the passes that are left, compile, and call the program",
    )
    return parser


def _symbol(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found `{text}`")
    return name, int(value)


def _range(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    if not colon or int(low) >= int(high):
        raise argparse.ArgumentTypeError(f"expected LOW:HIGH, found `{text}`")
    return int(low), int(high)


def _run(arguments: argparse.Namespace) -> int:
    file = _read(arguments.file)
    name = _function_name(file, arguments.function)
    # Importing PyTorch takes a second, which a bad file need not cost.
    from tilewright.backends.reference.observe import Tolerance, first_difference

    inputs = _inputs(file, name, arguments)
    observed = _observe(file, name, inputs, arguments)
    if arguments.compare is None:
        _print(inputs, observed)
        return 0
    other = _read(arguments.compare)
    found = _observe(other, _function_name(other, arguments.function), inputs, arguments)
    difference = first_difference(observed, found, Tolerance(arguments.rtol, arguments.atol))
    if difference is not None:
        print(f"{arguments.compare}: {difference}")
        return 1
    print(f"equal: {len(observed.results)} results, {len(observed.inputs)} arguments afterwards")
    return 0


def _read(path: str) -> ParsedModule:
    return read_file(make_context(), path)


def _function_name(file: ParsedModule, wanted: str | None) -> str:
    """Return the function to run. Raises `SourceError` if it is not clear which."""
    names = callees(file.module, with_launched=wanted is not None)
    if wanted is None and len(names) == 1:
        return names[0]
    if (wanted or "forward") in names:
        return wanted or "forward"
    expected = "one function, or one called `@forward`" if wanted is None else f"a function `@{wanted}`"
    found = ", ".join(f"`@{n}`" for n in names) or "none"
    raise file.source.error(f"expected {expected}, found {found}")


def _inputs(file: ParsedModule, name: str, arguments: argparse.Namespace) -> list[Input]:
    from tilewright.backends.reference import ExecutionError
    from tilewright.backends.reference.inputs import InputSpec, load_constants, load_inputs, make_inputs

    try:
        constants = load_constants(arguments.constants, file.module, name) if arguments.constants else []
        if arguments.args not in ("random", "ones"):
            return [*load_inputs(arguments.args), *constants]
        spec = InputSpec(arguments.args == "ones", arguments.seed, dict(arguments.symbol), arguments.int_range)
        inputs = make_inputs(file.module, name, spec)
        return [*inputs[: len(inputs) - len(constants)], *constants]
    except ExecutionError as error:
        raise file.source.error(error.message) from error


def _observe(file: ParsedModule, name: str, inputs: list[Input], arguments: argparse.Namespace) -> Observation:
    """Run a file on a copy of `inputs`. Raises `SourceError` if that fails."""
    from tilewright.backends.reference import ExecutionError, run_function
    from tilewright.backends.reference.observe import observe
    from tilewright.frontends.random_operators import load_operators

    load_operators()

    def interpret(given: list[Input]) -> list[Output]:
        return run_function(file.module, given, name, dict(arguments.symbol))

    def compiled(given: list[Input]) -> list[Output]:
        return _run_native(file.module, name, given)

    try:
        return observe(interpret if arguments.backend == "reference" else compiled, inputs, arguments.seed)
    except ExecutionError as error:
        kernel = "" if error.kernel is None else f", in kernel `@{error.kernel}`"
        raise file.error_at(error.op, error.message + kernel) from error
    except (PassFailedException, VerifyException) as error:
        raise file.source.error(str(error)) from error
    except Exception as error:
        if arguments.backend == "reference":
            raise
        # Compiled code raises what eager PyTorch raises for the same operator: anything.
        raise file.source.error(f"the program raises {describe(error)}") from error


def _run_native(module: ModuleOp, name: str, inputs: list[Input]) -> list[Output]:
    """Compile what is left to compile of `module`, which is changed, and call it."""
    from tilewright.backends.host.abi import native_target
    from tilewright.tools.compile import compile_module, devices, pipeline_text
    from tilewright.tools.options import Options

    function = next((op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == name), None)
    if function is None:
        raise VerifyException(f"there is no function `@{name}` to compile")
    names = function.attributes.get("aten.constants")
    first_constant = len(inputs) - (len(names.data) if names is not None and is_array(names) else 0)
    constants = [value for value in inputs[first_constant:] if not isinstance(value, int)]
    options = Options(pipeline=_rest_of(pipeline_text(Options(), native_target(), devices(module)), module))
    compiled = compile_module(module, make_context(), options, constants)
    return list(compiled.program(inputs[:first_constant]))


def _rest_of(pipeline: str, module: ModuleOp) -> str:
    """Return the passes that bring a module from the level it is on to the last."""
    first = ""
    for op in module.walk():
        if isinstance(op, aten.CallOp) or (
            isinstance(op, FuncOp) and any(is_tensor(t) for t in op.function_type.inputs)
        ):
            return pipeline
        if isinstance(op, loop.NestOp) and isinstance(op.parent_op(), FuncOp):
            first = "buffer-reuse"
        elif isinstance(op, loop.KernelOp) and not first:
            first = _first_pass_for(op)
    # There is no empty pipeline, and this pass may run on any level.
    return pipeline[pipeline.index(first) :] if first else "canonicalize"


def _first_pass_for(kernel: loop.KernelOp) -> str:
    """Return the pass that a kernel waits for."""
    loops = [d for op in kernel.walk() if isinstance(op, loop.Loop) for d in op.loops.dims]
    if any(d.lanes for d in loops):
        return "convert-loop-to-cpu"
    return "vectorize" if any(d.step > 1 for d in loops) else "loop-tile"


def _print(inputs: Sequence[Input], observed: Observation) -> None:
    """Print the results, and the arguments that were written."""
    from tilewright.backends.reference.observe import describe as describe_value
    from tilewright.backends.reference.observe import is_same

    for number, result in enumerate(observed.results):
        print(f"result {number}: {describe_value(result)}")
    for number, (before, after) in enumerate(zip(inputs, observed.inputs, strict=True)):
        if not is_same(before, after):
            print(f"argument {number} afterwards: {describe_value(after)}")


if __name__ == "__main__":
    sys.exit(main())
