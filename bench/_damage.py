"""Galleries that are damaged on purpose, and what becomes of their answers."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from holdfast.bounds import Box
from holdfast.errors import HoldfastError
from holdfast.gallery import Boxes, EmbedderInfo, Gallery, Item, verify_file
from holdfast.gallery.certified import QueryBounds, certify_query
from holdfast.gallery.kept import Kept, KeptHit
from holdfast.gallery.stores.sqlite import columns, database
from holdfast.gallery.stores.sqlite.cache import folder_of
from holdfast.threat import Threat

DIM, COUNT, EPS, K = 8, 60, 0.1, 6
EMBEDDER = EmbedderInfo("2:" + "0" * 64, {"name": "bench", "spec": {"resample": "area"}}, "runs/first")
TABLES = ("meta", "items", "columns", "blocks", "certificates")
VALUES = (
    "NULL",
    "5",
    "-1",
    "1 << 62",
    "1.5",
    "'x'",
    "''",
    "x'00ff'",
    "zeroblob(70000)",
    "CAST(x'ff' AS TEXT)",
)
"""Of every storage class that SQLite has, and text that is not UTF-8."""

LONGEST = 60
"""Seconds after which a damaged gallery hangs, which counts as a traceback."""

Outcome = Literal["noticed", "harmless", "silent", "traceback"]
Answers = dict[str, Any]


@dataclass(frozen=True)
class Damage:
    """What was done to a gallery, in a few words, and how."""

    name: str
    do: Callable[[Path], None]


def vectors(count: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal((count, DIM), dtype=np.float32)


def boxes(rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> dict[float, Boxes]:
    wide = np.full(rows.shape, 0.2)
    return {EPS: Boxes.around(rows.astype(np.float64), wide)}


def filled(path: Path, page_size: int = 1024) -> None:
    """A small gallery with everything that one can have, in several blocks and many small pages."""
    before = database.PAGE_SIZE, columns._BLOCK_BYTES
    database.PAGE_SIZE, columns._BLOCK_BYTES = page_size, 64 * DIM
    try:
        with Gallery.create(path, dim=DIM, embedder=EMBEDDER) as gallery:
            gallery.add_boxes(EPS, lambda _, rows: Boxes(rows, rows))
            rows = vectors(COUNT + 4, 0)
            ids = [f"image-{number:03d}" for number in range(COUNT + 4)]
            told = {
                "labels": [None if n % 7 == 0 else f"class-{n % 5}" for n in range(len(ids))],
                "paths": [f"images/{id}.jpg" for id in ids],
                "digests": [f"{n:032x}" for n in range(len(ids))],
            }
            gallery.add(ids, rows, boxes=boxes(rows), **told)  # type: ignore[arg-type]
            change(gallery)
    finally:
        database.PAGE_SIZE, columns._BLOCK_BYTES = before


def change(gallery: Gallery) -> None:
    """A few writes, so that slots have moved and certificates are kept."""
    gallery.remove([f"image-{number:03d}" for number in (3, 17, 40, 41)])
    new = vectors(2, 5)
    gallery.add(["image-005", "image-030"], new, labels=["x", "y"], boxes=boxes(new), replace=True)
    gallery.describe([Item("image-010", "other", "elsewhere.jpg", "f" * 32)])
    for number in range(4):
        hits = (KeptHit("image-001", 1, 2, "CERTIFIED"), KeptHit("image-002", 1, 5, "UNKNOWN"))
        box = (np.zeros(DIM), np.full(DIM, 0.1)) if number % 2 else (None, None)
        generation = gallery.info.generation
        gallery.keep(
            [
                Kept(
                    f"q{number}.png",
                    "query:linf:0.1",
                    K,
                    generation,
                    hits,
                    False,
                    vectors(1, number)[0],
                    *box,
                )
            ]
        )


def doors(gallery: Gallery) -> dict[str, Callable[[], Any]]:
    """Everything that a user can ask a gallery for, by name."""
    queries = vectors(3, 9)

    def certified(threat: str) -> Any:
        centre = torch.from_numpy(queries[0]).double()[None]
        box = None if threat.startswith("candidates") else Box(centre, torch.full_like(centre, 0.05))
        result = certify_query(gallery, QueryBounds(queries[0], box, False), K, Threat.parse(threat))
        return result.to_dict()

    ids = [f"image-{number:03d}" for number in (0, 5, 10, 17, 63)]
    return {
        "info": lambda: (gallery.info, len(gallery)),
        "search one": lambda: gallery.nearest(queries[0], COUNT),
        "search many": lambda: gallery.nearest(queries, K),
        "range": lambda: gallery.range_search(queries[1], 3.0),
        "query certificate": lambda: certified("query:linf:0.1"),
        "candidate certificate": lambda: certified("candidates:linf:0.1"),
        "few candidates": lambda: certified("candidates:linf:0.1:m=2"),
        "both": lambda: certified("both:linf:0.1"),
        "catalogue": lambda: gallery.catalogue(),
        "ids": lambda: list(gallery.ids()),
        "lookup": lambda: [(id in gallery, gallery.get(id) if id in gallery else None) for id in ids],
        "vectors": lambda: gallery.vectors([id for id in ids if id != "image-017"]).tolist(),
        "kept": lambda: [
            (k.named, k.hits, k.generation, k.embedding.tolist()) for k in gallery.certificates()
        ],
    }


def answers(path: Path) -> Answers:
    """What a gallery answers at each door: a value, or the line that it is refused with."""
    found: Answers = {"verify": _asked(lambda: verify_file(path))}
    try:
        gallery = Gallery.open(path, readonly=True, wait=1.0)
    except HoldfastError as cause:
        return {**found, "open": cause}
    with gallery:
        for name, door in doors(gallery).items():
            found[name] = _asked(door)
    return found


def _asked(door: Callable[[], Any]) -> Any:
    try:
        return door()
    except HoldfastError as cause:
        return cause


def outcome(path: Path, sound: Answers) -> tuple[Outcome, str]:
    """What became of a damaged gallery's answers, compared with those of the sound one."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LONGEST)
    try:
        found = answers(path)
    except Exception as cause:
        return "traceback", f"{type(cause).__name__}: {cause}"
    finally:
        signal.alarm(0)
    refused = [str(answer) for answer in found.values() if isinstance(answer, HoldfastError)]
    many = [line for line in refused if "\n" in line]
    if many:
        return "traceback", f"more than one line: {many[0]!r}"
    for name, answer in found.items():
        if name != "verify" and not isinstance(answer, HoldfastError) and answer != sound[name]:
            return "silent", f"another answer at '{name}'"
    if found["verify"] != []:
        return "noticed", str(found["verify"])
    if refused:
        return "silent", f"verify says that it is sound, and yet: {refused[0]}"
    return "harmless", ""


