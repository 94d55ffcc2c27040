"""What a gallery asks of the place where its vectors live.

`Gallery` does the rest once, above: exact search with a recheck in float64, range search, boxes, certificates, checks
of what callers give. A store keeps rows under slots, says one committed state at a time, and proposes candidates
where it can. CONTRIBUTING ("Add a store") says how to write one; most methods here have a default that is slow and
right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from holdfast.errors import GalleryError
from holdfast.gallery import boxes
from holdfast.gallery.boxes import Boxes
from holdfast.gallery.exact import Doubles, Floats, Slots, largest_norm
from holdfast.gallery.kept import Kept
from holdfast.gallery.values import EmbedderInfo, GalleryInfo, Item

if TYPE_CHECKING:
    from holdfast.gallery.stores.sqlite.rewriting import Rewriting

WAIT = 30.0
"""Seconds that a write waits for another one to end."""
VECTOR = "vector"
"""The column of the vectors; `boxes.kind` names those of boxes."""
PIECE = 256
"""How many candidates are given a new column at a time."""

Rows = Mapping[str, Floats]
"""By column, a row for each candidate."""


class TooManyError(GalleryError):
    """An exact answer would need more candidates than the store gives out; a certificate is then UNKNOWN."""


class ChangedError(GalleryError):
    """The gallery was changed by another process while it was being read; asked again, it answers."""


class GoneError(GalleryError):
    """What was opened is no longer there: it was closed, or replaced by another gallery. Open it again."""


class LostError(GalleryError):
    """A row that a state counts is not there: another process changed the gallery meanwhile, or it is damaged."""


class NotPromisedError(GalleryError):
    """The store lacks what was asked for."""


@dataclass(frozen=True)
class Promises:
    """What a store promises beyond the interface; what it does not promise is refused in its name."""

    name: str
    """How the store is called in messages."""
    processes: bool = False
    """Several processes may have a gallery open, and write, at the same time."""
    crash_safe: bool = False
    """A write is on the disk when it returns, and a killed process leaves all of it or nothing."""
    steady: bool = False
    """A snapshot holds one state still while others write; else it notices, and ends with `ChangedError`."""
    local: bool = False
    """All rows are in this process's memory, in slots 0, 1, …: `rows` costs nothing."""
    proposes: bool = False
    """`nearest` proposes; else every exact answer reads all vectors."""
    files: bool = False
    """A gallery is a file, with what only a file has: a copy, a cache, an upgrade, a folder of pictures beside it."""
    float16: bool = False
    """Vectors may be stored in half precision."""


