"""Several processes and threads on one file, and processes that are killed."""

from __future__ import annotations

import random as chance
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from gallery_reference import DIM, EMBEDDER, names, random, told

from holdfast.errors import GalleryError
from holdfast.gallery import Gallery, discard_gallery, verify_file
from holdfast.gallery.stores.sqlite import columns, creating

PRELUDE = f"""
import sys
from pathlib import Path
import numpy as np
from holdfast.gallery import EmbedderInfo, Gallery
from holdfast.gallery.stores.sqlite import columns
columns._BLOCK_BYTES = {16 * DIM}
path = Path(sys.argv[1])
"""


def start(script: str, path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script), str(path), *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )


WRITER = """
gallery = Gallery.open(path)
rng = np.random.default_rng(int(sys.argv[2]))
step = int(sys.argv[2]) * 1000
while True:
    step += 1
    old = list(gallery.ids())
    gone = [id for id in old if rng.random() < 0.4]
    ids = [f"{step}-{number}" for number in range(rng.integers(1, 40))] + [id for id in old if id not in gone][:5]
    print("add", step, *ids, flush=True)
    gallery.add(ids, np.full((len(ids), 5), step, np.float32), replace=True)
    print("done", flush=True)
    print("remove", step, *gone, flush=True)
    gallery.remove(gone)
    print("done", flush=True)
"""


def told_by(lines: list[str], before: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """What the writer had acknowledged, and that with the write it may have been in the middle of."""
    acknowledged = pending = before
    for line in lines:
        if not line.endswith("\n"):
            break
        verb, *rest = line.split()
        if verb == "done":
            acknowledged = pending
        elif verb == "add":
            pending = acknowledged | dict.fromkeys(rest[1:], int(rest[0]))
        else:
            pending = {id: step for id, step in acknowledged.items() if id not in rest[1:]}
    return acknowledged, pending


def content(path: Path) -> dict[str, int]:
    with Gallery.open(path) as gallery:
        ids = list(gallery.ids())
        return {id: int(row[0]) for id, row in zip(ids, gallery.vectors(ids), strict=True)}


def test_a_killed_writer_loses_nothing_it_acknowledged(path: Path, small_blocks: None) -> None:
    Gallery.create(path, dim=DIM, embedder=EMBEDDER).close()
    moments = chance.Random(0)
    now: dict[str, int] = {}
    writes = 0
    for life in range(12):
        with start(WRITER, path, str(life)) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline()]
            listener = threading.Thread(target=lambda out=writer.stdout, lines=lines: lines.extend(out))
            listener.start()
            time.sleep(moments.uniform(0, 0.15))
            writer.send_signal(signal.SIGKILL)
            listener.join()
        possible = told_by(lines, now)
        writes += lines.count("done\n")
        assert verify_file(path) == []
        now = content(path)
        assert now in possible
    # A busy machine writes little in these moments.
    assert writes > 5


def test_a_creation_killed_at_any_moment_can_be_made_again(path: Path) -> None:
    script = 'Gallery.create(path, dim=5, embedder=EmbedderInfo("a"))\nprint("made", flush=True)'
    for statements in range(1, 14):
        trap = f"""
        import os, sqlite3
        class Mortal(sqlite3.Connection):
            left = {statements}
            def execute(self, *arguments):
                Mortal.left -= 1
                if Mortal.left == 0:
                    os.kill(os.getpid(), 9)
                return super().execute(*arguments)
        plain = sqlite3.connect
        sqlite3.connect = lambda *a, **k: plain(*a, factory=Mortal, **k)
        """
        with start(textwrap.dedent(trap) + script, path) as killed:
            assert killed.wait() == -signal.SIGKILL
        if path.exists() and path.stat().st_size:
            with pytest.raises(GalleryError, match="was never finished"):
                Gallery.open(path)
        Gallery.create(path, dim=DIM, embedder=EMBEDDER).close()
        assert verify_file(path) == []
        path.unlink()


