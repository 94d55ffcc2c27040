"""A store written from CONTRIBUTING's "Add a store": a folder with one file for each state.

The whole conformance suite (`tests/gallery/test_gallery_conformance.py`) runs for it, under the scheme `toy`.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
import uuid
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from holdfast.errors import GalleryError
from holdfast.gallery import Boxes, EmbedderInfo, GalleryInfo, Item, boxes, create_gallery, open_gallery
from holdfast.gallery.kept import Kept, KeptHit
from holdfast.gallery.stores import STORES
from holdfast.gallery.stores.base import (
    VECTOR,
    WAIT,
    GoneError,
    NotPromisedError,
    Promises,
    VectorStore,
    pieces,
)


class ToyStore(VectorStore):
    """toy:FOLDER. A state is a file that is never changed; the file `current` names the one that counts."""

    promises = Promises("toy", steady=True)
    _writing: ClassVar = defaultdict(threading.RLock)  # One process: a lock for each folder is enough.

    def __init__(self, path, *, readonly=False):
        self.path, self._readonly = path, readonly
        self._folder = Path(path.removeprefix("toy:"))
        self._uid = None
        self._here = threading.local()
        self._uid = self._load()["info"].uid

    @classmethod
    def create(cls, location, *, dim, embedder, overwrite=False, wait=WAIT):
        if cls.exists(location):
            if not overwrite:
                raise GalleryError(f"{location} exists already; choose another folder")
            cls.discard(location, content=True)
        folder = Path(str(location).removeprefix("toy:"))
        folder.mkdir(parents=True)
        info = GalleryInfo(location, uuid.uuid4().hex, dim, 0, embedder, "2026-01-01", 0)
        _save(folder, {"info": info, "items": [], "kept": [], VECTOR: np.empty((0, dim), np.float32)})
        return cls(location)

    @classmethod
    def open(cls, location, *, readonly=False, wait=WAIT):
        if not cls.exists(location):
            raise GalleryError(f"there is no gallery at {location}; make one with 'holdfast index'")
        return cls(location, readonly=readonly)

    @classmethod
    def exists(cls, location):
        return (Path(str(location).removeprefix("toy:")) / "current").exists()

    @classmethod
    def discard(cls, location, *, content=False):
        if cls.exists(location) and (content or not cls(location).info().count):
            shutil.rmtree(str(location).removeprefix("toy:"))

    def close(self):
        self._folder = None

    def info(self):
        return self._state["info"]

    @contextmanager
    def snapshot(self):
        outer = getattr(self._here, "state", None)
        self._here.state = self._state
        try:
            yield
        finally:
            self._here.state = outer

    def slots(self):
        return np.arange(len(self._state["items"]))

    def items(self, slots):
        items = self._state["items"]
        return {slot: items[slot] for slot in slots if 0 <= slot < len(items)}

    def column(self, kind, slots):
        return self._state[kind][slots]

    def certificates(self):
        return sorted(self._state["kept"], key=lambda one: one.named)

    @contextmanager
    def write(self, size=0):
        if self._readonly:
            raise GalleryError(f"{self.path} is open for reading only")
        if getattr(self._here, "state", None) is not None:
            raise GalleryError(f"{self.path} cannot be changed inside a snapshot; leave the snapshot first")
        with self._writing[self.path], self.snapshot():
            before = self._here.state
            yield
            if self._here.state is not before:
                _save(self._folder, self._here.state)

    def put(self, items, rows, slots):
        state, fresh = dict(self._state), slots < 0
        state["items"] = [*state["items"], *(item for item, new in zip(items, fresh, strict=True) if new)]
        for item, slot in zip(items, slots.tolist(), strict=True):
            if slot >= 0:
                state["items"][slot] = item
        for kind, part in rows.items():
            state[kind] = np.concatenate([state[kind], part[fresh]])
            state[kind][slots[~fresh]] = part[~fresh]
        self._change(state)

    def take(self, slots):
        left = np.setdiff1d(self.slots(), slots)
        state = {kind: self._state[kind][left] for kind in _columns(self._state)}
        self._change(
            {**self._state, **state, "items": [self._state["items"][slot] for slot in left.tolist()]}
        )

    def extend(self, eps, make):
        made = defaultdict(list)
        for part in (boxes.CENTRE, boxes.RADIUS, boxes.REACH):
            made[boxes.kind(part, eps)] = [
                np.empty((0, 1 if part == boxes.REACH else self.info().dim), np.float32)
            ]
        for _, items, vectors in pieces(self):
            for kind, rows in boxes.rows({eps: make(items, vectors)}, vectors).items():
                made[kind].append(rows)
        sizes = tuple(sorted({*self.info().boxes, eps}))
        self._change(
            {**self._state, **{kind: np.concatenate(parts) for kind, parts in made.items()}}, boxes=sizes
        )

    def keep(self, new):
        names = {one.named for one in new}
        left = [one for one in self._state["kept"] if one.named not in names]
        self._here.state = {**self._state, "kept": [*left, *new]}

    def forget(self, queries):
        left = [one for one in self._state["kept"] if one.query not in queries]
        gone = len(self._state["kept"]) - len(left)
        self._here.state = {**self._state, "kept": left}
        return gone

    def _change(self, state, **said):
        info = state["info"]
        said |= {"count": len(state["items"]), "generation": info.generation + 1}
        self._here.state = {**state, "info": dataclasses.replace(info, **said)}

    @property
    def _state(self):
        inside = getattr(self._here, "state", None)
        return self._load() if inside is None else inside

    def _load(self):
        try:
            state = _load(self._folder, self.path)
        except (OSError, TypeError):
            raise GoneError(f"{self.path} was closed or deleted; open it again") from None
        if self._uid not in (None, state["info"].uid):
            raise GoneError(f"{self.path} was replaced; open it again")
        return state


def _columns(state):
    return [kind for kind in state if kind not in ("info", "items", "kept")]


def _save(folder, state):
    """A new file, and then the name of it, in one step."""
    name = f"{uuid.uuid4().hex}.npz"
    said = {
        "info": dataclasses.asdict(dataclasses.replace(state["info"], path="")),
        "items": [dataclasses.astuple(item) for item in state["items"]],
        "kept": [_text(one) for one in state["kept"]],
    }
    np.savez(folder / name, said=json.dumps(said), **{kind: state[kind] for kind in _columns(state)})
    (folder / "next").write_text(name)
    (folder / "next").replace(folder / "current")


def _load(folder, path):
    with np.load(folder / (folder / "current").read_text()) as file:
        said = json.loads(str(file["said"]))
        state = {kind: file[kind] for kind in file.files if kind != "said"}
    info = said["info"] | {"path": path, "boxes": tuple(said["info"]["boxes"])}
    info["embedder"] = EmbedderInfo(*(info["embedder"][name] for name in ("fingerprint", "card", "location")))
    state["info"] = GalleryInfo(**info)
    state["items"] = [Item(*one) for one in said["items"]]
    state["kept"] = [_kept(one) for one in said["kept"]]
    return state


def _text(one):
    said = dataclasses.asdict(one)
    for name in ("embedding", "centre", "radius"):
        said[name] = None if said[name] is None else said[name].tolist()
    return said


def _kept(said):
    arrays = {name: np.array(said[name]) for name in ("centre", "radius") if said[name] is not None}
    embedding = np.array(said["embedding"], dtype=np.float32)
    return Kept(
        **{**said, **arrays, "embedding": embedding, "hits": tuple(KeptHit(**hit) for hit in said["hits"])}
    )


@pytest.fixture
def toy(monkeypatch, tmp_path):
    monkeypatch.setitem(STORES, "toy", f"{__name__}:ToyStore")
    with create_gallery(f"toy:{tmp_path}/shop", dim=2, embedder=EmbedderInfo("a" * 64)) as gallery:
        yield gallery


def test_a_registry_line_makes_it_a_gallery(toy):
    toy.add(["a", "b"], [[0.0, 0.0], [3.0, 4.0]], labels=["x", None])
    assert [(hit.id, hit.distance) for hit in toy.nearest([0.0, 0.0], 5)[0].hits] == [("a", 0.0), ("b", 5.0)]
    toy.add_boxes(0.1, lambda items, vectors: Boxes(vectors, np.full_like(vectors, 0.5)))
    with open_gallery(toy.path, readonly=True) as again:
        assert (again.get("a").label, again.info.boxes, again.verify()) == ("x", (0.1,), [])


def test_what_it_does_not_promise_is_refused_in_its_name(toy, tmp_path):
    promises = toy.promises
    assert (promises.files, promises.processes, promises.proposes) == (False, False, False)
    for asked in (toy.rewriting, toy.write_cache, lambda: toy.copy_to(tmp_path / "copy")):
        with pytest.raises(NotPromisedError, match="is in toy, which keeps its own files"):
            asked()
    assert toy.refresh_cache() is None


def test_it_is_small():
    assert len(Path(__file__).read_text().splitlines()) <= 350