def _too_long(*_: object) -> None:
    raise TimeoutError(f"no answer in {LONGEST} s")


def random_damages(size: int, count: int, seed: int) -> Iterator[Damage]:
    """Flipped bits, overwritten, zeroed, copied and shortened parts of a file, each at a random place."""
    rng = random.Random(seed)
    for _ in range(count):
        kind = rng.choice(("bit", "bit", "bit", "byte", "run", "zero", "copy", "swap", "cut"))
        at, other, length = rng.randrange(size), rng.randrange(size), rng.choice((1, 2, 8, 64, 512, 1024))
        content, bit = rng.randbytes(length), 1 << rng.randrange(8)

        def do(
            path: Path,
            kind: str = kind,
            at: int = at,
            other: int = other,
            length: int = length,
            content: bytes = content,
            bit: int = bit,
        ) -> None:
            data = bytearray(path.read_bytes())
            if kind == "bit":
                data[at] ^= bit
            elif kind == "byte":
                data[at] = content[0]
            elif kind == "cut":
                del data[at:]
            elif kind == "swap":  # two pages of 1,024 bytes
                a, b = at // 1024 * 1024, other // 1024 * 1024
                data[a : a + 1024], data[b : b + 1024] = data[b : b + 1024], data[a : a + 1024]
            else:
                new = {"run": content, "zero": bytes(length), "copy": bytes(data[other : other + length])}[
                    kind
                ]
                new = new[: len(data) - at]
                data[at : at + len(new)] = new
            path.write_bytes(data)

        yield Damage(f"{kind} at {at} ({length})", do)


