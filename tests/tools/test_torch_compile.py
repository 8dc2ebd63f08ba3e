"""`torch.compile(model, backend="tilewright")` as a user meets it."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import copy
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.adapter import compiled
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

import tilewright
from tilewright.tools import torch_compile

pytestmark = pytest.mark.usefixtures("fresh_compiler", "on_device")


def test_entry_point_is_found() -> None:
    assert "tilewright" in torch.compiler.list_backends()


@pytest.mark.cpu_only("times LLVM")
def test_several_graphs_share_the_statistics() -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.softmax(x, -1)
        torch._dynamo.graph_break()
        return y.sum() + x @ x.T

    x = torch.randn(8, 8)
    torch.testing.assert_close(compiled(f)(x), f(x))
    stats = tilewright.last_compile_stats()
    assert stats["graphs"] == 2
    assert stats["extern"] == ["aten.mm.default"]
    assert stats["kernels"] >= 2
    assert stats["callbacks"] == 0
    assert stats["compile_s"]["llvm"] > 0
    tilewright.reset_compile_stats()
    assert tilewright.last_compile_stats()["graphs"] == 0


def test_bytes_planned_counts_intermediates_at_the_traced_size() -> None:
    def f(x: Tensor) -> Tensor:
        return (x + 1) @ x

    compiled(f)(torch.randn(16, 16))
    assert tilewright.last_compile_stats()["bytes_planned"] == 16 * 16 * 4


@pytest.mark.parametrize(
    ("options", "mode", "message"),
    [
        ({"fast": True}, None, "unknown option 'fast', expected one of cache, deterministic, dump"),
        ({"mode": "quick"}, None, "mode is 'quick', expected one of default"),
        ({"host": "c++"}, None, "host is 'c\\+\\+', expected one of native, python"),
        ({"strict": 1}, None, "strict is 1, expected True or False"),
        ({"dump": 3}, None, "dump is 3, expected the path of a folder"),
        ({"dump": __file__}, None, "expected the path of a folder"),
        ({"mode": "default"}, "max-autotune", "mode is given twice"),
    ],
)
def test_options_are_checked(options: dict[str, Any], mode: str | None, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        torch_compile.parse_options(options, mode)


@pytest.mark.parametrize("how", [{"mode": "max-autotune"}, {"options": {"mode": "reduce-overhead"}}, {}])
def test_modes(how: dict[str, Any]) -> None:
    x = torch.randn(5)
    torch.testing.assert_close(torch.compile(torch.exp, backend="tilewright", **how)(x), torch.exp(x))
    assert tilewright.last_compile_stats()["fallbacks"] == 0


def test_unknown_mode_is_an_error_to_the_user() -> None:
    with pytest.raises(BackendCompilerFailed, match="mode is 'fastest', expected one of default"):
        torch.compile(torch.exp, backend="tilewright", options={"mode": "fastest"})(torch.ones(2))


def test_failure_falls_back_with_one_warning() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.sin(x) + 1

    broken = torch.compile(f, backend="tilewright", options={"pipeline": "canonicalize,no-such-pass"})
    x = torch.randn(4)
    with pytest.warns(UserWarning, match="cannot compile .*no-such-pass.*eager") as caught:
        torch.testing.assert_close(broken(x), f(x))
    assert len([w for w in caught if "tilewright" in str(w.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(broken(x), f(x))
    assert tilewright.last_compile_stats()["fallbacks"] == 1


def test_failure_raises_when_strict() -> None:
    with pytest.raises(BackendCompilerFailed, match="no-such-pass"):
        compiled(torch.sin, pipeline="no-such-pass")(torch.ones(3))


def test_native_and_python_hosts_agree() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).eval()
    x = torch.randn(3, 8)
    with torch.no_grad():
        native, python = compiled(model)(x), None
        torch._dynamo.reset()
        python = compiled(model, host="python")(x)
    assert torch.equal(native, python)
    torch.testing.assert_close(native, model(x))


def test_one_artifact_for_every_batch_size() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.softmax(F.layer_norm(x @ w, (7,)), -1)

    w = torch.randn(5, 7)
    g = compiled(f, dynamic=True)
    for batch in (3, 2, 11, 64):
        x = torch.randn(batch, 5)
        torch.testing.assert_close(g(x, w), f(x, w))
    assert tilewright.last_compile_stats()["graphs"] == 1


keeps_checks = pytest.mark.skipif(
    torch.__version__ < "2.12", reason="AOTAutograd of PyTorch 2.11 drops the checks of linear algebra, for any backend"
)


@keeps_checks
def test_errors_inside_a_call_are_eagers() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.linalg.cholesky(x) + 1

    x = -torch.eye(3)
    with pytest.raises(RuntimeError, match="positive-definite") as eager:
        f(x)
    g = compiled(f)
    with pytest.raises(RuntimeError, match="positive-definite") as ours:
        g(x)
    assert type(ours.value) is type(eager.value)
    assert str(ours.value) == str(eager.value)
    torch.testing.assert_close(g(torch.eye(3)), f(torch.eye(3)))


@keeps_checks
@pytest.mark.parametrize("host", ["native", "python"])
def test_checks_for_errors_are_kept_in_forward_and_backward_graphs(host: str) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.linalg.inv(x) * 2

    x = torch.randn(3, 3, requires_grad=True)
    g = compiled(f, host=host)
    y = g(x)
    torch.testing.assert_close(y, f(x))
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), torch.autograd.grad(f(x).sum(), x))
    with pytest.raises(RuntimeError, match="singular"):
        g(torch.zeros(3, 3))
    assert tilewright.last_compile_stats()["fallbacks"] == 0


@pytest.mark.parametrize("host", ["native", "python"])
def test_complex_numbers_are_for_aten(host: str) -> None:
    def f(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        spectrum = torch.fft.rfft(x * 3) * (2 - 1j)
        z.mul_(spectrum.conj())
        return spectrum.conj().imag + 1, z.t().reshape(-1).conj()

    x, z = torch.randn(4, 8), torch.randn(4, 5) + 1j
    ours, eagers = z.clone(), z.clone()
    torch.testing.assert_close(compiled(f, host=host)(x, ours), f(x, eagers))
    torch.testing.assert_close(ours, eagers)


def test_a_view_that_is_like_an_input_is_another_tensor() -> None:
    def f(x: Tensor) -> Any:
        return torch.unsafe_split(x, 5)

    x = torch.randn(5, 5)
    (ours,) = compiled(f)(x)
    assert ours is not x
    assert ours.data_ptr() == x.data_ptr()


def test_kernels_of_which_nothing_is_left() -> None:
    def f(x: Tensor) -> Tensor:
        return x.cos_() + 1

    x = torch.empty(0, 3)
    assert compiled(f)(x).shape == x.shape


def test_outputs_that_are_none_inputs_or_equal() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        z = x * 2
        return z, None, y, z.view(-1)

    x, y = torch.randn(2, 3), torch.randn(3)
    z, none, same, flat = compiled(f)(x, y)
    assert none is None
    assert same is y
    torch.testing.assert_close(z, x * 2)
    assert flat.data_ptr() == z.data_ptr()


def test_threads() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.softmax(x * 3, -1) @ x.T

    g = compiled(f)
    inputs = [torch.randn(20, 30) for _ in range(8)]

    def agrees(x: Tensor) -> bool:
        return all(torch.allclose(g(x), f(x), atol=1e-5) for _ in range(50))

    with ThreadPoolExecutor(len(inputs)) as threads:
        # With --device other threads have another default device than this one, and Dynamo compiles again. One is done
        # with that first: while a thread traces, PyTorch 2.11 takes calls in others for part of the trace, and raises.
        assert threads.submit(agrees, inputs[0]).result()
        assert all(threads.map(agrees, inputs))


@pytest.mark.cpu_only("a device has no OpenMP threads")
def test_number_of_threads_does_not_change_results() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    x = torch.randn(512, 512)
    g = compiled(f)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = g(x)
        torch.set_num_threads(2)
        two = g(x)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, two)


def test_compiled_model_can_be_copied_and_pickled() -> None:
    model = nn.Linear(4, 4)
    g = compiled(model)
    x = torch.randn(2, 4)
    g(x)
    torch.testing.assert_close(copy.deepcopy(g)(x), model(x))
    restored = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(compiled(restored)(x), model(x))


def test_a_backward_pass_can_run_again() -> None:
    """Also if it was first compiled for one run, after which other compilers have written over what was saved."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w).tanh() @ w).sin().sum()

    compiled = torch.compile(f, backend="tilewright", options={"strict": True})
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    compiled(x, w).backward()
    x.grad = None
    loss = compiled(x, w)
    loss.backward(retain_graph=True)
    loss.backward()
    twice = x.grad
    x.grad = None
    f(x, w).backward()
    assert twice is not None
    assert x.grad is not None
    torch.testing.assert_close(twice, 2 * x.grad)
