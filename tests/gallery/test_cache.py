"""The mapped cache: whatever happens to it, answers are those of the gallery."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from gallery_reference import DIM, EMBEDDER, names, random, ranking, told
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from PIL import Image

from holdfast.gallery import Boxes, Gallery, verify_file
from holdfast.gallery.stores.sqlite import cache, columns, meta
from holdfast.models import wrap
from holdfast.workflow import open_and_index

EPS = 0.1
COUNT = 42


def around(vectors: np.ndarray, size: float = 0.2) -> Boxes:
    return Boxes.around(vectors.astype(np.float64), np.full(vectors.shape, size))


def add(gallery: Gallery, ids: list[str], vectors: np.ndarray, **more: bool) -> None:
    gallery.add(ids, vectors, boxes={EPS: around(vectors)}, **more)


@pytest.fixture
def shop(gallery: Gallery) -> Gallery:
    """A gallery with boxes, in eleven blocks a column, and its cache."""
    gallery.add_boxes(EPS, lambda _, vectors: around(vectors))
    add(gallery, names(COUNT), random(COUNT))
    gallery.write_cache()
    return gallery


def files(path: Path) -> list[Path]:
    return sorted(cache.folder_of(path).glob("*.f4"))


def stored(gallery: Gallery, kind: str) -> list[list[float]]:
    connection = gallery._store.connection
    column = meta.read(connection).columns[kind]
    return columns.gather(connection, column, np.arange(len(gallery))).tolist()


def check_answers(path: Path) -> None:
    """What a newly opened gallery says, by every way of asking, is what SQLite holds."""
    with Gallery.open(path, readonly=True) as gallery, gallery.snapshot():
        slots = np.arange(len(gallery))
        ids = [item.id for item in gallery.items(slots)]
        vectors = np.array(stored(gallery, "vector"), dtype=np.float32)
        some = slots[::-3]
        assert gallery.vectors_at(some).tolist() == vectors[some].tolist()
        query = random(1, 99)[0]
        assert told(gallery.nearest(query, 1000)[0]) == ranking(query, ids, vectors)
        assert [told(hits) for hits in gallery.nearest(random(2, 98), 5)] == [
            ranking(one, ids, vectors)[:5] for one in random(2, 98)
        ]
        boxes = gallery.boxes_at(EPS, slots)
        assert boxes.centre.tolist() == stored(gallery, f"centre linf:{EPS}")
        assert boxes.radius.tolist() == stored(gallery, f"radius linf:{EPS}")
        assert gallery.reach(EPS)[:, None].tolist() == stored(gallery, f"reach linf:{EPS}")
        assert gallery.max_norm >= np.linalg.norm(vectors, axis=1).max() * (1 - 1e-6)


def test_a_cache_spares_reading_the_gallery(
    shop: Gallery, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [file.name for file in files(path)] == [
        "centre-linf-0.1.f4",
        "radius-linf-0.1.f4",
        "reach-linf-0.1.f4",
        "vector.f4",
    ]
    check_answers(path)
    with monkeypatch.context() as no_blocks:
        no_blocks.setattr(columns.Column, "decode", lambda *_: pytest.fail("a block was read"))
        with Gallery.open(path, readonly=True) as reader:
            assert told(reader.nearest(random(1), 1)[0]) == [("image-0000", 0.0, False)]
            reader.boxes_at(EPS, np.array([3, 40]))
            assert reader._store._view._memories["vector"].mapped


def test_only_what_changed_is_read(shop: Gallery, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, int]] = []
    plain = columns.data

    def counted(connection: object, column: columns.Column, mark: columns.Mark) -> object:
        read.append((column.kind, mark.number))
        return plain(connection, column, mark)  # type: ignore[arg-type]

    add(shop, ["image-0013"], random(1, 1), replace=True)
    monkeypatch.setattr(columns, "data", counted)
    with Gallery.open(path, readonly=True) as reader:
        assert told(reader.nearest(random(1, 1), 1)[0]) == [("image-0013", 0.0, False)]
    assert read == [("vector", 3)]
    read.clear()
    skipped = shop.refresh_cache()
    assert skipped is not None
    assert (skipped.blocks, skipped.read, read) == (36, 0, []), "one block in nine: not yet"
    written = shop.write_cache()
    assert (written.blocks, written.read) == (36, 4)
    assert read == [(f"{part} linf:0.1", 3) for part in ("centre", "radius")] + [
        ("reach linf:0.1", 0),
        ("vector", 3),
    ]
    assert shop.write_cache().read == 0
    check_answers(path)


def test_a_large_gallery_gets_one_by_itself(
    gallery: Gallery, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.add(names(20), random(20))
    assert gallery.refresh_cache() is None
    assert not cache.folder_of(path).exists()
    monkeypatch.setattr(cache, "AUTOMATIC", 20 * DIM * 4)
    written = gallery.refresh_cache()
    assert written is not None
    assert written.read == 5
    gallery.add(names(20)[:9], random(9, 1), replace=True)
    written = gallery.refresh_cache()
    assert written is not None
    assert written.read == 3


def test_indexing_writes_the_cache_and_can_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for shade in (0, 90, 200):
        Image.new("L", (8, 8), shade).save(pictures / f"{shade}.png")
    embedder = wrap(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4)).eval(), (1, 8, 8))
    for name, automatic, said in (
        ("small", 1 << 20, ""),
        ("large", 1, "cache: "),
        ("taken", 1, "the cache was not written: "),
    ):
        out = tmp_path / f"{name}.gallery"
        monkeypatch.setattr(cache, "AUTOMATIC", automatic)
        if name == "taken":
            cache.folder_of(out).touch()
        gallery, done = open_and_index(embedder, pictures, out)
        with gallery:
            assert (len(gallery), gallery.verify()) == (3, [])
        assert done.cache.startswith(said)
        assert bool(done.cache) == bool(said)
        assert bool(files(out)) == (name == "large")


@pytest.mark.parametrize("column", range(4))
def test_flipped_bytes_change_no_answer(shop: Gallery, path: Path, column: int) -> None:
    file = files(path)[column]
    sound = file.read_bytes()
    noticed = 0
    for place in [*range(0, 1200, 150), *range(4096, 4096 + COUNT * (4 if column == 2 else 20), 33)]:
        content = bytearray(sound)
        content[place] ^= 0x40
        file.write_bytes(content)
        check_answers(path)
        found = verify_file(path)
        assert len(found) < 2
        assert all("the cache of column" in line and "holdfast gallery cache" in line for line in found)
        noticed += len(found)
        if place >= 4096:
            assert found
    assert noticed
    assert shop.write_cache().read >= 1, "the damaged block is read from the gallery again"
    assert verify_file(path) == []
    assert file.read_bytes() == sound


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def cut_to_the_header(file: Path) -> None:
    os.truncate(file, 100)


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def lengthened(file: Path) -> None:
    os.truncate(file, file.stat().st_size + 4096)


def zeroed(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def torn(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:4200] + bytes(len(content) - 4200))


def another_column(file: Path) -> None:
    others = [other for other in file.parent.glob("*.f4") if other != file]
    shutil.copy(others[0], file)


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def gone(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize(
    "damage",
    [cut, cut_to_the_header, emptied, lengthened, zeroed, torn, another_column, a_folder, gone],
)
def test_a_damaged_file_is_not_used(shop: Gallery, path: Path, damage: Callable[[Path], None]) -> None:
    for file in files(path):
        before = file.read_bytes()
        damage(file)
        check_answers(path)
        if file.is_dir():
            file.rmdir()
        shop.write_cache()
        assert file.read_bytes() == before
    assert verify_file(path) == []


def test_the_cache_of_another_gallery_is_not_used(shop: Gallery, path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gallery"
    with Gallery.create(other, dim=DIM, embedder=EMBEDDER) as gallery:
        gallery.add_boxes(EPS, lambda _, vectors: around(vectors))
        add(gallery, names(COUNT), random(COUNT, 5))
    shutil.copytree(cache.folder_of(path), cache.folder_of(other))
    check_answers(other)
    assert verify_file(other) == []


def test_a_cache_older_or_newer_than_the_gallery(shop: Gallery, path: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(cache.folder_of(path), older)
    shop.close()
    before = path.read_bytes()
    with Gallery.open(path) as gallery:
        add(gallery, names(6), random(6, 1), replace=True)
        gallery.remove(names(COUNT)[20:30])
        gallery.write_cache()
    shutil.copytree(cache.folder_of(path), tmp_path / "newer")
    for content, of in ((path.read_bytes(), older), (before, tmp_path / "newer")):
        path.write_bytes(content)
        shutil.rmtree(cache.folder_of(path))
        shutil.copytree(of, cache.folder_of(path))
        check_answers(path)
        assert verify_file(path) == []


def test_two_histories_of_one_gallery_share_no_cache(shop: Gallery, path: Path, tmp_path: Path) -> None:
    shop.close()
    fork = tmp_path / "fork.gallery"
    shutil.copy(path, fork)
    for one, seed in ((path, 1), (fork, 2)):
        with Gallery.open(one) as gallery:
            add(gallery, names(6), random(6, seed), replace=True)
            gallery.write_cache()
    shutil.rmtree(cache.folder_of(fork))
    cache.folder_of(path).rename(cache.folder_of(fork))
    check_answers(fork)


def test_a_gallery_that_outgrows_its_cache(shop: Gallery, path: Path) -> None:
    with Gallery.open(path, readonly=True) as reader:
        reader.nearest(random(1), 3)
        for step in range(6):
            add(shop, [f"{step}-{number}" for number in range(40)], random(40, step + 10))
            assert told(reader.nearest(random(40, step + 10)[7], 1)[0]) == [(f"{step}-7", 0.0, False)]
            check_answers(path)
        shop.remove([id for id in shop.ids() if id.startswith("image")])
        assert len(reader.nearest(random(1), 999)[0]) == 240
        check_answers(path)
    assert shop.verify() == []


def test_making_the_gallery_anew_removes_its_cache_and_nothing_else(shop: Gallery, path: Path) -> None:
    shop.close()
    mine = cache.folder_of(path) / "mine.f4"
    mine.write_text("not a cache")
    Gallery.create(path, dim=DIM, embedder=EMBEDDER, overwrite=True).close()
    assert files(path) == [mine]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_process_killed_while_it_writes_the_cache(shop: Gallery, path: Path, moment: str) -> None:
    add(shop, ["image-0003", "more"], random(2, 1), replace=True)
    before = {file.name: file.read_bytes() for file in files(path)}
    script = f"""
