"""What a gallery in Milvus says of itself: its committed state, and who writes it.

Milvus has no transactions, but an insert of rows in one call is seen whole or not at all, and a read with
consistency Strong sees every write that ended before it. On these two everything here stands:

* A state is never changed: a newer one, of a larger serial, is written beside it, and then counts. That one
  insert is the moment of a commit.
* Who wants to write puts down a claim and then reads all claims; if it finds another's, it takes its own back
  and waits. Of two claims, the later reader sees both, so at most one of the two goes on.
* A claim names the slots that its write will fill. Should the writer die, the next one waits until the claim
  has not changed for `LEASE` seconds, takes it away, and never uses those slots.
* A commit whose answer was lost may count, now or later. It is undone by a state of a still larger serial, and
  neither its serial nor its generation is used again.
"""

from __future__ import annotations

import json
import random
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from holdfast.errors import GalleryError
from holdfast.gallery.exact import Slots
from holdfast.gallery.stores.milvus.address import DOCUMENTS, Index
from holdfast.gallery.stores.milvus.link import MOST, Link
from holdfast.gallery.values import EmbedderInfo

STATE, CLAIM, CERTIFICATE = "state", "claim", "certificate"
LEASE = 20.0
"""Seconds without a sign of life after which a writer counts as dead; it gives one at each piece of its work."""

_PIECE = 60_000
_SINGLES = 3

Span = tuple[int, int]
"""Slots from the first number up to, and without, the second."""


