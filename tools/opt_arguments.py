"""The arguments of `tilewright-opt` that `xdsl-opt` does not have."""

from __future__ import annotations

import argparse

from tilewright.passes.pipelines import PIPELINES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to a parser that has those of `xdsl-opt`."""
    _add_pipelines(parser)
    _add_watching(parser)
    _add_checking(parser)


def _add_pipelines(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(PIPELINES)
    parser.add_argument("--pipeline", metavar="NAME", help=f"run a named pipeline, as `-p @NAME` does: {names}")
    parser.add_argument("--list-passes", action="store_true", help="print the names of our passes")
    parser.add_argument("--show-pass", metavar="NAME", help="print what a pass does, and its options")


def _add_watching(parser: argparse.ArgumentParser) -> None:
    for when in ("before", "after"):
        parser.add_argument(
            f"--print-ir-{when}",
            metavar="PASS",
            action="append",
            default=[],
            help=f"print the IR {when} each run of this pass, to standard error",
        )
    parser.add_argument("--print-ir-after-all", action="store_true", help="print the IR after each pass")
    parser.add_argument("--timing", dest="time_passes", action="store_true", help="print a table of times")
    parser.add_argument("--statistics", action="store_true", help="print the numbers of operations around each pass")


def _add_checking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verify-each",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="verify the module after each pass, dominance included",
    )
    parser.add_argument(
        "--check-passes",
        action="store_true",
        help="run the module before and after each pass on the same inputs; name the first pass that changes results",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs for --check-passes")
    parser.add_argument("--rtol", type=float, help="relative tolerance of --check-passes")
    parser.add_argument("--atol", type=float, help="absolute tolerance of --check-passes")
    parser.add_argument("--run-reproducer", action="store_true", help="run the pipeline that heads the input file")
    parser.add_argument(
        "--reproducer", metavar="FILE", help="where to write the module on which a pass crashed (a temporary file)"
    )
