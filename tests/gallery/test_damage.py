"""Files that are not a gallery, or not one that can be used: one line each, and nothing made worse."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from gallery_reference import DIM, EMBEDDER, names, random, told

from holdfast.errors import GalleryError, HoldfastError, StorageError
from holdfast.gallery import EmbedderInfo, Gallery, verify_file
from holdfast.gallery.stores.sqlite import database, memory


def refused(action: Callable[[], object], kind: type[HoldfastError], match: str) -> None:
    with pytest.raises(kind, match=match) as caught:
        action()
    assert "\n" not in str(caught.value)


@pytest.fixture
def filled(path: Path) -> Path:
    with Gallery.create(path, dim=128, embedder=EMBEDDER) as gallery:
        gallery.add(names(3000), random(3000, dim=128))
    return path


def test_files_that_are_no_gallery(tmp_path: Path) -> None:
    text, empty, other = tmp_path / "text", tmp_path / "empty", tmp_path / "other.db"
    text.write_text("not a database, " * 20)
    empty.touch()
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE meta (x)")
    before = other.read_bytes()
    for path in (text, empty, other, tmp_path):
        refused(lambda path=path: Gallery.open(path), GalleryError, "is not a gallery; make one")
    for path in (text, other, tmp_path):
        make = lambda path=path: Gallery.create(path, dim=3, embedder=EMBEDDER, overwrite=True)  # noqa: E731
        refused(make, GalleryError, "exists and is not a gallery; choose another path")
    assert other.read_bytes() == before
    refused(lambda: Gallery.open(tmp_path / "nowhere"), GalleryError, "there is no gallery at")
    assert not (tmp_path / "nowhere").exists()


def test_an_existing_gallery_is_kept_unless_said_otherwise(filled: Path) -> None:
    refused(lambda: Gallery.create(filled, dim=3, embedder=EMBEDDER), GalleryError, "exists already")
    with Gallery.open(filled) as gallery:
        assert len(gallery) == 3000
    with Gallery.create(filled, dim=3, embedder=EMBEDDER, overwrite=True) as gallery:
        assert (len(gallery), gallery.info.dim, gallery.verify()) == (0, 3, [])


def test_creation_makes_the_folder_and_needs_a_dimension(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b?c#d%20" / "g"
    Gallery.create(path, dim=2, embedder=EMBEDDER).close()
    assert [file.name for file in path.parent.iterdir()] == ["g"]
    refused(
        lambda: Gallery.create(tmp_path / "x", dim=0, embedder=EMBEDDER), GalleryError, "at least 1 number"
    )


def test_a_log_left_by_a_deleted_gallery_is_not_mixed_in(path: Path) -> None:
    with Gallery.create(path, dim=DIM, embedder=EMBEDDER) as gallery:
        gallery.add(names(30), random(30))
        log = path.with_name(path.name + "-wal").read_bytes()
    assert log
    path.unlink()
    path.with_name(path.name + "-wal").write_bytes(log)
    with Gallery.create(path, dim=DIM, embedder=EMBEDDER) as gallery:
        assert (len(gallery), gallery.verify()) == (0, [])


def test_another_embedder_is_refused(filled: Path) -> None:
    other = EmbedderInfo("b" * 64)
    refused(
        lambda: Gallery.open(filled, embedder=other),
        GalleryError,
        "made by embedder 2:aaaaaaaaaa, not by bbbbbbbbbbbb; use that embedder",
    )
    with Gallery.open(filled, embedder=EmbedderInfo(EMBEDDER.fingerprint)) as gallery:
        assert gallery.info.embedder == EMBEDDER


def test_an_embedder_checks_itself() -> None:
    refused(lambda: EmbedderInfo(""), GalleryError, "needs a fingerprint")
    refused(lambda: EmbedderInfo("a", {"x": object()}), GalleryError, "plain JSON")
    refused(lambda: EmbedderInfo("a", {"x": float("nan")}), GalleryError, "plain JSON")


@pytest.mark.parametrize("kept", [50, 4096, 65536 * 2, 0.5, 0.999])
def test_a_file_cut_short_is_refused(filled: Path, kept: float) -> None:
    size = filled.stat().st_size
    os.truncate(filled, int(kept if kept > 1 else size * kept))
    refused(lambda: Gallery.open(filled), GalleryError, "is damaged|is not a gallery")


def test_flipped_bytes_are_found_when_opening_or_verifying(filled: Path) -> None:
    sound = filled.read_bytes()
    noticed = 0
    for place in range(70_000, len(sound), len(sound) // 40):
        content = bytearray(sound)
        content[place : place + 8] = bytes(byte ^ 0x55 for byte in content[place : place + 8])
        filled.write_bytes(content)
        problems = verify_file(filled)
        assert all("\n" not in line for line in problems)
        try:
            with Gallery.open(filled) as gallery:
                found = gallery.vectors(names(3000))
        except GalleryError as error:
            noticed += bool(problems) and "\n" not in str(error)
        else:
            assert found.tolist() == random(3000, dim=128).tolist()
    assert noticed > 20


def tamper(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE meta SET count = 2999", "what it says of itself does not match its checksum"),
        ("DELETE FROM items WHERE slot = 7", "2999 items are in slots 0 to 2999"),
        ("DELETE FROM blocks WHERE block = 1", "block 1 of column 'vector' is missing"),
        ("UPDATE blocks SET block = 9 WHERE block = 2", "block 9 of column 'vector' is beyond the last item"),
        ("UPDATE blocks SET max_norm = 0.5 WHERE block = 0", "block 0 of column 'vector' is damaged"),
        ("UPDATE blocks SET data = zeroblob(512) WHERE block = 1", "block 1 of column 'vector' is damaged"),
        ("UPDATE blocks SET kind = 'x' WHERE block = 1", "there are blocks of an unknown column 'x'"),
        (
            "UPDATE columns SET dtype = '|O'",
            "cannot be read further: column 'vector' has 128 numbers of '|O'",
        ),
        ("UPDATE meta SET card = '{'", "what it says of itself does not match its checksum"),
        ("UPDATE meta SET dim = 64", "what it says of itself does not match its checksum"),
        ("DROP TABLE items", "cannot be read further: no such table: items"),
        ("DELETE FROM meta", "its table meta has 0 rows, not 1"),
    ],
)
def test_verify_names_what_is_wrong(filled: Path, statement: str, problem: str) -> None:
    assert verify_file(filled) == []
    tamper(filled, statement)
    assert problem in "\n".join(verify_file(filled))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE meta SET count = 2999",
        "UPDATE meta SET count = 3001",
        "DELETE FROM blocks WHERE block = 1",
        "DELETE FROM blocks WHERE block = 2",
        "DELETE FROM meta",
        "DELETE FROM columns",
        "DROP TABLE blocks",
        "UPDATE meta SET card = '{'",
        "UPDATE meta SET dim = 64",
    ],
)
def test_a_gallery_that_contradicts_itself_is_not_opened(filled: Path, statement: str) -> None:
    tamper(filled, statement)
    refused(lambda: Gallery.open(filled), GalleryError, "damaged|could not read")


def test_a_newer_file_is_left_to_a_newer_program(filled: Path) -> None:
    tamper(filled, f"PRAGMA user_version = {database.VERSION + 1}")
    refused(lambda: Gallery.open(filled), GalleryError, "newer than this Holdfast reads; upgrade")


def test_a_full_disk_leaves_the_gallery_as_it_was(filled: Path) -> None:
    with Gallery.open(filled) as gallery:
        before = told(gallery.nearest(random(1, dim=128), 20)[0])
        connection = gallery._store.connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        more = [f"more-{number}" for number in range(5000)]
        refused(
            lambda: gallery.add(more, random(5000, dim=128)),
            StorageError,
            "the disk is full: free some space",
        )
        assert told(gallery.nearest(random(1, dim=128), 20)[0]) == before
        assert (len(gallery), gallery.verify()) == (3000, [])
        connection.execute(f"PRAGMA max_page_count = {1 << 30}")
        gallery.add(more, random(5000, dim=128))
        assert (len(gallery), gallery.verify()) == (8000, [])


def child(script: str, path: Path, *, rights: bool = False) -> str:
    """What `script` prints, run in another process as a user without rights of its own (or with)."""
    lines = ["import os, sys", "import faiss", "import numpy as np", "path = sys.argv[1]"]
    lines += ["from holdfast.errors import *", "from holdfast.gallery import *"]
    if not rights and os.getuid() == 0:
        lines.append("os.setgid(65534), os.setuid(65534)")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, script]), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_write_that_the_system_refuses_leaves_the_gallery_as_it_was(filled: Path) -> None:
    script = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
gallery = Gallery.open(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    gallery.add([f"more-{n}" for n in range(5000)], np.ones((5000, 128)))
except StorageError as error:
    print(error)
"""
    assert "what was there before is intact" in child(script, filled, rights=True)
    assert verify_file(filled) == []
    with Gallery.open(filled) as gallery:
        assert len(gallery) == 3000


