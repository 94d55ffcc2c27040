"""Room for decoded pixels: in memory where they fit, else in a file that is mapped and reused."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.data.settings import cache_folder, memory_cap
from holdfast.files import atomic_path, atomic_write
from holdfast.spec import ImageSpec

Problems = dict[int, str]
"""Rows that could not be filled, and why."""

Fill = Callable[[NDArray[np.uint8]], Problems]

_FORMAT = 1


def filled(count: int, spec: ImageSpec, stamps: list[str], fill: Fill) -> tuple[NDArray[np.uint8], Problems]:
    """`count` images of `spec`, written by `fill`.

    Beyond the memory cap they are written to a file in the cache, which appears only once complete; a later
    call with equal `stamps` maps that file again instead of calling `fill`.
    """
    shape = (count, *spec.shape)
    if count * spec.channels * spec.height * spec.width <= memory_cap():
        pixels = np.empty(shape, dtype=np.uint8)
        return pixels, fill(pixels)
    path = cache_folder() / "decoded" / f"{_key(spec, stamps)}.npy"
    notes = path.with_suffix(".json")
    kept = _reopen(path, notes, shape)
    if kept is not None:
        return kept
    problems = _write(path, notes, shape, fill)
    return _mapped(path), problems


def _key(spec: ImageSpec, stamps: list[str]) -> str:
    filtered = [] if spec.resample == "bicubic" else [spec.resample]
    resized = [] if spec.resize is None else [spec.resize]
    content = json.dumps([_FORMAT, *spec.shape, spec.fit, *filtered, *resized, stamps])
    return hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _mapped(path: Path) -> NDArray[np.uint8]:
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _reopen(path: Path, notes: Path, shape: tuple[int, ...]) -> tuple[NDArray[np.uint8], Problems] | None:
    try:
        pixels = _mapped(path)
        problems = {int(row): str(reason) for row, reason in json.loads(notes.read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return None
    if pixels.shape != shape or pixels.dtype != np.uint8:
        return None
    return pixels, problems


def _write(path: Path, notes: Path, shape: tuple[int, ...], fill: Fill) -> Problems:
    with atomic_path(path) as temporary:
        pixels = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
        # Without the room set aside first, a full disk would end the process (SIGBUS) instead of raising.
        with open(temporary, "rb+") as handle:
            os.posix_fallocate(handle.fileno(), 0, os.fstat(handle.fileno()).st_size)
        problems = fill(np.asarray(pixels))
        pixels.flush()
        # The notes come first: pixels without notes would hide what was skipped.
        atomic_write(notes, json.dumps({str(row): reason for row, reason in problems.items()}))
    return problems
