"""What the environment says about data: where it is kept, and how much memory it may take."""

from __future__ import annotations

import os
import re
from pathlib import Path

from holdfast.errors import ConfigError

BUNDLED = Path(__file__).parent / "bundled"
DEBIAN = Path("/usr/share/datasets")
DEFAULT_MEMORY = 4 * 2**30

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE)


def cache_folder() -> Path:
    """`$HOLDFAST_CACHE`, else `~/.cache/holdfast`; it may not exist yet."""
    wish = os.environ.get("HOLDFAST_CACHE", "")
    return Path(wish).expanduser() if wish else Path.home() / ".cache" / "holdfast"


def fetched_folder() -> Path:
    """Where `fetch` puts data sets unless it is told otherwise."""
    return cache_folder() / "data"


def data_folders() -> tuple[Path, ...]:
    """The folders that may hold data sets, in the order they are looked through."""
    wish = os.environ.get("HOLDFAST_DATA", "")
    named = (Path(part).expanduser() for part in wish.split(os.pathsep) if part)
    return (BUNDLED, *named, fetched_folder(), DEBIAN)


def memory_cap() -> int:
    """How many bytes of decoded pixels one data set may keep in memory (`$HOLDFAST_MEMORY`, else 4 GiB)."""
    wish = os.environ.get("HOLDFAST_MEMORY", "")
    return parse_size(wish) if wish else DEFAULT_MEMORY


def parse_size(text: str) -> int:
    """The number of bytes in a size such as "2GiB", "500 MB" or "4096"; a unit is a power of 1024."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"HOLDFAST_MEMORY is '{text}', which is not a size; write it like 2GiB or 500MB")
    return int(float(found[1]) * _UNITS[(found[2] or "").upper()])
