"""One committed state of a gallery in Milvus, and what has been read of it.

Candidates get places here, 0, 1, … in the order in which they are met: these are the slots that a gallery in
Milvus names. Milvus proposes by squared float32 distances, float64 decides. On a FLAT index nothing is missed:
a float32 value, in whatever form it was computed, is off by at most γ·(‖q‖+‖c‖)² (see `exact`), and what is
asked of Milvus is wider by that much. Where Milvus does not give out enough rows, or the index is approximate,
all vectors are read and searched here, if they are `WHOLE` or fewer; else the answer is `TooManyError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from holdfast.errors import GalleryError
from holdfast.gallery.boxes import Boxes
from holdfast.gallery.exact import (
    MARGIN,
    SLACK,
    Doubles,
    Floats,
    Found,
    Scan,
    Slots,
    cut,
    norm_form_error,
    pair_distances,
)
from holdfast.gallery.interface import TooManyError
from holdfast.gallery.milvus import rows as stored
from holdfast.gallery.milvus.documents import State
from holdfast.gallery.milvus.link import MOST, Link
from holdfast.gallery.milvus.rows import Row
from holdfast.gallery.values import Item

WHOLE = 1 << 18
"""How many candidates are read in full, at most, where an exact answer needs it."""

_ASKED = 1000
_PAGE_BYTES = 1 << 24
_BATCH = 1 << 17
_LARGEST = 2.0**126
_SAMPLE = 256


class View:
    """The candidates of one state; valid as long as that state counts."""

    def __init__(self, link: Link, collection: str, state: State) -> None:
        self.state = state
        self.complete = False
        """Whether every candidate has a place."""
        self._link, self._collection = link, collection
        self._places: dict[int, int] = {}
        self._slots: Slots = np.empty(0, dtype=np.int64)
        self._rows: Floats = np.empty((0, state.dim), dtype=np.float32)

    @property
    def rows(self) -> Floats:
        """The vectors by place, of all candidates met so far."""
        return self._rows[: len(self._places)]

    def slots(self, places: Slots) -> Slots:
        """Which slots in Milvus the candidates at these places have."""
        return self._slots[places]

    def places(self, slots: Slots) -> Slots:
        """The places of candidates, read now if they were not met before."""
        new = np.array([s for s in dict.fromkeys(slots.tolist()) if s not in self._places], dtype=np.int64)
        if len(new):
            self._meet(stored.in_order(self.fetch(new, ["slot", "vector", "check"]), new))
        return np.array([self._places[slot] for slot in slots.tolist()], dtype=np.int64)

    def fetch(self, slots: Slots, fields: Sequence[str], collection: str | None = None) -> list[Row]:
        """The rows of these slots, one for each, in no particular order."""
        name = collection or self._collection
        found: list[Row] = []
        for first in range(0, len(slots), _ASKED):
            part = slots[first : first + _ASKED].tolist()
            found += self._link.query(name, f"slot in {part}", fields, stamp=self._stamp(name))
        return stored.single(found)

    def pages(self, fields: Sequence[str], collection: str | None = None) -> Iterator[list[Row]]:
        """All rows of the state, in order of their slots, a page at a time.

        A page is a span of slots that cannot hold more rows than Milvus gives out at once.
        """
        name = collection or self._collection
        size = max(1, min(MOST // 4, _PAGE_BYTES // (8 * self.state.dim)))
        for first in range(0, self.state.next_slot, size):
            last = min(first + size, self.state.next_slot)
            if not self.state.holds(np.arange(first, last)).any():
                continue
            within = f"slot >= {first} and slot < {last}"
            found = stored.single(self._link.query(name, within, fields, stamp=self._stamp(name)))
            alive = self.state.holds(np.array([row["slot"] for row in found], dtype=np.int64))
            page = [row for row, keep in zip(found, alive, strict=True) if keep]
            yield sorted(page, key=lambda row: int(row["slot"]))

    def every(self, fields: Sequence[str]) -> Iterator[list[Row]]:
        """The pages of all candidates, and an error at the end if one was missing."""
        count = 0
        for page in self.pages(fields):
            count += len(page)
            yield page
        if count != self.state.count:
            raise stored.LostError(f"{self.state.count} candidates are counted, {count} are there")

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """The slots of those of `ids` that the state has."""
        wanted, found = set(ids), {}
        keys = [stored.key(id) for id in wanted]
        for first in range(0, len(keys), _ASKED):
            named = f"key in {keys[first : first + _ASKED]} and {self.state.expression}"
            for row in self._link.query(
                self._collection, named, ["slot", "item", "check"], stamp=self._stamp(self._collection)
            ):
                item = stored.item_of(row)
                if item.id in wanted:
                    found[item.id] = int(row["slot"])
        return found

    def items(self, places: Slots) -> list[Item]:
        slots = self.slots(places)
        return [
            stored.item_of(row)
            for row in stored.in_order(self.fetch(slots, ["slot", "item", "check"]), slots)
        ]

    def boxes(self, eps: float, places: Slots) -> tuple[Boxes, Floats]:
        """The boxes for `eps`, and how far each candidate can move in its own."""
        slots = self.slots(places)
        found = self.fetch(slots, stored.BOX, self._boxes(eps))
        return stored.boxes_of(stored.in_order(found, slots), self.state.dim)

    def meet_all(self, why: str) -> None:
        """Give every candidate a place: all vectors are read."""
        if self.complete:
            return
        if self.state.count > WHOLE:
            raise TooManyError(
                f"{why}, and {self.state.count:,} candidates are too many to be read in full (at most {WHOLE:,})"
            )
        for page in self.pages(["slot", "vector", "check"]):
            self._meet(page)
        if len(self._places) != self.state.count:
            raise stored.LostError(
                f"{self.state.count} candidates are counted, {len(self._places)} are there"
            )
        self.complete = True

    def nearest(self, queries: Floats, k: int, *, exact: bool = True) -> list[Found]:
        """Per query, every candidate at least as near as the k-th nearest; what the index finds if not `exact`."""
        if self.complete or k + MARGIN > MOST or (exact and not self.state.index.exact):
            return [self.scan(query).nearest(k) for query in queries]
        fetch = min(self.state.count, k + MARGIN)
        found: list[Found] = []
        step = max(1, _BATCH // fetch)
        for first in range(0, len(queries), step):
            found += self._nearest(queries[first : first + step], k, fetch, exact=exact)
        return found

    def scan(self, query: Floats) -> Scan:
        """The query against all candidates, here."""
        if not self.state.index.exact:
            why = f"the index {self.state.index.kind} is approximate"
        else:
            why = f"more than the {MOST:,} candidates that Milvus gives out would have to be compared"
        self.meet_all(why)
        return Scan(self.rows, query)

    def near(self, query: Floats, radius: float) -> Slots:
        """Every place whose distance can be `radius` or less.

        What Milvus answers is held against what is known: candidates met before are not missing from it, and
        each distance in it is within the bound.
        """
        if self.complete or not self.state.index.exact:
            return self.scan(query).possible(radius)
        error = float(norm_form_error(query[None], self.state.max_norm)[0])
        asked = (radius * SLACK) ** 2 + error
        if not asked < _LARGEST:
            return self.scan(query).possible(radius)
        # Milvus gives what is below a bound, and reads the bound as float32.
        bound = float(np.nextafter(np.float32(asked * (1 + 2.0**-20)), np.float32(np.inf)))
        slots, said = self._search(query[None], MOST, {"radius": bound})[0]
        if len(slots) >= MOST:
            return self.scan(query).possible(radius)
        met = np.arange(len(self._places))
        places = self.places(slots)
        missing = np.setdiff1d(met[distances(self.rows, met, query) <= radius * SLACK], places)
        if len(missing):
            raise stored.LostError(f"slot {self.slots(missing)[0]} is missing from a range search")
        true = distances(self.rows, places, query)
        if not (np.abs(said - true**2) <= error).all():
            return self.scan(query).possible(radius)
        return np.unique(places[true <= radius * SLACK])

    def reachable(self, query: Floats, radius: float, eps: float) -> Slots:
        """Every place whose distance is `radius` or less, or more by no more than it can move within its box.

        Most candidates move about as far as those that were met: they are found by distance. The few that move
        farther are taken whatever their distance.
        """
        collection = self._boxes(eps)
        met = np.arange(min(len(self._places), _SAMPLE))
        usual = self.boxes(eps, met)[1].astype(np.float64) if len(met) else np.empty(0)
        # A float32 number, so that Milvus compares with exactly this.
        far = min(float(2 * usual[np.isfinite(usual)].max(initial=0.0)), 2.0**100)
        wide: Sequence[Row] = []
        if not self.complete:
            wide = self._link.query(
                collection,
                f"reach > {far!r} and {self.state.expression}",
                ["slot"],
                stamp=self._stamp(collection),
            )
        if self.complete or len(wide) >= MOST:
            self.scan(query)
            near = np.arange(len(self.rows))
        else:
            near = np.union1d(
                self.near(query, (radius + far) * SLACK),
                self.places(np.array([row["slot"] for row in wide], dtype=np.int64)),
            )
        moves = np.empty(len(near))
        for first in range(
            0, len(near), _ASKED
        ):  # Whole rows: the checksum of a reach is over all of its box.
            part = slice(first, first + _ASKED)
            moves[part] = self.boxes(eps, near[part])[1]
        return near[~(distances(self.rows, near, query) > (radius + moves) * SLACK)]

    def _nearest(self, queries: Floats, k: int, fetch: int, *, exact: bool) -> list[Found]:
        asked = self._search(queries, fetch, {})
        met = np.unique(np.concatenate([slots for slots, _ in asked]))
        self.places(met)
        errors = norm_form_error(queries, self.state.max_norm)
        answer = []
        for query, error, (slots, near) in zip(queries, errors.tolist(), asked, strict=True):
            slots, first = np.unique(slots, return_index=True)
            near = near[first]
            places = self.places(slots)
            true = distances(self.rows, places, query)
            if len(places) < (fetch if exact else k):
                answer.append(self.scan(query).nearest(k))
                continue
            kth = float(np.partition(true, k - 1)[k - 1])
            if exact and fetch < self.state.count:
                kept_its_bound = bool((np.abs(near - true**2) <= error).all())
                beyond = float(near.max()) - error
                if not kept_its_bound:
                    answer.append(self.scan(query).nearest(k))
                    continue
                if not beyond > kth**2 * SLACK:
                    places = self.near(query, kth)
                    true = distances(self.rows, places, query)
            answer.append(cut(true, places, kth))
        return answer

    def _search(self, queries: Floats, limit: int, ask: dict[str, float]) -> list[tuple[Slots, Doubles]]:
        chosen: dict[str, float] = {**self.state.index.ask, **ask}
        if "ef" in chosen:
            chosen["ef"] = max(chosen["ef"], limit)
        return self._link.search(
            self._collection,
            queries,
            limit,
            expression=self.state.expression,
            stamp=self._stamp(self._collection),
            ask=chosen,
        )

    def _meet(self, rows: Sequence[Row]) -> None:
        found = [row for row in stored.single(rows) if row["slot"] not in self._places]
        if not found:
            return
        vectors = stored.vectors_of(found, self.state.dim)
        before, after = len(self._places), len(self._places) + len(found)
        if after > len(self._rows):
            size = max(after, 2 * before)
            self._rows = np.concatenate([self.rows, np.empty((size - before, self.state.dim), np.float32)])
            self._slots = np.concatenate([self._slots[:before], np.empty(size - before, np.int64)])
        self._rows[before:after] = vectors
        self._slots[before:after] = [row["slot"] for row in found]
        self._places.update((int(row["slot"]), before + n) for n, row in enumerate(found))

    def _boxes(self, eps: float) -> str:
        if eps not in self.state.boxes:
            raise GalleryError(f"the gallery has no boxes for linf:{eps:g}")
        return self.state.boxes[eps]

    def _stamp(self, collection: str) -> int:
        return self.state.stamps.get(collection, 0)


class RemoteScan:
    """One query against the candidates of a view; its slots are places there."""

    def __init__(self, view: View, query: Floats) -> None:
        self.view = view
        self.query = query

    @property
    def vectors(self) -> Floats:
        return self.view.rows

    def nearest(self, k: int) -> Found:
        """Exact; what the index finds only where it is approximate and there are too many candidates to read."""
        try:
            return self.view.nearest(self.query[None], k)[0]
        except TooManyError:
            if self.view.state.index.exact:
                raise
            return self.view.nearest(self.query[None], k, exact=False)[0]

    def within(self, radius: float) -> Found:
        places = self.view.near(self.query, radius)
        return cut(self.distances(places), places, radius)

    def distances(self, slots: Slots) -> Doubles:
        return distances(self.view.rows, slots, self.query)


def distances(rows: Floats, places: Slots, query: Floats) -> Doubles:
    """Float64 distances of some of `rows` to one query."""
    return pair_distances(rows, places[None, :], query[None, :]).reshape(-1)
