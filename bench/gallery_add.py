"""Adding 100,000 × 128 vectors with ids, labels and paths to a new gallery, until they are on the disk."""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

from _common import alternate, report

# isort: split
import _gallery

BATCH = 10_000


def main() -> int:
    base = _gallery.vectors(_gallery.COUNT, 0)
    ids, labels, paths = _gallery.names()
    with tempfile.TemporaryDirectory() as folder:
        fresh = (Path(folder) / str(number) for number in itertools.count())

        def at_once() -> None:
            _gallery.filled(next(fresh), base).close()

        def in_batches() -> None:
            with _gallery.filled(next(fresh), base[:0]) as gallery:
                for start in range(0, _gallery.COUNT, BATCH):
                    part = slice(start, start + BATCH)
                    gallery.add(ids[part], base[part], labels=labels[part], paths=paths[part])

        seconds = alternate({"at once": at_once, f"{BATCH:,} at a time": in_batches}, 3)
    rates = {name: _gallery.COUNT / value for name, value in seconds.items()}
    for name, rate in rates.items():
        print(f"{name}: {rate:,.0f} vectors a second")
    return 0 if report("gallery_add", min(rates.values()), 20_000, "higher", "vectors a second") else 1


if __name__ == "__main__":
    sys.exit(main())
