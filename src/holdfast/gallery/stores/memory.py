"""A store in this process's memory: for evaluations, which ask what the deployed search answers, and for tests."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from holdfast.errors import GalleryError
from holdfast.gallery import boxes as box_columns
from holdfast.gallery.boxes import Boxes
from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.kept import Kept
from holdfast.gallery.stores.base import VECTOR, WAIT, GoneError, Promises, Rows, VectorStore, pieces
from holdfast.gallery.values import EmbedderInfo, GalleryInfo, Item


@dataclass(frozen=True)
class _State:
    """One committed state, never changed: slot n is the n-th item, and row n of every column."""

    info: GalleryInfo
    items: tuple[Item, ...]
    columns: dict[str, Floats]
    kept: dict[tuple[str, str, int], Kept] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)

    def moved_on(self, items: tuple[Item, ...], columns: dict[str, Floats]) -> _State:
        """The next state, of these items and columns."""
        info = replace(self.info, count=len(items), generation=self.info.generation + 1)
        return replace(
            self, info=info, items=items, columns=columns, places={item.id: n for n, item in enumerate(items)}
        )


class _Content:
    """A gallery that several stores of the process may have open."""

    def __init__(self, state: _State) -> None:
        self.state = state
        self.writing = threading.Lock()


class _Here(threading.local):
    """The state that the current thread reads, and the one that it is making."""

    read: _State | None = None
    new: _State | None = None


class MemoryStore(VectorStore):
    """Candidates in memory, under the address memory:NAME, until the process ends or the gallery is discarded.

    A state is replaced, never changed: snapshots hold still, and a write that fails leaves nothing.
    """

    promises: ClassVar[Promises] = Promises("memory", steady=True, local=True)
    _all: ClassVar[dict[str, _Content]] = {}

    def __init__(self, path: str, content: _Content, *, readonly: bool = False) -> None:
        self.path = path
        self._content: _Content | None = content
        self._readonly = readonly
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
        path = str(location)
        if dim < 1:
            raise GalleryError(f"vectors have at least 1 number, not {dim}")
        if path in cls._all and not overwrite:
            raise GalleryError(f"{path} exists already; choose another name, or say that it is overwritten")
        info = GalleryInfo(path, uuid.uuid4().hex, dim, 0, embedder, "", 0)
        cls._all[path] = _Content(_State(info, (), {VECTOR: np.empty((0, dim), np.float32)}))
        return cls(path, cls._all[path])

    @classmethod
    def open(cls, location: str | Path, *, readonly: bool = False, wait: float = WAIT) -> Self:
        if not cls.exists(location):
            raise GalleryError(f"there is no gallery at {location}; make one with 'holdfast index'")
        return cls(str(location), cls._all[str(location)], readonly=readonly)

    @classmethod
    def exists(cls, location: str | Path) -> bool:
        return str(location) in cls._all

    @classmethod
    def discard(cls, location: str | Path, *, content: bool = False) -> None:
        found = cls._all.get(str(location))
        if found is not None and (content or not found.state.items):
            del cls._all[str(location)]

    def close(self) -> None:
        self._content = None

    @property
    def _state(self) -> _State:
        if self._content is None or self._all.get(str(self.path)) is not self._content:
            raise GoneError(f"{self.path} was closed, replaced or deleted; open it again")
        return self._here.new or self._here.read or self._content.state

    def info(self) -> GalleryInfo:
        return self._state.info

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        outer = self._here.read
        self._here.read = outer or self._state
        try:
            yield
        finally:
            self._here.read = outer

    def slots(self) -> Slots:
        return np.arange(len(self._state.items))

    def items(self, slots: Iterable[int]) -> dict[int, Item]:
        items = self._state.items
        return {slot: items[slot] for slot in slots if 0 <= slot < len(items)}

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        places = self._state.places
        return {id: places[id] for id in ids if id in places}

    def column(self, kind: str, slots: Slots) -> Floats:
        return self._state.columns[kind][slots]

    def rows(self, kind: str) -> Floats:
        return self._state.columns[kind]

    def certificates(self) -> list[Kept]:
        kept = self._state.kept
        return [kept[name] for name in sorted(kept)]

    @contextmanager
    def write(self, size: int = 0) -> Iterator[None]:
        if self._readonly:
            raise GalleryError(f"{self.path} is open for reading only; open it without readonly to change it")
        if self._here.read is not None:
            raise GalleryError(f"{self.path} cannot be changed inside a snapshot; leave the snapshot first")
        self._state  # noqa: B018 (refuses a closed gallery)
        assert self._content is not None
        with self._content.writing:
            self._here.new = self._state
            try:
                yield
                self._content.state = self._here.new
            finally:
                self._here.new = None

    def put(self, items: Sequence[Item], rows: Rows, slots: Slots) -> None:
        state = self._state
        there, fresh = slots >= 0, slots < 0
        listed, columns = list(state.items), dict(state.columns)
        for slot, item in zip(slots.tolist(), items, strict=True):
            if slot < 0:
                listed.append(item)
            else:
                listed[slot] = item
        for kind, part in rows.items():
            columns[kind] = np.concatenate([columns[kind], part[fresh]])
            columns[kind][slots[there]] = part[there]
        self._here.new = state.moved_on(tuple(listed), columns)

    def take(self, slots: Slots) -> None:
        left = np.setdiff1d(self.slots(), slots)
        items = tuple(self._state.items[slot] for slot in left.tolist())
        columns = {kind: rows[left] for kind, rows in self._state.columns.items()}
        self._here.new = self._state.moved_on(items, columns)

    def extend(self, eps: float, make: Callable[[list[Item], Floats], Boxes]) -> None:
        state, dim = self._state, self._state.info.dim
        made: dict[str, list[Floats]] = {
            box_columns.kind(part, eps): [np.empty((0, 1 if part == box_columns.REACH else dim), np.float32)]
            for part in (box_columns.CENTRE, box_columns.RADIUS, box_columns.REACH)
        }
        for _, items, vectors in pieces(self):
            for kind, part in box_columns.rows({eps: make(items, vectors)}, vectors).items():
                made[kind].append(part)
        columns = {**state.columns, **{kind: np.concatenate(parts) for kind, parts in made.items()}}
        new = state.moved_on(state.items, columns)
        self._here.new = replace(new, info=replace(new.info, boxes=tuple(sorted({*state.info.boxes, eps}))))

    def keep(self, new: Sequence[Kept]) -> None:
        self._here.new = replace(self._state, kept={**self._state.kept, **{one.named: one for one in new}})

    def forget(self, queries: Iterable[str]) -> int:
        gone = set(queries)
        left = {name: one for name, one in self._state.kept.items() if one.query not in gone}
        count = len(self._state.kept) - len(left)
        self._here.new = replace(self._state, kept=left)
        return count
