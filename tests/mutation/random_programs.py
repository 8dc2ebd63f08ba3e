"""Writes programs that mutate views of arguments and of intermediates, at random."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Step = Callable[[list[Tensor]], None]
"""Reads and writes some of the tensors that exist, and may add one."""

View = Callable[[Tensor], Tensor]


@dataclass
class RandomProgram:
    """A program on a list of tensors of various sizes; what it returns are the sums of all, and some of them."""

    choose: random.Random
    steps: list[Step] = field(default_factory=list[Step])
    tensors: int = 3

    def grow(self, steps: int) -> RandomProgram:
        """Add some steps."""
        for _ in range(steps):
            rare = [self.write_all, self.put, self.shift, self.make, self.read]
            kinds = [*([self.write_view] * 5), *([self.compute] * 3), *rare]
            self.steps.append(self.choose.choice(kinds)())
        return self

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        tensors = list(arguments)
        for step in self.steps:
            step(tensors)
        return [t.sum() for t in tensors] + [t for t in tensors[len(arguments) :] if t.dim() == 2][:2]

    def arguments(self) -> list[Tensor]:
        """Return values for the arguments: one plain, one transposed, one with gaps."""
        return [torch.randn(4, 6), torch.randn(6, 4).t(), torch.randn(8, 9)[::2, 1:7]]

    def pick(self) -> int:
        """Return the number of a tensor, arguments and recent ones more often."""
        number = self.choose.choice([*range(3), *range(self.tensors)])
        return number if self.choose.random() < 0.7 else self.tensors - 1

    def view(self) -> View:
        """Return a view of a matrix of 4 by 6: of a part, turned over, or a view of a view."""
        first, second = self.choose.randint(0, 1), self.choose.randint(2, 4)
        views: list[View] = [
            lambda t: t[first:second],
            lambda t: t[:, first:second],
            lambda t: t[first],
            lambda t: t[:, second],
            lambda t: t.t()[first:second],
            lambda t: t.diagonal(first),
            lambda t: t[::2, first::3],
            lambda t: t[first:, 1:][1:second],
            lambda t: t.t()[second].unsqueeze(0),
            lambda t: t.unfold(1, 2, 2)[first],
            lambda t: t.unsqueeze(1).transpose(0, 2)[second],
            lambda t: t,
        ]
        return self.choose.choice(views)

    def write_view(self) -> Step:
        """Write to a view what is computed of it, or of a view of the same or another tensor that broadcasts to it."""
        target, source, view, other = self.pick(), self.pick(), self.view(), self.view()
        kind, factor = self.choose.randrange(5), self.choose.choice([0.5, -1.0, 2.0])

        def step(tensors: list[Tensor]) -> None:
            place, given = view(tensors[target]), other(tensors[source])
            fits = given.shape == place.shape
            if kind == 0:
                place.mul_(factor)
            elif kind == 1 and fits:
                place.copy_(given * factor)
            elif kind == 2 and fits:
                place.add_(given.clone())
            elif kind == 3:
                place.copy_(place.flip(0) + factor)
            else:
                place.fill_(factor)

        return step

    def write_all(self) -> Step:
        target, source, factor = self.pick(), self.pick(), self.choose.choice([0.25, -0.5])

        def step(tensors: list[Tensor]) -> None:
            tensors[target].mul_(factor).add_(tensors[source] * 2)

        return step

    def compute(self) -> Step:
        """Make a new tensor of two."""
        one, other, kind = self.pick(), self.pick(), self.choose.randrange(4)
        self.tensors += 1

        def step(tensors: list[Tensor]) -> None:
            a, b = tensors[one], tensors[other]
            results = [lambda: a - b, a.clone, lambda: a.softmax(-1) + b, lambda: (a @ b.t()) @ b * 0.1]
            tensors.append(results[kind]())

        return step

    def make(self) -> Step:
        self.tensors += 1
        return lambda tensors: tensors.append(torch.zeros(4, 6))

    def read(self) -> Step:
        """Keep a view, to see later writes, or a copy of a view, to see none."""
        source, keeps = self.pick(), self.choose.random() < 0.5
        self.tensors += 1

        def step(tensors: list[Tensor]) -> None:
            kept = tensors[source].view_as(tensors[source])
            tensors.append(kept if keeps else kept.flip(1))

        return step

    def put(self) -> Step:
        """Write rows or columns at positions, some of them twice."""
        target, source = self.pick(), self.pick()
        column, accumulate = (self.choose.random() < 0.5 for _ in range(2))
        places = [self.choose.randrange(4) for _ in range(4)]

        def step(tensors: list[Tensor]) -> None:
            index = torch.tensor(places)
            place = tensors[target].t() if column else tensors[target]
            given = tensors[source].t()[:4] if column else tensors[source]
            place.index_put_((index,), given * 0.5, accumulate=accumulate)

        return step

    def shift(self) -> Step:
        """Move the rows or columns of a tensor by one."""
        target, column = self.pick(), self.choose.random() < 0.5

        def step(tensors: list[Tensor]) -> None:
            t = tensors[target].t() if column else tensors[target]
            t[1:] = t[:-1].clone()

        return step
