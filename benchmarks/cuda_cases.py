"""What `on_cuda.py` runs: functions and training steps, each as in eager mode and compiled."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from gpt import GPT
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Compile: TypeAlias = Callable[..., Callable[..., Any]]
"""Makes of a function what is to be called: itself, or a compiled one."""


@dataclass(frozen=True)
class Case:
    """One thing to check; `run` gives its results and `call`, if it is to be timed, a call without arguments."""

    name: str
    run: Callable[[Compile], Any]
    call: Callable[[Compile], Callable[[], Any]] | None = None
    tolerance: tuple[float, float] | None = None
    """Relative and absolute; torch's own for the dtype if there is none."""
    exact: Callable[[], Any] | None = None
    """The results in float64, to which eager mode's errors are measured."""


def randn(*sizes: int, dtype: torch.dtype = torch.float32, grad: bool = False, seed: int = 0) -> Tensor:
    """Return the same normal numbers for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*sizes, generator=generator).to("cuda", dtype).requires_grad_(grad)


TOLERANCES = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (2e-2, 2e-2), torch.float16: (4e-3, 4e-3)}
"""For sums in another order."""


def pure(
    name: str,
    function: Callable[..., Any],
    *shapes: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    atol: float | None = None,
) -> Case:
    """Return the case of a function of normal numbers."""

    def inputs() -> list[Tensor]:
        return [randn(*shape, dtype=dtype, seed=n) for n, shape in enumerate(shapes)]

    def run(compile_function: Compile) -> Any:
        with torch.no_grad():
            return compile_function(function)(*inputs())

    def exact() -> Any:
        with torch.no_grad():
            return function(*(x.double() for x in inputs()))

    def call(compile_function: Compile) -> Callable[[], Any]:
        compiled, given = compile_function(function), inputs()

        def once() -> None:
            with torch.no_grad():
                compiled(*given)

        return once

    relative, absolute = TOLERANCES[dtype]
    return Case(name, run, call, (relative, absolute if atol is None else atol), exact)


def gradient(
    name: str, function: Callable[..., Tensor], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Case:
    """Return the case of a function of normal numbers and its gradients."""

    def inputs() -> list[Tensor]:
        return [randn(*shape, dtype=dtype, grad=True, seed=n) for n, shape in enumerate(shapes)]

    def differentiate(f: Callable[..., Tensor], given: list[Tensor]) -> Any:
        result = f(*given)
        return result, torch.autograd.grad(result, given, torch.ones_like(result))

    def run(compile_function: Compile) -> Any:
        return differentiate(compile_function(function), inputs())

    def exact() -> Any:
        return differentiate(function, [x.detach().double().requires_grad_() for x in inputs()])

    def call(compile_function: Compile) -> Callable[[], Any]:
        compiled, given = compile_function(function), inputs()
        ones = torch.ones_like(function(*given))
        return lambda: torch.autograd.grad(compiled(*given), given, ones)

    return Case(name, run, call, TOLERANCES[dtype], exact)


def gpt(dtype: torch.dtype, **sizes: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    vocabulary, length = sizes.get("vocabulary", 2000), sizes.get("length", 64)
    ids = torch.randint(vocabulary, (4, length), generator=torch.Generator().manual_seed(1)).cuda()
    return GPT(**sizes).to("cuda", dtype), ids


def gpt_forward(name: str, dtype: torch.dtype, **sizes: int) -> Case:
    def call(compile_function: Compile) -> Callable[[], Tensor]:
        model, ids = gpt(dtype, **sizes)
        compiled = compile_function(model)

        def once() -> Tensor:
            with torch.no_grad():
                return compiled(ids)

        return once

    bounds = {torch.float32: (1e-3, 1e-3), torch.bfloat16: (5e-2, 1e-1)}[dtype]
    return Case(name, lambda compile_function: call(compile_function)(), call, bounds)


def gpt_training(
    name: str, optimizer: Callable[..., torch.optim.Optimizer], *, steps: int = 4, autocast: bool = False, **sizes: int
) -> Case:
    """Return the case of losses and, in the end, parameters; the optimizer's step is compiled, too."""

    def start(compile_function: Compile) -> Callable[[], Tensor]:
        model, ids = gpt(torch.float32, **sizes)
        updates = optimizer(model.parameters())

        def forward(ids: Tensor) -> Tensor:
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                logits = model(ids[:, :-1])
            return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

        compiled, update = compile_function(forward), compile_function(updates.step)

        def step() -> Tensor:
            loss = compiled(ids)
            loss.backward()
            update()
            updates.zero_grad()
            return loss

        return step

    def run(compile_function: Compile) -> Any:
        step = start(compile_function)
        return [step() for _ in range(steps)]

    loose = 5e-2 if autocast else 1e-3
    return Case(name, run, start, (loose, loose))


