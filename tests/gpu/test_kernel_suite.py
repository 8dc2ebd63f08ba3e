"""One text of loops for both targets: kernels for a GPU, run by the interpreter, against eager and the CPU's."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.emulated import EmulatedDevice
from tests.gpu.suite import PROGRAMS, Program, floats, integers
from tests.tools.models import small_gpt
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tilewright.backends.triton.compile import compile_kernels
from tilewright.backends.triton.python_source import emit_python
from tilewright.backends.triton.ttir import ALL_EXPECTED, Expected
from tilewright.passes.lowering import embedding_gradient

TOLERANCES = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Relative, and absolute for results near one; eager on the CPU sums and rounds in another order."""


def check(program: Program, arguments: list[Tensor], tolerance: float, *, dynamic: bool = False) -> EmulatedDevice:
    """Compare a program and its gradients with eager; return what it was compiled to."""
    torch.compiler.reset()
    device = EmulatedDevice(tolerance, tolerance)
    compiled = torch.compile(program.function, backend=device, dynamic=dynamic)
    mine = [a.detach().clone().requires_grad_(a.requires_grad) for a in arguments]
    _compare(compiled(*mine), program.function(*arguments), mine, arguments, tolerance)
    return device


def _compare(found: object, expected: object, mine: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    """Compare results, and after going backward from the first one the gradients."""
    pairs: list[tuple[Tensor, Tensor]] = list(zip(tree_leaves(found), tree_leaves(expected), strict=True))
    if pairs[0][1].requires_grad:
        grad = torch.randn_like(pairs[0][1])
        for result in pairs[0]:
            result.backward(grad)
    for a, b in zip(mine, theirs, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None and b.grad is not None:
            pairs.append((a.grad, b.grad))
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * _size(b), equal_nan=True)
        assert a.stride() == b.stride()


def _size(x: Tensor) -> float:
    """Return how large the largest element is, at least one."""
    finite = x.detach().double()[x.isfinite()] if x.is_floating_point() else x.new_zeros(0)
    return max(1.0, float(finite.abs().max())) if finite.numel() else 1.0


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@cache
def checked(name: str, dtype: torch.dtype = torch.float32) -> EmulatedDevice:
    """Check a program, once; return what it was compiled to."""
    torch.manual_seed(0)
    return check(PROGRAMS[name], PROGRAMS[name].arguments(dtype), TOLERANCES[dtype])


@pytest.mark.parametrize("name", PROGRAMS)
def test_f32(name: str) -> None:
    assert checked(name).kernels


NO_KERNELS_IN_16_BITS = ("integers", "masks", "attention")
"""What has no floats, and what half precision leaves to the fused operator."""

IN_F16 = (
    "softmax",
    "layer norm",
    "gelu chain",
    "cross entropy",
    "sum of columns",
    "embedding",
    "gather",
    "index",
    "scatter",
    "casts",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((n, torch.bfloat16) for n in PROGRAMS if n not in NO_KERNELS_IN_16_BITS),
        *((n, torch.float16) for n in IN_F16),
    ],
    ids=str,
)
def test_16_bits(name: str, dtype: torch.dtype) -> None:
    assert checked(name, dtype).kernels


@pytest.mark.parametrize("name", PROGRAMS)
def test_python(name: str) -> None:
    """Every kernel can be said in Triton's Python."""
    kernels = checked(name).kernels
    text = emit_python(kernels)
    compile(text, f"{name}.py", "exec")
    assert text.count("[(programs,)](") == len(kernels)


needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_cubins(name: str) -> None:
    """Triton compiles every kernel for an H200, and one of each kind for an A100."""
    kernels = checked(name).kernels
    for arch in (80, 90) if name in IN_F16 else (90,):
        cubins = compile_kernels([(k, ALL_EXPECTED) for k in kernels], arch)
        assert [c.image[:4] for c in cubins] == [b"\x7fELF"] * len(kernels)
        assert max(c.shared for c in cubins) <= 163 << 10


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("name", IN_F16)
def test_cubins_of_16_bits(name: str) -> None:
    for dtype, arch in ((torch.bfloat16, 90), (torch.float16, 80)):
        assert compile_kernels([(k, ALL_EXPECTED) for k in checked(name, dtype).kernels], arch)


