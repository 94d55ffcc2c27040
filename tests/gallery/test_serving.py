"""Reading while others write: threads of one process, copies of a gallery, processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from gallery_reference import DIM, EMBEDDER, names, random, ranking, told

from holdfast.errors import GalleryError, StorageError
from holdfast.gallery import Boxes, Gallery, verify_file

EPS = 0.1
State = dict[str, list[float]]


def around(vectors: np.ndarray) -> Boxes:
    return Boxes.around(vectors.astype(np.float64), np.full(vectors.shape, 0.2))


@contextmanager
def in_thread(work: object, *arguments: object) -> Iterator[threading.Thread]:
    """`work` in another thread, which is done when the block has ended; what it raises is raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work(*arguments)  # type: ignore[operator]
        except BaseException as cause:
            raised.append(cause)

    thread = threading.Thread(target=run)
    thread.start()
    yield thread
    thread.join(60)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


@pytest.fixture
def quick(small_blocks: None) -> Iterator[Path]:
    """A path in memory, where there is some, so that writes do not wait for a disk."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        yield Path(folder) / "shop.gallery"


def test_a_snapshot_in_one_thread_stops_neither_reads_nor_writes_of_others(gallery: Gallery) -> None:
    gallery.add(names(30), random(30))
    before = told(gallery.nearest(random(1), 50)[0])
    with gallery.snapshot():
        first = gallery.scan(random(1))
        with in_thread(gallery.remove, names(12)):
            pass
        with in_thread(gallery.add, ["new"], random(1) + 9):
            pass
        seen: list[int] = []
        with in_thread(lambda: seen.append(len(gallery.nearest(random(1), 50)[0]))):
            pass
        assert seen == [19]
        assert len(gallery) == 30
        assert told(gallery.nearest(random(1), 50)[0]) == before
        assert told(gallery.hits_of(first, 50)[0]) == before
        assert gallery.verify() == []
    assert len(gallery.nearest(random(1), 50)[0]) == 19


def test_a_write_may_read_what_was_committed_before_it(gallery: Gallery) -> None:
    gallery.add(names(9), random(9))
    sizes: list[int] = []

    def make(_: object, vectors: np.ndarray) -> Boxes:
        sizes.append(len(gallery.nearest(random(1), 50)[0]))
        return around(vectors)

    gallery.add_boxes(EPS, make)
    assert sizes == [9]
    assert gallery.verify() == []


def test_closing_while_another_thread_reads(path: Path, small_blocks: None) -> None:
    Gallery.create(path, dim=DIM, embedder=EMBEDDER).close()
    for readonly in (False, True):
        gallery = Gallery.open(path, readonly=readonly)
        inside, closed = threading.Event(), threading.Event()

        def read(gallery: Gallery = gallery, inside: object = inside, closed: object = closed) -> None:
            with gallery.snapshot():
                inside.set()  # type: ignore[attr-defined]
                closed.wait(30)  # type: ignore[attr-defined]
                with pytest.raises(GalleryError, match="is closed; open it again"):
                    len(gallery)

        with in_thread(read):
            assert inside.wait(30)
            gallery.close()
            closed.set()
        gallery.close()
        assert not path.with_name(path.name + "-wal").exists()


@pytest.mark.parametrize("cached", [False, True])
def test_every_answer_is_that_of_a_state_between_its_begin_and_its_end(quick: Path, cached: bool) -> None:
    gallery = Gallery.create(quick, dim=DIM, embedder=EMBEDDER)
    gallery.add_boxes(EPS, lambda _, vectors: around(vectors))
    states: list[State] = [{}]
    vectors = random(200)
    gallery.add(names(200), vectors, boxes={EPS: around(vectors)})
    states.append(dict(zip(names(200), vectors.tolist(), strict=True)))
    if cached:
        gallery.write_cache()
        gallery.close()
        gallery = Gallery.open(quick)
    begun = done = 1  # how many writes
    stop = threading.Event()
    queries = random(3, 77)
    answers: list[tuple[int, object, int]] = []

    def write() -> None:
        nonlocal begun, done
        rng = np.random.default_rng(0)
        for step in range(60):
            state = dict(states[-1])
            if step % 3 == 2:
                gone = [id for id in state if rng.random() < 0.3]
                states.append({id: row for id, row in state.items() if id not in gone})
                begun += 1
                gallery.remove(gone)
            else:
                size = int(rng.integers(1, 30))
                ids = [f"{step}-{n}" for n in range(size)] + [id for id in state if rng.random() < 0.1]
                rows = random(len(ids), step + 100)
                states.append(state | dict(zip(ids, rows.tolist(), strict=True)))
                begun += 1
                gallery.add(ids, rows, boxes={EPS: around(rows)}, replace=True)
            done += 1
            time.sleep(0.002)
        stop.set()

    def read(number: int) -> None:
        query = queries[number]
        while not stop.is_set():
            least = done
            if number == 0:
                found: object = told(gallery.nearest(query, 10)[0])
            elif number == 1:
                with gallery.snapshot():
                    first = told(gallery.nearest(query, 10)[0])
                    time.sleep(0.004)
                    found = told(gallery.nearest(query, 10)[0])
                    assert found == first
            else:
                with gallery.snapshot():
                    slots = np.arange(len(gallery))
                    ids = [item.id for item in gallery.items(slots)]
                    boxes = gallery.boxes_at(EPS, slots)
                    assert boxes.hold(gallery.vectors_at(slots))
                    assert (gallery.reach(EPS) >= boxes.reach(gallery.vectors_at(slots))[:, 0]).all()
                    found = dict(zip(ids, gallery.vectors(ids).tolist(), strict=True))
            answers.append((least, (number, found), begun))

    with in_thread(read, 0), in_thread(read, 1), in_thread(read, 2), in_thread(write):
        pass
    with gallery:
        assert gallery.verify() == []
        assert gallery.info.generation >= 60
        assert len(gallery._store._idle) <= 8
        assert gallery._store._view._memories["vector"].mapped == cached
    expected: dict[tuple[int, int], object] = {}

    def answer(number: int, state: int) -> object:
        if number == 2:
            return states[state]
        if (number, state) not in expected:
            ids = list(states[state])
            rows = np.array([states[state][id] for id in ids], dtype=np.float32)
            expected[number, state] = ranking(queries[number], ids, rows)[:10]
        return expected[number, state]

    for least, (number, found), most in answers:  # type: ignore[misc]
        assert found in [answer(number, state) for state in range(least, most + 1)]
    assert len(answers) > 20
    assert len({least for least, _, _ in answers}) > 5


WRITER = """
import sys
import numpy as np
from holdfast.gallery import Gallery
gallery = Gallery.open(sys.argv[1])
step = 0
while True:
    step += 1
    gallery.add([f"{step}-{n}" for n in range(10)], np.full((10, 5), step, np.float32))
    if step > 5:
        gallery.remove(f"{step - 5}-{n}" for n in range(10))
    print(step, flush=True)