def dropout_case() -> Case:
    """Dropout keeps the right share, scales it, and gives the same again from the same seed."""

    def run(compile_function: Compile) -> Any:
        f = compile_function(lambda x: F.dropout(x, 0.25, training=True))
        x = torch.ones(1 << 20, device="cuda", requires_grad=True)
        torch.manual_seed(3)
        first = f(x)
        first.sum().backward()
        assert torch.equal(x.grad, first.detach()), "the backward pass has another mask"  # type: ignore[arg-type]
        torch.manual_seed(3)
        again, other = f(x), f(x)
        assert torch.equal(first, again), "the same seed gives other numbers"
        assert not torch.equal(again, other), "two calls give the same numbers"
        assert abs((first != 0).float().mean().item() - 0.75) < 0.01
        return first.max(), first.min()

    return Case("dropout", run)


def thread_case() -> Case:
    """A thread that has not used CUDA runs what another compiled, on a stream of its own."""

    def run(compile_function: Compile) -> Any:
        f = compile_function(lambda x: (x * 2 + 1).softmax(-1))
        x = randn(64, 100)
        results = [f(x)]

        def work() -> None:
            with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                results.append(f(x))
                torch.cuda.current_stream().synchronize()

        plain = threading.Thread(target=lambda: results.append(f(x)))
        for thread in (plain, threading.Thread(target=work)):
            torch.cuda.synchronize()
            thread.start()
            thread.join()
        torch.cuda.synchronize()
        assert len(results) == 3
        return results

    return Case("threads", run, tolerance=TOLERANCES[torch.float32])


def graph_case() -> Case:
    """A compiled function can be captured in a CUDA graph."""

    def run(compile_function: Compile) -> Any:
        f = compile_function(lambda x: F.layer_norm(F.gelu(x), (256,)))
        x = randn(128, 256)
        f(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = f(x)
        x.copy_(randn(128, 256, seed=5))
        graph.replay()
        torch.cuda.synchronize()
        return y

    return Case("cuda_graph", run, tolerance=TOLERANCES[torch.float32])


def second_device_case() -> Case:
    """A program for another device than the current one."""

    def run(compile_function: Compile) -> Any:
        f = compile_function(lambda x: (x + 1).softmax(-1))
        x = randn(64, 100)
        first = f(x)
        if torch.cuda.device_count() == 1:
            return first
        second = f(x.to("cuda:1"))
        assert second.device == torch.device("cuda:1")
        assert torch.cuda.current_device() == 0
        return first, second.to("cuda:0")

    return Case("second_device", run, tolerance=TOLERANCES[torch.float32])


def dynamic_case() -> Case:
    def run(compile_function: Compile) -> Any:
        def f(x: Tensor) -> Tensor:
            return F.gelu(x).softmax(-1) + x.sum(0)

        compiled = f if compile_function(f) is f else compile_function(f, dynamic=True)
        return [compiled(randn(n, m)) for n, m in ((3, 5), (64, 1000), (7, 4097), (1025, 33))]

    return Case("dynamic_sizes", run, tolerance=TOLERANCES[torch.float32])


def python_host_case() -> Case:
    def run(compile_function: Compile) -> Any:
        def f(x: Tensor, w: Tensor) -> Tensor:
            return F.gelu(x @ w).softmax(-1)

        compiled = f if compile_function(f) is f else compile_function(f, host="python")
        return compiled(randn(64, 96), randn(96, 80))

    return Case("host_python", run, tolerance=TOLERANCES[torch.float32])


def checkpoint_case() -> Case:
    """What is computed again in the backward pass has the same random numbers."""

    def run(compile_function: Compile) -> Any:
        def f(x: Tensor, w: Tensor) -> Tensor:
            return checkpoint(lambda x: F.dropout(F.gelu(x @ w), 0.5) @ w, x, use_reentrant=False)

        x, w = randn(64, 64, grad=True), torch.eye(64, device="cuda")
        y = compile_function(f)(x, w)
        (g,) = torch.autograd.grad(y.sum(), x)
        dropped = y.detach() == 0
        assert torch.equal(dropped & (x != 0), (g == 0) & (x != 0)), "the masks of forward and backward differ"
        return dropped.float().mean().round()

    return Case("checkpoint", run, tolerance=(0.0, 1.0))


def conv_training() -> Case:
    def step(compile_function: Compile, dtype: torch.dtype = torch.float32) -> Callable[[], Any]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(32, 10),
        ).to("cuda", dtype)  # fmt: skip
        x, target = randn(8, 3, 32, 32).to(dtype), torch.arange(8, device="cuda")
        compiled = compile_function(model)

        def once() -> Any:
            loss = F.cross_entropy(compiled(x), target)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            return loss, gradients, [b.float() for b in model.buffers()]

        return once

    def exact() -> Any:
        return step(lambda f: f, torch.float64)()

    return Case("conv_batch_norm", lambda c: step(c)(), step, TOLERANCES[torch.float32], exact)


ROWS = (8192, 4096)
BF16 = torch.bfloat16

