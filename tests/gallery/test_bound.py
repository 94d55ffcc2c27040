"""Slot, id, vector, boxes and meta are bound to checksums that are compared when they are used."""

from __future__ import annotations

import importlib
import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gallery_reference import DIM, EMBEDDER, names, random, to_version, told

from holdfast.errors import GalleryError
from holdfast.gallery import Boxes, Gallery, Item, verify_file
from holdfast.gallery.kept import Kept
from holdfast.gallery.stores.milvus.address import Index
from holdfast.gallery.stores.milvus.documents import State
from holdfast.gallery.stores.sqlite import columns, items, meta
from holdfast.gallery.stores.sqlite.database import DamageError

BENCH = Path(__file__).parents[2] / "bench"


def tamper(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def shop(path: Path, small_blocks: None) -> Path:
    with Gallery.create(path, dim=DIM, embedder=EMBEDDER) as gallery:
        gallery.add_boxes(0.1, lambda _, vectors: Boxes(vectors, vectors))
        vectors = random(20)
        gallery.add(names(20), vectors, labels=["a"] * 20, boxes={0.1: Boxes(vectors, np.abs(vectors))})
    return path


def test_the_short_form_of_the_damage_benchmark_finds_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    damage = importlib.import_module("damage")
    words = "damage --random 60 --targeted 60 --cache 8 --seed 1"
    monkeypatch.setattr(sys, "argv", words.split())
    assert damage.main() == 0
    said = capsys.readouterr().out
    assert json.loads(said.splitlines()[-1])["value"] == 0
    assert "0 harmless, 0 silent" in next(
        line for line in said.splitlines() if line.startswith("lost writes")
    )


SWAP = [f"UPDATE items SET slot = {new} WHERE slot = {old}" for old, new in ((3, 99), (8, 3), (99, 8))]


def test_swapped_slots_are_refused_where_they_are_used(shop: Path) -> None:
    tamper(shop, *SWAP)
    assert "does not match its checksum" in "\n".join(verify_file(shop))
    with Gallery.open(shop) as gallery:
        for use in (
            lambda: gallery.nearest(random(20)[3], 1),
            lambda: gallery.range_search(random(20)[3], 0.1),
            lambda: gallery.get(names(20)[3]),
            lambda: gallery.vectors([names(20)[8]]),
            lambda: gallery.items(np.array([3])),
            gallery.catalogue,
            lambda: list(gallery.ids()),
            lambda: gallery.remove(names(20)[3:4]),
        ):
            with pytest.raises(GalleryError, match="does not match its checksum"):
                use()
        assert gallery.nearest(random(20)[0], 1)[0].hits[0].id == names(1)[0]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE blocks SET data = 5 WHERE kind = 'vector'",
        "UPDATE blocks SET generation = 'x'",
        "UPDATE blocks SET generation = 0 WHERE block = 1",
        "UPDATE blocks SET max_norm = x'00' WHERE block = 0",
        "UPDATE meta SET generation = 'x'",
        "UPDATE meta SET card = CAST(card AS BLOB)",
        "UPDATE meta SET created = '1999-01-01'",
        "UPDATE meta SET uid = 'another'",
        "UPDATE meta SET fingerprint = '2:b'",
        "UPDATE meta SET location = 'elsewhere'",
        "UPDATE meta SET count = 1.5",
        "UPDATE columns SET width = 'x' WHERE kind = 'vector'",
        "UPDATE columns SET block_rows = 8",
        "DELETE FROM columns WHERE kind LIKE 'reach%'",
        "UPDATE items SET id = x'00ff' WHERE slot = 3",
        "UPDATE items SET label = 5.5 WHERE slot = 3",
        "UPDATE items SET checksum = 'x' WHERE slot = 3",
        "DELETE FROM items WHERE slot = 19",
        "UPDATE items SET path = CAST(x'0a0dff0a' AS TEXT) WHERE slot = 3",
        "PRAGMA user_version = 2",
    ],
)
def test_a_value_of_another_type_or_state_is_damage(shop: Path, statement: str) -> None:
    tamper(shop, statement)
    assert verify_file(shop)
    with pytest.raises(GalleryError, match="is damaged") as caught, Gallery.open(shop) as gallery:
        gallery.nearest(random(3), 20)
    assert "\n" not in str(caught.value)


