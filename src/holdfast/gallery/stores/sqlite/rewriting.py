"""A gallery rewritten in one transaction: its vectors, boxes, embedder and kept certificates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from holdfast.gallery import boxes as box_columns
from holdfast.gallery.boxes import Boxes
from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.kept import Kept
from holdfast.gallery.stores.base import VECTOR
from holdfast.gallery.stores.sqlite import certificates, columns, items, meta, writing
from holdfast.gallery.stores.sqlite.transactions import Transactions
from holdfast.gallery.values import EmbedderInfo, Item


class Rewriting:
    """What is done to a gallery inside `Gallery.rewriting`; an error, or a kill, leaves it as it was."""

    def __init__(self, store: Transactions) -> None:
        self._store, self._connection = store, store.connection
        self._old = meta.read(self._connection)
        self._changes = dict.fromkeys(self._old.columns, 0)
        self._listed = 0

    def pieces(self) -> Iterator[tuple[Slots, list[Item], Floats]]:
        """All candidates in pieces: their slots, their items, their vectors."""
        return writing.pieces(self._connection, self._old)

    def put(self, slots: Slots, found: Sequence[Item], vectors: Floats, boxes: Mapping[float, Boxes]) -> None:
        """Give the candidates in these slots other vectors, and boxes for some of the sizes that the gallery has."""
        rows = {VECTOR: vectors, **box_columns.rows(boxes, vectors)}
        for kind, part in rows.items():
            self._changes[kind] ^= columns.scatter(
                self._connection, self._old.columns[kind], slots, part, self._old.generation + 1
            )
        places = list(zip(slots.tolist(), found, strict=True))
        self._listed ^= items.update(self._connection, places, vectors)

    def settle(self, embedder: EmbedderInfo, drop: Sequence[float]) -> None:
        """Say which embedder the content is of now, and drop the boxes for these sizes."""
        new = self._old.moved_on(
            self._old.count,
            self._changes,
            self._listed,
            fingerprint=embedder.fingerprint,
            card=json.dumps(embedder.card, sort_keys=True),
            location=embedder.location,
        )
        parts = (box_columns.CENTRE, box_columns.RADIUS, box_columns.REACH)
        gone = [box_columns.kind(part, eps) for eps in drop for part in parts]
        meta.write(self._connection, meta.drop(self._connection, new, gone))

    def certificates(self) -> list[Kept]:
        """The kept certificates as they are stored, whatever they prove."""
        return certificates.read(self._connection, meta.read(self._connection))

    def looking(self) -> AbstractContextManager[None]:
        """The gallery's reads in this thread see what has been written so far."""
        return self._store.looking()

    def keep_only(self, proved: Sequence[Kept]) -> None:
        """Keep these certificates in the place of all."""
        writing.forget(self._connection, [one.query for one in self.certificates()])
        writing.keep(self._connection, proved)
