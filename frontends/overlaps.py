"""Arguments that overlap in memory, where one of them is written.

A graph is traced for arguments of which certain ones share memory: what is written to one is then read through another.
Dynamo guards that for tensors passed twice, not for parts of one storage. So it is looked at in each call of a graph
that writes to its arguments, and where the arguments overlap in another way than in the first call, which is the one
that the graph was traced for, eager mode runs the graph.
"""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Place = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""The number of an argument, its offset from the first one in its storage, its sizes and its strides."""

_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


def overlapping(arguments: Sequence[Any]) -> tuple[Place, ...]:
    """Return the places of those arguments that may have an element in common with another one."""
    storages: dict[int, list[int]] = {}
    number_of_tensors = 0
    for number, argument in enumerate(arguments):
        if type(argument) in _PLAIN:
            number_of_tensors += 1
            storages.setdefault(argument.untyped_storage()._cdata, []).append(number)
    if len(storages) == number_of_tensors:
        return ()
    return tuple(
        place for group in storages.values() if len(group) > 1 for place in _places({n: arguments[n] for n in group})
    )


def _places(tensors: dict[int, Tensor]) -> list[Place]:
    """Return the places of those of some tensors in one storage whose ranges of bytes meet."""
    ranges = {number: _range(t) for number, t in tensors.items()}
    meeting = [
        number
        for number, (first, last) in ranges.items()
        if any(first < end and begin < last for other, (begin, end) in ranges.items() if other != number)
    ]
    start = min((ranges[number][0] for number in meeting), default=0)
    return [
        (number, ranges[number][0] - start, tuple(tensors[number].shape), tuple(tensors[number].stride()))
        for number in meeting
    ]


def _range(tensor: Tensor) -> tuple[int, int]:
    """Return where the bytes of a tensor begin and end in its storage."""
    begin = int(tensor.storage_offset()) * tensor.element_size()
    if tensor.numel() == 0:
        return begin, begin
    last = sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


def guarded(compiled: Callable[..., Any], eager: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `compiled`, or `eager` where arguments overlap in another way than at first."""
    expected: tuple[Place, ...] | None = None

    def call(*arguments: Any) -> Any:
        nonlocal expected
        found = overlapping(arguments)
        if expected is None:
            expected = found
        return compiled(*arguments) if found == expected else eager(*arguments)

    return call


def writes_to_inputs() -> bool:
    """Whether the graph that AOTAutograd is compiling writes to its inputs, during the call or at its end."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return metadata is None or any(info.mutates_data for info in metadata.input_info)