@pytest.fixture
def locked() -> Iterator[Path]:
    """A gallery in a folder in which a user without rights may only read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.gallery"
        with Gallery.create(path, dim=DIM, embedder=EMBEDDER) as gallery:
            gallery.add(names(9), np.arange(9 * DIM).reshape(9, DIM))
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        yield path
        Path(folder).chmod(0o755)


def test_a_read_only_folder_can_be_searched(locked: Path) -> None:
    script = "print(Gallery.open(path, readonly=True).nearest(np.arange(5), 2)[0].hits[0].id)"
    assert child(script, locked) == "image-0000"
    assert [file.name for file in locked.parent.iterdir()] == [locked.name]


def test_a_read_only_file_can_be_searched_without_being_asked_for_as_such(locked: Path) -> None:
    locked.parent.chmod(0o777)
    script = """
gallery = Gallery.open(path)
print(gallery.nearest(np.arange(5), 2)[0].hits[0].id)
try:
    gallery.add(["x"], np.ones((1, 5)))
except StorageError as error:
    print(error)
"""
    first, second = child(script, locked).splitlines()
    assert first == "image-0000"
    assert "it is read-only: check its permissions" in second


def test_writing_in_a_read_only_folder_says_why_not(locked: Path) -> None:
    script = """
for action in (lambda: Gallery.open(path).add(["x"], np.ones((1, 5))),
               lambda: Gallery.create(path + "2", dim=5, embedder=EmbedderInfo("a"))):
    try:
        action()
    except HoldfastError as error:
        print(error)
