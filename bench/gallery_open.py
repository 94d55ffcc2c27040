"""Opening a gallery of 100,000 × 128, ready to search, against reading the bytes of its file.

A program opens a gallery once, so both begin in memory that the system has yet to provide. The first line
says how it is where the memory of the opening before is used again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from _common import alternate, report

# isort: split
import _gallery
from holdfast.gallery import Gallery


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "g"
        _gallery.filled(path, _gallery.vectors(_gallery.COUNT, 0)).close()

        def opened() -> None:
            Gallery.open(path, embedder=_gallery.EMBEDDER).close()

        ways = {"gallery": opened, "read": path.read_bytes}
        again = alternate(ways, 15)
        seconds = alternate(ways, 15, fresh=True)
        size = path.stat().st_size / 1e6
    ratio = seconds["gallery"] / seconds["read"]
    ours, bare = seconds["gallery"] * 1e3, seconds["read"] * 1e3
    print(f"in memory used before: ratio {again['gallery'] / again['read']:.2f}")
    print(f"{size:.1f} MB: opened in {ours:.1f} ms, read in {bare:.1f} ms, ratio {ratio:.2f}")
    return 0 if report("gallery_open", ratio, 2.0, "lower", "reading the file's bytes") else 1


if __name__ == "__main__":
    sys.exit(main())
