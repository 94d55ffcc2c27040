"""Memory that tensors give back is kept for the next ones.

A network's large activations are freed and asked for again at every layer. By default the C library returns them
to the system each time and gets zeroed pages anew: with efficientnet-lite0 at 128 pixels that takes more time than
the arithmetic. A process that embeds images for a living keeps them.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # malloc.h


def keep_freed_memory() -> bool:
    """Tell the C library to keep what is freed; True if it has such a switch (glibc). For the whole process."""
    try:
        switch = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(switch(_MMAP_MAX, 0)) and bool(switch(_TRIM_THRESHOLD, 2**31 - 1))


def give_back() -> None:
    """Return to the system what the C library has kept, where it has such a switch (glibc)."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
