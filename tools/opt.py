"""`tilewright-opt`: read a module, run passes on it, print it.

It does all that `xdsl-opt` does, on `.ir` files and on text from standard input, and beyond that: named pipelines,
timing and statistics, printing around single passes, matching of expected errors, reproducers of crashes, and a check
that each pass leaves results as they were. Whatever is wrong with the input ends in an error with file and line and
exit status 1. It does not import torch, but for `--check-passes`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from xdsl.frontend import get_all_frontends
from xdsl.frontend.mlir import MLIRFrontend
from xdsl.passes import ModulePass, PassPipeline
from xdsl.targets import get_all_targets
from xdsl.utils.arg_spec import parse_spec
from xdsl.xdsl_opt_main import xDSLOptMain

from tilewright.passes import PASSES
from tilewright.passes.pipelines import PIPELINES
from tilewright.tools.entry import run_tool
from tilewright.tools.expectations import find_expectations, mismatches
from tilewright.tools.observers import IRPrinter, Observer, Statistics, Timer
from tilewright.tools.opt_arguments import add_arguments
from tilewright.tools.pass_runner import PassRunner, extended
from tilewright.tools.pipeline_text import describe_pass, parse_passes
from tilewright.tools.reproducer import read_pipeline, write_reproducer
from tilewright.tools.source import ParsedModule, Source, SourceError, decode, describe, read_module, read_text
from tilewright.tools.universe import UNIVERSE, IRFrontend, all_dialects, all_passes

PROGRAM = "tilewright-opt"
_FRONTENDS = {"ir": IRFrontend, "mlir": MLIRFrontend}
_SEPARATOR = re.compile(r"^// -----[ \t]*\r?$", re.MULTILINE)


class OptMain(xDSLOptMain):
    """The driver; `execute` does what the arguments ask for."""

    version_format = f"{PROGRAM}, built on xdsl {{xdsl_version}}"

    def __init__(self, args: Sequence[str] | None = None) -> None:
        self.timer: Timer | None = None
        self.observers: list[Observer] = []
        super().__init__("Read a module, run passes on it, print it.", args)

    def register_all_dialects(self) -> None:
        for name, load in all_dialects().items():
            self.ctx.register_dialect(name, load)

    def register_all_frontends(self) -> None:
        self.available_frontends = {**get_all_frontends(), **UNIVERSE.all_frontends}

    def register_all_passes(self) -> None:
        self.available_passes = all_passes()

    def register_all_targets(self) -> None:
        self.available_targets = {**get_all_targets()}

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        arg_parser.prog = PROGRAM
        super().register_all_arguments(arg_parser)
        add_arguments(arg_parser)

    def setup_pipeline(self) -> None:
        """Make the passes and what watches them. Raises `SourceError` for a text that is no pipeline."""
        text: str = self.args.passes
        if self.args.pipeline is not None:
            if text:
                raise SourceError(PROGRAM, "`--pipeline` and `-p` name two pipelines, expected one")
            text = f"@{self.args.pipeline}"
        self._set_passes(parse_passes(text, self.available_passes, PIPELINES))

    def _set_passes(self, passes: list[ModulePass]) -> None:
        self.pipeline = PassPipeline(tuple(passes))
        self.timer = Timer() if self.args.time_passes else None
        watching = (Statistics() if self.args.statistics else None, self._printer(), self.timer)
        self.observers = [o for o in watching if o is not None]

    def _printer(self) -> IRPrinter | None:
        before: list[str] = self.args.print_ir_before
        after: list[str] = self.args.print_ir_after
        after_all: bool = self.args.print_ir_after_all
        between: bool = self.args.print_between_passes and not after_all
        names = {p.name for p in self.pipeline.passes}
        for name in (*before, *after):
            if name not in names and not self.args.run_reproducer:
                raise SourceError(PROGRAM, f"cannot print the IR around `{name}`: the pipeline has no such pass")
        if not before and not after and not after_all and not between:
            return None
        last = self.pipeline.passes[-1] if between and self.pipeline.passes else None
        return IRPrinter(sys.stderr, before, None if after_all or between else after, last, self.args.print_op_generic)

    def execute(self) -> int:
        """Do what the arguments ask for; return the exit status. Raises `SourceError` where there is nothing to run."""
        if self.args.list_passes:
            print("\n".join(sorted(PASSES)))
            return 0
        if self.args.show_pass is not None:
            print(describe_pass(self._find_pass(self.args.show_pass)))
            return 0
        frontend = self._frontend()
        name = self.get_input_name()
        text = decode(name, sys.stdin.buffer.read()) if self.args.input_file is None else read_text(name)
        if self.args.run_reproducer:
            self._use_reproducer(Source(name, text))
        outputs: list[str] = []
        failed = False
        for source in _split(name, text) if self.args.split_input_file else [Source(name, text)]:
            outputs.append("")
            errors = self._process(source, frontend, outputs)
            failed |= self._report(source, errors)
        if not failed or self.args.output_file is None:
            self._write("// -----\n".join(outputs))
        for observer in self.observers:
            observer.finish(sys.stderr)
        return int(failed)

    def run(self) -> None:
        raise SystemExit(self.execute())

    def get_input_name(self) -> str:
        return self.args.input_file or "<stdin>"

    def _find_pass(self, name: str) -> type[ModulePass]:
        if name not in self.available_passes:
            raise SourceError(PROGRAM, f"there is no pass `{name}`")
        return self.available_passes[name]()

    def _frontend(self) -> MLIRFrontend:
        """Return the frontend that is asked for, or else the one for the input's name."""
        name = self.get_input_name()
        if self.args.frontend:
            spec = parse_spec(self.args.frontend)
            return _FRONTENDS[spec.name].from_spec(spec)
        kind = "ir" if self.args.input_file is None else Path(name).suffix[1:]
        if kind not in _FRONTENDS:
            raise SourceError(name, f"the suffix `.{kind}` names no kind of file; say which it is, such as `-f ir`")
        return _FRONTENDS[kind]()

    def _use_reproducer(self, source: Source) -> None:
        """Let the pipeline in a file be what runs. Passes of xDSL start programs: only ours can be in it."""
        ours = {name: load for name, load in self.available_passes.items() if name in PASSES}
        self._set_passes(parse_passes(read_pipeline(source), ours, {}))

    def _process(self, source: Source, frontend: MLIRFrontend, outputs: list[str]) -> list[SourceError]:
        """Read, transform and print one module, into the last of `outputs`; return what is wrong."""
        implicit = not (frontend.no_implicit_module or self.args.no_implicit_module)
        try:
            with self._measure("parse"):
                parsed = read_module(self.ctx, source, implicit_module=implicit)
        except SourceError as error:
            return [_ParsingError(error)]
        if not self.args.disable_verify:
            with self._measure("verify"):
                errors = list(parsed.verify())
            if errors:
                return errors
        # A pass that fails makes the check fail too, but says itself better what is wrong.
        check = self._check_passes(parsed) if self.args.check_passes else None
        errors = self._runner().run(parsed)
        if not errors and check is not None:
            errors = [check]
        if errors:
            return errors
        try:
            with self._measure("print"):
                # One newline at the end, as in a dumped stage: xDSL writes two.
                outputs[-1] = self.output_resulting_program(parsed.module).rstrip("\n") + "\n"
        except RecursionError:
            return [source.error("operations are nested too deeply to be printed")]
        except Exception as error:  # noqa: BLE001 (targets of xDSL raise anything)
            return [source.error(f"cannot be printed as `{self.args.target}`: {describe(error)}")]
        return []

    def _measure(self, stage: str) -> AbstractContextManager[None]:
        return nullcontext() if self.timer is None else self.timer.measure(stage)

    def _runner(self) -> PassRunner:
        verify_each = self.args.verify_each and not self.args.disable_verify
        return PassRunner(self.ctx, self.pipeline.passes, self.observers, self.timer, verify_each, self.args.reproducer)

    def _check_passes(self, parsed: ParsedModule) -> SourceError | None:
        """Return an error that names the first pass which changes what the module computes, None if there is none."""
        from tilewright.backends.reference import ExecutionError
        from tilewright.tools import check_passes

        try:
            report = check_passes.run(
                self.ctx,
                parsed.module.clone(),
                self.pipeline.passes,
                seed=self.args.seed,
                rtol=self.args.rtol,
                atol=self.args.atol,
            )
        except ExecutionError as error:
            return parsed.source.error(f"cannot be run on made-up inputs, so its passes cannot be checked: {error}")
        except Exception as error:  # noqa: BLE001 (a pass fails, which running the pipeline will say, or else the check)
            return parsed.source.error(f"its passes cannot be checked: {describe(error)}")
        if report is None:
            return None
        path = write_reproducer(self.args.reproducer, str(report.before), str(report.step.spec()), str(report))
        return extended(parsed.source.error(str(report)), f"module before the pass: {path}")

    def _report(self, source: Source, errors: list[SourceError]) -> bool:
        """Print what is wrong, or what was expected to be and is not; return whether this is a failure."""
        if self.args.verify_diagnostics:
            for error in errors:
                print(error.headline())
            errors = mismatches(source, find_expectations(source), errors)
        elif self.args.parsing_diagnostics and errors and isinstance(errors[0], _ParsingError):
            print(errors[0])
            return False
        for error in errors:
            print(error, file=sys.stderr)
        return bool(errors)

    def _write(self, text: str) -> None:
        if self.args.output_file is None:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        try:
            Path(self.args.output_file).write_text(text, encoding="utf-8")
        except OSError as error:
            raise SourceError(self.args.output_file, f"cannot be written: {error.strerror or error}") from None


class _ParsingError(SourceError):
    """An error of the text, not of the module that it says."""

    def __init__(self, error: SourceError) -> None:
        super().__init__(error.name, error.message, error.location, error.excerpt)


def _split(name: str, text: str) -> Iterator[Source]:
    """Yield the pieces of a text between lines `// -----`."""
    start = 0
    for separator in _SEPARATOR.finditer(text):
        yield Source(name, text[start : separator.start()], text.count("\n", 0, start))
        start = separator.end()
    yield Source(name, text[start:], text.count("\n", 0, start))


def main(args: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit status. Nothing that goes wrong shows as a traceback."""
    return run_tool(PROGRAM, lambda: OptMain(args).execute())


if __name__ == "__main__":
    sys.exit(main())
