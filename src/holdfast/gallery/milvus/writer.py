"""Changes of a gallery in Milvus, made by whoever has claimed it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from holdfast.errors import GalleryError
from holdfast.gallery import boxes as box_columns
from holdfast.gallery.boxes import Boxes
from holdfast.gallery.columns import largest_norm
from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.milvus import rows
from holdfast.gallery.milvus.address import Index
from holdfast.gallery.milvus.documents import Claim, Span, spans_of
from holdfast.gallery.milvus.link import Link
from holdfast.gallery.milvus.view import View
from holdfast.gallery.values import Item
from holdfast.gallery.writing import PIECE


@dataclass(frozen=True)
class Writer:
    """What the holder of a claim does to the candidates."""

    link: Link
    name: str
    dim: int
    claim: Claim

    @property
    def seen(self) -> View:
        """The newest state, as a reader sees it."""
        return View(self.link, self.name, self.claim.state)

    def put(self, new: list[Item], vectors: Floats, given: Mapping[float, Boxes], old: Slots) -> None:
        """Write candidates into the claimed slots, and commit them in the place of those in `old`."""
        slots = range(*self.claim.slots)
        made = {self.name: rows.candidates(slots, new, vectors)}
        for eps, name in self.claim.state.boxes.items():
            made[name] = rows.boxes(slots, given[eps], vectors)
        self.claim.dirty = True
        stamps = dict(self.claim.state.stamps)
        for name, content in made.items():
            stamps[name] = self.link.insert(name, content, 8 * self.dim + 1024, self.claim.beat)
        norm = max(self.claim.state.max_norm, largest_norm(vectors))
        count = self.claim.state.count + len(new) - len(old)
        self._commit(count, old, next_slot=self.claim.slots[1], max_norm=norm, stamps=stamps)

    def take(self, old: Slots) -> None:
        """Commit that the candidates in these slots are gone."""
        self._commit(self.claim.state.count - len(old), old)

    def add_boxes(self, eps: float, make: Callable[[list[Item], Floats], Boxes]) -> None:
        """A collection of boxes for `eps`, one for every candidate."""
        name = f"{self.name}__boxes_{uuid.uuid4().hex[:12]}"
        self.link.create(name, rows.box_fields(self.dim), Index())
        try:
            stamp = 0
            for page in self.seen.every(["slot", "vector", "item", "check"]):
                for first in range(0, len(page), PIECE):
                    part = page[first : first + PIECE]
                    vectors = rows.vectors_of(part, self.dim)
                    made = make([rows.item_of(row) for row in part], vectors)
                    self.claim.beat()
                    box_columns.rows({eps: made}, vectors)
                    new = rows.boxes([int(row["slot"]) for row in part], made, vectors)
                    stamp = self.link.insert(name, new, 8 * self.dim, self.claim.beat)
            self.link.load(name)
            stamps = {**self.claim.state.stamps, name: stamp}
            held = {**self.claim.state.boxes, eps: name}
            self.claim.commit(boxes=held, stamps=stamps, generation=self.claim.state.generation + 1)
        except BaseException:
            if not self.claim.unsure:  # Else a state may name it; `compact` drops it if none does.
                with suppress(GalleryError):
                    self.link.drop(name)
            raise

    def compact(self) -> None:
        """Delete rows that belong to no candidate, find the largest norm, and have Milvus tidy up."""
        self._sweep()
        norm = 0.0
        for page in self.seen.every(["slot", "vector", "check"]):
            norm = max(norm, largest_norm(rows.vectors_of(page, self.dim)))
            self.claim.beat()
        self.claim.commit(max_norm=norm)
        state = self.claim.state
        known = {self.name, *state.boxes.values()}
        for name in self.link.collections():
            if name.startswith(f"{self.name}__boxes_") and name not in known:
                self.link.drop(name)
        self.link.tidy(*known)

    def _commit(self, count: int, old: Slots, **changes: object) -> None:
        dead = [*self.claim.state.dead, *spans_of(old)]
        if not count:
            changes["max_norm"] = 0.0
        self.claim.commit(count=count, generation=self.claim.state.generation + 1, dead=dead, **changes)
        if len(old):
            with suppress(GalleryError):  # They are gone for readers; the rows can wait for `compact`.
                self._sweep()

    def _sweep(self) -> None:
        """Delete the rows of slots that hold no candidate."""
        stamps = dict(self.claim.state.stamps)
        for name in (self.name, *self.claim.state.boxes.values()):
            for expression in _chosen([*self.claim.state.dead, *self.claim.state.lost]):
                stamps[name] = self.link.delete(name, expression)
                self.claim.beat()
        self.claim.commit(stamps=stamps, dead=())


def _chosen(spans: Sequence[Span]) -> Iterator[str]:
    """Expressions that name these slots by their primary keys."""
    slots = [slot for first, last in spans for slot in range(first, last)]
    for first in range(0, len(slots), 1000):
        yield f"slot in {slots[first : first + 1000]}"
