"""Training in several processes: each embeds its share of a batch, and all see the whole.

A loss over triplets is a function of the whole batch, so it is not shared: every process gathers all
embeddings and computes the same loss, and the gradient goes back through its own share alone. That part
is multiplied by the number of processes and then all gradients are averaged, so that what every process
computes in full (interval bounds, terms on the weights) counts once, too. The outcome is that of one
process up to the order of sums.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn

from holdfast.errors import ConfigError


@contextmanager
def joined() -> Iterator[None]:
    """In a process that torchrun started: one of its group, inside the block. Elsewhere nothing."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or distributed.is_initialized():
        yield
        return
    # Training computes on the CPU, also where there is a GPU; nccl knows no tensors of the CPU.
    distributed.init_process_group("gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def count() -> int:
    """How many processes train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def is_first() -> bool:
    """Whether this process is the one that writes and speaks."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def wait_for_all() -> None:
    """Go on when every process has come this far."""
    if count() > 1:
        distributed.barrier()


def any_of(flag: bool) -> bool:
    """Whether the flag is up in any process, in all of them alike."""
    if count() == 1:
        return flag
    value = torch.tensor(int(flag))
    distributed.all_reduce(value, distributed.ReduceOp.MAX)
    return bool(value)


def of_first(value: float) -> float:
    """The first process's value, in all of them."""
    if count() == 1:
        return value
    told = torch.tensor(value, dtype=torch.float64)
    distributed.broadcast(told, 0)
    return float(told)


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """The mean of every gradient over the processes, in each of them."""
    if count() == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= count()
    for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


class Sharded(nn.Module):
    """An embedder whose batches are shared among the processes; every one gets all embeddings."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        if any(
            isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in whole.modules()
        ) and not getattr(whole, "freeze_batch_norm", False):
            raise ConfigError(
                "batch norm would see each process's share of a batch alone; "
                "set train.freeze_batch_norm=true to train in several processes"
            )
        self.whole = whole

    def forward(self, images: Tensor) -> Tensor:
        shares = images.tensor_split(count())
        mine = _Same.apply(images).tensor_split(count())[distributed.get_rank()]  # type: ignore[no-untyped-call]
        out: Tensor = _Gathered.apply(self.whole(mine), [len(share) for share in shares])  # type: ignore[no-untyped-call]
        return out


def shared(embedder: nn.Module) -> nn.Module:
    """The embedder as the processes share it."""
    return embedder if count() == 1 else Sharded(embedder)


def unshared(embedder: nn.Module) -> nn.Module:
    """The embedder itself."""
    return embedder.whole if isinstance(embedder, Sharded) else embedder


class _Same(torch.autograd.Function):
    """What all processes have alike; its gradient is the mean of theirs."""

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        return images.view_as(images)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous()
        distributed.all_reduce(total)
        return total / count()


class _Gathered(torch.autograd.Function):
    """The rows of all processes; the gradient of one's own, as many times as there are processes."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        width = max(sizes)
        padded = own.new_zeros(width, *own.shape[1:])
        padded[: len(own)] = own.detach()
        parts = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        own = torch.split(gradients[0], ctx.sizes)[distributed.get_rank()]
        return own * count(), None