def test_a_process_killed_while_it_merged_the_log(path: Path, tmp_path: Path) -> None:
    """The first page is merged first: it counts pages that only the log has."""
    image = tmp_path / "image.gallery"
    with Gallery.create(path, dim=DIM, embedder=EMBEDDER) as gallery:
        gallery._store.connection.execute("PRAGMA wal_autocheckpoint = 0")
        gallery.add(names(20_000), random(20_000))
        content = bytearray(subprocess.run(["cat", path], capture_output=True, check=True).stdout)
        log = subprocess.run(["cat", f"{path}-wal"], capture_output=True, check=True).stdout
    size = int.from_bytes(log[8:12], "big")
    frames = [log[at : at + 24 + size] for at in range(32, len(log), 24 + size)]
    merged = [frame[24:] for frame in frames if int.from_bytes(frame[:4], "big") == 1]
    assert merged
    content[:size] = merged[-1]
    image.write_bytes(content)
    image.with_name(image.name + "-wal").write_bytes(log)
    with Gallery.open(image) as gallery:
        assert len(gallery.nearest(random(1, 1), 30_000)[0]) == 20_000
        assert gallery.verify() == []


def test_readers_see_whole_commits_while_another_process_writes(gallery: Gallery, path: Path) -> None:
    script = """
    gallery = Gallery.open(path)
    for step in range(1, 60):
        ids = [f"{step}-{number}" for number in range(10)]
        gallery.add(ids, np.full((10, 5), step, np.float32))
        if step > 3:
            gallery.remove(f"{step - 3}-{number}" for number in range(10))
    """
    gallery.add([f"0-{number}" for number in range(10)], np.zeros((10, DIM)))
    seen = set()
    with start(script, path) as writer, Gallery.open(path, readonly=True) as reader:
        while writer.poll() is None:
            (hits,) = reader.nearest(np.zeros(DIM), 1000)
            by_step: dict[str, int] = {}
            for hit in hits.hits:
                step = hit.id.split("-")[0]
                by_step[step] = by_step.get(step, 0) + 1
                assert hit.distance == np.sqrt(np.float64(int(step)) ** 2 * DIM)
            assert set(by_step.values()) == {10}
            assert reader.verify() == []
            seen.add(tuple(by_step))
        assert writer.returncode == 0
        assert len(reader) == 40
    assert len(seen) > 3


def test_a_snapshot_stays_as_it_was(gallery: Gallery, path: Path) -> None:
    gallery.add(names(8), random(8))
    with Gallery.open(path, readonly=True) as reader:
        with reader.snapshot():
            before = told(reader.nearest(random(1), 20)[0])
            gallery.remove(names(3))
            assert told(reader.nearest(random(1), 20)[0]) == before
        assert len(reader.nearest(random(1), 20)[0]) == 5
        with reader.snapshot(), pytest.raises(GalleryError, match="reading only"):
            reader.remove(["x"])
    with gallery.snapshot(), pytest.raises(GalleryError, match="inside a snapshot"):
        gallery.add(["x"], random(1))


