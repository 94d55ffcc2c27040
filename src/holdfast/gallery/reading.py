"""Exact answers about one state of a gallery: from memory, or from what a store proposes.

Both kinds answer the same questions with the same answers. `Local` has all vectors. `Proposed` asks the store, and
float64 decides: a store that is exact is off by at most γ·(‖q‖+‖c‖)² in a squared distance, in whatever form it
computes (see `exact`), and what is asked of it is wider by that much. Where it does not give out enough, or its
index may miss some, all vectors are read and searched here, if they are `WHOLE` or fewer; else the answer is
`TooManyError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from holdfast.gallery import boxes
from holdfast.gallery.exact import (
    MARGIN,
    SLACK,
    Doubles,
    Floats,
    Found,
    Scan,
    Slots,
    cut,
    nearest,
    norm_form_error,
    pair_distances,
)
from holdfast.gallery.stores.base import VECTOR, LostError, TooManyError, VectorStore
from holdfast.gallery.values import GalleryInfo, Item

WHOLE = 1 << 18
"""How many candidates are read in full, at most, where an exact answer needs it."""

EXACT = "FLAT"
"""The index that compares with all candidates; any other may miss some."""

_LARGEST = 2.0**126
_SAMPLE = 256
_BATCH = 1 << 17


class Local:
    """All candidates of a store that has them in memory, in slots 0, 1, …; inside its snapshot."""

    def __init__(self, store: VectorStore) -> None:
        self.store = store

    @property
    def rows(self) -> Floats:
        """The vectors by slot."""
        return self.store.rows(VECTOR)

    @property
    def count(self) -> int:
        """How many candidates there are."""
        return len(self.rows)

    def all_rows_of(self, kind: str) -> Floats:
        """A column of all candidates: their slots are 0 … count − 1."""
        return self.store.rows(kind)

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """The slots of those of `ids` that are there."""
        return self.store.find(ids)

    def items(self, slots: Iterable[int]) -> dict[int, Item]:
        return self.store.items(slots)

    def column(self, kind: str, slots: Slots) -> Floats:
        return self.store.column(kind, slots)

    def nearest(self, queries: Floats, k: int) -> list[Found]:
        """Per query, every candidate that is at least as near as the k-th nearest: k of them, or more by ties."""
        return nearest(self.rows, self.store.max_norm(), queries, k)

    def scan(self, query: Floats) -> Scan:
        """The query against all candidates."""
        return Scan(self.rows, query)

    def possible(self, scan: Scan, radius: float, eps: float | None) -> Slots:
        """Every slot whose distance can be `radius` or less, with `eps` more by what its box for `eps` allows."""
        if eps is None:
            return scan.possible(radius)
        reach = self.store.rows(boxes.kind(boxes.REACH, eps))[:, 0]
        return scan.possible((radius + reach.astype(np.float64)) * SLACK)


class Proposed(Local):
    """The candidates of a store elsewhere, as far as they were met: their slots here are 0, 1, … in that order."""

    def __init__(self, store: VectorStore, info: GalleryInfo) -> None:
        super().__init__(store)
        self.info = info
        self.complete = False
        """Whether every candidate was met."""
        self._places: dict[int, int] = {}
        self._slots: Slots = np.empty(0, dtype=np.int64)
        self._rows: Floats = np.empty((0, info.dim), dtype=np.float32)

    @property
    def rows(self) -> Floats:
        return self._rows[: len(self._places)]

    @property
    def _exact(self) -> bool:
        return self.info.index == EXACT and self.store.promises.proposes

    @property
    def count(self) -> int:
        return self.info.count

    def all_rows_of(self, kind: str) -> Floats:
        self._meet_all("this needs all vectors at once")
        return self.column(kind, np.arange(self.count))

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        found = self.store.find(ids)
        places = self._met(np.array(list(found.values()), dtype=np.int64))
        return dict(zip(found, places.tolist(), strict=True))

    def items(self, slots: Iterable[int]) -> dict[int, Item]:
        places = list(slots)
        theirs = self._slots[np.array(places, dtype=np.int64)].tolist()
        found = self.store.items(theirs)
        return {place: found[slot] for place, slot in zip(places, theirs, strict=True) if slot in found}

    def column(self, kind: str, slots: Slots) -> Floats:
        return self.rows[slots] if kind == VECTOR else self.store.column(kind, self._slots[slots])

    def nearest(self, queries: Floats, k: int, *, exact: bool | None = None) -> list[Found]:
        """As `Local.nearest`; if not `exact`, what the store's index finds (by default, where it may miss some)."""
        exact = self.info.index == EXACT if exact is None else exact
        fetch = min(self.info.count, k + MARGIN)
        found: list[Found] = []
        step = max(1, _BATCH // fetch)
        for first in range(0, len(queries), step):
            part = queries[first : first + step]
            may_ask = not self.complete and (self._exact or (not exact and self.store.promises.proposes))
            asked = self.store.nearest(part, fetch) if may_ask else None
            if asked is None:
                found += [self._whole(query).nearest(k) for query in part]
            else:
                found += self._judged(part, asked, k, fetch, exact=exact)
        return found

    def scan(self, query: Floats) -> ProposedScan:  # type: ignore[override]
        return ProposedScan(self, query)

    def possible(self, scan: ProposedScan, radius: float, eps: float | None) -> Slots:  # type: ignore[override]
        return self.near(scan.query, radius) if eps is None else self._reachable(scan.query, radius, eps)

    def near(self, query: Floats, radius: float) -> Slots:
        """Every slot whose distance can be `radius` or less.

        What the store answers is held against what is known: candidates met before are not missing from it, and
        each distance in it is within the bound.
        """
        error = float(norm_form_error(query[None], self.store.max_norm())[0])
        wide = (radius * SLACK) ** 2 + error
        if self.complete or not self._exact or not wide < _LARGEST:
            return self._whole(query).possible(radius)
        # A store gives what is below a bound, and may read the bound as float32.
        below = float(np.nextafter(np.float32(wide * (1 + 2.0**-20)), np.float32(np.inf)))
        asked = self.store.nearest(query[None], self.info.count, below)
        if asked is None:
            return self._whole(query).possible(radius)
        slots, said = asked[0]
        before = np.arange(len(self._places))
        places = self._met(slots)
        missing = np.setdiff1d(before[distances(self.rows, before, query) <= radius * SLACK], places)
        if len(missing):
            raise LostError(f"slot {self._slots[missing[0]]} is missing from a range search")
        true = distances(self.rows, places, query)
        if not (np.abs(said - true**2) <= error).all():
            return self._whole(query).possible(radius)
        return np.unique(places[true <= radius * SLACK])

    def _reachable(self, query: Floats, radius: float, eps: float) -> Slots:
        """Every slot whose distance is `radius` or less, or more by no more than it can move within its box.

        Most candidates move about as far as those that were met: they are found by distance. The few that move
        farther are taken whatever their distance.
        """
        kind = boxes.kind(boxes.REACH, eps)
        sample = np.arange(min(len(self._places), _SAMPLE))
        usual = self.column(kind, sample)[:, 0].astype(np.float64)
        # A float32 number, so that the store compares with exactly this.
        far = min(float(2 * usual[np.isfinite(usual)].max(initial=0.0)), 2.0**100)
        wide = None if self.complete else self.store.farther(eps, far)
        if wide is None:
            self._whole(query)
            near = np.arange(len(self.rows))
        else:
            near = np.union1d(self.near(query, (radius + far) * SLACK), self._met(wide))
        moves = self.column(kind, near)[:, 0]
        return near[~(distances(self.rows, near, query) > (radius + moves.astype(np.float64)) * SLACK)]

    def _judged(
        self, queries: Floats, asked: Sequence[tuple[Slots, Doubles]], k: int, fetch: int, *, exact: bool
    ) -> list[Found]:
        """What the store proposed for each query, if float64 proves that nothing is missing; else a scan of all."""
        self._met(np.unique(np.concatenate([slots for slots, _ in asked])))
        errors = norm_form_error(queries, self.store.max_norm())
        answer = []
        for query, error, (slots, near) in zip(queries, errors.tolist(), asked, strict=True):
            slots, first = np.unique(slots, return_index=True)
            near, places = near[first], self._met(slots)
            true = distances(self.rows, places, query)
            if len(places) < (fetch if exact else k):
                answer.append(self._whole(query).nearest(k))
                continue
            kth = float(np.partition(true, k - 1)[k - 1])
            if exact and fetch < self.info.count:
                if not (np.abs(near - true**2) <= error).all():
                    answer.append(self._whole(query).nearest(k))
                    continue
                if not float(near.max()) - error > kth**2 * SLACK:
                    places = self.near(query, kth)
                    true = distances(self.rows, places, query)
            answer.append(cut(true, places, kth))
        return answer

    def _whole(self, query: Floats) -> Scan:
        """The query against all candidates, read from the store."""
        if not self.store.promises.proposes:
            why = f"{self.store.promises.name} proposes nothing"
        elif self._exact:
            why = f"more candidates than {self.store.promises.name} gives out would have to be compared"
        else:
            why = f"the index {self.info.index} is approximate"
        self._meet_all(why)
        return Scan(self.rows, query)

    def _meet_all(self, why: str) -> None:
        if self.complete:
            return
        if self.info.count > WHOLE:
            raise TooManyError(
                f"{why}, and {self.info.count:,} candidates are too many to be read in full (at most {WHOLE:,})"
            )
        self._met(self.store.slots())
        if len(self._places) != self.info.count:
            raise LostError(f"{self.info.count} candidates are counted, {len(self._places)} are there")
        self.complete = True

    def _met(self, slots: Slots) -> Slots:
        """The places here of slots of the store, whose vectors are read now if they were not met before."""
        new = np.array([s for s in dict.fromkeys(slots.tolist()) if s not in self._places], dtype=np.int64)
        if len(new):
            before, after = len(self._places), len(self._places) + len(new)
            vectors = self.store.column(VECTOR, new)
            if after > len(self._rows):
                size = max(after, 2 * before)
                room = np.empty((size - before, self.info.dim), np.float32)
                self._rows = np.concatenate([self.rows, room])
                self._slots = np.concatenate([self._slots[:before], np.empty(size - before, np.int64)])
            self._rows[before:after], self._slots[before:after] = vectors, new
            self._places.update(zip(new.tolist(), range(before, after), strict=True))
        return np.array([self._places[slot] for slot in slots.tolist()], dtype=np.int64)


class ProposedScan:
    """One query against the candidates of a store elsewhere; answers as `Scan` does."""

    def __init__(self, view: Proposed, query: Floats) -> None:
        self._view = view
        self.query = query

    @property
    def vectors(self) -> Floats:
        """The vectors by slot: at least those of every slot that was named so far."""
        return self._view.rows

    def nearest(self, k: int) -> Found:
        """Exact; what an approximate index finds only where there are too many candidates to read."""
        try:
            return self._view.nearest(self.query[None], k, exact=True)[0]
        except TooManyError:
            if self._view._exact or not self._view.store.promises.proposes:
                raise
            return self._view.nearest(self.query[None], k, exact=False)[0]

    def within(self, radius: float) -> Found:
        slots = self._view.near(self.query, radius)
        return cut(self.distances(slots), slots, radius)

    def distances(self, slots: Slots) -> Doubles:
        return distances(self._view.rows, slots, self.query)


def distances(rows: Floats, slots: Slots, query: Floats) -> Doubles:
    """Float64 distances of some of `rows` to one query."""
    return pair_distances(rows, slots[None, :], query[None, :]).reshape(-1)
