"""The gallery in Milvus: for more candidates than one machine should hold, or for a server that is there anyway."""

from __future__ import annotations

import operator
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from holdfast.errors import GalleryError
from holdfast.gallery import boxes as box_columns
from holdfast.gallery.boxes import Boxes, named
from holdfast.gallery.columns import largest_norm
from holdfast.gallery.exact import Doubles, Floats, Slots
from holdfast.gallery.interface import ChangedError
from holdfast.gallery.kept import Kept
from holdfast.gallery.milvus import check, rows
from holdfast.gallery.milvus.address import DOCUMENTS, Address, Index, parse
from holdfast.gallery.milvus.documents import (
    CERTIFICATE,
    CLAIM,
    STATE,
    Claim,
    Documents,
    Span,
    State,
    decode_certificate,
    encode_certificate,
    number_of,
    spans_of,
)
from holdfast.gallery.milvus.link import Link
from holdfast.gallery.milvus.rows import LostError
from holdfast.gallery.milvus.view import RemoteScan, View
from holdfast.gallery.ranking import Ranked, hits, rank
from holdfast.gallery.values import EmbedderInfo, GalleryInfo, Hits, Item
from holdfast.gallery.writing import PIECE, make_items, matrix, some

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
        address = parse(location) if isinstance(location, str) else location
        if not rows.DIMS[0] <= dim <= rows.DIMS[1]:
            raise GalleryError(
                f"Milvus stores vectors of {rows.DIMS[0]} to {rows.DIMS[1]:,} numbers, not {dim}"
            )
        link = Link(address)
        try:
            documents = Documents(link, address.name)
            documents.prepare()
            old = documents.state()
            if old is not None and not overwrite:
                raise GalleryError(
                    f"{address} exists already; choose another name, or say that it is overwritten"
                )
            if link.has(address.name) and tuple(link.fields(address.name)) != rows.CANDIDATE:
                raise GalleryError(f"{address} exists and is not a gallery; choose another name")
            # The old state goes first: a reader that then misses rows finds that its gallery is gone.
            documents.delete(documents.read(STATE, CLAIM, CERTIFICATE))
            _drop(link, address.name)
            index = address.index or Index()
            link.create(address.name, rows.candidate_fields(dim), index)
            link.load(address.name)
            state = State(
                uuid.uuid4().hex,
                dim,
                embedder.fingerprint,
                embedder.card,
                embedder.location,
                datetime.now(UTC).isoformat(timespec="seconds"),
                index,
                serial=1 if old is None else old.serial + 1,
            )
            documents.commit(state)
            return cls(link, state, wait=wait)
        except BaseException:
            link.close()
            raise

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
        address = parse(location) if isinstance(location, str) else location
        missing = GalleryError(f"there is no gallery at {address}; make one with 'holdfast index'")
        if address.file is not None and not address.file.exists():
            raise missing
        link = Link(address)
        try:
            state = _stored(link)
            if state is None:
                raise missing
            if address.index is not None and address.index != state.index:
                raise GalleryError(
                    f"{address} was made with index {state.index.kind} {state.index.build or ''}".rstrip()
                    + "; leave the index out, or make another gallery"
                )
            for name in (address.name, *state.boxes.values()):
                if not link.has(name):
                    raise GalleryError(
                        f"{address} is damaged (its collection {name} is gone); index the images again"
                    )
            link.load(address.name, *state.boxes.values())
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
        made_by = self._state().fingerprint
        if made_by != embedder.fingerprint:
            raise GalleryError(
                f"{self.path} was made by embedder {made_by[:12]}, not by {embedder.fingerprint[:12]};"
                " use that embedder or index the images again"
            )

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

    def search(self, queries: ArrayLike, k: int, *, names: Sequence[str] | None = None) -> list[Hits]:
        """The k nearest candidates of each query, as `Gallery.search`; by an approximate index it may miss some."""
        asked = matrix(queries, self._dim, "queries")
        names = [str(row) for row in range(len(asked))] if names is None else names
        if len(names) != len(asked):
            raise GalleryError(f"{len(asked)} queries came with {len(names)} names; give one for each")

        def found(view: View) -> list[Hits]:
            ranked = self._nearest(view, asked, k)
            items = self._items(view, np.unique(ranked.slots))
            return [hits(name, ranked, row, items) for row, name in enumerate(names)]

        return self._answer(found)

    def search_arrays(self, queries: ArrayLike, k: int) -> tuple[Doubles, Slots]:
        """Like `search`, as two arrays, queries × min(k, candidates): distances and slots of the same snapshot."""
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
        """What an exact `search` says of a scanned query, and the slots of the hits."""

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
        with self._write(len(new)) as claim:
            if claim.state.boxes.keys() != given.keys():
                has, found = (named(*sorted(sizes)) or "none" for sizes in (claim.state.boxes, given))
                raise GalleryError(
                    f"every candidate has the boxes that its gallery has: found boxes for {found}, not {has};"
                    " nothing was added"
                )
            present = self._seen(claim).find([item.id for item in new])
            if present and not replace:
                raise GalleryError(f"already in the gallery: {some(list(present))}; nothing was added")
            self._put(claim, new, content, given, np.array(list(present.values()), dtype=np.int64))

    def describe(self, changed: Sequence[Item]) -> None:
        """Give items that are there another label, path and digest, all or none; vectors and boxes stay."""
        if not changed:
            return
        new = make_items(*zip(*((i.id, i.label, i.path, i.digest) for i in changed), strict=True))
        with self._write(len(new)) as claim:
            view = self._seen(claim)
            present = view.find([item.id for item in new])
            missing = [item.id for item in new if item.id not in present]
            if missing:
                raise GalleryError(f"not in the gallery: {some(missing)}; nothing was changed")
            slots = np.array([present[item.id] for item in new], dtype=np.int64)
            places = view.places(slots)
            given = {eps: view.boxes(eps, places)[0] for eps in claim.state.boxes}
            self._put(claim, new, view.rows[places], given, slots)

    def add_boxes(self, eps: float, make: Callable[[list[Item], Floats], Boxes]) -> None:
        """Give every candidate a box for `eps`, all or none; a gallery that has them is left as it is."""
        if not 0 <= eps <= 1:
            raise GalleryError(f"boxes are for an eps between 0 and 1 (the image domain), not {eps}")
        if 2 * self._dim > rows.DIMS[1]:
            raise GalleryError(
                f"Milvus stores boxes of at most {rows.DIMS[1] // 2:,} numbers, not {self._dim}"
            )
        with self._write(0) as claim:
            if eps in claim.state.boxes:
                return
            name = f"{self._name}__boxes_{uuid.uuid4().hex[:12]}"
            self._link.create(name, rows.box_fields(self._dim), Index())
            try:
                stamp = 0
                for page in self._seen(claim).every(["slot", "vector", "item", "check"]):
                    for first in range(0, len(page), PIECE):
                        part = page[first : first + PIECE]
                        vectors = rows.vectors_of(part, self._dim)
                        made = make([rows.item_of(row) for row in part], vectors)
                        claim.beat()
                        box_columns.rows({eps: made}, vectors)
                        new = rows.boxes([int(row["slot"]) for row in part], made, vectors)
                        stamp = self._link.insert(name, new, 8 * self._dim, claim.beat)
                self._link.load(name)
                stamps = {**claim.state.stamps, name: stamp}
                held = {**claim.state.boxes, eps: name}
                claim.commit(boxes=held, stamps=stamps, generation=claim.state.generation + 1)
            except BaseException:
                if not claim.unsure:  # Else a state may name it; `compact` drops it if none does.
                    with suppress(GalleryError):
                        self._link.drop(name)
                raise

    def remove(self, ids: Iterable[str]) -> int:
        """Remove those of `ids` that are there, all or none, and say how many there were."""
        if isinstance(ids, str):
            raise GalleryError(f"ids must be a list of strings, not the one string '{ids}'")
        chosen = list(ids)
        with self._write(0) as claim:
            slots = np.array(list(self._seen(claim).find(chosen).values()), dtype=np.int64)
            if len(slots):
                self._commit(claim, claim.state.count - len(slots), slots)
        return len(slots)

    def certificates(self) -> list[Kept]:
        """The kept certificates, by query."""
        found = sorted(self._documents.read(CERTIFICATE), key=number_of)
        newest = {_named(one): one for one in map(decode_certificate, found)}
        return [newest[key] for key in sorted(newest)]

    def keep(self, certificates: Sequence[Kept], *, instead_of: Sequence[Kept] | None = None) -> None:
        """Keep these certificates; one for the same query, threat and k is replaced."""
        with self._write(0):
            there = self._documents.read(CERTIFICATE)
            if instead_of is not None:
                bodies = {one.body for one in there}
                still = {_named(one) for one in instead_of if encode_certificate(one, 0).body in bodies}
                certificates = [one for one in certificates if _named(one) in still]
            # Who dies before the old ones are deleted leaves both: the larger number counts.
            first = 1 + max(map(number_of, there), default=0)
            new = [encode_certificate(one, first + at) for at, one in enumerate(certificates)]
            prefixes = {one.name.partition("-")[0] for one in new}
            alike = [one for one in there if one.name.partition("-")[0] in prefixes]
            asked = {(one.query, one.threat, one.k) for one in certificates}
            old = [one for one in alike if _named(decode_certificate(one)) in asked]
            self._documents.write(new)
            self._documents.delete(old)

    def forget(self, queries: Sequence[str]) -> int:
        """Drop the certificates of these queries, and say how many there were."""
        with self._write(0):
            found = self._documents.read(CERTIFICATE)
            gone = [one for one in found if decode_certificate(one).query in set(queries)]
            self._documents.delete(gone)
        return len(gone)

    def compact(self) -> None:
        """Delete rows that belong to no candidate, and have Milvus put its disk in order.

        Also finds the largest norm anew, which removals leave as it was: certificates are sharper by it.
        """
        with self._write(0) as claim:
            self._sweep(claim)
            norm = 0.0
            for page in self._seen(claim).every(["slot", "vector", "check"]):
                norm = max(norm, largest_norm(rows.vectors_of(page, self._dim)))
                claim.beat()
            claim.commit(max_norm=norm)
            state = claim.state
            known = {self._name, *state.boxes.values()}
            for name in self._link.collections():
                if name.startswith(f"{self._name}__boxes_") and name not in known:
                    self._link.drop(name)
            self._link.tidy(*known)

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
    def _write(self, size: int) -> Iterator[Claim]:
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
                    yield claim
                except LostError as cause:
                    raise GalleryError(
                        f"{self.path} is damaged ({cause}); see 'holdfast gallery verify'"
                    ) from cause

    def _seen(self, claim: Claim) -> View:
        return View(self._link, self._name, claim.state)

    def _put(
        self, claim: Claim, new: list[Item], vectors: Floats, given: Mapping[float, Boxes], old: Slots
    ) -> None:
        """Write candidates into the claimed slots, and commit them in the place of those in `old`."""
        slots = range(*claim.slots)
        made = {self._name: rows.candidates(slots, new, vectors)}
        for eps, name in claim.state.boxes.items():
            made[name] = rows.boxes(slots, given[eps], vectors)
        claim.dirty = True
        stamps = dict(claim.state.stamps)
        for name, content in made.items():
            stamps[name] = self._link.insert(name, content, 8 * self._dim + 1024, claim.beat)
        norm = max(claim.state.max_norm, largest_norm(vectors))
        count = claim.state.count + len(new) - len(old)
        self._commit(claim, count, old, next_slot=claim.slots[1], max_norm=norm, stamps=stamps)

    def _commit(self, claim: Claim, count: int, old: Slots, **changes: object) -> None:
        dead = [*claim.state.dead, *spans_of(old)]
        if not count:
            changes["max_norm"] = 0.0
        claim.commit(count=count, generation=claim.state.generation + 1, dead=dead, **changes)
        if len(old):
            with suppress(GalleryError):  # They are gone for readers; the rows can wait for `compact`.
                self._sweep(claim)

    def _sweep(self, claim: Claim) -> None:
        """Delete the rows of slots that hold no candidate."""
        stamps = dict(claim.state.stamps)
        for name in (self._name, *claim.state.boxes.values()):
            for expression in _chosen([*claim.state.dead, *claim.state.lost]):
                stamps[name] = self._link.delete(name, expression)
                claim.beat()
        claim.commit(stamps=stamps, dead=())

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


