"""What a killed upload leaves beside a gallery is swept and reported by `gallery verify`, and nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from serving import Shop, ask, png, serving

from holdfast.gallery.leftovers import IDLE, sweep, uploading

KILLED = """
import os, sys
from pathlib import Path
from holdfast.data import decode
from holdfast.gallery import Gallery
from holdfast.service.engine import Served
from holdfast.service.writing import add_item

def die(*_, **__):
    os.kill(os.getpid(), 9)

content = sys.stdin.buffer.read()
for owner, name in ((Path, "replace"), (Gallery, "add")):
    child = os.fork()
    if not child:
        served = Served("own", sys.argv[1], Path(sys.argv[2]), writable=True)
        setattr(owner, name, die)
        add_item(served, content, decode(content, served.embedder.spec), f"killed-{name}", None)
    print(os.waitpid(child, 0)[1])
"""


def verified(gallery: Path) -> dict[str, list[str]]:
    command = [sys.executable, "-m", "holdfast", "gallery", "verify", str(gallery), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, list[str]] = json.loads(done.stdout)
    return said


def test_what_a_killed_upload_leaves_is_swept_by_verify(own_shop: Shop, tmp_path: Path) -> None:
    with serving(own_shop, tmp_path / "c", writable=True) as (client, _):
        assert ask(client, png(), path="items", id="kept").status_code == 201
    folder = own_shop.gallery.with_name("own.gallery.images")
    before = sorted(folder.iterdir())
    script = [sys.executable, "-c", KILLED, str(own_shop.gallery), own_shop.model]
    done = subprocess.run(script, input=png(seed=3), capture_output=True)
    assert done.stdout.split() == [b"9", b"9"], done.stderr
    assert len(list(folder.iterdir())) == len(before) + 2
    (folder / "notes.txt").write_text("not ours")
    said = verified(own_shop.gallery)
    assert said["problems"] == []
    assert sorted(line.rpartition(": ")[2] for line in said["swept"]) == [
        "a picture that no item has",
        "a temporary file",
    ]
    assert sorted(folder.iterdir()) == sorted([*before, folder / "notes.txt"])
    assert sweep(own_shop.gallery) == []


def test_nothing_is_swept_while_a_picture_is_uploaded(own_shop: Shop) -> None:
    folder = own_shop.gallery.with_name("own.gallery.images")
    with uploading(folder):
        (folder / f"{'a' * 32}-{'b' * 32}").write_bytes(b"on its way")
        assert sweep(own_shop.gallery) == [f"{folder} was left alone: a picture is being uploaded"]
    assert len(sweep(own_shop.gallery)) == 1
    assert list(folder.iterdir()) == []


def test_the_pictures_of_a_gallery_that_was_moved_stay(own_shop: Shop, tmp_path: Path) -> None:
    with serving(own_shop, tmp_path / "c", writable=True) as (client, _):
        assert ask(client, png(), path="items", id="kept").status_code == 201
    moved = tmp_path / "elsewhere" / "new.gallery"
    moved.parent.mkdir()
    own_shop.gallery.rename(moved)
    folder = own_shop.gallery.with_name("own.gallery.images").rename(moved.with_name("new.gallery.images"))
    assert sweep(moved) == []
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("name", [".own.gallery.123.tmp", ".own.gallery.7.abc.tmp-wal"])
def test_a_copy_that_nobody_writes_any_more_is_swept(own_shop: Shop, name: str) -> None:
    left, other = own_shop.gallery.with_name(name), own_shop.gallery.with_name(".another.1.tmp")
    for file in (left, other):
        file.write_bytes(b"half a copy")
    assert sweep(own_shop.gallery) == []
    long_ago = time.time() - 2 * IDLE
    for file in (left, other):
        os.utime(file, (long_ago, long_ago))
    assert sweep(own_shop.gallery) == [f"removed {left}: a temporary file"]
    assert not left.exists()
    assert other.exists()
