"""The gallery in Milvus: for more candidates than one machine should hold, or for a server that is there anyway."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from holdfast.errors import GalleryError
from holdfast.gallery import boxes as box_columns
from holdfast.gallery.boxes import Boxes, named
from holdfast.gallery.exact import Doubles, Floats, Slots
from holdfast.gallery.interface import ChangedError
from holdfast.gallery.kept import Kept
from holdfast.gallery.milvus import check, making, rows
from holdfast.gallery.milvus.address import Address, parse
from holdfast.gallery.milvus.certificates import Certificates
from holdfast.gallery.milvus.documents import (
    Documents,
    State,
)
from holdfast.gallery.milvus.link import Link
from holdfast.gallery.milvus.rows import LostError
from holdfast.gallery.milvus.view import RemoteScan, View
from holdfast.gallery.milvus.writer import Writer
from holdfast.gallery.ranking import Ranked, hits, rank
from holdfast.gallery.values import EmbedderInfo, GalleryInfo, Hits, Item
from holdfast.gallery.writing import make_items, matrix, some

T = TypeVar("T")

WAIT = 30.0
"""Seconds that a write waits for another process's write to end."""
TRIES = 5
"""How often a read is done again because another process changed the gallery meanwhile."""


class MilvusGallery:
    """Candidates in a Milvus server, or in a local file of milvus-lite, behind the interface of `Gallery`.

    What is as in `Gallery`: searches on a FLAT index are exact, the order is that of float64; a write is all or
    none, for readers too, and ids are unique, also with several writers. What differs:

    * Rows are on the server's disk when Milvus puts them there (its log first), not when the call returns.
    * A `snapshot` cannot hold a state still. It notices when the gallery was changed before the block ended, and
      ends with `ChangedError`; single calls then try again by themselves.
    * A writer that dies leaves a claim, for which the next one waits `LEASE` seconds, and rows that no state
      knows: nobody sees them, and `compact` deletes them. A writer that is not dead but gave no sign of life for
      that long is refused at its commit, or told that its write may not have been kept.
    * An index other than FLAT may miss hits. Certificates then compare with all vectors, read from the server,
      or are UNKNOWN where there are too many.

    Threads may share one object. Made by `create` and `open`.
    """

    def __init__(self, link: Link, state: State, *, readonly: bool = False, wait: float = WAIT) -> None:
        self._link, self._uid, self._dim = link, state.uid, state.dim
        self._name = link.address.name
        self._documents = Documents(link, self._name)
        self._certificates = Certificates(self._documents)
        self._readonly, self._wait = readonly, wait
        self._lock = threading.RLock()
        self._view: View | None = None
        self._used = False
        self._last: View | None = None

    @classmethod
    def create(
        cls,
        location: str | Address,
        *,
        dim: int,
        embedder: EmbedderInfo,
        overwrite: bool = False,
        wait: float = WAIT,
    ) -> MilvusGallery:
        """A new, empty gallery; an old one is replaced only if `overwrite`, any other collection never is."""
        link, state = making.create(_address(location), dim, embedder, overwrite=overwrite)
        return cls(link, state, wait=wait)

    @classmethod
    def open(
        cls,
        location: str | Address,
        *,
        embedder: EmbedderInfo | None = None,
        readonly: bool = False,
        wait: float = WAIT,
    ) -> MilvusGallery:
        """The gallery at `location`; with `embedder` given, one that another made is refused."""
        link, state = making.find(_address(location))
        try:
            gallery = cls(link, state, readonly=readonly, wait=wait)
            if embedder is not None:
                gallery.check_embedder(embedder)
            return gallery
        except BaseException:
            link.close()
            raise

    def close(self) -> None:
        """Let go of the connection; closing twice is fine."""
        with self._lock:
            self._link.close()

    def __enter__(self) -> MilvusGallery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside the block see one committed state, or the block ends with `ChangedError`."""
        with self._lock:
            if self._view is not None:
                yield
                return
            state = self._state()
            last = self._last
            reuse = last is not None and last.complete and last.state.generation == state.generation
            self._view = last if reuse else View(self._link, self._name, state)
            self._used = False
            try:
                yield
                if self._used and self._state().generation != state.generation:
                    raise ChangedError(f"{self.path} was changed while it was being read; ask again")
                if self._view is not None and self._view.complete:
                    self._last = self._view
            except LostError as cause:
                if self._state().generation != state.generation:
                    raise ChangedError(
                        f"{self.path} was changed while it was being read; ask again"
                    ) from cause
                raise GalleryError(
                    f"{self.path} is damaged ({cause}); restore it from a copy or index the images again"
                ) from cause
            finally:
                self._view = None

    def check_embedder(self, embedder: EmbedderInfo) -> None:
        """Refuse an embedder that did not make the vectors: its distances to them would mean nothing."""
        embedder.check_made(self.path, self._state().fingerprint)

    @property
    def path(self) -> str:
        return self._link.address.text

    @property
    def info(self) -> GalleryInfo:
        """What the gallery says of itself, as last committed."""
        with self._lock:
            state = self._state() if self._view is None else self._view.state
        sizes = tuple(sorted(state.boxes))
        return GalleryInfo(
            self.path,
            state.uid,
            state.dim,
            state.count,
            state.embedder,
            state.created,
            state.generation,
            sizes,
            state.index.kind,
        )

    def __len__(self) -> int:
        return self.info.count

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and bool(self._answer(lambda view: view.find([id])))

    def get(self, id: str) -> Item:
        """The item with this id; an error if there is none."""
        return self._answer(lambda view: view.items(self._places(view, [id])))[0]

    def vectors(self, ids: Sequence[str]) -> Floats:
        """The stored vectors of these ids, in that order, as a copy."""

        def found(view: View) -> Floats:
            places = self._places(view, ids)
            return view.rows[places]

        return self._answer(found)

    def vectors_at(self, slots: Slots) -> Floats:
        return self._answer(lambda view: view.rows[slots])

    def all_vectors(self) -> Floats:
        def everything(view: View) -> Floats:
            view.meet_all("this needs all vectors at once")
            return view.rows

        return self._answer(everything)

    def boxes_at(self, eps: float, slots: Slots) -> Boxes:
        return self._answer(lambda view: view.boxes(eps, slots)[0])

    @property
    def max_norm(self) -> float:
        """At least the norm of every vector."""
        with self.snapshot():
            assert self._view is not None
            return self._view.state.max_norm

    def items(self, slots: Slots) -> list[Item]:
        return self._answer(lambda view: view.items(slots))

    def ids(self) -> Iterator[str]:
        """All ids in order."""
        yield from self.catalogue()

    def catalogue(self) -> dict[str, Item]:
        """Every item by its id, in order."""

        def read(view: View) -> dict[str, Item]:
            fields = ["slot", "item", "check"]
            found = [rows.item_of(row) for page in view.every(fields) for row in page]
            return {item.id: item for item in sorted(found, key=lambda item: item.id)}

        return self._answer(read)

    def nearest(self, queries: ArrayLike, k: int, *, names: Sequence[str] | None = None) -> list[Hits]:
        """The k nearest candidates of each query, as `Gallery.nearest`; by an approximate index it may miss some."""
        asked = matrix(queries, self._dim, "queries")
        names = [str(row) for row in range(len(asked))] if names is None else names
        if len(names) != len(asked):
            raise GalleryError(f"{len(asked)} queries came with {len(names)} names; give one for each")

        def found(view: View) -> list[Hits]:
            ranked = self._nearest(view, asked, k)
            items = self._items(view, np.unique(ranked.slots))
            return [hits(name, ranked, row, items) for row, name in enumerate(names)]

        return self._answer(found)

    def nearest_arrays(self, queries: ArrayLike, k: int) -> tuple[Doubles, Slots]:
        """Like `nearest`, as two arrays, queries × min(k, candidates): distances and slots of the same snapshot."""
        asked = matrix(queries, self._dim, "queries")
        ranked = self._answer(lambda view: self._nearest(view, asked, k))
        return ranked.distances, ranked.slots

    def scan(self, query: ArrayLike) -> RemoteScan:
        """One query, to be asked several times inside the same `snapshot`."""
        asked = matrix(query, self._dim, "a query")
        if len(asked) != 1:
            raise GalleryError(f"a range search takes one query, not {len(asked)}")
        return self._answer(lambda view: RemoteScan(self._filled(view), asked[0]))

    def hits_of(self, scan: RemoteScan, k: int, *, name: str = "0") -> tuple[Hits, Slots]:
        """What an exact `nearest` says of a scanned query, and the slots of the hits."""

        def found(view: View) -> tuple[Hits, Slots]:
            wanted = _at_most(k, view.state.count)
            ranked = rank([scan.nearest(wanted)], wanted, lambda places: self._ids(view, places))
            return hits(name, ranked, 0, self._items(view, ranked.slots[0])), ranked.slots[0]

        return self._answer(found)

    def possible(self, scan: RemoteScan, radius: float, eps: float | None = None) -> Slots:
        """Every slot whose distance can be `radius` or less, with `eps` more by what its box for `eps` allows."""
        if eps is None:
            return self._answer(lambda view: view.near(scan.query, radius))
        return self._answer(lambda view: view.reachable(scan.query, radius, eps))

    def range_search(self, query: ArrayLike, radius: float, *, name: str = "0") -> Hits:
        """Every candidate whose float64 distance to the query is at most `radius`; there may be none."""
        if not radius >= 0:
            raise GalleryError(f"a radius is 0 or more, not {radius}")
        asked = matrix(query, self._dim, "a query")
        if len(asked) != 1:
            raise GalleryError(f"a range search takes one query, not {len(asked)}")

        def found(view: View) -> Hits:
            near = RemoteScan(self._filled(view), asked[0]).within(float(radius))
            ranked = rank([near], len(near.slots), lambda places: self._ids(view, places))
            return hits(name, ranked, 0, self._items(view, near.slots))

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
        """Add candidates, all or none; an id that is there already is updated if `replace`, else refused."""
        new = make_items(ids, labels, paths, digests)
        if not new:
            return
        content = matrix(vectors, self._dim, "vectors")
        if len(content) != len(new):
            raise GalleryError(f"{len(new)} ids came with {len(content)} vectors; give one for each")
        given = dict(boxes or {})
        box_columns.rows(given, content)  # refuses boxes that do not fit
        with self._write(len(new)) as writer:
            if writer.claim.state.boxes.keys() != given.keys():
                has, found = (named(*sorted(sizes)) or "none" for sizes in (writer.claim.state.boxes, given))
                raise GalleryError(
                    f"every candidate has the boxes that its gallery has: found boxes for {found}, not {has};"
                    " nothing was added"
                )
            present = writer.seen.find([item.id for item in new])
            if present and not replace:
                raise GalleryError(f"already in the gallery: {some(list(present))}; nothing was added")
            writer.put(new, content, given, np.array(list(present.values()), dtype=np.int64))

    def describe(self, changed: Sequence[Item]) -> None:
        """Give items that are there another label, path and digest, all or none; vectors and boxes stay."""
        if not changed:
            return
        new = make_items(*zip(*((i.id, i.label, i.path, i.digest) for i in changed), strict=True))
        with self._write(len(new)) as writer:
            view = writer.seen
            present = view.find([item.id for item in new])
            missing = [item.id for item in new if item.id not in present]
            if missing:
                raise GalleryError(f"not in the gallery: {some(missing)}; nothing was changed")
            slots = np.array([present[item.id] for item in new], dtype=np.int64)
            places = view.places(slots)
            given = {eps: view.boxes(eps, places)[0] for eps in writer.claim.state.boxes}
            writer.put(new, view.rows[places], given, slots)

    def add_boxes(self, eps: float, make: Callable[[list[Item], Floats], Boxes]) -> None:
        """Give every candidate a box for `eps`, all or none; a gallery that has them is left as it is."""
        if not 0 <= eps <= 1:
            raise GalleryError(f"boxes are for an eps between 0 and 1 (the image domain), not {eps}")
        if 2 * self._dim > rows.DIMS[1]:
            raise GalleryError(
                f"Milvus stores boxes of at most {rows.DIMS[1] // 2:,} numbers, not {self._dim}"
            )
        with self._write(0) as writer:
            if eps not in writer.claim.state.boxes:
                writer.add_boxes(eps, make)

    def remove(self, ids: Iterable[str]) -> int:
        """Remove those of `ids` that are there, all or none, and say how many there were."""
        if isinstance(ids, str):
            raise GalleryError(f"ids must be a list of strings, not the one string '{ids}'")
        chosen = list(ids)
        with self._write(0) as writer:
            slots = np.array(list(writer.seen.find(chosen).values()), dtype=np.int64)
            if len(slots):
                writer.take(slots)
        return len(slots)

    def certificates(self) -> list[Kept]:
        """The kept certificates, by query; those of a gallery of before prove nothing."""
        found, info = self._certificates.all(), self.info
        return found if info.embedder.current else [one.unproved(info.count) for one in found]

    def keep(self, certificates: Sequence[Kept], *, instead_of: Sequence[Kept] | None = None) -> None:
        """Keep these certificates; one for the same query, threat and k is replaced."""
        with self._write(0):
            self._certificates.keep(certificates, instead_of)

    def forget(self, queries: Sequence[str]) -> int:
        """Drop the certificates of these queries, and say how many there were."""
        with self._write(0):
            return self._certificates.forget(queries)

    def compact(self) -> None:
        """Delete rows that belong to no candidate, and have Milvus put its disk in order.

        Also finds the largest norm anew, which removals leave as it was: certificates are sharper by it.
        """
        with self._write(0) as writer:
            writer.compact()

    def verify(self) -> list[str]:
        """Read everything and compare; one line for each problem found, none if the gallery is sound."""
        return self._answer(lambda view: check.problems(view, self.certificates))

    def _state(self) -> State:
        state = self._documents.state()
        if state is None or state.uid != self._uid:
            raise GalleryError(f"{self.path} was replaced or deleted; open it again")
        return state

    def _answer(self, ask: Callable[[View], T]) -> T:
        """What `ask` says of the newest state, or of that of the snapshot around."""
        with self._lock:
            inside = self._view is not None
            for left in reversed(range(1 if inside else TRIES)):
                try:
                    with self.snapshot():
                        self._used = True
                        assert self._view is not None
                        return ask(self._view)
                except ChangedError:
                    if not left:
                        raise
            raise AssertionError

    @contextmanager
    def _write(self, size: int) -> Iterator[Writer]:
        with self._lock:
            if self._readonly:
                raise GalleryError(
                    f"{self.path} is open for reading only; open it without readonly to change it"
                )
            if self._view is not None:
                raise GalleryError(
                    f"{self.path} cannot be changed inside a snapshot; leave the snapshot first"
                )
            with self._documents.claimed(size, self._wait) as claim:
                if claim.state.uid != self._uid:
                    raise GalleryError(f"{self.path} was replaced or deleted; open it again")
                try:
                    yield Writer(self._link, self._name, self._dim, claim)
                except LostError as cause:
                    raise GalleryError(
                        f"{self.path} is damaged ({cause}); see 'holdfast gallery verify'"
                    ) from cause

    def _filled(self, view: View) -> View:
        if not view.state.count:
            raise GalleryError(f"{self.path} is empty; add images with 'holdfast index' before searching")
        return view

    def _nearest(self, view: View, asked: Floats, k: int) -> Ranked:
        wanted = _at_most(k, self._filled(view).state.count)
        found = view.nearest(asked, wanted, exact=view.state.index.exact)
        return rank(found, wanted, lambda places: self._ids(view, places))

    def _places(self, view: View, ids: Sequence[str]) -> Slots:
        found = view.find(ids)
        for id in ids:
            if id not in found:
                raise GalleryError(f"{self.path} has no item '{id}'")
        return view.places(np.array([found[id] for id in ids], dtype=np.int64))

    def _items(self, view: View, places: Slots) -> dict[int, Item]:
        return dict(zip(places.tolist(), view.items(places), strict=True))

    def _ids(self, view: View, places: Iterable[int]) -> dict[int, str]:
        found = self._items(view, np.array(list(places), dtype=np.int64))
        return {place: item.id for place, item in found.items()}


def _at_most(k: int, count: int) -> int:
    try:
        wanted = operator.index(k)
    except TypeError as cause:
        raise GalleryError(f"k is a whole number, not {k!r}") from cause
    if wanted < 1:
        raise GalleryError(f"k is at least 1, not {k}")
    return min(wanted, count)


def _address(location: str | Address) -> Address:
    return parse(location) if isinstance(location, str) else location