def targeted_damages(sound: Path, count: int, seed: int) -> list[Damage]:
    """Every column of some rows of every table, with values of every storage class and those of other rows; rows
    that are gone; pages of the state before the last writes, as lost writes leave them."""
    rng = random.Random(seed)
    found: list[Damage] = []
    with closing(sqlite3.connect(sound)) as connection:
        for table in TABLES:
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            rows = [row[0] for row in connection.execute(f"SELECT rowid FROM {table}")]
            for row in rng.sample(rows, min(3, len(rows))):
                found.append(_sql(f"DELETE FROM {table} WHERE rowid = {row}"))
                for name in names:
                    others = [
                        f"(SELECT {name} FROM {table} WHERE rowid = {other})"
                        for other in rng.sample(rows, min(2, len(rows)))
                    ]
                    changed = [f"{name} + 1", f"{name} || 'x'", f"upper({name})"]
                    for value in (*VALUES, *others, *changed):
                        found.append(_sql(f"UPDATE {table} SET {name} = {value} WHERE rowid = {row}"))
        for table in TABLES:
            found.append(_sql(f"DELETE FROM {table}"))
            found.append(_sql(f"DROP TABLE {table}"))
    found += [_sql("PRAGMA user_version = 2"), _sql("PRAGMA application_id = 5")]
    for a, b in ((1, 2), (5, 50), (0, 59)):
        found.append(_sql(*(f"UPDATE items SET slot = {new} WHERE slot = {old}" for old, new in
                            ((a, 900), (b, a), (900, b)))))  # fmt: skip
    rng.shuffle(found)
    return found[:count] if count else found


def lost_writes(before: Path, after: Path, page_size: int = 1024) -> list[Damage]:
    """The file `after` some writes, with one page as it was before them."""
    old, new = before.read_bytes(), after.read_bytes()
    places = range(0, min(len(old), len(new)), page_size)
    changed = [at for at in places if old[at : at + page_size] != new[at : at + page_size]]

    def lose(at: int) -> Callable[[Path], None]:
        def do(path: Path) -> None:
            data = bytearray(new)
            data[at : at + page_size] = old[at : at + page_size]
            path.write_bytes(data)

        return do

    return [Damage(f"page at {at} as it was before the last writes", lose(at)) for at in changed]


def _sql(*statements: str) -> Damage:
    """Statements past all that the schema would refuse."""

    def do(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA writable_schema = 1")
            schema = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL").fetchall()
            loose = "replace(replace(sql, ' NOT NULL', ''), ' CHECK (one = 1)', '')"
            connection.execute(f"UPDATE sqlite_master SET sql = {loose} WHERE sql NOT NULL")
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in statements:
                with suppress(sqlite3.IntegrityError):  # a value that an index has already
                    connection.execute(statement)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA writable_schema = 1")
            for name, sql in schema:
                connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (sql, name))
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    return Damage("; ".join(statements), do)


def copied(sound: Path, to: Path) -> None:
    """The sound gallery again, in the place of a damaged one."""
    for file in (to, *(to.with_name(to.name + end) for end in ("-wal", "-shm"))):
        file.unlink(missing_ok=True)
    shutil.copy(sound, to)
    if folder_of(sound).is_dir():
        shutil.rmtree(folder_of(to), ignore_errors=True)
        shutil.copytree(folder_of(sound), folder_of(to))