def exists(location: str) -> bool:
    """Whether there is a gallery at `location`."""
    address = parse(location)
    if address.file is not None and not address.file.exists():
        return False
    link = Link(address)
    try:
        return _stored(link) is not None
    finally:
        link.close()


def discard(location: str) -> None:
    """Take a gallery away, with all that it holds."""
    address = parse(location)
    link = Link(address)
    try:
        if _stored(link) is not None:
            documents = Documents(link, address.name)
            documents.delete(documents.read(STATE, CLAIM, CERTIFICATE))
            _drop(link, address.name)
    finally:
        link.close()


def _stored(link: Link) -> State | None:
    if not link.has(DOCUMENTS):
        return None
    link.load(DOCUMENTS)
    return Documents(link, link.address.name).state()


def _drop(link: Link, name: str) -> None:
    for one in link.collections():
        if one == name or one.startswith(f"{name}__boxes_"):
            link.drop(one)


def _named(one: Kept) -> tuple[str, str, int]:
    return one.query, one.threat, one.k


def _chosen(spans: Sequence[Span]) -> Iterator[str]:
    """Expressions that name these slots by their primary keys."""
    slots = [slot for first, last in spans for slot in range(first, last)]
    for first in range(0, len(slots), 1000):
        yield f"slot in {slots[first : first + 1000]}"


def _at_most(k: int, count: int) -> int:
    try:
        wanted = operator.index(k)
    except TypeError as cause:
        raise GalleryError(f"k is a whole number, not {k!r}") from cause
    if wanted < 1:
        raise GalleryError(f"k is at least 1, not {k}")
    return min(wanted, count)
