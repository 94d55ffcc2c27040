"""The gallery: all candidates in one file, searched exactly."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from holdfast.errors import GalleryError
from holdfast.gallery import boxes as box_columns
from holdfast.gallery import cache, check, copying, database, items, kept, meta, writing
from holdfast.gallery.boxes import Boxes
from holdfast.gallery.cache import Written
from holdfast.gallery.creating import create_store
from holdfast.gallery.exact import SLACK, Doubles, Floats, Scan, Slots, nearest
from holdfast.gallery.kept import Kept
from holdfast.gallery.ranking import Ranked, hits, rank
from holdfast.gallery.rewriting import Rewriting
from holdfast.gallery.store import Store, open_store
from holdfast.gallery.values import EmbedderInfo, GalleryInfo, Hits, Item

WAIT = 30.0
"""Seconds that a write waits for another process's write to end."""


class Gallery:
    """Candidates (id, vector, optional label, path, digest) in one SQLite file, searched through FAISS.

    Each write is one transaction, on the disk when the call returns; a process killed at any moment
    loses nothing committed. Any number of processes read while one writes, and each call sees the
    newest committed state; they share a machine, since locks over a network cannot be relied on.
    Threads may share one object: they read side by side, also while one of them writes. Made by
    `create` and `open`.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        dim: int,
        embedder: EmbedderInfo,
        overwrite: bool = False,
        wait: float = WAIT,
    ) -> Gallery:
        """A new, empty gallery; an old one is replaced only if `overwrite`, any other file never is."""
        create_store(Path(path), dim=dim, embedder=embedder, overwrite=overwrite, wait=wait)
        return cls.open(path, embedder=embedder, wait=wait)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        embedder: EmbedderInfo | None = None,
        readonly: bool = False,
        wait: float = WAIT,
    ) -> Gallery:
        """The gallery at `path`, its vectors read, checked against their checksums, and ready to search.

        Where it has a cache (`write_cache`) they are mapped instead, and checked when first used.
        With `embedder` given, a gallery made by another one is refused: its distances would mean nothing.
        """
        return cls(open_store(Path(path), embedder=embedder, readonly=readonly, wait=wait))

    def close(self) -> None:
        """Let go of the file; closing twice is fine."""
        self._store.close()

    def __enter__(self) -> Gallery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def snapshot(self) -> AbstractContextManager[None]:
        """All reads of this thread inside the block see one committed state, so slots keep their meaning.

        Other threads and processes may write meanwhile.
        """
        return self._store.read()

    def check_embedder(self, embedder: EmbedderInfo) -> None:
        """Refuse an embedder that did not make the vectors: its distances to them would mean nothing."""
        self._store.check_embedder(embedder)

    @property
    def path(self) -> Path:
        return self._store.path

    @property
    def info(self) -> GalleryInfo:
        """What the gallery says of itself, as last committed."""
        return self._store.info()

    def __len__(self) -> int:
        return self.info.count

    def __contains__(self, id: object) -> bool:
        with self.snapshot():
            return isinstance(id, str) and bool(self._found([id]))

    def get(self, id: str) -> Item:
        """The item with this id; an error if there is none."""
        with self.snapshot():
            return self.items(self._slots([id]))[0]

    def vectors(self, ids: Sequence[str]) -> Floats:
        """The stored vectors of these ids, in that order, as a copy."""
        with self.snapshot():
            return self.vectors_at(self._slots(ids))

    def vectors_at(self, slots: Slots) -> Floats:
        """The vectors in these slots, in that order, as a copy; slots are those of the same `snapshot`."""
        with self.snapshot():
            return self._store.gather(writing.VECTOR, slots)

    def boxes_at(self, eps: float, slots: Slots) -> Boxes:
        """The boxes for `eps` of the candidates in these slots; slots are those of the same `snapshot`."""
        with self.snapshot():
            parts = (box_columns.CENTRE, box_columns.RADIUS)
            return Boxes(*(self._store.gather(box_columns.kind(part, eps), slots) for part in parts))

    def all_vectors(self) -> Floats:
        """The vectors of all candidates, by slot; valid until the `snapshot` ends."""
        with self.snapshot():
            return self._filled()

    @property
    def max_norm(self) -> float:
        """At least the norm of every vector."""
        with self.snapshot():
            return self._store.memory.max_norm

    def reach(self, eps: float) -> Floats:
        """For every slot, how far its candidate's vector can move within its box for `eps`, at most."""
        with self.snapshot():
            return self._store.rows(box_columns.kind(box_columns.REACH, eps))[:, 0]

    def items(self, slots: Slots) -> list[Item]:
        """The items in these slots, in that order; slots are those of the same `snapshot`."""
        with self.snapshot():
            found = self._items_at(set(slots.tolist()))
        missing = [slot for slot in slots.tolist() if slot not in found]
        if missing:
            raise GalleryError(f"{self.path} has no item in slot {missing[0]}")
        return [found[slot] for slot in slots.tolist()]

    def ids(self) -> Iterator[str]:
        """All ids in order; one that is added or removed meanwhile may or may not appear."""
        last: str | None = None
        seen, states = 0, set()
        while True:
            with self.snapshot():
                state = self._store.state
                page = items.page_of_ids(self._store.connection, last, self._store.bound_vectors())
                states.add(state.generation)
                if not page and len(states) == 1 and seen != state.count:
                    raise database.DamageError(f"{seen} ids are found where meta counts {state.count}")
            if not page:
                return
            yield from page
            seen, last = seen + len(page), page[-1]

    def catalogue(self) -> dict[str, Item]:
        """Every item by its id, in order."""
        with self.snapshot():
            state, vectors = self._store.state, self._store.bound_vectors()
            found = items.by_id(self._store.connection, state.count, vectors, state.items)
            return {item.id: item for item in found}

    def nearest(self, queries: ArrayLike, k: int, *, names: Sequence[str] | None = None) -> list[Hits]:
        """The k nearest candidates of each query (one vector, or one per row): all of them if k is larger.

        Exact: queries are taken as float32, distances and their order are those of float64; equal
        distances are ordered by id and marked. `names` name the queries in the answer ("0", "1", …).
        """
        rows = self._matrix(queries, "queries")
        names = [str(row) for row in range(len(rows))] if names is None else names
        if len(names) != len(rows):
            raise GalleryError(f"{len(rows)} queries came with {len(names)} names; give one for each")
        with self.snapshot():
            ranked = self._nearest(rows, k)
            found = self._items_at(set(ranked.slots.ravel().tolist()))
        return [hits(name, ranked, row, found) for row, name in enumerate(names)]

    def nearest_arrays(self, queries: ArrayLike, k: int) -> tuple[Doubles, Slots]:
        """Like `nearest`, as two arrays, queries × min(k, candidates): distances and slots.

        Other processes may move slots: ask for their `items` inside the same `snapshot`.
        """
        with self.snapshot():
            ranked = self._nearest(self._matrix(queries, "queries"), k)
        return ranked.distances, ranked.slots

    def scan(self, query: ArrayLike) -> Scan:
        """One query's distances to all candidates, to be asked several times inside the same `snapshot`."""
        rows = self._matrix(query, "a query")
        if len(rows) != 1:
            raise GalleryError(f"a range search takes one query, not {len(rows)}")
        with self.snapshot():
            return Scan(self._filled(), rows[0])

    def hits_of(self, scan: Scan, k: int, *, name: str = "0") -> tuple[Hits, Slots]:
        """What `nearest` says of a scanned query, and the slots of the hits; in the snapshot of the scan."""
        with self.snapshot():
            wanted = self._at_most_all(k)
            ranked = rank([scan.nearest(wanted)], wanted, self._ids_at)
            found = self._items_at(ranked.slots[0].tolist())
        return hits(name, ranked, 0, found), ranked.slots[0]

    def possible(self, scan: Scan, radius: float, eps: float | None = None) -> Slots:
        """Every slot whose distance can be `radius` or less, with `eps` more by what its box for `eps` allows."""
        if eps is None:
            return scan.possible(radius)
        return scan.possible((radius + self.reach(eps).astype(np.float64)) * SLACK)

    def range_search(self, query: ArrayLike, radius: float, *, name: str = "0") -> Hits:
        """Every candidate whose float64 distance to the query is at most `radius`; there may be none."""
        if not radius >= 0:
            raise GalleryError(f"a radius is 0 or more, not {radius}")
        with self.snapshot():
            found = self.scan(query).within(float(radius))
            ranked = rank([found], len(found.slots), self._ids_at)
            return hits(name, ranked, 0, self._items_at(found.slots.tolist()))

    def add(
        self,
        ids: Sequence[str],
        vectors: ArrayLike,
        *,
        labels: Sequence[str | None] | None = None,
        paths: Sequence[str | None] | None = None,
        digests: Sequence[str | None] | None = None,
        boxes: Mapping[float, Boxes] | None = None,
        replace: bool = False,
    ) -> None:
        """Add candidates, all or none; an id that is there already is updated if `replace`, else refused.

        `boxes` are those of the candidates by eps, for exactly the eps that the gallery has boxes for.
        """
        new = writing.make_items(ids, labels, paths, digests)
        if not new:
            return
        rows = self._matrix(vectors, "vectors")
        if len(rows) != len(new):
            raise GalleryError(f"{len(new)} ids came with {len(rows)} vectors; give one for each")
        content = {writing.VECTOR: rows, **box_columns.rows(boxes or {}, rows)}
        with self._store.write():
            writing.add(self._store.connection, new, content, replace=replace)

    def describe(self, changed: Sequence[Item]) -> None:
        """Give items that are there another label, path and digest, all or none; vectors and boxes stay."""
        with self._store.write():
            writing.describe(self._store.connection, list(changed))

    def add_boxes(self, eps: float, make: Callable[[list[Item], Floats], Boxes]) -> None:
        """Give every candidate a box for `eps`, in one transaction; `make` gets some items and their vectors.

        A gallery that has boxes for `eps` is left as it is. Other writers wait meanwhile.
        """
        if not 0 <= eps <= 1:
            raise GalleryError(f"boxes are for an eps between 0 and 1 (the image domain), not {eps}")

        def rows(some: list[Item], vectors: Floats) -> dict[str, Floats]:
            return box_columns.rows({eps: make(some, vectors)}, vectors)

        with self._store.write():
            if eps not in meta.read(self._store.connection).boxes:
                new = box_columns.columns_for(eps, self._store.column.width)
                writing.extend(self._store.connection, new, rows)

    def certificates(self) -> list[Kept]:
        """The kept certificates, by query; those of a gallery of before prove nothing (see `upgrading`)."""
        with self.snapshot():
            state = self._store.state
            found = kept.read(self._store.connection, state)
            return found if state.embedder.current else [one.unproved(state.count) for one in found]

    def keep(self, certificates: Sequence[Kept], *, instead_of: Sequence[Kept] | None = None) -> None:
        """Keep these certificates; one for the same query, threat and k is replaced.

        With `instead_of` only those are kept whose predecessor is there as it is given: what others kept or
        forgot meanwhile stays so.
        """
        with self._store.write():
            if instead_of is not None:
                there = kept.unchanged(self._store.connection, instead_of)
                certificates = [one for one in certificates if one.named in there]
            writing.keep(self._store.connection, certificates)

    @contextmanager
    def rewriting(self) -> Iterator[Rewriting]:
        """Rewrite vectors, boxes, embedder and kept certificates, all or nothing; other writers wait meanwhile."""
        with self._store.write():
            yield Rewriting(self._store)

    def forget(self, queries: Sequence[str]) -> int:
        """Drop the certificates of these queries, and say how many there were."""
        with self._store.write():
            return writing.forget(self._store.connection, queries)

    def remove(self, ids: Iterable[str]) -> int:
        """Remove those of `ids` that are there, all or none, and say how many there were."""
        if isinstance(ids, str):
            raise GalleryError(f"ids must be a list of strings, not the one string '{ids}'")
        chosen = list(ids)  # may itself read from this gallery
        with self._store.write():
            return writing.remove(self._store.connection, chosen)

    def compact(self) -> None:
        """Give the space of removed candidates back to the disk; needs room for a copy meanwhile."""
        with self._store.alone() as connection, database.writing(self.path):
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def write_cache(self) -> Written:
        """Bring the mapped cache beside the gallery up to date, or make it; galleries opened from then on use it.

        A cache never changes an answer, only how soon it is there (see `holdfast.gallery.cache`).
        """
        with self.snapshot():
            return cache.write(self.path, self._store.connection, self._store.state)

    def refresh_cache(self) -> Written | None:
        """As `write_cache`, where it is worth it: the gallery is large or has one, and much has changed."""
        with self.snapshot():
            state = self._store.state
            if 4 * state.dim * state.count < cache.AUTOMATIC and not cache.folder_of(self.path).is_dir():
                return None
            return cache.write(self.path, self._store.connection, state, only_if_stale=True)

    def copy_to(self, out: str | Path) -> GalleryInfo:
        """A consistent copy at `out`, where nothing is yet, while others write; what the copy says of itself.

        It is read whole and compared before it gets its name.
        """
        with self.snapshot():
            copying.copy(self._store.connection, self.path, Path(out))
            return replace(self.info, path=Path(out))

    def put_over(self, live: str | Path) -> GalleryInfo:
        """Replace what the gallery at `live` holds by what this one does, in one transaction for its readers.

        Everything is read and compared first; gives what `live` says of itself then.
        """
        live = Path(live)
        if live.exists() and live.samefile(self.path):
            raise GalleryError(f"{live} and {self.path} are the same file; nothing was replaced")
        with self.snapshot():
            copying.replace(self._store.connection, self.path, live)
        with Gallery.open(live, readonly=True) as made:
            return made.info

    def verify(self) -> list[str]:
        """Read everything and compare; one line for each problem found, none if the gallery is sound."""
        with database.reading(self.path), self._store.lent() as connection:
            return check.problems(connection) or list(cache.problems(self.path, connection))

    def _matrix(self, values: ArrayLike, what: str) -> Floats:
        return writing.matrix(values, self._store.column.width, what)

    def _slots(self, ids: Sequence[str]) -> Slots:
        with self.snapshot():
            found = self._found(ids)
        for id in ids:
            if id not in found:
                raise GalleryError(f"{self.path} has no item '{id}'")
        return np.array([found[id] for id in ids], dtype=np.int64)

    def _ids_at(self, slots: Iterable[int]) -> dict[int, str]:
        return {slot: item.id for slot, item in self._items_at(slots).items()}

    def _found(self, ids: Sequence[str]) -> dict[str, int]:
        return items.slots_of(self._store.connection, ids, self._store.bound_vectors())

    def _items_at(self, slots: Iterable[int]) -> dict[int, Item]:
        return items.items_at(self._store.connection, slots, self._store.bound_vectors())

    def _filled(self) -> Floats:
        vectors = self._store.memory.rows
        if not len(vectors):
            raise GalleryError(f"{self.path} is empty; add images with 'holdfast index' before searching")
        return vectors

    def _nearest(self, rows: Floats, k: int) -> Ranked:
        vectors = self._filled()
        wanted = self._at_most_all(k)
        return rank(nearest(vectors, self._store.memory.max_norm, rows, wanted), wanted, self._ids_at)

    def _at_most_all(self, k: int) -> int:
        try:
            wanted = operator.index(k)
        except TypeError as cause:
            raise GalleryError(f"k is a whole number, not {k!r}") from cause
        if wanted < 1:
            raise GalleryError(f"k is at least 1, not {k}")
        return min(wanted, len(self._store.memory.rows))
