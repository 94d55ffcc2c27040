"""The decode pass: every image of a set once, through a few threads, into one array."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from holdfast.data.fit import fit_arrays, to_8bit
from holdfast.data.images import MAX_BYTES, decode
from holdfast.data.listing import ArrayListing, FileListing
from holdfast.data.source import Source, is_gone, unreadable
from holdfast.data.store import Problems, filled
from holdfast.errors import ImageError
from holdfast.progress import bar
from holdfast.spec import ImageSpec

_CHUNK = 32


def decode_files(
    source: Source, listing: FileListing, spec: ImageSpec, doing: str
) -> tuple[NDArray[np.uint8], Problems]:
    """The pixels of all files of `listing`, one row each; the rows that could not be read, and why."""
    names = listing.names

    def fill(pixels: NDArray[np.uint8]) -> Problems:
        def fill_chunk(start: int) -> Problems:
            problems: Problems = {}
            for row in range(start, min(start + _CHUNK, len(names))):
                try:
                    pixels[row] = to_8bit(decode(content(source, names[row]), spec))
                except ImageError as cause:
                    problems[row] = str(cause)
            return problems

        return _in_threads(fill_chunk, len(names), doing)

    stored = (source.files[name] for name in names)
    stamps = [f"{name} {entry.size} {entry.modified}" for name, entry in zip(names, stored, strict=True)]
    return filled(len(names), spec, [source.stamp(), *stamps], fill)


def bring_arrays(source: Source, listing: ArrayListing, spec: ImageSpec) -> NDArray[np.uint8]:
    """The pixels of `listing` at `spec`: the array itself where it is so already."""
    if listing.pixels.shape[1:] == spec.shape and spec.resize is None:
        return listing.pixels

    def fill(pixels: NDArray[np.uint8]) -> Problems:
        fit_arrays(listing.pixels, spec, pixels)
        return {}

    stamps = [f"{name} {entry.size} {entry.modified}" for name, entry in source.files.items()]
    return filled(len(listing.ids), spec, [source.stamp(), *stamps], fill)[0]


def content(source: Source, name: str) -> bytes:
    """The bytes of one image file; ImageError where it is too large or gone.

    Any other failure to read is no fault of the file: a DataError, which ends the work.
    """
    size = source.files[name].size
    if size > MAX_BYTES:
        raise ImageError(f"too large: {size} bytes")
    try:
        return source.read(name)
    except OSError as cause:
        if is_gone(cause):
            raise ImageError(cause.strerror or "no such file") from cause
        raise unreadable(source.place(name), cause) from cause


def workers() -> int:
    """Threads that decode: Pillow lets others run while it decodes and resizes."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _in_threads(fill_chunk: Callable[[int], Problems], count: int, doing: str) -> Problems:
    problems: Problems = {}
    pool = ThreadPoolExecutor(workers(), thread_name_prefix="decode")
    try:
        with bar(doing, count) as advance:
            starts = range(0, count, _CHUNK)
            for start, found in zip(starts, pool.map(fill_chunk, starts), strict=True):
                problems |= found
                advance(min(_CHUNK, count - start), note=f"{len(problems)} skipped" if problems else "")
    finally:
        pool.shutdown(cancel_futures=True)
    return problems
