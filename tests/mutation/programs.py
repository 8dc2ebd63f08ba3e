"""Programs that write to their arguments, to views of them, or return aliases."""

# torch's own functions carry few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Program = tuple[Callable[..., Any], Callable[[], list[Any]]]

PROGRAMS: dict[str, Program] = {}


def program(*sizes: tuple[int, ...], make: Callable[[], list[Any]] | None = None) -> Callable[[Any], Any]:
    """Add a function to `PROGRAMS`; its arguments are tensors of `sizes`, or what `make` returns."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = function, make or (lambda: [torch.randn(s) for s in sizes])
        return function

    return add


# Inputs written whole.


@program((5, 7))
def add_in_place(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


@program((5, 7))
def only_mutates(x: Tensor) -> None:
    x.mul_(2).add_(1).relu_()


@program((5, 7))
def returns_the_mutated(x: Tensor) -> Tensor:
    return x.add_(1)


@program((5, 7))
def returns_a_view_of_the_mutated(x: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    return x.t(), x[1:]


@program((5, 7), (5, 7))
def swaps(x: Tensor, y: Tensor) -> None:
    t = x.clone()
    x.copy_(y)
    y.copy_(t)


@program((6, 6))
def copies_its_transpose(x: Tensor) -> None:
    x.copy_(x.t().clone())


@program((6, 6))
def adds_its_transpose(x: Tensor) -> None:
    x.add_(x.t().clone())


@program((5, 7))
def reads_the_old_value_later(x: Tensor) -> tuple[Tensor, Tensor]:
    old = x + 0
    x.mul_(3)
    return old.sum(0), x.sum(0)


@program((9,))
def shifts_itself(x: Tensor) -> None:
    x[1:] = x[:-1].clone()


@program((9,))
def shifts_itself_with_work(x: Tensor) -> Tensor:
    x[1:] = x[:-1] * 2 + 1
    return x.sum()


@program((9,))
def reverses_itself(x: Tensor) -> None:
    x.copy_(x.flip(0))


@program((5, 7), (5, 7))
def out_of_place_then_copy(x: Tensor, y: Tensor) -> Tensor:
    z = x @ y.t()
    x.copy_(x + y)
    return z


@program((5, 5), (5, 5))
def product_into_an_input(x: Tensor, y: Tensor) -> None:
    y.copy_(x @ y)


@program((4, 5), (5, 3), (4, 3))
def product_into_out(x: Tensor, y: Tensor, out: Tensor) -> None:
    torch.mm(x, y, out=out)


@program((5, 7))
def softmax_in_place(x: Tensor) -> None:
    x.copy_(torch.softmax(x, -1))


@program((5, 7))
def columns_in_place(x: Tensor) -> None:
    x.sub_(x.mean(0)).div_(x.std(0) + 1)


@program((5, 7), (7,))
def running_statistics(x: Tensor, mean: Tensor) -> Tensor:
    mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x - mean


@program((5, 7), make=lambda: [torch.randn(5, 7).to(torch.bfloat16), torch.randn(5, 7)])
def copies_another_dtype(x: Tensor, y: Tensor) -> None:
    x.copy_(y)
    y.copy_(x * 3)


@program((5, 7), (7,))
def copies_a_row(x: Tensor, y: Tensor) -> None:
    x.copy_(y)


@program(make=lambda: [torch.randint(0, 9, (5,)), torch.zeros(5, dtype=torch.bool)])
def integers_and_flags(x: Tensor, flag: Tensor) -> Tensor:
    x.bitwise_and_(6)
    flag.logical_or_(x > 3)
    return flag.sum()


# Inputs written through views.


@program((4, 6))
def scales_a_row(x: Tensor) -> None:
    x[0].mul_(2)


@program((4, 6))
def fills_a_column(x: Tensor) -> Tensor:
    x[:, 2] = 5
    return x.sum(1)


@program((4, 6))
def writes_a_view_of_a_view(x: Tensor) -> Tensor:
    x[0][1:3].mul_(2)
    x.t()[2:4, 1].add_(1)
    return x


@program((6, 6))
def adds_to_the_diagonal(x: Tensor) -> Tensor:
    x.diagonal().add_(1)
    x.t().diagonal(1).mul_(2)
    return x + 0


@program((4, 6))
def writes_a_strided_slice(x: Tensor) -> Tensor:
    x[::2, 1::3] = x[1::2, ::3]
    return x.exp()


@program((4, 6))
def writes_through_as_strided(x: Tensor) -> Tensor:
    y = x.as_strided((2, 2), (6, 1), 3)
    y.mul_(2)
    return x.sum()


@program((4, 6))
def writes_through_a_reshape(x: Tensor) -> Tensor:
    x.view(-1)[3:9] = 1.5
    x.view(2, 2, 6)[1, :, 2] += 1
    return x.view(-1).sum()


@program((4, 6))
def writes_through_expand(x: Tensor) -> Tensor:
    y = x[:, :1].expand(4, 6)
    z = y + 1
    x[:, 0] = 3
    return z + y


@program((4, 6))
def writes_two_overlapping_views(x: Tensor) -> Tensor:
    x[1:3].add_(1)
    x[:, 2:4].mul_(2)
    x[2, 3] = -1
    return x * 1


@program((4, 6))
def a_view_sees_the_write(x: Tensor) -> tuple[Tensor, Tensor]:
    before = x[1].sum()
    row = x[1]
    x[:, 1:3] = 7
    return before, row.sum()


@program((4, 6))
def a_copy_does_not_see_the_write(x: Tensor) -> Tensor:
    row = x[1].clone()
    x[1].zero_()
    return row


@program((2, 3, 4))
def permuted_write(x: Tensor) -> Tensor:
    x.permute(2, 0, 1)[1].copy_(torch.ones(2, 3))
    return x


@program((2, 3, 4))
def unbinds_and_writes(x: Tensor) -> None:
    a, b = x.unbind(0)
    a.add_(b)
    b.sub_(a)


@program((8, 3))
def chunks_and_writes(x: Tensor) -> Tensor:
    a, b = x.chunk(2)
    a += b
    b *= a
    return x.sum(0)


@program((8, 3))
def detached_write(x: Tensor) -> Tensor:
    x.detach().add_(1)
    return x * 2


@program((8, 3))
def data_write(x: Tensor) -> Tensor:
    x.data.add_(1)
    return x * 2


@program((4, 6))
def narrow_copy_then_write(x: Tensor) -> Tensor:
    y = x.narrow(1, 1, 2)
    y.copy_(y.flip(1))
    return x


@program(make=lambda: [torch.randn(4, 6, dtype=torch.complex64)])
def complex_parts(x: Tensor) -> Tensor:
    torch.view_as_real(x)[..., 0].add_(1)
    return x.abs()


@program(make=lambda: [torch.randn(4, 6)])
def bits_of_floats(x: Tensor) -> Tensor:
    x.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    return x.sum()


# Positions that are data.


@program(make=lambda: [torch.randn(8, 5), torch.tensor([3, 1]), torch.randn(5)])
def puts_rows(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x[i] = v
    return x.sum(0)


@program(make=lambda: [torch.randn(8, 5), torch.tensor([3, 1, 3, -1]), torch.randn(4, 5)])
def puts_rows_twice(x: Tensor, i: Tensor, v: Tensor) -> None:
    x[i] = v


@program(make=lambda: [torch.randn(8, 5), torch.tensor([3, 1, 3]), torch.randn(3, 5)])
def accumulates_rows(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x.index_put_((i,), v, accumulate=True)
    x.index_add_(0, i, v, alpha=2)
    return x.sum()


@program(make=lambda: [torch.randn(8, 5), torch.randn(8, 5) > 0])
def puts_by_mask(x: Tensor, m: Tensor) -> Tensor:
    x[m] = 2
    x.masked_fill_(~m, -1)
    return x


@program(make=lambda: [torch.randn(2, 3, 8, 4), torch.tensor([2, 5]), torch.randn(2, 3, 2, 4)])
def cache_by_index_copy(cache: Tensor, p: Tensor, k: Tensor) -> Tensor:
    cache.index_copy_(2, p, k)
    return (cache * 2).sum(-1)


@program(make=lambda: [torch.randn(2, 3, 8, 4), torch.randn(2, 3, 1, 4), 3])
def cache_by_slice(cache: Tensor, k: Tensor, p: int) -> Tensor:
    cache[:, :, p : p + 1] = k * 2
    return cache.sum(-1)


@program(make=lambda: [torch.randn(2, 3, 8, 4), torch.randn(2, 3, 1, 4), torch.tensor([3])])
def cache_by_position(cache: Tensor, k: Tensor, p: Tensor) -> Tensor:
    cache[:, :, p] = k
    return cache @ k.transpose(-1, -2)


@program(make=lambda: [torch.randn(6, 5), torch.randint(0, 6, (3, 5)), torch.randn(3, 5)])
def scatters(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    i = i % 6
    x.scatter_add_(0, i, v)
    x.scatter_reduce_(0, i, v, "amax")
    return x.sum()


@program(make=lambda: [torch.randn(6, 5), torch.tensor([[0, 1, 2, 3, 4]]), torch.randn(1, 5)])
def scatters_one_row(x: Tensor, i: Tensor, v: Tensor) -> None:
    x.scatter_(0, i, v)
    x[1].scatter_(0, i[0], 3.0)


@program(make=lambda: [torch.randn(6, 5), torch.tensor([2, 0])])
def accumulates_into_picked_columns(x: Tensor, i: Tensor) -> None:
    x[:, i] += 1
    x[i, 1] *= 2


# Intermediates.


@program((4, 6), (4, 6))
def fills_fresh_zeros(a: Tensor, b: Tensor) -> Tensor:
    z = torch.zeros(8, 6)
    z[:4] = a
    z[4:] = b
    return z


@program((4, 6))
def many_slices_of_fresh_zeros(a: Tensor) -> Tensor:
    z = torch.zeros(24, 6)
    for i in range(6):
        z[4 * i : 4 * i + 4] = a * i
    return z


@program((4, 6))
def the_old_intermediate_is_returned(a: Tensor) -> tuple[Tensor, Tensor]:
    z = a * 2
    w = z.clone()
    w[1:3] = 0
    return z, w


@program((4, 6), (6, 6))
def writes_the_result_of_a_product(a: Tensor, b: Tensor) -> Tensor:
    z = a @ b
    z[1] = a[0]
    z[:, 2].mul_(2)
    return z @ b


@program((4, 6), (6, 6))
def writes_a_product_that_is_read(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    z = a @ b
    s = z.softmax(-1)
    z[1] = a[0]
    return s @ b, z


@program((4, 6))
def a_view_of_an_intermediate_is_written(a: Tensor) -> tuple[Tensor, Tensor]:
    z = a + 1
    v = z.t()[1]
    v.add_(1)
    return z, v


@program((4, 6))
def loop_of_writes(a: Tensor) -> Tensor:
    state = torch.zeros(6)
    out = torch.empty(4, 6)
    for i in range(4):
        state = state * 0.5 + a[i]
        out[i] = state
    return out


# Outputs that alias.


@program((4, 6))
def returns_its_argument(x: Tensor) -> Tensor:
    return x


@program((4, 6))
def returns_it_twice(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x + 1
    return y, y, x


@program((4, 6))
def returns_views_of_one(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x + 1
    return y[1:], y.t(), y[1:].view(-1)


@program((4, 6))
def returns_a_view_only(x: Tensor) -> Tensor:
    return (x + 1)[1:, ::2]


@program((4, 6))
def returns_views_of_the_input(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x[1:], x.t().detach(), x.view(2, 12)[:, 3:]


@program((4, 6))
def returns_as_strided_of_the_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.as_strided((3, 2), (2, 1), 1), x.t().as_strided((3, 2), (2, 1), 1) + 1


@program((4, 6))
def as_strided_of_an_intermediate(x: Tensor) -> Tensor:
    y = (x + 1).t()
    return y.as_strided((3, 2), (1, 4), 2) * 2


@program((4, 6))
def returns_an_expanded(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x[:, :1] + 1
    return y.expand(4, 6), x[:1].expand(4, 6)


@program((4, 6))
def mutates_and_returns_views(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x[1:]
    y.mul_(2)
    return y, x[:1]


@program((4, 6))
def returns_detached(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.detach(), (x * 2).detach()


@program((4, 6), (4, 6))
def returns_the_second_and_writes_the_first(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return y


@program((4, 6))
def sets_data(x: Tensor) -> Tensor:
    y = torch.zeros(4, 6)
    y.data = x * 2
    return y + 1


# Arguments that are one tensor, or overlap.


def _same() -> list[Any]:
    x = torch.randn(4, 6)
    return [x, x]


@program(make=_same)
def one_tensor_twice(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x * y


def _halves() -> list[Any]:
    x = torch.randn(8, 6)
    return [x[:4], x[4:]]


@program(make=_halves)
def two_halves(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return x + y


def _overlapping() -> list[Any]:
    x = torch.randn(8, 6)
    return [x[:5], x[3:]]


@program(make=_overlapping)
def two_that_overlap(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y * 2


@program(make=_overlapping)
def two_that_overlap_both_written(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    y.mul_(2)
    return x + y


def _view_of_the_other() -> list[Any]:
    x = torch.randn(4, 6)
    return [x, x.t()]


@program(make=_view_of_the_other)
def a_view_of_the_other(x: Tensor, y: Tensor) -> Tensor:
    x[0].add_(1)
    return y.sum(1)


@program(make=lambda: [torch.randn(4, 1).expand(4, 6)])
def reads_an_expanded_input(x: Tensor) -> Tensor:
    return x * 2 + x.sum(0)


# Layouts of the arguments.


@program(make=lambda: [torch.randn(6, 4).t()])
def writes_a_transposed_input(x: Tensor) -> Tensor:
    x.add_(1)
    x[1].mul_(2)
    return x


@program(make=lambda: [torch.randn(8, 12)[::2, 1::3]])
def writes_a_strided_input(x: Tensor) -> Tensor:
    x.exp_()
    x[:, 1] = 0
    return x.sum()


@program(make=lambda: [torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)])
def writes_channels_last(x: Tensor) -> Tensor:
    x.relu_()
    x[:, 1] += 1
    return x.mean((2, 3))


@program((0, 6), (3, 0))
def without_elements(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    y[1].mul_(2)
    return x.sum(0), y


@program(make=lambda: [torch.randn(())])
def without_dims(x: Tensor) -> Tensor:
    x.add_(1)
    return x.exp()


# Autograd.


def _leaf(*sizes: tuple[int, ...]) -> Callable[[], list[Any]]:
    return lambda: [torch.randn(s, requires_grad=True) for s in sizes]


@program(make=_leaf((4, 6)))
def no_grad_write_to_a_leaf(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(0.5)
    return x.sin()


@program(make=_leaf((4, 6)))
def no_grad_write_to_a_slice_of_a_leaf(x: Tensor) -> Tensor:
    with torch.no_grad():
        x[1:3].zero_()
    return x.cos()


@program(make=_leaf((4, 6), (6,)))
def writes_an_intermediate_with_grad(x: Tensor, v: Tensor) -> Tensor:
    y = x.sin()
    y[1] = v
    y[:, 2:4].mul_(3)
    return y.exp()


@program(make=lambda: [torch.randn(4, 6, requires_grad=True), torch.zeros(4, 6)])
def writes_an_input_with_grad(x: Tensor, buffer: Tensor) -> Tensor:
    buffer.add_(x)
    return buffer.sin() * x


@program(make=lambda: [torch.randn(4, 6, requires_grad=True), torch.zeros(6)])
def statistics_without_grad(x: Tensor, mean: Tensor) -> Tensor:
    with torch.no_grad():
        mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return (x - mean).sin()


@program(make=lambda: [torch.randn(4, 6, requires_grad=True), torch.zeros(8, 6), torch.tensor([3, 5, 1, 0])])
def cache_with_grad(x: Tensor, cache: Tensor, p: Tensor) -> Tensor:
    with torch.no_grad():
        cache[p] = x
    return x.sin().sum() + cache.sum()


@program(make=lambda: [torch.randn(4, 6, requires_grad=True), torch.zeros(4, 6)])
def saved_for_backward_and_written(x: Tensor, state: Tensor) -> Tensor:
    with torch.no_grad():
        state.add_(1)
    return x * state.exp()


@program(make=_leaf((4, 6)))
def detach_in_place(x: Tensor) -> Tensor:
    y = x.sin()
    z = y.detach_()
    return z + x


@program(make=_leaf((6, 4)))
def views_with_grad(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.t()[1:], x.view(-1)


@program(make=_leaf((4, 6)))
def clone_then_in_place(x: Tensor) -> Tensor:
    return x.clone().mul_(2).add_(x)