"""
    first, second = child(script, locked).splitlines()
    assert "permissions" in first
    assert "Permission denied" in second


@pytest.fixture
def reader(gallery: Gallery, path: Path, monkeypatch: pytest.MonkeyPatch) -> Gallery:
    """Nine candidates, opened by one who may not write beside them."""
    gallery.add(names(9), random(9))
    gallery.close()
    with monkeypatch.context() as without_rights:
        without_rights.setattr(os, "access", lambda _, mode: mode != os.W_OK)
        return Gallery.open(path, readonly=True)


def test_a_change_under_a_reader_without_rights_is_noticed(reader: Gallery, path: Path) -> None:
    with reader:
        assert len(reader.nearest(random(1), 20)[0]) == 9
        with Gallery.open(path) as owner:
            owner.remove(names(1))
            refused(
                lambda: reader.nearest(random(1), 20), GalleryError, "changed by its owner; open it again"
            )


@pytest.mark.parametrize(
    "use",
    [
        lambda reader: reader.items(np.arange(9)),
        lambda reader: reader.nearest(random(1), 20),
        lambda reader: reader.verify(),
        lambda reader: reader.info,
    ],
)
def test_a_reader_without_rights_never_mixes_two_states(
    reader: Gallery, path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Gallery], object]
) -> None:
    again = "changed by its owner; open it again"

    def changed_on_the_way() -> None:
        with reader.snapshot():
            with Gallery.open(path) as owner:
                owner.remove(names(1))
            refused(lambda: use(reader), GalleryError, again)

    with reader:
        use(reader)
        refused(changed_on_the_way, GalleryError, again)
        refused(lambda: use(reader), GalleryError, again)


def test_an_unreadable_file_says_so(locked: Path) -> None:
    locked.chmod(0o000)
    script = """
try:
    Gallery.open(path, readonly=True)
except GalleryError as error:
    print(error)
"""
    assert "Permission denied" in child(script, locked)


def test_an_altered_label_is_found_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.gallery"
    with Gallery.create(path, dim=2, embedder=EmbedderInfo("f")) as gallery:
        gallery.add(["a", "b"], np.eye(2, dtype=np.float32), labels=["red", "blue"])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE items SET label = 'bed' WHERE id = 'a'")
    connection.commit()
    connection.close()
    assert "checksum" in verify_file(path)[0]
    with Gallery.open(path) as gallery, pytest.raises(GalleryError, match="checksum"):
        gallery.nearest(np.zeros(2, dtype=np.float32), 2)
    with (
        Gallery.open(path) as gallery,
        pytest.raises(GalleryError, match="'a' in slot 0 does not match its checksum"),
    ):
        gallery.catalogue()


def test_threads_that_read_notice_damage_too(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MANY", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    with Gallery.open(filled) as gallery:
        assert (gallery.all_vectors() == random(3000, dim=128)).all()
    with closing(sqlite3.connect(filled)) as connection, connection:
        connection.execute("UPDATE blocks SET checksum = checksum + 1 WHERE block = 1")
    refused(lambda: Gallery.open(filled), GalleryError, "is damaged")