import os, pathlib, sys
from holdfast.gallery import Gallery
left = [3]
def mortal(*arguments, plain={"os.fsync" if moment == "fsync" else "pathlib.Path.replace"}):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), 9)
    return plain(*arguments)
{"os.fsync" if moment == "fsync" else "pathlib.Path.replace"} = mortal
Gallery.open(sys.argv[1]).write_cache()
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(cache.folder_of(path).glob(".*.tmp"))
    assert {file.name: file.read_bytes() for file in files(path)} != before
    check_answers(path)
    assert verify_file(path) == []
    shop.write_cache()
    assert not list(cache.folder_of(path).glob(".*.tmp"))
    check_answers(path)


def test_a_read_only_place_is_mapped_too(shop: Gallery, path: Path) -> None:
    shop.close()
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / path.name
        shutil.copy(path, there)
        shutil.copytree(cache.folder_of(path), cache.folder_of(there))
        for place in (*files(there), there, cache.folder_of(there), Path(folder)):
            place.chmod(0o555 if place.is_dir() else 0o444)
        script = """
import os, sys
import faiss
import numpy as np
from holdfast.gallery import Gallery
from holdfast.gallery.stores.sqlite import columns
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
columns.Column.decode = None  # no block can be read
with Gallery.open(sys.argv[1], readonly=True) as gallery:
    print(gallery.nearest(np.zeros(5, np.float32), 99)[0].hits[0].id, gallery._store._frozen)
"""
        done = subprocess.run(
            [sys.executable, "-c", script, str(there)], capture_output=True, text=True, check=False
        )
        for place in (Path(folder), cache.folder_of(there)):
            place.chmod(0o755)
    nearest = names(COUNT)[int(np.linalg.norm(random(COUNT), axis=1).argmin())]
    assert (done.stdout.split(), done.stderr) == ([nearest, "True"], "")


