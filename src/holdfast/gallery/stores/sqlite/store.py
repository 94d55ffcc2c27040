"""The default store: one SQLite file, its vectors in memory, checked and searched through FAISS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from holdfast.errors import GalleryError
from holdfast.gallery import boxes as box_columns
from holdfast.gallery.boxes import Boxes
from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.kept import Kept
from holdfast.gallery.stores.base import WAIT, Promises, Rows
from holdfast.gallery.stores.sqlite import cache, certificates, check, copying, database, items, meta, writing
from holdfast.gallery.stores.sqlite.cache import Written
from holdfast.gallery.stores.sqlite.creating import create_store, discard_store
from holdfast.gallery.stores.sqlite.rewriting import Rewriting
from holdfast.gallery.stores.sqlite.transactions import Transactions, opened
from holdfast.gallery.values import EmbedderInfo, Item


class SQLiteStore(Transactions):
    """Candidates in one SQLite file, in slots 0, 1, …

    Each write is one transaction, on the disk when it returns; a process killed at any moment loses nothing
    committed. Any number of processes read while one writes, and each read sees the newest committed state; they
    share a machine, since locks over a network cannot be relied on. Threads may share one object: they read side by
    side, also while one of them writes.
    """

    promises: ClassVar[Promises] = Promises(
        "SQLite", processes=True, crash_safe=True, steady=True, local=True, files=True
    )

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
        create_store(Path(location), dim=dim, embedder=embedder, overwrite=overwrite, wait=wait)
        return cls.open(location, wait=wait)

    @classmethod
    def open(cls, location: str | Path, *, readonly: bool = False, wait: float = WAIT) -> Self:
        """The gallery at a path, its vectors read and checked, or mapped from its cache and checked when used."""
        path = Path(location)
        signature = database.signature(path)
        with opened(path, readonly=readonly, wait=wait) as (connection, frozen):
            store = cls(path, connection, signature, readonly=readonly, frozen=frozen, wait=wait)
            try:
                store.check_count()
                store.prepare()
            except BaseException:
                store.close()
                raise
            return store

    @classmethod
    def exists(cls, location: str | Path) -> bool:
        return Path(location).exists()

    @classmethod
    def discard(cls, location: str | Path, *, content: bool = False) -> None:
        """One that another process has open stays."""
        discard_store(Path(location), content=content)

    def slots(self) -> Slots:
        return np.arange(self.info().count)

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        return items.slots_of(self.connection, ids, self.bound_vectors())

    def items(self, slots: Iterable[int]) -> dict[int, Item]:
        return items.items_at(self.connection, slots, self.bound_vectors())

    def listing(self, after: str | None = None) -> Iterator[Item]:
        if after is None:
            state = self.state
            yield from items.by_id(self.connection, state.count, self.bound_vectors(), state.items)
        else:
            yield from items.page(self.connection, after, self.bound_vectors())

    def max_norm(self) -> float:
        return self.memory.max_norm

    def certificates(self) -> list[Kept]:
        return certificates.read(self.connection, meta.read(self.connection))

    def put(self, items: Sequence[Item], rows: Rows, slots: Slots) -> None:
        writing.put(self.connection, items, rows, slots)

    def take(self, slots: Slots) -> None:
        writing.take(self.connection, slots.tolist())

    def extend(self, eps: float, make: Callable[[list[Item], Floats], Boxes]) -> None:
        def rows(some: list[Item], vectors: Floats) -> Rows:
            return box_columns.rows({eps: make(some, vectors)}, vectors)

        writing.extend(self.connection, meta.columns_for(eps, self.vector.width), rows)

    def keep(self, new: Sequence[Kept]) -> None:
        writing.keep(self.connection, new)

    def forget(self, queries: Iterable[str]) -> int:
        return writing.forget(self.connection, queries)

    def problems(self) -> list[str]:
        with database.reading(self.path), self.lent() as connection:
            return check.problems(connection) or list(cache.problems(self.path, connection))

    @classmethod
    def problems_at(cls, location: str | Path) -> list[str]:
        path = Path(location)
        try:
            with opened(path, readonly=True, wait=WAIT) as (connection, _):
                found = check.problems(connection) or list(cache.problems(path, connection))
                connection.close()
                return found
        except GalleryError as cause:
            if isinstance(cause.__cause__, database.FAULTS):
                return [str(cause)]
            raise

    def compact(self) -> None:
        """Needs room for a copy meanwhile."""
        with self.alone() as connection, database.writing(self.path):
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def copy_to(self, out: Path) -> None:
        """It is read whole and compared before it gets its name."""
        with self.snapshot():
            copying.copy(self.connection, self.path, out)

    def put_over(self, live: Path) -> None:
        """Everything is read and compared first."""
        if live.exists() and live.samefile(self.path):
            raise GalleryError(f"{live} and {self.path} are the same file; nothing was replaced")
        with self.snapshot():
            copying.replace(self.connection, self.path, live)

    @contextmanager
    def rewriting(self) -> Iterator[Rewriting]:
        with self.write():
            yield Rewriting(self)

    def write_cache(self, *, only_if_stale: bool = False) -> Written | None:
        """A cache never changes an answer, only how soon it is there (see `cache`)."""
        with self.snapshot():
            state = self.state
            small = 4 * state.dim * state.count < cache.AUTOMATIC
            if only_if_stale and small and not cache.folder_of(self.path).is_dir():
                return None
            return cache.write(self.path, self.connection, state, only_if_stale=only_if_stale)
