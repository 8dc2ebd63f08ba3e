"""Check compiled programs on a CUDA device against eager mode, and time them, in one run.

    python benchmarks/on_cuda.py [--peer inductor] [--seconds 0.3] [--dump DIR] [CASE ...]

Prints a line for each case: whether the results are eager's, the largest difference, what was compiled, and the time of
a call of each backend, calls back to back. A case that fails prints why, and the others still run; after an error that
the device does not recover from they run in a new process.
"""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
# `examples/gpt.py` is found in its folder: other packages have a folder `examples`, too. Nothing need be installed.
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "src")]

from cuda_cases import CASES, Case, Compile  # noqa: E402

import tilewright  # noqa: E402
from tilewright.tools.torch_compile import backend as tilewright_backend  # noqa: E402


@dataclass
class Report:
    """What a line says of one case."""

    name: str
    verdict: str = "ok"
    details: str = ""
    failed: bool = False

    def __str__(self) -> str:
        return f"{self.name:24} {self.verdict:5} {self.details}"


def flat(value: Any) -> list[Tensor]:
    """Return the tensors in nested lists and tuples."""
    if isinstance(value, Tensor):
        return [value.detach().clone()]
    return [t for item in value for t in flat(item)] if isinstance(value, (list, tuple)) else []


def largest_difference(found: Sequence[Tensor], expected: Sequence[Tensor], absolute: float) -> float:
    """Return the largest difference of elements, relative to the largest element of the tensor.

    What is not larger than the `absolute` tolerance counts as that large: the gradient of a bias before a batch norm is
    zero, but for what is lost by rounding.
    """
    worst = 0.0
    for f, e in zip(found, expected, strict=True):
        if e.numel():
            scale = max(e.double().abs().max().item(), absolute)
            worst = max(worst, (f.double() - e.double()).abs().max().item() / scale)
    return worst


def compare(case: Case, compile_function: Compile) -> float:
    """Run a case in eager mode and compiled. Raises AssertionError where results differ."""
    expected = flat(case.run(lambda f: f))
    found = flat(case.run(compile_function))
    torch.cuda.synchronize()
    rtol, atol = case.tolerance or (None, None)
    exact = [None] * len(expected) if case.exact is None else flat(case.exact())
    for number, (f, e, x) in enumerate(zip(found, expected, exact, strict=True)):
        assert f.stride() == e.stride() or e.numel() == 0, f"result {number}: strides {f.stride()}, eager {e.stride()}"
        if x is not None and (f - x).abs().max() <= 4 * (e - x).abs().max():
            continue  # no worse than eager mode, where sums in another order differ by more than the tolerance
        torch.testing.assert_close(f, e, rtol=rtol, atol=atol, equal_nan=True)
    return largest_difference(found, expected, 1e-30 if atol is None else max(atol, 1e-30))


def seconds_per_call(function: Callable[[], Any], seconds: float) -> float:
    """Return the time of a call, when calls follow each other without waiting for the device."""
    for _ in range(5):
        function()
    torch.cuda.synchronize()
    count, best = 1, float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(count):
            function()
        torch.cuda.synchronize()
        spent = time.perf_counter() - start
        best = min(best, spent / count)
        if spent < seconds / 10:
            count *= 2
    return best


