"""Elementary functions as kernels call them, against torch in double precision (here, for SLEEF comes with torch)."""

import ctypes
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tilewright.backends.host.abi import kernel_symbol, native_target
from tilewright.backends.llvm.jit import CompileOptions, compile_library
from tilewright.backends.llvm.mathlib import FUNCTIONS, Element, math_function

LANES = (1, 2, 4, 8, 16)
DTYPES: dict[Element, tuple[str, torch.dtype]] = {"f32": ("float", torch.float32), "f64": ("double", torch.float64)}


def kernel(name: str, element: Element, has_sleef: bool) -> Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]:
    """Return a function that applies `name` to the first lanes of its arguments."""
    target = replace(native_target(), has_sleef=has_sleef and native_target().has_sleef)
    scalar, dtype = DTYPES[element]
    definitions: dict[str, None] = {}
    kernels: list[str] = []
    for lanes in LANES:
        function = math_function(name, element, lanes, target)
        definitions |= dict.fromkeys(function.definitions)
        kind = scalar if lanes == 1 else f"<{lanes} x {scalar}>"
        second = f", {kind} %y" if FUNCTIONS[name].arity == 2 else ""
        kernels.append(
            f"""
define void @k{lanes}(ptr %a, ptr %b, ptr %c) {{
  %x = load {kind}, ptr %a, align 4
  %y = load {kind}, ptr %b, align 4
  %r = call {kind} @{function.symbol}({kind} %x{second})
  store {kind} %r, ptr %c, align 4
  ret void
}}"""
        )
    library = compile_library("\n".join([*definitions, *kernels]), target, kernel_symbol, CompileOptions(0, 1))

    def run(x: torch.Tensor, y: torch.Tensor, lanes: int) -> torch.Tensor:
        result = torch.empty(lanes, dtype=dtype)
        pointers = (x.data_ptr(), y.data_ptr(), result.data_ptr())
        ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(library.address(f"k{lanes}"))(*pointers)
        return result

    return run


def arguments(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(len(name))
    x = torch.rand(16, generator=generator, dtype=dtype) * 0.98 + 0.01
    y = torch.rand(16, generator=generator, dtype=dtype) + 0.5
    if name == "acosh":
        x = x * 10 + 1
    elif name in ("erf", "erfc", "exp", "exp2", "expm1", "sin", "cos", "tanh", "sinh", "cosh", "atan", "asinh"):
        x = x * 8 - 4
    elif name.startswith("log") or name in ("lgamma", "pow", "fmod", "hypot", "atan2", "nextafter"):
        x = x * 20
    return x, y


@pytest.mark.parametrize("has_sleef", [True, False])
@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str, element: Element, has_sleef: bool) -> None:
    dtype = DTYPES[element][1]
    x, y = arguments(name, dtype)
    run = kernel(name, element, has_sleef)
    # `nextafter` has no meaning in another precision.
    exact_x, exact_y = (x, y) if name == "nextafter" else (x.double(), y.double())
    function = getattr(torch, name)
    expected = function(exact_x, exact_y) if FUNCTIONS[name].arity == 2 else function(exact_x)
    epsilon = torch.finfo(dtype).eps
    for lanes in LANES:
        # SLEEF's 3.5 units in the last place, and for erf the 1.5e-7 of ATen's formula.
        absolute = 4e-7 if name == "erf" and element == "f32" else epsilon
        torch.testing.assert_close(
            run(x, y, lanes).double(), expected[:lanes].double(), rtol=4 * epsilon, atol=absolute, msg=f"{lanes} lanes"
        )


@pytest.mark.skipif(not native_target().has_sleef, reason="PyTorch brings no SLEEF")
def test_exp_has_the_bits_of_softmax_in_eager() -> None:
    """Also for NaN, infinities, and results that are denormal or overflow."""
    run = kernel("exp", "f32", True)
    special = torch.tensor(
        [0.0, -0.0, float("nan"), float("inf"), -float("inf"), -104.1, 89.0, 88.7, -87.4, -95.0, -103.9]
    )
    x = torch.cat([special, torch.linspace(-20, 20, 5)])
    for lanes in (8, 16):
        assert torch.equal(run(x, x, lanes).nan_to_num(7.0), torch.exp(x)[:lanes].nan_to_num(7.0))
