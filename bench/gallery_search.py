"""`gallery.search` over 100,000 × 128 against a bare FAISS flat search: one query, and a batch of 64."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from _common import alternate, report

# isort: split
import faiss

import _gallery

K = 10


def main() -> int:
    base, queries = _gallery.vectors(_gallery.COUNT, 0), _gallery.vectors(64, 1)
    index = faiss.IndexFlatL2(_gallery.DIM)
    index.add(base)
    with tempfile.TemporaryDirectory() as folder, _gallery.filled(Path(folder) / "g", base) as gallery:
        worst = 0.0
        for size, repeats in ((1, 60), (64, 12)):
            batch = queries[:size]
            seconds = alternate(
                {
                    "gallery": lambda batch=batch: gallery.nearest(batch, K),  # type: ignore[misc]
                    "faiss": lambda batch=batch: index.search(batch, K),  # type: ignore[misc]
                },
                repeats,
            )
            ratio = seconds["gallery"] / seconds["faiss"]
            worst = max(worst, ratio)
            ours, bare = seconds["gallery"] * 1e3, seconds["faiss"] * 1e3
            print(f"{size:>2} queries: gallery {ours:.2f} ms, FAISS {bare:.2f} ms, ratio {ratio:.2f}")
    return 0 if report("gallery_search", worst, 1.2, "lower", "faiss.IndexFlatL2.search") else 1


if __name__ == "__main__":
    sys.exit(main())
