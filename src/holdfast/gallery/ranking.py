"""From found candidates to hits: ties are settled by id, and marked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import GalleryError
from holdfast.gallery.exact import Doubles, Found, Slots
from holdfast.gallery.values import Hit, Hits, Item

IdsAt = Callable[[Iterable[int]], Mapping[int, str]]


@dataclass(frozen=True)
class Ranked:
    """Queries × k: distances, slots, and whether another candidate has the same distance."""

    distances: Doubles
    slots: Slots
    tied: NDArray[np.bool_]


def rank(found: Sequence[Found], k: int, ids_at: IdsAt) -> Ranked:
    """The first k of each query's candidates, equal distances by id; ids are read only for ties."""
    shape = (len(found), k)
    ranked = Ranked(np.empty(shape), np.empty(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_))
    for row, one in enumerate(found):
        if one.ties:
            one, tied = _settled(one, ids_at)
            ranked.tied[row] = tied[:k]
        ranked.distances[row] = one.distances[:k]
        ranked.slots[row] = one.slots[:k]
    return ranked


def hits(query: str, ranked: Ranked, row: int, items: Mapping[int, Item]) -> Hits:
    """One row of `ranked` with its items."""
    columns = (ranked.distances[row].tolist(), ranked.slots[row].tolist(), ranked.tied[row].tolist())
    made = []
    for place, (distance, slot, tied) in enumerate(zip(*columns, strict=True), start=1):
        if slot not in items:
            raise GalleryError(f"the gallery is damaged: no item is in slot {slot}; index the images again")
        item = items[slot]
        made.append(Hit(place, item.id, distance, item.label, item.path, tied))
    return Hits(query, tuple(made))


def _settled(one: Found, ids_at: IdsAt) -> tuple[Found, NDArray[np.bool_]]:
    same = one.distances[1:] == one.distances[:-1]
    tied = np.zeros(len(one.slots), dtype=np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    ids = ids_at(one.slots[tied].tolist())
    keys = list(zip(one.distances.tolist(), one.slots.tolist(), strict=True))
    order = sorted(range(len(keys)), key=lambda place: (keys[place][0], ids.get(keys[place][1], "")))
    return Found(one.distances[order], one.slots[order]), tied
