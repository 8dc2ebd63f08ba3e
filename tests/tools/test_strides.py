"""Strides of the outputs of compiled programs: eager mode's, for dims of more than one element."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytestmark = pytest.mark.usefixtures("on_device")

IMAGES: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.randn(2, 4, 3, 5),
    "channels last": lambda: torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last),
    "one channel": lambda: torch.randn(2, 1, 3, 5).to(memory_format=torch.channels_last),
    "one pixel": lambda: torch.randn(2, 4, 1, 1).to(memory_format=torch.channels_last),
    "cropped": lambda: torch.randn(2, 4, 6, 8).to(memory_format=torch.channels_last)[:, :, 1:4, 2:7],
    "reversed": lambda: torch.randn(5, 3, 4, 2).permute(3, 2, 1, 0),
    "expanded": lambda: torch.randn(2, 4, 1, 5).expand(2, 4, 3, 5),
    "every other": lambda: torch.randn(2, 8, 3, 10)[:, ::2, :, ::2],
}


def places(x: Tensor, *numbers: int) -> Tensor:
    return torch.tensor(numbers, device=x.device)


OPERATORS: dict[str, Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = {
    "add": lambda x: x + 1,
    "clone": lambda x: (x.clone(), x.contiguous(), (x + 1).contiguous(memory_format=torch.channels_last)),
    "roll": lambda x: (x.roll(1, 2), x.roll((1, -1), (0, 3)), x.roll(2)),
    "flip": lambda x: (x.flip(1, 3), (x + 1).flip(2)),
    "views": lambda x: ((x + 1).transpose(1, 2), x.permute(0, 2, 3, 1), (x * 2).diagonal(0, 2, 3), x.unfold(3, 1, 1)),
    "index": lambda x: (x.index_fill(0, places(x, 1), 2.0), x.index_select(3, places(x, 0, 0))),
    "power": lambda x: (2**x, x**2),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "norm": lambda x: F.batch_norm(x, None, None, training=True) if x.shape[1] == 4 else x,
    "inference": lambda x: F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])),
    "unpool": lambda x: F.max_unpool2d(x, torch.arange(x[0, 0].numel()).view(x.shape[2:]).expand(x.shape) * 2, (2, 2)),
    "shuffle": lambda x: F.channel_shuffle(x, 2) if x.shape[1] == 4 else x,
}


def refused(name: str, image: Tensor) -> bool:
    """Whether eager mode cannot do it on this device: CUDA shuffles channels of what `view` can take apart only."""
    try:
        OPERATORS[name](image)
    except RuntimeError:
        return True
    return False


def strides(x: Tensor) -> list[int]:
    """Return the strides of the dims that have more than one element."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


@pytest.mark.parametrize("name", OPERATORS)
def test_outputs_have_the_strides_of_eager_mode(name: str) -> None:
    def each(*images: Tensor) -> list[Tensor]:
        results = [OPERATORS[name](x) for x in images]
        return [y for r in results for y in (r if isinstance(r, tuple) else (r,))]

    torch.compiler.reset()
    images = [x for x in (make() for make in IMAGES.values()) if not refused(name, x)]
    found = torch.compile(each, backend="tilewright", options={"strict": True})(*images)
    for a, b in zip(found, each(*images), strict=True):
        torch.testing.assert_close(a, b)
        assert strides(a) == strides(b)


def test_volumes_that_are_padded_keep_channels_last() -> None:
    def pad(x: Tensor) -> list[Tensor]:
        return [F.pad(x, (1, 1, 2, 0, 1, 0), mode=mode) for mode in ("reflect", "replicate", "constant")]

    x = torch.randn(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d)
    found = torch.compile(pad, backend="tilewright", options={"strict": True})(x)
    for a, b in zip(found, pad(x), strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()


def test_storage_of_a_rotated_image_is_read_as_it_lies() -> None:
    def read(x: Tensor) -> Tensor:
        return torch.roll(x, -1, 0).as_strided((5, 10), (4, 1), 0)

    x = torch.arange(100).reshape(2, 5, 2, 5).to(memory_format=torch.channels_last)
    assert torch.equal(torch.compile(read, backend="tilewright", options={"strict": True})(x), read(x))
