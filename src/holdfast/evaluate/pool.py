"""Candidates in memory, as the rules of a smoothed search ask them: what is measured is what is deployed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from holdfast.gallery.exact import Doubles, Floats, Scan, Slots, nearest
from holdfast.gallery.ranking import Ranked, hits, rank
from holdfast.gallery.values import EmbedderInfo, GalleryInfo, Hits, Item


class Pool:
    """A gallery of vectors and labels that is never written; a slot is a row."""

    path = "candidates in memory"

    def __init__(self, vectors: Floats, labels: Sequence[str | None]) -> None:
        self._vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self._items = [Item(f"{row:09d}", label) for row, label in enumerate(labels)]
        self._longest = float(np.linalg.norm(self._vectors.astype(np.float64), axis=1).max())

    def __len__(self) -> int:
        return len(self._items)

    @property
    def info(self) -> GalleryInfo:
        count, dim = self._vectors.shape
        return GalleryInfo(self.path, "", dim, count, EmbedderInfo("memory"), "", 0)

    def all_vectors(self) -> Floats:
        return self._vectors

    def items(self, slots: Slots) -> list[Item]:
        return [self._items[slot] for slot in slots.tolist()]

    def search_arrays(self, queries: ArrayLike, k: int) -> tuple[Doubles, Slots]:
        rows = np.atleast_2d(np.asarray(queries, dtype=np.float32))
        wanted = min(k, len(self))
        ranked = rank(nearest(self._vectors, self._longest, rows, wanted), wanted, self._ids)
        return ranked.distances, ranked.slots

    def scan(self, query: ArrayLike) -> Scan:
        return Scan(self._vectors, np.asarray(query, dtype=np.float32))

    def hits_of(self, scan: Scan, k: int, *, name: str = "0") -> tuple[Hits, Slots]:
        wanted = min(k, len(self))
        ranked: Ranked = rank([scan.nearest(wanted)], wanted, self._ids)
        slots = ranked.slots[0]
        return hits(name, ranked, 0, dict(zip(slots.tolist(), self.items(slots), strict=True))), slots

    def _ids(self, slots: Iterable[int]) -> dict[int, str]:
        return {slot: self._items[slot].id for slot in slots}
