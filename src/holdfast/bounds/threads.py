"""Sharing a compiled loop among threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

_SMALL = 1 << 17
"""Results below which handing work to threads costs more than it gains: they take less than a millisecond."""
CHEAP = 8
"""Elements of one pass over memory that cost as much as one result."""


def in_threads(work: Callable[[int, int], None], rows: int, size: int) -> None:
    """`work(first, last)` over all rows, shared among as many threads as torch may use."""
    threads = torch.get_num_threads()
    if threads == 1 or size < _SMALL or rows < threads:
        work(0, rows)
        return
    edges = [rows * t // threads for t in range(threads + 1)]
    list(_pool(threads).map(work, edges[:-1], edges[1:]))


def in_one_order(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors without gaps and in the order of the first: channels last if it is, else rows."""
    first = tensors[0]
    last = first.ndim == 4 and first.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if last and not first.is_contiguous() else torch.contiguous_format
    return tuple(t.contiguous(memory_format=order) for t in tensors)


def over_elements(kernel: Callable[..., None], tensors: Sequence[Tensor], *constants: float) -> None:
    """`kernel(*arrays, *constants, first, last)` over all elements of tensors of one size, `in_one_order`."""
    arrays = [t.detach().as_strided((t.numel(),), (1,)).numpy() for t in tensors]
    count = tensors[0].numel()
    in_threads(lambda first, last: kernel(*arrays, *constants, first, last), count, count // CHEAP)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="bounds")
