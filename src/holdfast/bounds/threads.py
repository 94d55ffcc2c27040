"""Sharing a compiled loop among threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

_SMALL = 1 << 15
"""Results below which handing work to threads costs more than it gains."""


def in_threads(work: Callable[[int, int], None], rows: int, size: int) -> None:
    """`work(first, last)` over all rows, shared among as many threads as torch may use."""
    threads = torch.get_num_threads()
    if threads == 1 or size < _SMALL or rows < threads:
        work(0, rows)
        return
    edges = [rows * t // threads for t in range(threads + 1)]
    list(_pool(threads).map(work, edges[:-1], edges[1:]))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="bounds")