@pytest.mark.parametrize("padding", [None, 3])
def test_the_gradient_of_a_large_table(padding: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are not taken, taken once, and often; summed in f32, and rounded once."""
    monkeypatch.setattr(embedding_gradient, "LARGE", 1)
    positions = torch.randint(0, 300, (7, 40))
    positions[:2, :20], positions[3, :9], positions[4, 7] = 7, 3, 299
    weight = torch.randn(300, 33).bfloat16().requires_grad_()
    device = EmulatedDevice(0, 0)
    torch.compiler.reset()
    result = torch.compile(lambda i, w: F.embedding(i, w, padding_idx=padding) * 2, backend=device)(positions, weight)
    result.backward(grad := torch.randn_like(result))
    taken = torch.ones_like(positions, dtype=torch.bool) if padding is None else positions != padding
    sums = torch.zeros(300, 33).index_add(0, positions[taken], (grad * 2).float()[taken])
    assert weight.grad is not None
    assert torch.equal(weight.grad, sums.bfloat16())
    assert len(device.kernels) == 6
    if find_spec("triton") is not None:
        assert compile_kernels([(k, ALL_EXPECTED) for k in device.kernels], 90)


@needs_triton
@pytest.mark.slow
def test_cubins_of_buffers_that_are_not_aligned() -> None:
    kernels = checked("softmax").kernels
    expected = (ALL_EXPECTED, Expected(pointers=False))
    aligned, others = (compile_kernels([(k, e) for k in kernels], 90) for e in expected)
    assert [c.name for c in aligned] == [c.name for c in others]
    assert [c.image for c in aligned] != [c.image for c in others]


OF_ANY_SIZE = (
    *("softmax", "softmax of long rows", "softmax in the middle", "layer norm", "layer norm of long rows"),
    *("batch norm", "group norm", "gelu chain", "swiglu", "channels", "transpose", "nchw to nhwc", "sum of all"),
    *("sum of columns", "variance", "argmax", "cross entropy", "embedding", "gather", "scatter", "running sums"),
    *("max pool", "upsampling", "concatenation", "padding", "attention"),
)
"""One for each way of lowering; a smoothed cross entropy divides floats by a size."""


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_ANY_SIZE)
def test_sizes_that_are_symbols(name: str) -> None:
    program = PROGRAMS[name]
    check(program, program.arguments(torch.float32), TOLERANCES[torch.float32], dynamic=True)


SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0)


@pytest.mark.parametrize(
    "name", ["softmax", "gelu chain", "where and clamp", "extremes", "argmax", "max pool", "masks"]
)
def test_nan_and_infinities(name: str) -> None:
    program = PROGRAMS[name]
    arguments = program.arguments(torch.float32)
    for argument in (a for a in arguments if a.is_floating_point()):
        flat = argument.detach().view(-1)
        flat[torch.randperm(flat.numel())[: 4 * (flat.numel() // 400)]] = torch.tensor(SPECIAL).repeat(
            flat.numel() // 400
        )
    check(program, arguments, TOLERANCES[torch.float32])


NOTHING: dict[str, Program] = {
    "elements": Program(lambda x: torch.softmax(x * 2, -1), [floats(0, 5)]),
    "rows": Program(lambda x: x.sum(0) + 1, [floats(0, 5)]),
    "columns": Program(lambda x: (x.sum(-1), x * 2), [floats(5, 0)]),
    "tokens": Program(lambda i, w: F.embedding(i, w) * 2, [integers(3, 0), floats(3, 33, grad=True)]),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", NOTHING)
def test_no(name: str, dynamic: bool) -> None:
    program = NOTHING[name]
    check(program, program.arguments(torch.float32), 1e-6, dynamic=dynamic)


def test_one_text_of_sizes_that_change() -> None:
    torch.compiler.reset()
    device = EmulatedDevice(2e-5, 2e-5)
    compiled = torch.compile(lambda x: torch.softmax(x * 2, -1).sum(0), backend=device, dynamic=True)
    for rows, columns in ((5, 7), (300, 1000), (2, 5000), (64, 64)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(compiled(x), torch.softmax(x * 2, -1).sum(0), rtol=2e-5, atol=2e-5)
    assert len(device.texts) == 1


def test_a_step_of_training() -> None:
    results: list[list[Tensor]] = []
    for backend in ("eager", EmulatedDevice(1e-4, 1e-4)):
        torch.manual_seed(0)
        torch.compiler.reset()
        model = nn.Sequential(nn.Linear(16, 33), nn.GELU(), nn.LayerNorm(33), nn.Linear(33, 16))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        forward = torch.compile(model, backend=backend)
        step = torch.compile(optimizer.step, backend=backend)
        losses: list[Tensor] = []
        for _ in range(3):
            loss = F.mse_loss(forward(torch.randn(7, 16)), torch.randn(7, 16))
            loss.backward()
            step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        results.append([*losses, *(p.detach() for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_gpt() -> None:
    """A small GPT-2, forward and backward."""
    results: list[list[Tensor]] = []
    for backend in ("eager", EmulatedDevice(1e-4, 1e-4)):
        torch.manual_seed(0)
        torch.compiler.reset()
        model, tokens = small_gpt(2).eval(), torch.randint(0, 50, (3, 16))
        logits = torch.compile(model, backend=backend)(tokens)
        F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        results.append([logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