@dataclass(frozen=True)
class State:
    """A committed state; its candidates are in the slots below `next_slot` that are neither dead nor lost."""

    uid: str
    dim: int
    fingerprint: str
    card: dict[str, Any]
    location: str | None
    created: str
    index: Index
    count: int = 0
    generation: int = 0
    serial: int = 0
    next_slot: int = 0
    max_norm: float = 0.0
    boxes: dict[float, str] = field(default_factory=dict)
    """The collection of the boxes for each eps."""
    dead: tuple[Span, ...] = ()
    """Slots of removed candidates whose rows may still be there."""
    lost: tuple[Span, ...] = ()
    """Slots of writes that were never committed; never used again, since their rows may still come."""
    stamps: dict[str, int] = field(default_factory=dict)
    """By collection, the stamp of the last write that belongs to this state."""

    @property
    def embedder(self) -> EmbedderInfo:
        return EmbedderInfo(self.fingerprint, self.card, self.location)

    @property
    def expression(self) -> str:
        """What fits the rows of this state and no others."""
        parts = [f"slot < {self.next_slot}"]
        empty = merged([*self.dead, *self.lost])
        singles = [slot for a, b in empty if b - a <= _SINGLES for slot in range(a, b)]
        parts += [f"(slot < {a} or slot >= {b})" for a, b in empty if b - a > _SINGLES]
        if singles:
            parts.append(f"slot not in {singles}")
        return " and ".join(parts)

    def holds(self, slots: Slots) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which of these slots hold a candidate, as far as the state knows."""
        alive = (slots >= 0) & (slots < self.next_slot)
        for first, last in (*self.dead, *self.lost):
            alive &= (slots < first) | (slots >= last)
        return alive

    def encode(self) -> str:
        """As text, after a checksum of it."""
        body = json.dumps({**asdict(self), "boxes": list(self.boxes.items())})
        return f"{zlib.crc32(body.encode()):08x}{body}"

    @classmethod
    def decode(cls, text: str) -> State:
        """The state; refused if it is not what was written. One of before begins without a checksum."""
        stored, body = ("", text) if text.startswith("{") else (text[:8], text[8:])
        if stored and f"{zlib.crc32(body.encode()):08x}" != stored:
            raise GalleryError("what the gallery says of itself does not match its checksum; index it again")
        found = json.loads(body)
        found["index"] = Index(**found["index"])
        found["boxes"] = {float(eps): name for eps, name in found["boxes"]}
        found["dead"], found["lost"] = (tuple((a, b) for a, b in found[name]) for name in ("dead", "lost"))
        return cls(**found)


@dataclass(frozen=True)
class Document:
    """One text of a gallery; `rows` are the primary keys of the rows that hold it."""

    kind: str
    name: str
    body: str
    rows: tuple[str, ...] = ()


class Documents:
    """The documents of one gallery, in the collection that all galleries of a database share."""

    def __init__(self, link: Link, gallery: str) -> None:
        self._link, self._gallery = link, gallery
        self._states: list[Document] = []

    def prepare(self) -> None:
        """Make the collection, if it is not there."""
        from pymilvus import DataType

        if not self._link.has(DOCUMENTS):
            text = {"datatype": DataType.VARCHAR}
            number = {"datatype": DataType.INT64}
            fields: dict[str, dict[str, Any]] = {
                "key": {**text, "max_length": 512, "is_primary": True},
                "gallery": {**text, "max_length": 256},
                "kind": {**text, "max_length": 16},
                "name": {**text, "max_length": 128},
                "part": number,
                "parts": number,
                "body": {**text, "max_length": 65535},
                "vector": {"datatype": DataType.FLOAT_VECTOR, "dim": 2},
            }
            self._link.create(DOCUMENTS, fields, Index())
        self._link.load(DOCUMENTS)

    def read(self, *kinds: str) -> list[Document]:
        """All complete documents of these kinds, as of now."""
        named = " or ".join(f'kind == "{kind}"' for kind in kinds)
        found = self._link.query(
            DOCUMENTS,
            f'gallery == "{self._gallery}" and ({named})',
            ["key", "kind", "name", "part", "parts", "body"],
        )
        if len(found) >= MOST:
            raise GalleryError(
                f"{self._link.address} keeps too much beside its candidates; forget certificates"
            )
        grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in {row["key"]: row for row in found}.values():
            grouped.setdefault((row["kind"], row["name"]), []).append(row)
        whole = []
        for (kind, name), rows in grouped.items():
            rows.sort(key=lambda row: int(row["part"]))
            if [row["part"] for row in rows] == list(range(rows[0]["parts"])):
                body = "".join(row["body"] for row in rows)
                whole.append(Document(kind, name, body, tuple(row["key"] for row in rows)))
        if STATE in kinds:
            self._states = [one for one in whole if one.kind == STATE]
        return whole

    def write(self, documents: Sequence[Document]) -> None:
        """Put these down, all at once."""
        rows = []
        for one in documents:
            pieces = [one.body[at : at + _PIECE] for at in range(0, len(one.body), _PIECE)] or [""]
            for part, piece in enumerate(pieces):
                key = self.key(one.kind, one.name, part)
                fixed = {"gallery": self._gallery, "kind": one.kind, "name": one.name, "vector": [0.0, 0.0]}
                rows.append({**fixed, "key": key, "part": part, "parts": len(pieces), "body": piece})
        self._link.insert(DOCUMENTS, rows)

    def key(self, kind: str, name: str, part: int = 0) -> str:
        """The primary key of a piece of a document."""
        return f"{self._gallery}/{kind}/{name}/{part}"

    def delete(self, documents: Sequence[Document]) -> None:
        """Take these away."""
        keys = [key for one in documents for key in one.rows]
        for first in range(0, len(keys), 500):
            self._link.delete(DOCUMENTS, f"key in {json.dumps(keys[first : first + 500])}")

    def state(self) -> State | None:
        """The newest committed state; None if there is no such gallery."""
        return newest(self.read(STATE))

    def commit(self, state: State) -> float:
        """Make `state` the one that counts, and forget those before; says when it was answered."""
        name = f"{state.serial:020d}-{uuid.uuid4().hex}"
        self.write([Document(STATE, name, state.encode())])
        done = time.monotonic()
        with suppress(GalleryError):  # Nothing depends on it: the next commit tries again.
            self.delete([one for one in self._states if serial_of(one) < state.serial])
            self._states = []
        return done

    @contextmanager
    def claimed(self, size: int, wait: float) -> Iterator[Claim]:
        """Be the only writer for the block, with `size` slots reserved.

        Where the block fails after rows were written, its slots are given up, and a commit without an answer is
        undone; if even that cannot be said, the claim stays, and whoever takes it away does it.
        """
        claim = self._claim(size, wait)
        try:
            yield claim
        finally:
            with suppress(GalleryError):
                if claim.dirty:
                    claim.commit(lost=[*claim.state.lost, claim.slots], next_slot=claim.slots[1])
                elif claim.unsure:
                    claim.commit()
                self.delete(claim.signs)

    def _claim(self, size: int, wait: float) -> Claim:
        end, seen, since = time.monotonic() + max(wait, LEASE + 1), "", 0.0
        while True:
            found = self.read(STATE, CLAIM)
            state = newest(found)
            if state is None:
                raise GalleryError(
                    f"there is no gallery at {self._link.address}; make one with 'holdfast index'"
                )
            others = [one for one in found if one.kind == CLAIM]
            signs = " ".join(sorted(one.name for one in others))
            if signs != seen:
                seen, since = signs, time.monotonic()
            stale = others if time.monotonic() - since > LEASE else []
            if others == stale:
                claim = self._alone(state, size, stale)
                if claim is not None:
                    return claim
            elif time.monotonic() > end:
                raise GalleryError(
                    f"{self._link.address} is being written by another process; try again when it is done"
                )
            time.sleep(random.uniform(0.02, 0.2))

    def _alone(self, state: State, size: int, stale: Sequence[Document]) -> Claim | None:
        """A claim beside none but those of dead writers, whose slots are given up; None if another was quicker."""
        # What is below `next_slot` was committed, or given up, before its writer died.
        claimed = [span for one in stale for span in _spans(one)]
        lost = [(max(a, state.next_slot), b) for a, b in claimed if b > state.next_slot]
        first = max([state.next_slot, *(last for _, last in lost)])
        claim = Claim(self, state, uuid.uuid4().hex, (first, first + size), lost)
        claim.beat()
        found = self.read(STATE, CLAIM)
        mine = [one for one in found if claim.owns(one)]
        known = {one.name for one in [*mine, *stale]}
        now = newest(found)
        free = all(one.name in known for one in found if one.kind == CLAIM)
        if not (mine and free and now is not None and now.serial == state.serial):
            self.delete(mine)
            return None
        if stale:
            # A dead writer's last commit, and its undoing, may still come.
            claim.tried = replace(state, serial=state.serial + 2, generation=state.generation + 2)
            claim.commit(lost=[*state.lost, *lost], next_slot=first)
            self.delete(stale)
        return claim


@dataclass
class Claim:
    """The right to write, the state that it starts from, and the slots that are its own."""

    documents: Documents
    state: State
    nonce: str
    slots: Span
    lost: Sequence[Span] = ()
    """Slots that dead writers had claimed."""
    dirty: bool = False
    """Whether rows may be there that no state knows of."""
    signs: list[Document] = field(default_factory=list)
    """The signs of life that it gave."""
    last: float = 0.0

    def __post_init__(self) -> None:
        self.tried = self.state
        """The newest state that may have been written, whether or not an answer said so."""

    @property
    def unsure(self) -> bool:
        """Whether a state may count, now or later, that no answer told of."""
        return self.tried is not self.state

    def owns(self, document: Document) -> bool:
        return document.kind == CLAIM and document.name.startswith(self.nonce)

    def beat(self) -> None:
        """A sign of life, at most one in a while."""
        if not self.signs or time.monotonic() - self.last > LEASE / 4:
            begun = time.monotonic()
            name = f"{self.nonce}-{len(self.signs)}"
            key = self.documents.key(CLAIM, name)
            self.signs.append(Document(CLAIM, name, json.dumps([self.slots, *self.lost]), (key,)))
            self.documents.write(self.signs[-1:])
            self.last = begun

    def commit(self, **changes: Any) -> State:
        """A new state, this one but for `changes`; an error where another writer may have taken over."""
        if time.monotonic() - self.last > LEASE / 2 and not self._held():
            raise GalleryError("the write took too long and another one took over; nothing was written")
        for name in {"dead", "lost"} & changes.keys():
            changes[name] = merged(changes[name])
        if self.tried.generation > self.state.generation:
            changes["generation"] = self.tried.generation + 1
        state = replace(self.state, serial=self.tried.serial + 1, **changes)
        self.tried = state
        if self.documents.commit(state) - self.last > LEASE:
            raise GalleryError("the write took too long; it may not have been kept: look, and write again")
        self.state, self.dirty = state, False
        return state

    def _held(self) -> bool:
        """Whether nobody took over, after a new sign of life.

        Who is about to take over has put down a claim that is seen here, or sees the new sign and steps back.
        """
        before = {one.name for one in self.signs}
        self.beat()
        found = self.documents.read(STATE, CLAIM)
        now = newest(found)
        return (
            before <= {one.name for one in found}
            and all(self.owns(one) for one in found if one.kind == CLAIM)
            and now is not None
            and now.uid == self.state.uid
            and now.serial <= self.tried.serial
        )


def newest(found: Sequence[Document]) -> State | None:
    """The state that counts."""
    states = [one for one in found if one.kind == STATE]
    return State.decode(max(states, key=lambda one: one.name).body) if states else None


def serial_of(document: Document) -> int:
    """How many states were before this one."""
    return int(document.name.partition("-")[0])


def merged(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The same slots in as few spans as can be."""
    found: list[Span] = []
    for first, last in sorted(span for span in spans if span[0] < span[1]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def spans_of(slots: Slots) -> tuple[Span, ...]:
    """These slots as spans."""
    return merged([(slot, slot + 1) for slot in sorted(slots.tolist())])


def _spans(claim: Document) -> list[Span]:
    return [(int(first), int(last)) for first, last in json.loads(claim.body)]
