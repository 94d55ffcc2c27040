"""Folders and tars as sources of files."""

from __future__ import annotations

import io
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.data.source import FolderSource, TarSource, open_source
from holdfast.errors import DataError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    for index in range(40):
        path = top / f"folder{index % 3}" / f"{index}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(index * 37))
    return top


def test_a_tar_holds_the_same_as_its_folder_and_is_safe_for_threads(
    tree: Path, make: Any, tmp_path: Path
) -> None:
    with open_source(tree) as folder, open_source(make.tar(tree, tmp_path / "tree.tar")) as packed:
        assert isinstance(folder, FolderSource)
        assert isinstance(packed, TarSource)
        assert list(folder.files) == list(packed.files) == sorted(folder.files)
        names = list(folder.files) * 5
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(packed.read, names)) == [folder.read(name) for name in names]


def test_links_devices_and_names_that_climb_out_of_a_tar_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "hostile.tar"
    with tarfile.open(path, "w:") as archive:
        for name in ("good/a.png", "./good/b.png", "/etc/c.png", "../d.png", "good/../../e.png"):
            entry = tarfile.TarInfo(name)
            entry.size = 3
            archive.addfile(entry, io.BytesIO(b"abc"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            entry = tarfile.TarInfo(f"good/{kind.decode()}.png")
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
    with open_source(path) as source:
        assert list(source.files) == ["good/a.png", "good/b.png"]
        assert source.read("good/b.png") == b"abc"


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
def test_a_compressed_tar_is_refused_with_advice(tree: Path, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "tree.tgz"
    with tarfile.open(path, f"w:{mode}") as archive:  # type: ignore[call-overload]
        archive.add(tree)
    with pytest.raises(DataError, match=r"is compressed .* unpack it first"):
        open_source(path)


@pytest.mark.parametrize("left", [100, 700, 1024, 5000, 5120])
def test_a_tar_that_was_cut_is_refused(tree: Path, make: Any, tmp_path: Path, left: int) -> None:
    path = make.tar(tree, tmp_path / "tree.tar")
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(DataError, match="is not a whole tar"):
        open_source(path)


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (
        ("a.txt", "is not a whole tar"),
        ("none", "there is no folder or tar"),
        ("pipe", "neither"),
    ):
        with pytest.raises(DataError, match=reason):
            open_source(tmp_path / name)


def test_a_folder_with_pipes_loops_and_dead_links_is_listed_once(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.png").write_bytes(b"abc")
    (tmp_path / "real" / "loop").symlink_to(tmp_path)
    (tmp_path / "dead.png").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.png")
    with open_source(tmp_path) as source:
        assert list(source.files) == ["dead.png", "real/a.png"]
        with pytest.raises(OSError, match="No such file"):
            source.read("dead.png")


def test_the_root_is_the_folder_nearest_the_top_that_holds_all(tmp_path: Path) -> None:
    for name in ("a.txt", "deep/er/a.txt", "deep/er/b.txt", "x/y/z/a.txt", "x/y/z/b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    with open_source(tmp_path) as source:
        assert source.root_of("a.txt") == ""
        assert source.root_of("a.txt", "b.txt") == "deep/er/"
        assert source.root_of("c.txt") is None
        with pytest.raises(DataError, match=r"could not read c\.txt"):
            source.text("c.txt")