CASES: tuple[Case, ...] = (
    pure("add", lambda x, y: x + y, (1 << 24,), (1 << 24,)),
    pure("add_small", lambda x, y: x + y, (100,), (100,)),
    pure("add_broadcast", lambda x, y: x * 2 + y, ROWS, (4096,)),
    pure("add_unaligned", lambda x, y: x[1:] + y[1:], (1 << 20,), (1 << 20,)),
    pure("gelu", F.gelu, ROWS),
    pure("gelu_tanh_bf16", lambda x, b: F.gelu(x + b, approximate="tanh"), ROWS, (4096,), dtype=BF16),
    pure("silu_mul", lambda x, y: F.silu(x) * y, ROWS, ROWS),
    pure("softmax", lambda x: x.softmax(-1), ROWS),
    pure("softmax_bf16", lambda x: x.softmax(-1), ROWS, dtype=BF16),
    pure("softmax_long", lambda x: x.softmax(-1), (64, 100_000)),
    pure("log_softmax", lambda x: x.log_softmax(-1), (4096, 5000)),
    pure("layer_norm", lambda x, w, b: F.layer_norm(x, (4096,), w, b), ROWS, (4096,), (4096,)),
    pure("layer_norm_bf16", lambda x, w, b: F.layer_norm(x, (4096,), w, b), ROWS, (4096,), (4096,), dtype=BF16),
    pure("rms_norm", lambda x, w: F.rms_norm(x, (4096,), w), ROWS, (4096,)),
    pure("residual_norm", lambda x, y, w: F.layer_norm(x + y, (4096,), w, w) + x, ROWS, ROWS, (4096,)),
    pure("row_sum", lambda x: x.sum(-1), ROWS, atol=1e-2),
    pure("column_sum", lambda x: x.sum(0), ROWS, atol=1e-2),
    pure("full_sum", lambda x: x.sum(), ROWS, atol=2e-1),
    pure("argmax", lambda x: x.argmax(-1), ROWS),
    pure("transpose_add", lambda x, y: x.t() + y, (4096, 4096), (4096, 4096)),
    pure("permute_copy", lambda x: x.permute(0, 2, 3, 1).contiguous(), (16, 64, 128, 128)),
    pure("cat", lambda x, y: torch.cat([x * 2, y], 1), (2048, 1000), (2048, 1048)),
    pure("where_mask", lambda x: torch.where(x > 0, x, x.exp()), ROWS),
    pure("cumsum", lambda x: x.cumsum(-1), (512, 1024), atol=1e-3),
    pure("embedding", lambda w: F.embedding(torch.arange(4096, device="cuda") * 7 % 8192, w) * 2, (8192, 1024)),
    pure("cpu_scalar", lambda x: x * torch.tensor(3.0) + 1, (1000,)),
    pure("half_chain", lambda x, y: ((x + y) * x).sigmoid() / (y.abs() + 1), ROWS, ROWS, dtype=torch.float16),
    pure("matmul_gelu", lambda x, w, b: F.gelu(F.linear(x, w, b)), (512, 256), (300, 256), (300,), atol=1e-3),
    gradient("gelu_grad", F.gelu, ROWS),
    gradient("softmax_grad", lambda x: x.softmax(-1) * x, ROWS),
    gradient("layer_norm_grad", lambda x, w, b: F.layer_norm(x, (1024,), w, b), (8192, 1024), (1024,), (1024,)),
    gradient("rms_norm_grad", lambda x, w: F.rms_norm(x, (1024,), w), (8192, 1024), (1024,)),
    gradient("cross_entropy_grad", lambda x: F.cross_entropy(x, torch.arange(2048, device="cuda")), (2048, 5000)),
    gradient("embedding_grad", lambda w: F.embedding(torch.arange(4096, device="cuda") % 97, w), (512, 256)),
    gradient("attention_grad", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
             *[(2, 4, 128, 64)] * 3),
    gradient("attention_grad_bf16", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
             *[(2, 4, 128, 64)] * 3, dtype=BF16),
    dynamic_case(),
    dropout_case(),
    thread_case(),
    python_host_case(),
    second_device_case(),
    graph_case(),
    checkpoint_case(),
    conv_training(),
    gpt_forward("gpt_f32", torch.float32),
    gpt_forward("gpt_bf16", torch.bfloat16, vocabulary=8000, length=512, width=768, heads=12, layers=6),
    gpt_training("gpt_train_sgd", lambda p: torch.optim.SGD(p, 0.1)),
    gpt_training("gpt_train_adamw", lambda p: torch.optim.AdamW(p, 1e-3)),
    gpt_training("gpt_train_adamw_fused", lambda p: torch.optim.AdamW(p, 1e-3, fused=True)),
    gpt_training("gpt_train_autocast", lambda p: torch.optim.AdamW(p, 1e-3), autocast=True,
                 vocabulary=8000, length=256, width=768, heads=12, layers=6),
)  # fmt: skip
"""All cases, the simplest first."""