def test_a_reader_reads_only_the_blocks_that_changed(
    gallery: Gallery, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.add(names(40), random(40))
    with Gallery.open(path, readonly=True) as reader:
        read: list[int] = []
        plain = columns.data

        def counted(connection: object, column: object, mark: columns.Mark) -> object:
            read.append(mark.number)
            return plain(connection, column, mark)  # type: ignore[arg-type]

        monkeypatch.setattr(columns, "data", counted)
        reader.nearest(random(1), 3)
        assert read == []
        gallery.add(["image-0013"], random(1, 1), replace=True)
        gallery.add(["new"], random(1, 2))
        assert told(reader.nearest(random(1, 2), 1)[0]) == [("new", 0.0, False)]
        assert read == [3, 10]


def test_two_writers_wait_for_each_other(gallery: Gallery, path: Path) -> None:
    script = """
    gallery = Gallery.open(path)
    for step in range(30):
        gallery.add([f"{sys.argv[2]}-{step}"], np.ones((1, 5)))
    """
    with start(script, path, "a") as one, start(script, path, "b") as other:
        assert (one.wait(), other.wait()) == (0, 0)
    assert (len(gallery), gallery.verify()) == (60, [])


def test_opening_a_gallery_twice_in_a_process_keeps_its_locks(gallery: Gallery, path: Path) -> None:
    gallery.add(["before"], random(1))
    log = path.with_name(path.name + "-wal")
    with Gallery.open(path):
        with start('Gallery.open(path).add(["theirs"], np.ones((1, 5)))', path) as other:
            assert other.wait() == 0
        # Without locks the other process would have taken this one's log for its own, and away.
        assert log.exists()
        gallery.add(["ours"], random(1))
        with start("print(*Gallery.open(path).ids())", path) as other:
            assert other.communicate()[0].split() == ["before", "ours", "theirs"]


def test_a_writer_that_waits_too_long_says_so(gallery: Gallery, path: Path) -> None:
    with Gallery.open(path, wait=0.05) as other, gallery._store.write():
        with pytest.raises(GalleryError, match="is being written by another process; try again"):
            other.add(["x"], random(1))
        assert len(other) == 0


def test_threads_share_a_gallery(gallery: Gallery) -> None:
    gallery.add(names(50), random(50))
    wrong: list[object] = []

    def use(number: int) -> None:
        try:
            for step in range(10):
                gallery.add([f"{number}-{step}"], random(1, number) + 100)
                (hits,) = gallery.nearest(random(1), 5)
                if hits.hits[0].distance != 0:
                    wrong.append(hits)
                gallery.remove([f"{number}-{step}"])
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (len(gallery), gallery.verify()) == (50, [])


def test_a_replaced_gallery_must_be_opened_again(gallery: Gallery, path: Path) -> None:
    gallery.add(names(3), random(3))
    with Gallery.create(path, dim=3, embedder=EMBEDDER, overwrite=True) as new:
        for use in (lambda: gallery.nearest(random(1), 1), lambda: gallery.add(["x"], random(1))):
            with pytest.raises(GalleryError, match=r"was replaced .*; open it again"):
                use()
        assert len(new) == 0


def test_another_file_in_its_place_is_not_taken_for_it(gallery: Gallery, path: Path, tmp_path: Path) -> None:
    gallery.add(["old"], random(1))
    with Gallery.create(tmp_path / "new", dim=DIM, embedder=EMBEDDER) as new:
        new.add(["new"], random(1))
    assert gallery.nearest(random(1), 1)[0].hits[0].id == "old"
    for change in ((tmp_path / "new").replace, Path.unlink):
        change(path)
        for use in (lambda: gallery.nearest(random(1), 1), lambda: len(gallery), gallery.verify):
            with pytest.raises(GalleryError, match=r"was replaced .*; open it again"):
                use()


def test_a_gallery_stays_open_when_the_process_changes_its_folder(
    gallery: Gallery, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.add(["x"], random(1))
    monkeypatch.chdir(path.parent)
    with Gallery.open(path.name) as relative:
        monkeypatch.chdir("/")
        assert list(relative.ids()) == ["x"]
        with relative.snapshot():
            assert len(gallery) == 1


def test_a_deleted_gallery_takes_no_more_writes(gallery: Gallery, path: Path) -> None:
    path.unlink()
    with pytest.raises(GalleryError, match="was moved or deleted while open"):
        gallery.add(["x"], random(1))


def test_of_two_that_make_a_gallery_the_later_leaves_it_to_the_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = creating._claim

    def overtaken(path: Path) -> bool:
        claimed = plain(path)
        monkeypatch.setattr(creating, "_claim", plain)
        with Gallery.create(path, dim=DIM, embedder=EMBEDDER) as other:
            other.add(["x"], random(1))
        return claimed

    monkeypatch.setattr(creating, "_claim", overtaken)
    with pytest.raises(GalleryError, match="exists already"):
        Gallery.create(path, dim=DIM, embedder=EMBEDDER)
    with Gallery.open(path) as gallery:
        assert list(gallery.ids()) == ["x"]


def test_a_write_into_a_file_that_is_deleted_on_the_way_says_so(gallery: Gallery, path: Path) -> None:
    lost = "moved or deleted while open; nothing was written"
    with pytest.raises(GalleryError, match=lost), gallery._store.write():
        path.unlink()


def test_an_empty_gallery_is_discarded_only_while_nobody_uses_it(gallery: Gallery, path: Path) -> None:
    discard_gallery(path)
    gallery.add(["x"], random(1))
    gallery.write_cache()
    gallery.close()
    discard_gallery(path)
    with Gallery.open(path) as again:
        assert list(again.ids()) == ["x"]
        assert again._store.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        again.remove(["x"])
    discard_gallery(path)
    assert list(path.parent.iterdir()) == []
    discard_gallery(path)