def compiled_by(backend: str, dump: str | None) -> Compile:
    """Return what compiles a function; with our backend failures are raised."""
    options: dict[str, Any] = {"strict": True, **({"dump": dump} if dump else {})}

    def compile_function(function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
        dynamic = more.pop("dynamic", None)
        if backend != "tilewright":
            return torch.compile(function, backend=backend, dynamic=dynamic)
        return torch.compile(function, backend=tilewright_backend, dynamic=dynamic, options={**options, **more})

    return compile_function


def examine(case: Case, arguments: argparse.Namespace) -> Report:
    """Check one case and time it."""
    report = Report(case.name)
    dump = f"{arguments.dump}/{case.name}" if arguments.dump else None
    torch._dynamo.reset()
    tilewright.reset_compile_stats()
    start = time.perf_counter()
    try:
        difference = compare(case, compiled_by("tilewright", dump))
    except Exception as error:  # noqa: BLE001  the other cases are still of interest
        report.failed, report.verdict, report.details = True, "FAIL", f"{type(error).__name__}: {error}"[:1500]
        frames = traceback.format_exception(error.__cause__ or error)
        report.details += "\n" + "".join(frames[-6:]).rstrip()
        return report
    stats = tilewright.last_compile_stats()
    report.details = (
        f"difference {difference:.1e}  kernels {stats['kernels']}  extern {len(stats['extern'])}"
        f"  callbacks {stats['callbacks']}  compile {sum(stats['compile_s'].values()):.2f} s of"
        f" {time.perf_counter() - start:.2f} s"
    )
    if arguments.extern and stats["extern"]:
        report.details += f"  [{', '.join(sorted(set(stats['extern'])))}]"
    if case.call is not None and arguments.seconds:
        report.details += "  " + times(case, arguments)
    return report


def device_times(function: Callable[[], Any], calls: int = 20) -> str:
    """Return, as text, how long a call keeps the device busy, and with which kernels."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            function()
        torch.cuda.synchronize()
    events = [e for e in profile.key_averages() if e.self_device_time_total > 0]
    events.sort(key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in events) / calls
    lines = [
        f"{e.self_device_time_total / calls:10.1f} us in {e.count / calls:.0f} of {e.key[:90]}" for e in events[:20]
    ]
    return "\n    ".join([f"{total:10.1f} us", *lines])


def times(case: Case, arguments: argparse.Namespace) -> str:
    """Return the time of a call of each backend as text."""
    assert case.call is not None
    eager = case.call(lambda f: f)
    found = {"eager": seconds_per_call(eager, arguments.seconds)}
    if arguments.profile:
        print(f"{case.name}: eager on the device:\n    {device_times(eager)}", flush=True)
    for backend in ("tilewright", *filter(None, [arguments.peer])):
        torch._dynamo.reset()
        try:
            function = case.call(compiled_by(backend, None))
            found[backend] = seconds_per_call(function, arguments.seconds)
            if arguments.profile:
                print(f"{case.name}: {backend} on the device:\n    {device_times(function)}", flush=True)
        except Exception as error:  # noqa: BLE001  a peer that fails is no failure of ours
            print(f"{case.name}: {backend}: {type(error).__name__}: {error}"[:300], flush=True)
    text = "  ".join(f"{backend} {1e6 * seconds:.1f} us" for backend, seconds in found.items())
    if len(found) > 2:
        text += f"  ratio {found[arguments.peer] / found['tilewright']:.2f}"
    return text


def device_is_lost() -> bool:
    """Whether the device has had an error from which this process does not recover."""
    try:
        torch.cuda.synchronize()
        torch.ones(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(c.name for c in CASES)}")
    parser.add_argument("--peer", default="", help="another backend to time, such as inductor")
    parser.add_argument("--seconds", type=float, default=0.0, help="time for each measurement; 0 for none")
    parser.add_argument("--profile", action="store_true", help="with --seconds: also print the kernels and their times")
    parser.add_argument("--dump", help="a folder for the stages of each case")
    parser.add_argument("--extern", action="store_true", help="name the operators that are left to ATen")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    chosen = [c for c in CASES if not arguments.cases or c.name in arguments.cases]
    failed = 0
    for number, case in enumerate(chosen):
        report = examine(case, arguments)
        failed += report.failed
        print(report, flush=True)
        if report.failed and device_is_lost():
            rest = [c.name for c in chosen[number + 1 :]]
            print(f"the device is lost; {len(rest)} cases go on in a new process", flush=True)
            if rest:
                options = [a for a in sys.argv[1:] if a not in {c.name for c in CASES}]
                os.execv(sys.executable, [sys.executable, *sys.argv[:1], *options, *rest])
    print(f"{len(chosen) - failed} of {len(chosen)} as in eager mode", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