class Cached(RuleBasedStateMachine):
    """A gallery, readers that opened it at several times with whatever cache there was, and a dict."""

    folder: Path
    number = 0

    @initialize()
    def begin(self) -> None:
        Cached.number += 1
        self.path = self.folder / f"{Cached.number}.gallery"
        self.gallery = Gallery.create(self.path, dim=DIM, embedder=EMBEDDER)
        self.gallery.add_boxes(EPS, lambda _, vectors: around(vectors))
        self.readers = [Gallery.open(self.path, readonly=True)]
        self.model: dict[str, list[float]] = {}
        self.seed = 0

    @rule(ids=st.sets(st.integers(0, 40), min_size=1, max_size=14))
    def add(self, ids: set[int]) -> None:
        self.seed += 1
        chosen, vectors = [f"image-{number}" for number in ids], random(len(ids), self.seed)
        add(self.gallery, chosen, vectors, replace=True)
        self.model.update(zip(chosen, vectors.tolist(), strict=True))

    @rule(ids=st.sets(st.integers(0, 40), max_size=25))
    def remove(self, ids: set[int]) -> None:
        chosen = [f"image-{number}" for number in ids]
        assert self.gallery.remove(chosen) == sum(self.model.pop(id, None) is not None for id in chosen)

    @rule()
    def cache(self) -> None:
        self.gallery.write_cache()

    @rule(which=st.integers(0, 3), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    def damage(self, which: int, place: float, bit: int) -> None:
        # A new file, as a copy of a disk would be: who has mapped the old one keeps it.
        found = files(self.path)
        if found:
            content = bytearray(found[which].read_bytes())
            content[int(place * len(content))] ^= 1 << bit
            found[which].unlink()
            found[which].write_bytes(content)

    @rule()
    def another_reader(self) -> None:
        self.readers.append(Gallery.open(self.path, readonly=True))
        if len(self.readers) > 3:
            self.readers.pop(0).close()

    @invariant()
    def same(self) -> None:
        if not getattr(self, "model", None):
            return
        ids, query = list(self.model), random(1, self.seed + 1000)[0]
        vectors = np.array([self.model[id] for id in ids], dtype=np.float32)
        wanted, boxes = ranking(query, ids, vectors), around(vectors)
        for reader in self.readers:
            assert told(reader.nearest(query, 50)[0]) == wanted
            with reader.snapshot():
                slots = reader._slots(ids)
                found = reader.boxes_at(EPS, slots)
                assert found.centre.tolist() == boxes.centre.tolist()
                assert found.radius.tolist() == boxes.radius.tolist()
                assert reader.reach(EPS)[slots].tolist() == boxes.reach(vectors)[:, 0].tolist()

    def teardown(self) -> None:
        for gallery in (*getattr(self, "readers", []), *([self.gallery] if hasattr(self, "gallery") else [])):
            gallery.close()


@pytest.fixture
def quick_disk() -> Iterator[Path]:
    """Memory where there is some: what is kept there need not last."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        yield Path(folder)


def test_with_and_without_a_cache_answers_are_the_same(quick_disk: Path, small_blocks: None) -> None:
    Cached.folder = quick_disk
    machine = Cached.TestCase
    machine.settings = settings(max_examples=25, stateful_step_count=14, deadline=None)
    machine().runTest()