class VectorStore(ABC):
    """One gallery in one store. Reads are made inside `snapshot`, changes inside `write`.

    A slot is the number of a candidate; it means nothing outside one snapshot. A column has a float32 row for every
    candidate: `vector`, and three for each eps with boxes.
    """

    promises: ClassVar[Promises]
    path: Path | str

    @classmethod
    @abstractmethod
    def create(
        cls,
        location: str | Path,
        *,
        dim: int,
        embedder: EmbedderInfo,
        overwrite: bool = False,
        wait: float = WAIT,
    ) -> Self:
        """A new, empty gallery; an old one is replaced only if `overwrite`, anything else never is."""

    @classmethod
    @abstractmethod
    def open(cls, location: str | Path, *, readonly: bool = False, wait: float = WAIT) -> Self:
        """The gallery that is there; an error that begins with "there is no gallery at" where there is none."""

    @classmethod
    @abstractmethod
    def exists(cls, location: str | Path) -> bool:
        """Whether something is at `location`: `create` would not make a new one there."""

    @classmethod
    @abstractmethod
    def discard(cls, location: str | Path, *, content: bool = False) -> None:
        """Take away an empty gallery, or any with all that it holds if `content`."""

    @abstractmethod
    def close(self) -> None:
        """Let go; closing twice is fine."""

    @abstractmethod
    def info(self) -> GalleryInfo:
        """What the gallery says of itself: as of the snapshot or write around, else as last committed."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[None]:
        """All reads of this thread inside the block see one committed state. A thread may nest it."""

    @abstractmethod
    def slots(self) -> Slots:
        """The slots of all candidates, in increasing order."""

    @abstractmethod
    def items(self, slots: Iterable[int]) -> dict[int, Item]:
        """The items in these slots; a slot without one is left out."""

    @abstractmethod
    def column(self, kind: str, slots: Slots) -> Floats:
        """Some rows of a column, in the order of `slots`; `LostError` where one is missing."""

    @abstractmethod
    def certificates(self) -> list[Kept]:
        """All kept certificates, by query, threat and k."""

    @abstractmethod
    def write(self, size: int = 0) -> AbstractContextManager[None]:
        """One write, of at most `size` candidates by `put`: kept whole when the block ends, undone by any error.

        Writes wait for each other. Reads of this thread see the newest state.
        """

    @abstractmethod
    def put(self, items: Sequence[Item], rows: Rows, slots: Slots) -> None:
        """Write candidates: of one that is there `slots` has its slot, of a new one −1.

        Columns that are left out stay as they are; new candidates come with all of them. Once in a `write`.
        """

    @abstractmethod
    def take(self, slots: Slots) -> None:
        """Remove the candidates in these slots. Once in a `write`."""

    @abstractmethod
    def extend(self, eps: float, make: Callable[[list[Item], Floats], Boxes]) -> None:
        """Give every candidate a box for `eps`, which none has; `make` gets some items and their vectors."""

    @abstractmethod
    def keep(self, new: Sequence[Kept]) -> None:
        """Keep these certificates; one for the same query, threat and k is replaced."""

    @abstractmethod
    def forget(self, queries: Iterable[str]) -> int:
        """Drop the certificates of these queries, and say how many there were."""

    # What follows has a default that every store may leave as it is.

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """The slots of those of `ids` that are there."""
        wanted = set(ids)
        return {item.id: slot for slot, item in self._all_items().items() if item.id in wanted}

    def listing(self, after: str | None = None) -> Iterator[Item]:
        """All items in the order of their ids; with `after` only ids behind it, and maybe not all of them."""
        found = (item for item in self._all_items().values() if after is None or item.id > after)
        yield from sorted(found, key=lambda item: item.id)

    def _all_items(self) -> dict[int, Item]:
        found, count = self.items(self.slots().tolist()), self.info().count
        if len(found) != count:
            raise LostError(f"{count} candidates are counted, {len(found)} are there")
        return found

    def rows(self, kind: str) -> Floats:
        """All rows of a column, in the order of `slots`."""
        return self.column(kind, self.slots())

    def max_norm(self) -> float:
        """At least the norm of every vector."""
        return largest_norm(self.rows(VECTOR))

    def nearest(
        self, queries: Floats, limit: int, below: float | None = None
    ) -> list[tuple[Slots, Doubles]] | None:
        """Per query, at most `limit` candidates by the store's own squared distances, nearest first.

        With `below` only those whose squared distance is below it. None where the store proposes nothing, or would
        not give out so many.
        """
        return None

    def farther(self, eps: float, reach: float) -> Slots | None:
        """The slots of all whose stored reach for `eps` is above `reach`; None where the store cannot tell, or
        they are more than it gives out."""
        return None

    def problems(self) -> list[str]:
        """Everything read and compared: one line for each thing that is wrong. Outside a snapshot."""
        found = []
        try:
            with self.snapshot():
                for line in problems(self):
                    found.append(line)
        except ChangedError:
            raise
        except GalleryError as cause:
            found.append(f"cannot be read further: {cause}")
        return found

    @classmethod
    def problems_at(cls, location: str | Path) -> list[str]:
        """`problems` of the gallery at `location`, also where it is too damaged to open."""
        store = cls.open(location, readonly=True)
        try:
            return store.problems()
        finally:
            store.close()

    def compact(self) -> None:  # noqa: B027 (nothing to do is a fine default)
        """Give the space of removed candidates back."""

    # Of stores that promise `files`; `stores.check_file` refuses others in time.

    def copy_to(self, out: Path) -> None:
        """A consistent copy at `out`, where nothing is yet."""
        raise self._no_file()

    def put_over(self, live: Path) -> None:
        """Replace what the gallery at `live` holds by what this one does, in one transaction."""
        raise self._no_file()

    def rewriting(self) -> AbstractContextManager[Rewriting]:
        """Rewrite vectors, boxes, embedder and kept certificates in one write."""
        raise self._no_file()

    def write_cache(self, *, only_if_stale: bool = False) -> Any:
        """Bring the mapped cache beside the file up to date; with `only_if_stale`, where that is worth it."""
        if not only_if_stale:
            raise self._no_file()

    def _no_file(self) -> NotPromisedError:
        return NotPromisedError(f"{self.path} is in {self.promises.name}, which keeps its own files")


class _Columns(Protocol):
    def column(self, kind: str, slots: Slots) -> Floats: ...


def pieces(store: VectorStore, size: int = PIECE) -> Iterator[tuple[Slots, list[Item], Floats]]:
    """All candidates of a store in pieces: their slots, their items, their vectors."""
    slots, count = store.slots(), store.info().count
    if len(slots) != count:
        raise LostError(f"{count} candidates are counted, {len(slots)} are there")
    for first in range(0, count, size):
        part = slots[first : first + size]
        found = store.items(part.tolist())
        if len(found) != len(part):
            raise LostError(f"an item in slots {part[0]} to {part[-1]} is missing")
        yield part, [found[slot] for slot in part.tolist()], store.column(VECTOR, part)


def problems(store: VectorStore) -> Iterator[str]:
    """What is wrong with a gallery, as far as its own reads tell; inside a snapshot.

    Checked: that every candidate that is counted is there, with what was written; that ids are unique and found;
    the largest norm; that each has its boxes, which hold its vector, and can move as far as is said; the kept
    certificates.
    """
    info, norm, count = store.info(), store.max_norm(), 0
    ids: set[str] = set()
    every = store.slots()
    for first in range(0, len(every), 4096):
        there = store.items(every[first : first + 4096].tolist())
        slots, items = np.array(sorted(there), dtype=np.int64), [there[slot] for slot in sorted(there)]
        count += len(items)
        if not items:
            continue
        vectors = store.column(VECTOR, slots)
        where = f"slots {slots[0]} to {slots[-1]}"
        if not np.isfinite(vectors).all():
            yield f"a vector in {where} has a NaN or infinity"
        if largest_norm(vectors) > norm:
            yield f"the largest norm is said to be {norm}, but is {largest_norm(vectors)}"
        yield from (f"'{item.id}' is there more than once" for item in items if item.id in ids)
        ids.update(item.id for item in items)
        found = store.find([item.id for item in items])
        lost = [
            item.id for item, slot in zip(items, slots.tolist(), strict=True) if found.get(item.id) != slot
        ]
        yield from (f"'{id}' cannot be found by its id" for id in lost)
        for eps in info.boxes:
            stored = boxes_of(store, eps, slots)
            reach = store.column(boxes.kind(boxes.REACH, eps), slots)
            if not stored.hold(vectors) or (stored.reach(vectors) > reach).any():
                yield f"boxes for {boxes.named(eps)} in {where} do not fit their vectors"
    if count != info.count:
        yield f"{count} candidates are there where {info.count} are counted"
    store.certificates()


def boxes_of(store: _Columns, eps: float, slots: Slots) -> Boxes:
    """The boxes for `eps` of the candidates in these slots."""
    return Boxes(*(store.column(boxes.kind(part, eps), slots) for part in (boxes.CENTRE, boxes.RADIUS)))