def test_boxes_of_another_state_are_refused_where_they_are_used(shop: Path) -> None:
    """A block that is sound by itself but as it was before the last write, as a lost write leaves it."""
    with closing(sqlite3.connect(shop)) as connection:
        kind = "radius linf:0.1"
        row = connection.execute("SELECT * FROM blocks WHERE kind = ? AND block = 0", (kind,)).fetchone()
    with Gallery.open(shop) as gallery:
        new = random(1, 7)
        gallery.add(names(1), new, boxes={0.1: Boxes(new, np.abs(new) * 2)}, replace=True)
    with closing(sqlite3.connect(shop)) as connection, connection:
        connection.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?, ?, ?, ?, ?)", row)
    assert "not those of the last write" in "\n".join(verify_file(shop))
    with Gallery.open(shop) as gallery, pytest.raises(GalleryError, match="not those of the last write"):
        gallery.boxes_at(0.1, np.array([0]))


def test_an_item_is_not_lost_by_a_damaged_index(shop: Path) -> None:
    with closing(sqlite3.connect(shop)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_items_1'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray(shop.read_bytes())
    at = content.index(b"image-0013", (root - 1) * size)
    content[at : at + 10] = b"image-9999"
    shop.write_bytes(content)
    with Gallery.open(shop) as gallery:
        for use in (lambda: "image-0013" in gallery, lambda: gallery.get("image-0013"), gallery.catalogue):
            with pytest.raises(GalleryError, match="is damaged"):
                use()


def test_an_item_is_not_lost_by_indexes_in_each_others_place(shop: Path) -> None:
    with closing(sqlite3.connect(shop)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        names_of_indexes = "'sqlite_autoindex_items_1', 'item_keys'"
        found = connection.execute(f"SELECT rootpage FROM sqlite_master WHERE name IN ({names_of_indexes})")
        (one,), (other,) = found.fetchall()
    content = bytearray(shop.read_bytes())
    a, b = (slice((root - 1) * size, root * size) for root in (one, other))
    content[a], content[b] = content[b], content[a]
    shop.write_bytes(content)
    with Gallery.open(shop) as gallery, pytest.raises(GalleryError, match="is damaged"):
        _ = "image-0013" in gallery


def test_an_index_that_is_out_of_order_is_not_followed_in_circles(shop: Path) -> None:
    with closing(sqlite3.connect(shop)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_items_1'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray(shop.read_bytes())
    first = (root - 1) * size + 8  # of the pointers to the 20 entries of this page
    content[first : first + 40] = content[first + 2 : first + 40] + content[first : first + 2]
    shop.write_bytes(content)
    with Gallery.open(shop) as gallery, pytest.raises(GalleryError, match="out of order"):
        next(gallery.ids())


def test_kept_certificates_that_are_gone_are_missed(shop: Path) -> None:
    with Gallery.open(shop) as gallery:
        one = Kept("q.png", "query:linf:0.1", 1, gallery.info.generation, (), False, random(1)[0])
        gallery.keep([one, replace(one, query="r.png")])
        assert len(gallery.certificates()) == 2
        assert gallery.forget(["r.png"]) == 1
        assert [kept.query for kept in gallery.certificates()] == ["q.png"]
    tamper(shop, "DELETE FROM certificates")
    with Gallery.open(shop) as gallery, pytest.raises(GalleryError, match="kept certificates are not those"):
        gallery.certificates()


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_before_is_read_as_it_is_and_bound_by_the_first_write(shop: Path, version: int) -> None:
    with Gallery.open(shop) as gallery:
        wanted = told(gallery.nearest(random(1, 3), 20)[0])
    to_version(shop, version)
    with Gallery.open(shop, readonly=True) as gallery:
        assert (told(gallery.nearest(random(1, 3), 20)[0]), gallery.verify()) == (wanted, [])
    with Gallery.open(shop) as gallery:
        gallery.describe([Item(names(1)[0], "b")])
        assert (told(gallery.nearest(random(1, 3), 20)[0]), gallery.verify()) == (wanted, [])
        assert gallery.remove(names(20)[4:9]) == 5
        assert gallery.verify() == []
    tamper(shop, *SWAP)
    assert "does not match its checksum" in "\n".join(verify_file(shop))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE blocks SET data = 5",
        "UPDATE meta SET generation = 'x'",
        "UPDATE meta SET count = 1 << 60",
        "UPDATE meta SET card = '[]'",
        "UPDATE columns SET width = 'x'",
        "UPDATE columns SET kind = 'reach linf:x' WHERE kind LIKE 'reach%'",
        "UPDATE items SET id = x'00ff' WHERE slot = 3",
    ],
)
def test_damage_of_a_file_of_before_is_one_line(shop: Path, statement: str) -> None:
    to_version(shop, 2)
    tamper(shop, statement)
    assert verify_file(shop)
    with pytest.raises(GalleryError, match="is damaged") as caught, Gallery.open(shop) as gallery:
        gallery.nearest(random(3), 20)
    assert "\n" not in str(caught.value)


def test_the_state_of_a_gallery_in_milvus_is_bound_to_its_checksum() -> None:
    state = State("u", DIM, "2:a", {"name": "small"}, None, "now", Index(), count=3, boxes={0.1: "b"})
    text = state.encode()
    assert State.decode(text) == state
    assert State.decode(text[8:]) == state  # of before
    with pytest.raises(GalleryError, match="does not match its checksum"):
        State.decode(text.replace('"count": 3', '"count": 2'))


def test_each_checksum_covers_its_place() -> None:
    """Other checksums would notice most of this too; each must notice it by itself."""
    item, vector = Item("a", "bag", "a.png", "0" * 32), np.arange(4, dtype=np.float32)
    sums = {
        items.bound(0, item, vector),
        items.bound(1, item, vector),
        items.bound(0, replace(item, id="b"), vector),
        items.bound(0, replace(item, label=None), vector),
        items.bound(0, item, vector + 1),
    }
    assert len(sums) == 5


def test_a_block_that_was_altered_or_moved_is_not_decoded() -> None:
    column = columns.Column("vector", "<f4", 2, 4)
    data = np.arange(8, dtype=np.float32).tobytes()
    mark = columns.Mark(3, 1, column.checksum(3, 9.5, data), 9.5)
    assert column.decode(mark, data).rows.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    for wrong, bytes_ in (
        (mark, data[:-1] + b"\x01"),
        (mark, data[:-8]),
        (replace(mark, number=2), data),
        (replace(mark, max_norm=9.0), data),
    ):
        with pytest.raises(DamageError, match="is not what was written"):
            column.decode(wrong, bytes_)


def test_what_a_gallery_says_of_itself_is_read_in_one_piece(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process commits between two reads of an opening: that is no damage."""
    read, written = meta.read, []

    def late(statement: str) -> None:
        if statement.startswith("SELECT * FROM columns") and not written:
            written.append("late")
            with Gallery.open(shop) as other:
                vectors = random(1)
                other.add(["late"], vectors, boxes={0.1: Boxes(vectors, np.abs(vectors))})

    def watched(connection: sqlite3.Connection) -> meta.Meta:
        connection.set_trace_callback(late)
        return read(connection)

    monkeypatch.setattr(meta, "read", watched)
    with Gallery.open(shop) as gallery:
        assert written
        assert len(gallery) == 21
