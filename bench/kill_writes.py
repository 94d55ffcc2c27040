"""Processes that write a gallery are killed at random moments: nothing that they acknowledged may be lost.

Two processes add, replace and remove candidates with boxes, in the same gallery, each under its own ids; a third
searches it and writes its cache. Each write is noted in a file before the call and acknowledged after it. One
process at a time gets a SIGKILL while the others go on; then the gallery is opened and compared with the notes:
every acknowledged write is there, one that was under way is there whole or not at all, `verify` finds nothing, and
what is read through the cache is what SQLite has. The killed process is started again.

A SIGKILL takes a process, not the machine: what the system had not yet written to the disk survives it. Loss
of power is the concern of SQLite's synchronous = FULL, and not tested here.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from _common import report

# isort: split
import numpy as np

from holdfast.gallery import Boxes, EmbedderInfo, Gallery
from holdfast.gallery.stores.sqlite import columns, meta
from holdfast.gallery.stores.sqlite.store import SQLiteStore

DIM = 8
EPS = 0.1
EMBEDDER = EmbedderInfo("0" * 64, {"name": "bench"})
WRITERS = ("a", "b")

Content = dict[str, int]
"""Which write each id is of: its vector is that number, everywhere."""


@dataclass
class Process:
    """One that writes (or, without a name, reads), its life so far, and what it must have done."""

    name: str
    notes: Path
    pid: int = 0
    life: int = 0
    before: Content = field(default_factory=dict)
    """What it had in the gallery when this life began."""

    def states(self) -> tuple[list[Content], int]:
        """What it may have in the gallery after each of its writes, and how many were acknowledged."""
        states, acknowledged = [self.before], 0
        whole = self.notes.read_text().rpartition("\n")[0] if self.notes.exists() else ""
        for line in filter(None, whole.split("\n")):
            if line == "done":
                acknowledged += 1
                continue
            step, new, gone = json.loads(line)
            now = states[-1] | dict.fromkeys(new, step)
            states.append({id: number for id, number in now.items() if id not in gone})
        return states, acknowledged


def note(handle: int, line: str) -> None:
    os.write(handle, f"{line}\n".encode())


def write(path: Path, one: Process) -> None:
    """Write for as long as the process lives."""
    rng = random.Random(f"{one.name} {one.life}")
    handle = os.open(one.notes, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC)
    mine, step, parent = list(one.before), one.life * 100_000, os.getppid()
    with Gallery.open(path) as gallery:
        while os.getppid() == parent:
            step += 1
            if mine and rng.random() < 0.45:
                gone = rng.sample(mine, rng.randint(1, len(mine)))
                note(handle, json.dumps([step, [], gone]))
                gallery.remove(gone)
                mine = [id for id in mine if id not in gone]
            else:
                new = [f"{one.name}{step}-{number}" for number in range(rng.randint(1, 60))]
                new += rng.sample(mine, rng.randint(0, min(len(mine), 20)))
                vectors = np.full((len(new), DIM), step, dtype=np.float32)
                boxes = {
                    EPS: Boxes.around(vectors.astype(np.float64), np.ones_like(vectors, dtype=np.float64))
                }
                note(handle, json.dumps([step, new, []]))
                gallery.add(new, vectors, boxes=boxes, replace=True)
                mine = list(dict.fromkeys([*mine, *new]))
            note(handle, "done")


def read(path: Path, one: Process) -> None:
    """Search and write the cache for as long as the process lives; an answer that contradicts itself ends it."""
    rng, parent = random.Random(one.life), os.getppid()
    with Gallery.open(path, readonly=True) as gallery:
        while os.getppid() == parent:
            with gallery.snapshot():  # A writer may empty it between the two.
                found = gallery.nearest(np.zeros(DIM, dtype=np.float32), 500) if len(gallery) else []
            for hit in (hit for hits in found for hit in hits.hits):
                step = int(hit.id[1:].split("-")[0])
                # An id is of the write that made it, or of a later one that replaced it.
                assert hit.distance >= np.sqrt(DIM * float(step) ** 2), f"{hit} is of another write"
            if rng.random() < 0.3:
                gallery.write_cache()


def start(path: Path, one: Process) -> None:
    sys.stdout.flush()
    one.pid = os.fork()
    if one.pid:
        return
    try:
        (write if one.name else read)(path, one)
    except BaseException as cause:
        print(f"process '{one.name}' failed: {cause!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(1)


def kill(one: Process) -> bool:
    """Kill a process, and say whether it was still alive."""
    pid, one.pid = one.pid, 0
    alive = bool(pid) and os.waitpid(pid, os.WNOHANG) == (0, 0)
    if alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return alive


def content(gallery: Gallery) -> Content:
    """Every id with the number of its write; what memory or the cache shows is what SQLite has."""
    with gallery.snapshot():
        ids = list(gallery.catalogue())
        if not ids:
            return {}
        vectors, slots = gallery.vectors(ids), np.arange(len(ids))
        store = gallery._store
        assert isinstance(store, SQLiteStore)
        connection = store.connection
        for kind, column in meta.read(connection).columns.items():
            stored = columns.gather(connection, column, slots)
            assert (store.column(kind, slots) == stored).all(), f"the cache has another '{kind}'"
        assert (vectors == vectors[:, :1]).all(), "a vector is of two writes"
        return {id: int(row[0]) for id, row in zip(ids, vectors, strict=True)}


def compare(path: Path, processes: list[Process]) -> tuple[list[str], Content]:
    """One line for each way in which the gallery is not what the notes allow; and what it holds."""
    acknowledged = [one.states()[1] for one in processes]
    wrong: list[str] = []
    with Gallery.open(path, readonly=True) as gallery:
        try:
            found = content(gallery)
        except AssertionError as cause:
            return [str(cause)], {}
        wrong += gallery.verify()
    for one, least in zip(processes, acknowledged, strict=True):
        states, _ = one.states()
        mine = {id: step for id, step in found.items() if id.startswith(one.name)}
        if mine not in states[least:]:
            lost = sum(mine.get(id) != step for id, step in states[least].items())
            wrong.append(
                f"writer '{one.name}': {len(mine)} items, of {len(states[least])} {lost} lost or altered"
            )
    return wrong, found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--longest", type=float, default=0.25, help="seconds between two kills, at most")
    chosen = options.parse_args()
    columns._BLOCK_BYTES = 64 * DIM  # many blocks
    moments = random.Random(chosen.seed)
    failed, writes, killed = 0, 0, dict.fromkeys((*WRITERS, ""), 0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "g"
        with Gallery.create(path, dim=DIM, embedder=EMBEDDER) as gallery:
            gallery.add_boxes(EPS, lambda _, vectors: Boxes(vectors, vectors))
        writers = [Process(name, Path(folder) / name) for name in WRITERS]
        processes = [*writers, Process("", Path(folder) / "none")]
        try:
            for one in processes:
                start(path, one)
            for number in range(chosen.kills):
                time.sleep(moments.uniform(0, chosen.longest))
                victim = moments.choices(processes, weights=[2, 2, 1])[0]
                if kill(victim):
                    killed[victim.name] += 1
                else:
                    failed += 1
                    print(f"process '{victim.name}' had ended by itself")
                wrong, found = compare(path, writers)
                failed += bool(wrong)
                for line in wrong:
                    print(f"kill {number + 1}: {line}")
                writes += victim.states()[1] if victim.name else 0
                victim.before = {
                    id: n for id, n in found.items() if victim.name and id.startswith(victim.name)
                }
                victim.life += 1
                victim.notes.unlink(missing_ok=True)
                start(path, victim)
        finally:
            for one in processes:
                kill(one)
        wrong, _ = compare(path, writers)
        failed += bool(wrong)
        print("\n".join(wrong), end="\n" if wrong else "")
        writes += sum(one.states()[1] for one in writers)
    told = ", ".join(
        f"{times} of {f'writer {name}' if name else 'the reader'}" for name, times in killed.items()
    )
    print(
        f"{sum(killed.values())} kills ({told}); {writes:,} acknowledged writes; {failed} times something was wrong"
    )
    against = "kills after which an acknowledged write was lost, or anything else was wrong"
    return 0 if report("kill_writes", failed, 0, "lower", against) else 1


if __name__ == "__main__":
    sys.exit(main())
