"""Galleries in Milvus: for more candidates than one machine should hold, or for a server that is there anyway."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from holdfast.errors import GalleryError
from holdfast.gallery import boxes as box_columns
from holdfast.gallery.boxes import Boxes
from holdfast.gallery.exact import Doubles, Floats, Slots, largest_norm
from holdfast.gallery.kept import Kept
from holdfast.gallery.stores.base import (
    PIECE,
    VECTOR,
    WAIT,
    ChangedError,
    GoneError,
    LostError,
    Promises,
    Rows,
    VectorStore,
    boxes_of,
    pieces,
)
from holdfast.gallery.stores.milvus import making, rows
from holdfast.gallery.stores.milvus.address import Index, parse
from holdfast.gallery.stores.milvus.certificates import Certificates
from holdfast.gallery.stores.milvus.documents import Claim, Documents, Span, State, spans_of
from holdfast.gallery.stores.milvus.link import MOST, Link
from holdfast.gallery.stores.milvus.rows import Row
from holdfast.gallery.values import EmbedderInfo, GalleryInfo, Item

_ASKED = 1000
_PAGE_BYTES = 1 << 24


class _Here(threading.local):
    """What the current thread is in the middle of: a read of `state`, or a write under `claim`."""

    state: State | None = None
    used = False
    claim: Claim | None = None
    boxes: tuple[tuple[State, float, bytes], tuple[Boxes, Floats]] | None = None
    """What was read last, for what: centre, radius and reach come together."""


class MilvusStore(VectorStore):
    """Candidates in a Milvus server. Threads may share one object; a read of one does not stop another's.

    * A write is all or none, for readers too, and ids are unique, also with several writers.
    * Rows are on the server's disk when Milvus puts them there (its log first), not when the call returns.
    * A snapshot cannot hold a state still. It notices when the gallery was changed before the block ended, and ends
      with `ChangedError`; single calls then try again by themselves.
    * A writer that dies leaves a claim, for which the next one waits `LEASE` seconds, and rows that no state
      knows: nobody sees them, and `compact` deletes them. A writer that is not dead but gave no sign of life for
      that long is refused at its commit, or told that its write may not have been kept.
    * FLAT, the index of a gallery unless another is asked for, is exact. Any other may miss hits. Certificates then
      compare with all vectors, read from the server, or are UNKNOWN where there are too many.
    """

    promises: ClassVar[Promises] = Promises("Milvus", processes=True, proposes=True)

    def __init__(self, link: Link, state: State, *, readonly: bool = False, wait: float = WAIT) -> None:
        self.path = link.address.text
        self._link, self._uid, self._dim, self._name = link, state.uid, state.dim, link.address.name
        self._documents = Documents(link, self._name)
        self._certificates = Certificates(self._documents)
        self._readonly, self._wait = readonly, wait
        self._writing = threading.Lock()
        self._here = _Here()

    @classmethod
    def create(
        cls,
        location: str | Path,
        *,
        dim: int,
        embedder: EmbedderInfo,
        overwrite: bool = False,
        wait: float = WAIT,
    ) -> Self:
        return cls(*making.create(parse(str(location)), dim, embedder, overwrite=overwrite), wait=wait)

    @classmethod
    def open(cls, location: str | Path, *, readonly: bool = False, wait: float = WAIT) -> Self:
        return cls(*making.find(parse(str(location))), readonly=readonly, wait=wait)

    @classmethod
    def exists(cls, location: str | Path) -> bool:
        return making.exists(str(location))

    @classmethod
    def discard(cls, location: str | Path, *, content: bool = False) -> None:
        """Nobody can be told to wait: a gallery that is filled at this very moment goes too."""
        making.discard(str(location), content=content)

    def close(self) -> None:
        self._link.close()

    def info(self) -> GalleryInfo:
        here = self._here
        state = here.claim.state if here.claim else here.state or self._newest()
        return GalleryInfo(
            self.path,
            state.uid,
            state.dim,
            state.count,
            state.embedder,
            state.created,
            state.generation,
            tuple(sorted(state.boxes)),
            state.index.kind,
        )

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        here = self._here
        if here.state is not None:
            yield
            return
        here.state, here.used = self._newest(), False
        generation = here.state.generation
        changed = ChangedError(f"{self.path} was changed while it was being read; ask again")
        try:
            yield
            if here.used and self._newest().generation != generation:
                raise changed
        except LostError as cause:
            if self._newest().generation != generation:
                raise changed from cause
            raise
        finally:
            here.state = here.boxes = None

    def slots(self) -> Slots:
        """Asked of Milvus: the state forgets slots whose rows are deleted."""
        state, found = self._state, [np.empty(0, np.int64)]
        for first in range(0, state.next_slot, MOST):
            span = np.arange(first, min(first + MOST, state.next_slot))
            if state.holds(span).any():
                within = f"slot >= {first} and slot <= {span[-1]}"
                rows_ = self._link.query(self._name, within, ["slot"], stamp=state.stamps.get(self._name, 0))
                there = np.unique(np.array([row["slot"] for row in rows_], np.int64))
                found.append(there[state.holds(there)])
        return np.concatenate(found)

    def items(self, slots: Iterable[int]) -> dict[int, Item]:
        found = self._fetch(self._name, np.array(list(slots), dtype=np.int64), ["slot", "item", "check"])
        return {slot: rows.item_of(row) for slot, row in found.items()}

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        wanted, found, state = set(ids), {}, self._state
        keys = [rows.key(id) for id in wanted]
        for first in range(0, len(keys), _ASKED):
            named = f"key in {keys[first : first + _ASKED]} and {state.expression}"
            fields = ["slot", "item", "check"]
            for row in self._link.query(self._name, named, fields, stamp=state.stamps.get(self._name, 0)):
                item = rows.item_of(row)
                if item.id in wanted:
                    found[item.id] = int(row["slot"])
        return found

    def column(self, kind: str, slots: Slots) -> Floats:
        if kind == VECTOR:
            found = self._fetch(self._name, slots, ["slot", "vector", "check"])
            return rows.vectors_of(rows.in_order(found, slots), self._dim)
        part, eps = box_columns.part_of(kind)
        boxes, reach = self._boxes(eps, slots)
        return reach[:, None] if part == box_columns.REACH else np.asarray(getattr(boxes, part))

    def max_norm(self) -> float:
        return self._state.max_norm

    def nearest(
        self, queries: Floats, limit: int, below: float | None = None
    ) -> list[tuple[Slots, Doubles]] | None:
        if below is None and limit > MOST:
            return None
        state = self._state
        ask: dict[str, float] = dict(state.index.ask)
        if below is not None:
            ask["radius"] = below
        if "ef" in ask:
            ask["ef"] = max(ask["ef"], limit)
        found = self._link.search(
            self._name,
            queries,
            min(limit, MOST),
            expression=state.expression,
            stamp=state.stamps.get(self._name, 0),
            ask=ask,
        )
        cut_off = below is not None and any(len(slots) >= MOST for slots, _ in found)
        return None if cut_off else found

    def farther(self, eps: float, reach: float) -> Slots | None:
        state, name = self._state, self._collection(eps)
        expression = f"reach > {reach!r} and {state.expression}"
        found = self._link.query(name, expression, ["slot"], stamp=state.stamps.get(name, 0))
        return None if len(found) >= MOST else np.unique(np.array([row["slot"] for row in found], np.int64))

    def certificates(self) -> list[Kept]:
        return self._certificates.all()

    @contextmanager
    def write(self, size: int = 0) -> Iterator[None]:
        if self._readonly:
            raise GalleryError(f"{self.path} is open for reading only; open it without readonly to change it")
        if self._here.state is not None:
            raise GalleryError(f"{self.path} cannot be changed inside a snapshot; leave the snapshot first")
        with self._writing, self._documents.claimed(size, self._wait) as claim:
            if claim.state.uid != self._uid:
                raise GoneError(f"{self.path} was replaced or deleted; open it again")
            self._here.claim = claim
            try:
                yield
            finally:
                self._here.claim = None

    def put(self, items: Sequence[Item], rows_: Rows, slots: Slots) -> None:
        claim = self._claim
        vectors = rows_[VECTOR] if VECTOR in rows_ else self.column(VECTOR, slots)
        new = range(*claim.slots)
        made = {self._name: rows.candidates(new, items, vectors)}
        for eps, name in claim.state.boxes.items():
            parts = [box_columns.kind(part, eps) for part in (box_columns.CENTRE, box_columns.RADIUS)]
            given = all(kind in rows_ for kind in parts)
            found = Boxes(*(rows_[kind] for kind in parts)) if given else boxes_of(self, eps, slots)
            made[name] = rows.boxes(new, found, vectors)
        claim.dirty = True
        stamps = dict(claim.state.stamps)
        for name, content in made.items():
            stamps[name] = self._link.insert(name, content, 8 * self._dim + 1024, claim.beat)
        old = slots[slots >= 0]
        norm = max(claim.state.max_norm, largest_norm(vectors))
        count = claim.state.count + len(items) - len(old)
        self._commit(count, old, next_slot=claim.slots[1], max_norm=norm, stamps=stamps)

    def take(self, slots: Slots) -> None:
        self._commit(self._claim.state.count - len(slots), slots)

    def extend(self, eps: float, make: Callable[[list[Item], Floats], Boxes]) -> None:
        claim = self._claim
        if 2 * self._dim > rows.DIMS[1]:
            raise GalleryError(
                f"Milvus stores boxes of at most {rows.DIMS[1] // 2:,} numbers, not {self._dim}"
            )
        name, stamp = f"{self._name}__boxes_{uuid.uuid4().hex[:12]}", 0
        self._link.create(name, rows.box_fields(self._dim), Index())
        try:
            for slots, items, vectors in pieces(self, PIECE):
                made = make(items, vectors)
                claim.beat()
                box_columns.rows({eps: made}, vectors)  # Refuses boxes that do not fit.
                new = rows.boxes(slots.tolist(), made, vectors)
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

    def keep(self, new: Sequence[Kept]) -> None:
        self._certificates.keep(new)

    def forget(self, queries: Iterable[str]) -> int:
        return self._certificates.forget(set(queries))

    def compact(self) -> None:
        """Delete rows that belong to no candidate, and have Milvus put its disk in order.

        Also finds the largest norm anew, which removals leave as it was: certificates are sharper by it.
        """
        with self.write():
            claim = self._claim
            self._sweep()
            norm = 0.0
            for _, _, vectors in pieces(self, 4096):
                norm = max(norm, largest_norm(vectors))
                claim.beat()
            claim.commit(max_norm=norm)
            known = {self._name, *claim.state.boxes.values()}
            for name in self._link.collections():
                if name.startswith(f"{self._name}__boxes_") and name not in known:
                    self._link.drop(name)
            self._link.tidy(*known)

    def _newest(self) -> State:
        state = self._documents.state()
        if state is None or state.uid != self._uid:
            raise GoneError(f"{self.path} was replaced or deleted; open it again")
        return state

    @property
    def _state(self) -> State:
        """The state of the snapshot or write that this thread is in."""
        if self._here.claim is not None:
            return self._here.claim.state
        assert self._here.state is not None, "candidates are read inside a snapshot or a write"
        self._here.used = True
        return self._here.state

    @property
    def _claim(self) -> Claim:
        assert self._here.claim is not None, "changes are made inside a write"
        return self._here.claim

    def _collection(self, eps: float) -> str:
        found = self._state.boxes
        if eps not in found:
            raise GalleryError(f"the gallery has no boxes for linf:{eps:g}")
        return found[eps]

    def _fetch(self, collection: str, slots: Slots, fields: Sequence[str]) -> Mapping[int, Row]:
        """The rows of these slots that are there: neighbours by a span of slots, others by name."""
        stamp, wanted = self._state.stamps.get(collection, 0), np.unique(slots)
        page = max(1, min(MOST // 4, _PAGE_BYTES // (8 * self._dim)))
        found: dict[int, Row] = {}
        first = 0
        while first < len(wanted):
            part = wanted[first : first + page]
            expression = f"slot >= {part[0]} and slot <= {part[-1]}"
            if part[-1] - part[0] >= 2 * len(part):  # More than so many rows may come, and be too many.
                part = part[:_ASKED]
                expression = f"slot in {part.tolist()}"
            got = self._link.query(collection, expression, fields, stamp=stamp)
            chosen = set(part.tolist())
            found.update({row["slot"]: row for row in got if row["slot"] in chosen})
            first += len(part)
        return found

    def _boxes(self, eps: float, slots: Slots) -> tuple[Boxes, Floats]:
        """The boxes for `eps`, and how far each candidate can move in its own; the last ones are kept at hand."""
        here, asked = self._here, (self._state, eps, slots.tobytes())
        if here.boxes is None or here.boxes[0] != asked:
            found = rows.in_order(self._fetch(self._collection(eps), slots, rows.BOX), slots)
            here.boxes = asked, rows.boxes_of(found, self._dim)
        return here.boxes[1]

    def _commit(self, count: int, old: Slots, **changes: object) -> None:
        claim = self._claim
        dead = [*claim.state.dead, *spans_of(old)]
        if not count:
            changes["max_norm"] = 0.0
        claim.commit(count=count, generation=claim.state.generation + 1, dead=dead, **changes)
        if len(old):
            with suppress(GalleryError):  # They are gone for readers; the rows can wait for `compact`.
                self._sweep()

    def _sweep(self) -> None:
        """Delete the rows of slots that hold no candidate."""
        claim = self._claim
        stamps = dict(claim.state.stamps)
        for name in (self._name, *claim.state.boxes.values()):
            for expression in _chosen([*claim.state.dead, *claim.state.lost]):
                stamps[name] = self._link.delete(name, expression)
                claim.beat()
        claim.commit(stamps=stamps, dead=())


class MilvusLiteStore(MilvusStore):
    """Candidates in a local file of milvus-lite, which one process at a time may have open; else as `MilvusStore`."""

    promises: ClassVar[Promises] = Promises("milvus-lite", proposes=True)


def _chosen(spans: Sequence[Span]) -> Iterator[str]:
    """Expressions that name these slots by their primary keys."""
    slots = [slot for first, last in spans for slot in range(first, last)]
    for first in range(0, len(slots), _ASKED):
        yield f"slot in {slots[first : first + _ASKED]}"
