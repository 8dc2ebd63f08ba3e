"""The programs that kernels for a GPU are tested with: like those of a benchmark, small and of odd sizes."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Make = Callable[[torch.dtype], Tensor]
"""Makes an argument: floats have the dtype that is asked for."""


def floats(*shape: int, grad: bool = False) -> Make:
    return lambda dtype: torch.randn(shape).to(dtype).requires_grad_(grad)


def weights(*shape: int) -> Make:
    """Return numbers near one, of which a gradient is wanted."""
    return lambda dtype: (1 + 0.2 * torch.randn(shape)).to(dtype).requires_grad_()


def integers(bound: int, *shape: int) -> Make:
    return lambda dtype: torch.randint(0, bound, shape)


def bools(*shape: int) -> Make:
    return lambda dtype: torch.rand(shape) < 0.5


@dataclass(frozen=True)
class Program:
    """A function and how to make its arguments; gradients of those that want one are compared, too."""

    function: Callable[..., Tensor | tuple[Tensor, ...]]
    makes: Sequence[Make]

    def arguments(self, dtype: torch.dtype) -> list[Tensor]:
        return [make(dtype) for make in self.makes]


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _swiglu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, -1)
    return F.silu(gate) * value


def _bool_masks(x: Tensor, y: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    chosen = (x > y) & ~m | (x < -1)
    return chosen, torch.where(chosen, x, y)


PROGRAMS: dict[str, Program] = {
    "softmax": Program(lambda x: torch.softmax(x, -1), [floats(37, 1000, grad=True)]),
    "softmax of short rows": Program(lambda x: torch.softmax(x, -1), [floats(300, 5)]),
    "softmax of long rows": Program(lambda x: torch.softmax(x, -1), [floats(3, 9001)]),
    "softmax in the middle": Program(lambda x: torch.softmax(x, 1), [floats(5, 70, 33, grad=True)]),
    "log softmax": Program(lambda x: torch.log_softmax(x, -1), [floats(37, 257, grad=True)]),
    "layer norm": Program(_layer_norm, [floats(37, 770, grad=True), weights(770), weights(770)]),
    "layer norm of long rows": Program(_layer_norm, [floats(5, 5003, grad=True), weights(5003), weights(5003)]),
    "rms norm": Program(_rms_norm, [floats(37, 300, grad=True), weights(300)]),
    "batch norm": Program(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        [floats(4, 6, 13, 11, grad=True), weights(6), weights(6)],
    ),
    "group norm": Program(
        lambda x, w, b: F.silu(F.group_norm(x, 3, w, b)), [floats(4, 6, 13, 11, grad=True), weights(6), weights(6)]
    ),
    "gelu by tanh": Program(
        lambda x, b: F.gelu(x + b, approximate="tanh"), [floats(37, 1000, grad=True), floats(1000, grad=True)]
    ),
    "gelu chain": Program(lambda x, y: F.gelu(F.gelu(x) * y) + x, [floats(37, 99, grad=True), floats(37, 99)]),
    "swiglu": Program(_swiglu, [floats(33, 2 * 70, grad=True)]),
    "functions": Program(
        lambda x, y: torch.sigmoid(x) * torch.tanh(y) + torch.log(x.exp() + 1) + x.sin() * y.cos() + y.erf().expm1(),
        [floats(33, 70), floats(33, 70)],
    ),
    "where and clamp": Program(
        lambda x, y: torch.where(x > 0, x.clamp(-0.5, 1.5), y.clamp(min=0)) / (y * y + 1),
        [floats(33, 70), floats(33, 70)],
    ),
    "masks": Program(_bool_masks, [floats(33, 70), floats(33, 70), bools(33, 70)]),
    "integers": Program(
        lambda i, j: (i // (j + 1) + i % 7 - (i << 2) ^ (j >> 1)) & (i | j),
        [integers(1000, 33, 70), integers(9, 33, 70)],
    ),
    "casts": Program(lambda x: (x.bfloat16() * 3).half().double().to(torch.int32).float(), [floats(33, 70)]),
    "dropout": Program(lambda x: F.dropout(x, 0.0) + F.dropout(x, 1.0), [floats(33, 70)]),
    "channels": Program(
        lambda x, s, t: torch.relu(x * s[None, :, None, None] + t[None, :, None, None]),
        [floats(3, 5, 13, 11), floats(5), floats(5)],
    ),
    "transpose": Program(lambda x, y: x.t() + y, [floats(70, 133), floats(133, 70)]),
    "transposes of batches": Program(lambda x: (x * 2).transpose(1, 2).contiguous(), [floats(5, 33, 70)]),
    "nchw to nhwc": Program(lambda x: (x * 2 + 1).permute(0, 2, 3, 1).contiguous(), [floats(3, 17, 13, 11)]),
    "sum of all": Program(lambda x: x.sum(), [floats(133, 1000)]),
    "mean of rows": Program(lambda x: x.mean(-1), [floats(133, 1000, grad=True)]),
    "sum of columns": Program(lambda x: x.sum(0), [floats(1333, 70, grad=True)]),
    "sum of short rows": Program(lambda x: x.sum(-1), [floats(1333, 8)]),
    "sums of two dims": Program(lambda x: x.sum((0, 2)), [floats(13, 33, 70)]),
    "variance": Program(lambda x: torch.var_mean(x, dim=-1), [floats(37, 1000)]),
    "argmax": Program(lambda x: (x.argmax(-1), x.max(0)[1]), [floats(37, 1000)]),
    "extremes": Program(lambda x: (x.amax(-1), x.amin(0), (x > 3).any(-1), x.max()), [floats(37, 1000)]),
    "cross entropy": Program(F.cross_entropy, [floats(37, 5003, grad=True), integers(5003, 37)]),
    "smoothed cross entropy": Program(
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, ignore_index=3),
        [floats(37, 50, grad=True), integers(50, 37)],
    ),
    "embedding": Program(lambda i, w: F.embedding(i, w) * 2, [integers(50, 64), floats(50, 33, grad=True)]),
    "embedding of few": Program(lambda i, w: F.embedding(i, w) * 2, [integers(3, 300), floats(3, 33, grad=True)]),
    "gather": Program(lambda x, i: x.gather(1, i) * 2 + 1, [floats(37, 100, grad=True), integers(100, 37, 50)]),
    "index": Program(lambda x, i, y: x[i] * y, [floats(37, 70, grad=True), integers(37, 90), floats(90, 70)]),
    "scatter": Program(
        lambda x, i, v: torch.scatter_add(x, 0, i, torch.relu(v)),
        [floats(37, 70), integers(37, 60, 70), floats(60, 70)],
    ),
    "running sums": Program(lambda x: torch.cumsum(x, -1) * 0.5, [floats(37, 1000)]),
    "running sums of columns": Program(lambda x: torch.cumsum(x, 0), [floats(37, 100)]),
    "max pool": Program(lambda x: F.max_pool2d(torch.relu(x), 3, 2, 1), [floats(2, 3, 23, 21, grad=True)]),
    "average pool": Program(lambda x: F.adaptive_avg_pool2d(torch.relu(x), 1).flatten(1), [floats(3, 5, 13, 11)]),
    "upsampling": Program(
        lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest") + 1, [floats(2, 3, 13, 11, grad=True)]
    ),
    "concatenation": Program(
        lambda a, b, c: torch.cat((torch.relu(a), b * 2, c + 1), 1), [floats(33, 70), floats(33, 5), floats(33, 9)]
    ),
    "padding": Program(lambda x: F.pad(x, (1, 1, 1, 1))[:, :, 2:, 2:] + x, [floats(2, 3, 23, 21, grad=True)]),
    "rope": Program(_rope, [floats(2, 3, 33, 40, grad=True), floats(33, 40), floats(33, 40)]),
    "attention": Program(
        lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) * 0.2, -1) @ v, [floats(2, 3, 33, 20, grad=True)] * 3
    ),
    "linear": Program(
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        [floats(37, 40, grad=True), floats(30, 40, grad=True), floats(30, grad=True)],
    ),
}