"""


def test_a_copy_is_one_committed_state(gallery: Gallery, path: Path, tmp_path: Path) -> None:
    gallery.add([f"0-{n}" for n in range(10)], np.zeros((10, DIM)))
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        generations = set()
        for number in range(5):
            writer.stdout.readline()
            out = tmp_path / "copies" / f"{number}.gallery"
            made = gallery.copy_to(out)
            assert verify_file(out) == []
            with Gallery.open(out) as copy:
                assert copy.info == made
                assert [len(list(copy.ids())), made.count % 10] == [made.count, 0]
                steps = {id.split("-")[0] for id in copy.ids()}
                assert len(steps) * 10 == made.count
                copy.remove(list(copy.ids()))
            generations.add(made.generation)
        writer.send_signal(signal.SIGKILL)
    assert len(generations) > 2
    assert len(list((tmp_path / "copies").iterdir())) == 5
    assert len(gallery) > 0


def test_a_copy_overwrites_nothing(gallery: Gallery, path: Path, tmp_path: Path) -> None:
    gallery.add(names(9), random(9))
    taken, lost = tmp_path / "taken", tmp_path / "lost"
    taken.write_text("mine")
    lost.with_name("lost-wal").write_bytes(b"of a deleted gallery")
    for out in (taken, lost, path, tmp_path):
        with pytest.raises(StorageError, match="is there already; choose another name, or remove it"):
            gallery.copy_to(out)
    assert taken.read_text() == "mine"
    assert not lost.exists()
    with pytest.raises(StorageError, match="could not write"):
        gallery.copy_to(taken / "below")


def test_a_copy_that_is_not_sound_gets_no_name(gallery: Gallery, tmp_path: Path) -> None:
    gallery.add(names(9), random(9))
    gallery._store.connection.execute("UPDATE items SET label = 'altered' WHERE slot = 3")
    with pytest.raises(
        GalleryError, match=r"shop.gallery is damaged .*'image-0003' in slot 3 does not match its checksum"
    ):
        gallery.copy_to(tmp_path / "copy")
    assert sorted(file.name for file in tmp_path.glob("*copy*")) == []


def test_random_kills_lose_nothing(quick: Path) -> None:
    bench = Path(__file__).parents[2] / "bench" / "kill_writes.py"
    command = [sys.executable, str(bench), "--kills", "10", "--longest", "0.2"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(quick.parent)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["value"] == 0
    kills, *_ = done.stdout.splitlines()[0].split()
    assert kills == "10"
