"""The gallery: all candidates, searched exactly, whatever store holds them."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from holdfast.errors import GalleryError
from holdfast.gallery import boxes as box_columns
from holdfast.gallery.boxes import Boxes
from holdfast.gallery.exact import Doubles, Floats, Slots
from holdfast.gallery.given import make_items, matrix, some
from holdfast.gallery.kept import Kept
from holdfast.gallery.ranking import Ranked, hits, rank
from holdfast.gallery.reading import Local, Proposed
from holdfast.gallery.stores import store_at
from holdfast.gallery.stores.base import (
    VECTOR,
    WAIT,
    ChangedError,
    LostError,
    Promises,
    VectorStore,
    boxes_of,
)
from holdfast.gallery.values import EmbedderInfo, GalleryInfo, Hits, Item

if TYPE_CHECKING:
    from holdfast.gallery.stores.sqlite.cache import Written
    from holdfast.gallery.stores.sqlite.rewriting import Rewriting

T = TypeVar("T")

TRIES = 5
"""How often a read is done again because another process changed the gallery meanwhile."""


class _Here(threading.local):
    """What the current thread reads."""

    view: Local | None = None


class Gallery:
    """Candidates (id, vector, optional label, path, digest) in a store, searched exactly.

    A write is all or none, for readers too; what else holds is what the store promises (`promises`). A slot is a
    place of a candidate within one `snapshot`; it means nothing outside. Threads may share one object. Made by
    `create` and `open`, or over any `VectorStore`. `embedder` is the model that made the vectors, where it is known.
    """

    def __init__(self, store: VectorStore, embedder: Any = None) -> None:
        self.embedder = embedder
        self._store = store
        self._here = _Here()
        self._last: Proposed | None = None
        self._dim = store.info().dim

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
        """A new, empty gallery at a path or address; an old one is replaced only if `overwrite`."""
        store, location = store_at(path)
        return cls(store.create(location, dim=dim, embedder=embedder, overwrite=overwrite, wait=wait))

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        embedder: EmbedderInfo | None = None,
        readonly: bool = False,
        wait: float = WAIT,
    ) -> Gallery:
        """The gallery at a path or address, ready to search.

        With `embedder` given, a gallery made by another one is refused: its distances would mean nothing.
        """
        store, location = store_at(path)
        opened = store.open(location, readonly=readonly, wait=wait)
        try:
            gallery = cls(opened)
            if embedder is not None:
                gallery.check_embedder(embedder)
            return gallery
        except BaseException:
            opened.close()
            raise

    def close(self) -> None:
        """Let go of the store; closing twice is fine."""
        self._store.close()

    def __enter__(self) -> Gallery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> Path | str:
        """Where it is: a file, or the address of a gallery in another store."""
        return self._store.path

    @property
    def promises(self) -> Promises:
        """What the store promises."""
        return self._store.promises

    @property
    def info(self) -> GalleryInfo:
        """What the gallery says of itself, as last committed."""
        return self._store.info()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads of this thread inside the block see one committed state, so slots keep their meaning.

        Other threads and processes may write meanwhile. Where a store cannot hold a state still, the block ends with
        `ChangedError` if they did.
        """
        here = self._here
        if here.view is not None:
            with self._store.snapshot():
                yield
            return
        try:
            with self._complete("restore it from a copy or index the images again"), self._store.snapshot():
                here.view = self._view()
                yield
                if isinstance(here.view, Proposed) and here.view.complete:
                    self._last = here.view
        finally:
            here.view = None

    def check_embedder(self, embedder: EmbedderInfo) -> None:
        """Refuse an embedder that did not make the vectors: its distances to them would mean nothing."""
        embedder.check_made(self.path, self.info.embedder.fingerprint)

    def __len__(self) -> int:
        return self.info.count

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and bool(self._answer(lambda view: view.find([id])))

    def get(self, id: str) -> Item:
        """The item with this id; an error if there is none."""
        return self._answer(lambda view: self._items(view, self._slots([id])))[0]

    def vectors(self, ids: Sequence[str]) -> Floats:
        """The stored vectors of these ids, in that order, as a copy."""
        return self._answer(lambda view: view.column(VECTOR, self._slots(ids)))

    def vectors_at(self, slots: Slots) -> Floats:
        """The vectors in these slots, in that order, as a copy; slots are those of the same `snapshot`."""
        return self._answer(lambda view: view.column(VECTOR, slots))

    def boxes_at(self, eps: float, slots: Slots) -> Boxes:
        """The boxes for `eps` of the candidates in these slots; slots are those of the same `snapshot`."""
        return self._answer(lambda view: boxes_of(view, eps, slots))

    def all_vectors(self) -> Floats:
        """The vectors of all candidates, by slot; valid until the `snapshot` ends."""
        return self._answer(lambda view: self._filled(view).all_rows_of(VECTOR))

    @property
    def max_norm(self) -> float:
        """At least the norm of every vector."""
        return self._answer(lambda view: view.store.max_norm())

    def reach(self, eps: float) -> Floats:
        """For every slot, how far its candidate's vector can move within its box for `eps`, at most."""
        return self._answer(lambda view: view.all_rows_of(box_columns.kind(box_columns.REACH, eps))[:, 0])

    def items(self, slots: Slots) -> list[Item]:
        """The items in these slots, in that order; slots are those of the same `snapshot`."""
        return self._answer(lambda view: self._items(view, slots))

    def ids(self) -> Iterator[str]:
        """All ids in order; one that is added or removed meanwhile may or may not appear."""
        last, seen, states = "", 0, set()
        while True:
            with self.snapshot():
                info = self.info
                page = [item.id for item in self._store.listing(last)]
                states.add(info.generation)
                if not page and len(states) == 1 and seen != info.count:
                    raise LostError(f"{seen} ids are found where {info.count} are counted")
            yield from page
            seen, last = seen + len(page), page[-1] if page else last
            if not page or (len(states) == 1 and seen == info.count):
                return

    def catalogue(self) -> dict[str, Item]:
        """Every item by its id, in order."""
        return self._answer(lambda view: {item.id: item for item in view.store.listing()})

    def nearest(self, queries: ArrayLike, k: int, *, names: Sequence[str] | None = None) -> list[Hits]:
        """The k nearest candidates of each query (one vector, or one per row): all of them if k is larger.

        Exact: queries are taken as float32, distances and their order are those of float64; equal distances are
        ordered by id and marked. Only an approximate index may miss some. `names` name the queries in the answer
        ("0", "1", …).
        """
        rows = self._matrix(queries, "queries")
        names = [str(row) for row in range(len(rows))] if names is None else names
        if len(names) != len(rows):
            raise GalleryError(f"{len(rows)} queries came with {len(names)} names; give one for each")

        def found(view: Local) -> list[Hits]:
            ranked = self._nearest(view, rows, k)
            items = view.items(set(ranked.slots.ravel().tolist()))
            return [hits(name, ranked, row, items) for row, name in enumerate(names)]

        return self._answer(found)

    def nearest_arrays(self, queries: ArrayLike, k: int) -> tuple[Doubles, Slots]:
        """Like `nearest`, as two arrays, queries × min(k, candidates): distances and slots.

        Other processes may move slots: ask for their `items` inside the same `snapshot`.
        """
        rows = self._matrix(queries, "queries")
        ranked = self._answer(lambda view: self._nearest(view, rows, k))
        return ranked.distances, ranked.slots

    def scan(self, query: ArrayLike) -> Any:
        """One query's distances to all candidates, to be asked several times inside the same `snapshot`.

        It has `query`, `vectors`, `nearest(k)`, `within(radius)` and `distances(slots)`, as `exact.Scan`.
        """
        rows = self._matrix(query, "a query")
        if len(rows) != 1:
            raise GalleryError(f"a range search takes one query, not {len(rows)}")
        return self._answer(lambda view: self._filled(view).scan(rows[0]))

    def hits_of(self, scan: Any, k: int, *, name: str = "0") -> tuple[Hits, Slots]:
        """What `nearest` says of a scanned query, and the slots of the hits; in the snapshot of the scan."""

        def found(view: Local) -> tuple[Hits, Slots]:
            wanted = _at_most_all(k, view)
            ranked = rank([scan.nearest(wanted)], wanted, _ids_of(view))
            return hits(name, ranked, 0, view.items(ranked.slots[0].tolist())), ranked.slots[0]

        return self._answer(found)

    def possible(self, scan: Any, radius: float, eps: float | None = None) -> Slots:
        """Every slot whose distance can be `radius` or less, with `eps` more by what its box for `eps` allows."""
        return self._answer(lambda view: view.possible(scan, radius, eps))

    def range_search(self, query: ArrayLike, radius: float, *, name: str = "0") -> Hits:
        """Every candidate whose float64 distance to the query is at most `radius`; there may be none."""
        if not radius >= 0:
            raise GalleryError(f"a radius is 0 or more, not {radius}")

        def found(view: Local) -> Hits:
            near = self.scan(query).within(float(radius))
            ranked = rank([near], len(near.slots), _ids_of(view))
            return hits(name, ranked, 0, view.items(near.slots.tolist()))

        return self._answer(found)

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
        new = make_items(ids, labels, paths, digests)
        if not new:
            return
        rows = self._matrix(vectors, "vectors")
        if len(rows) != len(new):
            raise GalleryError(f"{len(new)} ids came with {len(rows)} vectors; give one for each")
        given = dict(boxes or {})
        content = {VECTOR: rows, **box_columns.rows(given, rows)}
        with self._write(len(new)):
            info = self.info
            if set(info.boxes) != given.keys():
                has, found = (box_columns.named(*sorted(sizes)) or "none" for sizes in (info.boxes, given))
                raise GalleryError(
                    f"every candidate has the boxes that its gallery has: found boxes for {found}, not {has};"
                    " nothing was added"
                )
            there = self._store.find([item.id for item in new]) if info.count else {}
            if there and not replace:
                raise GalleryError(f"already in the gallery: {some(list(there))}; nothing was added")
            self._store.put(new, content, _slots_or_new(new, there))

    def describe(self, changed: Sequence[Item]) -> None:
        """Give items that are there another label, path and digest, all or none; vectors and boxes stay."""
        if not changed:
            return
        new = make_items(*zip(*((i.id, i.label, i.path, i.digest) for i in changed), strict=True))
        with self._write(len(new)):
            there = self._store.find([item.id for item in new])
            missing = [item.id for item in new if item.id not in there]
            if missing:
                raise GalleryError(f"not in the gallery: {some(missing)}; nothing was changed")
            self._store.put(new, {}, _slots_or_new(new, there))

    def add_boxes(self, eps: float, make: Callable[[list[Item], Floats], Boxes]) -> None:
        """Give every candidate a box for `eps`, in one write; `make` gets some items and their vectors.

        A gallery that has boxes for `eps` is left as it is. Other writers wait meanwhile.
        """
        if not 0 <= eps <= 1:
            raise GalleryError(f"boxes are for an eps between 0 and 1 (the image domain), not {eps}")
        with self._write():
            if eps not in self.info.boxes:
                self._store.extend(eps, make)

    def remove(self, ids: Iterable[str]) -> int:
        """Remove those of `ids` that are there, all or none, and say how many there were."""
        if isinstance(ids, str):
            raise GalleryError(f"ids must be a list of strings, not the one string '{ids}'")
        chosen = list(ids)  # may itself read from this gallery
        with self._write():
            there = set(self._store.find(chosen).values())
            if there:
                self._store.take(np.array(sorted(there), dtype=np.int64))
        return len(there)

    def certificates(self) -> list[Kept]:
        """The kept certificates, by query; those of a gallery of before prove nothing (see `upgrading`)."""
        with self.snapshot():
            found, info = self._store.certificates(), self.info
        return found if info.embedder.current else [one.unproved(info.count) for one in found]

    def keep(self, certificates: Sequence[Kept], *, instead_of: Sequence[Kept] | None = None) -> None:
        """Keep these certificates; one for the same query, threat and k is replaced.

        With `instead_of` only those are kept whose predecessor is there as it is given: what others kept or
        forgot meanwhile stays so.
        """
        with self._write():
            if instead_of is not None:
                there = {one.named: one for one in self._store.certificates()}
                still = {old.named for old in instead_of if old.named in there and there[old.named].same(old)}
                certificates = [one for one in certificates if one.named in still]
            self._store.keep(certificates)

    def forget(self, queries: Sequence[str]) -> int:
        """Drop the certificates of these queries, and say how many there were."""
        with self._write():
            return self._store.forget(queries)

    def compact(self) -> None:
        """Give the space of removed candidates back."""
        with self._complete("see 'holdfast gallery verify'"):
            self._store.compact()

    def verify(self) -> list[str]:
        """Read everything and compare; one line for each problem found, none if the gallery is sound."""
        return self._again(self._store.problems)

    def rewriting(self) -> AbstractContextManager[Rewriting]:
        """Rewrite vectors, boxes, embedder and kept certificates, all or nothing; other writers wait meanwhile."""
        return self._store.rewriting()

    def write_cache(self) -> Written:
        """Bring the mapped cache beside the gallery up to date, or make it; galleries opened from then on use it."""
        written: Written = self._store.write_cache()
        return written

    def refresh_cache(self) -> Written | None:
        """As `write_cache`, where it is worth it: the gallery is large or has one, and much has changed."""
        written: Written | None = self._store.write_cache(only_if_stale=True)
        return written

    def copy_to(self, out: str | Path) -> GalleryInfo:
        """A consistent copy at `out`, where nothing is yet, while others write; what the copy says of itself."""
        with self.snapshot():
            self._store.copy_to(Path(out))
            return replace(self.info, path=Path(out))

    def put_over(self, live: str | Path) -> GalleryInfo:
        """Replace what the gallery at `live` holds by what this one does, in one transaction for its readers.

        Gives what `live` says of itself then.
        """
        self._store.put_over(Path(live))
        with Gallery.open(live, readonly=True) as made:
            return made.info

    def _answer(self, ask: Callable[[Local], T]) -> T:
        """What `ask` says of the newest state, or of that of the snapshot around."""

        def asked() -> T:
            with self.snapshot():
                assert self._here.view is not None
                return ask(self._here.view)

        return asked() if self._here.view is not None else self._again(asked)

    def _again(self, ask: Callable[[], T]) -> T:
        """What `ask` says, asked again where another process changed the gallery meanwhile."""
        for _ in range(TRIES - 1):
            with suppress(ChangedError):
                return ask()
        return ask()

    def _view(self) -> Local:
        """How the state of the snapshot that begins is read; what was read of the same state is used again."""
        if self._store.promises.local:
            return Local(self._store)
        info, last = self.info, self._last
        if last is not None and (last.info.uid, last.info.generation) == (info.uid, info.generation):
            return last
        return Proposed(self._store, info)

    @contextmanager
    def _write(self, size: int = 0) -> Iterator[None]:
        with self._complete("see 'holdfast gallery verify'"), self._store.write(size):
            yield

    @contextmanager
    def _complete(self, advice: str) -> Iterator[None]:
        """Say of a row that is not there that the gallery is damaged."""
        try:
            yield
        except LostError as cause:
            raise GalleryError(f"{self.path} is damaged ({cause}); {advice}") from cause

    def _matrix(self, values: ArrayLike, what: str) -> Floats:
        return matrix(values, self._dim, what)

    def _slots(self, ids: Sequence[str]) -> Slots:
        found = self._answer(lambda view: view.find(ids))
        for id in ids:
            if id not in found:
                raise GalleryError(f"{self.path} has no item '{id}'")
        return np.array([found[id] for id in ids], dtype=np.int64)

    def _items(self, view: Local, slots: Slots) -> list[Item]:
        found = view.items(set(slots.tolist()))
        missing = [slot for slot in slots.tolist() if slot not in found]
        if missing:
            raise GalleryError(f"{self.path} has no item in slot {missing[0]}")
        return [found[slot] for slot in slots.tolist()]

    def _filled(self, view: Local) -> Local:
        if not view.count:
            raise GalleryError(f"{self.path} is empty; add images with 'holdfast index' before searching")
        return view

    def _nearest(self, view: Local, rows: Floats, k: int) -> Ranked:
        wanted = _at_most_all(k, self._filled(view))
        return rank(view.nearest(rows, wanted), wanted, _ids_of(view))


def _at_most_all(k: int, view: Local) -> int:
    try:
        wanted = operator.index(k)
    except TypeError as cause:
        raise GalleryError(f"k is a whole number, not {k!r}") from cause
    if wanted < 1:
        raise GalleryError(f"k is at least 1, not {k}")
    return min(wanted, view.count)


def _ids_of(view: Local) -> Callable[[Iterable[int]], dict[int, str]]:
    return lambda slots: {slot: item.id for slot, item in view.items(slots).items()}


def _slots_or_new(items: Sequence[Item], there: Mapping[str, int]) -> Slots:
    """The slot of each item that is there, −1 for a new one."""
    return np.array([there.get(item.id, -1) for item in items], dtype=np.int64)
