"""Indexing while the disk fails: every file operation in turn; nothing leaves the gallery that is still there."""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from command import here
from PIL import Image
from torch import nn

import holdfast
from holdfast.data import bucket
from holdfast.errors import DataError, HoldfastError
from holdfast.gallery import Gallery

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
CODES, Faults, failing_below, failing_bucket = (
    getattr(importlib.import_module("_faults"), name)
    for name in ("CODES", "Faults", "failing_below", "failing_bucket")
)
MODEL = """
import torch
import holdfast
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 4))
embedder = holdfast.wrap(network, (3, 8, 8))
"""


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (10, 10, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@contextmanager
def bucket_of(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The bucket `shop` on a server of S3's protocol, with the pictures."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    bucket._made.cache_clear()
    client = bucket._client()
    client.create_bucket(Bucket="shop")
    for path in pictures.rglob("*.png"):
        client.put_object(Bucket="shop", Key=str(path.relative_to(pictures)), Body=path.read_bytes())
    try:
        yield
    finally:
        httpx.post(f"http://{host}:{port}/moto-api/reset").raise_for_status()
        bucket._made.cache_clear()
        server.stop()


@pytest.fixture
def embedder() -> holdfast.Embedder:
    torch.manual_seed(0)
    return holdfast.wrap(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4)), (3, 8, 8))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number in range(6):
        place = tmp_path / "pictures" / ("coats" if number % 2 else "hats") / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(picture(number))
    return tmp_path / "pictures"


def packed(pictures: Path) -> Path:
    with tarfile.open(pictures.with_suffix(".tar"), "w") as archive:
        archive.add(pictures, "pictures")
    return pictures.with_suffix(".tar")


def ids(gallery: Path) -> list[str]:
    with Gallery.open(gallery, readonly=True) as opened:
        return sorted(opened.ids())


def check_every_fault(index: Callable[[], Any], gallery: Path, fail: Callable[[Any], Any]) -> list[str]:
    """Index with each operation failing in turn, every second time for good; what the failures said."""
    counting = Faults()
    with fail(counting):
        index()
    before, said = ids(gallery), []
    for at in range(1, counting.count + 1):
        faults = Faults(at, CODES[at % len(CODES)], lasting=at % 2 == 0)
        with fail(faults):
            try:
                index()
            except HoldfastError as error:
                said.append(str(error))
        assert faults.count >= at
        assert ids(gallery) == before, (at, os.strerror(faults.code), said[-1:])
    assert all("\n" not in line and line.startswith("could not ") for line in said)
    return said


@pytest.mark.parametrize("make", [Path, packed], ids=["folder", "tar"])
def test_no_failing_file_operation_removes_an_image(embedder, pictures, make):
    images, gallery = make(pictures), pictures.with_suffix(".gallery")
    holdfast.index(embedder, images, gallery).close()

    def index() -> None:
        holdfast.index(embedder, images, gallery, prune=True, max_removed=1).close()

    said = check_every_fault(index, gallery, lambda faults: failing_below(images, faults))
    # All but looking a path up (links in it) and reading the time of a file end the run.
    assert len(said) >= 12
    assert sum("nothing was removed" in line for line in said) >= 6, "each picture's bytes"
    index()
    assert len(ids(gallery)) == 6


def test_no_failing_answer_of_a_bucket_removes_an_image(embedder, pictures, monkeypatch):
    gallery = pictures.with_suffix(".gallery")
    with bucket_of(pictures, monkeypatch):

        def index() -> None:
            holdfast.index(embedder, "s3://shop", gallery, prune=True, max_removed=1).close()

        index()
        said = check_every_fault(index, gallery, failing_bucket)
        assert len(said) >= 1 + 2 * 6, "the list, and of each object the answer and its body"
        index()
    assert len(ids(gallery)) == 6


def test_a_lost_mount_ends_the_command_with_everything_kept(tmp_path, pictures):
    """The listing comes, the bytes do not: as when a network disk goes while a run reads."""
    (tmp_path / "model.py").write_text(MODEL)
    words = ("index", f"{tmp_path / 'model.py'}:embedder", pictures, "--out", tmp_path / "shop.gallery")
    assert here(*words).code == 0
    faults = Faults(1, errno.ENOTCONN, lasting=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", faults.path(io.open, pictures))
        done = here(*words, "--prune", "--max-removed", 1)
    assert done.code == 2
    classes, error = done.err.splitlines()
    assert classes == "6 images, 2 classes: coats, hats"
    assert "Transport endpoint is not connected" in error
    assert "nothing was removed" in done.err
    assert len(ids(tmp_path / "shop.gallery")) == 6


def test_a_run_that_would_remove_much_stops_and_names_the_option(tmp_path, pictures):
    (tmp_path / "model.py").write_text(MODEL)
    words = ("index", f"{tmp_path / 'model.py'}:embedder", pictures, "--out", tmp_path / "shop.gallery")
    assert here(*words).code == 0
    (pictures / "hats" / "0.png").unlink()
    (pictures / "hats" / "2.png").write_bytes(b"no picture")
    assert json.loads(here(*words, "--json").out)["removed"] == 1, "what is gone stays without --prune"
    (pictures / "coats" / "1.png").write_bytes(b"")
    refused = here(*words, "--prune")
    assert refused.code == 2
    assert "2 of 5 images would leave the gallery" in refused.err
    assert "--max-removed 0.4" in refused.err
    assert len(ids(tmp_path / "shop.gallery")) == 5
    allowed = here(*words, "--prune", "--max-removed", "0.4", "--json")
    assert json.loads(allowed.out)["removed"] == 2
    assert ids(tmp_path / "shop.gallery") == ["coats/3.png", "coats/5.png", "hats/4.png"]


def test_a_link_to_nothing_stays_until_it_is_pruned(embedder, pictures):
    gallery, linked = pictures.with_suffix(".gallery"), pictures / "hats" / "0.png"
    holdfast.index(embedder, pictures, gallery).close()
    linked.rename(pictures.parent / "elsewhere.png")
    linked.symlink_to(pictures.parent / "nowhere.png")
    holdfast.index(embedder, pictures, gallery).close()
    assert "hats/0.png" in ids(gallery)
    holdfast.index(embedder, pictures, gallery, prune=True).close()
    assert "hats/0.png" not in ids(gallery)


def test_a_picture_that_finds_no_memory_stays(embedder, pictures, monkeypatch):
    gallery, changed = pictures.with_suffix(".gallery"), pictures / "hats" / "0.png"
    holdfast.index(embedder, pictures, gallery).close()
    changed.write_bytes(picture(100))

    def short(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("holdfast.data.images._decode", short)
    holdfast.index(embedder, pictures, gallery).close()
    assert len(ids(gallery)) == 6


def test_a_failing_disk_ends_training_too(tmp_path, pictures):
    """Otherwise a run would train on what happened to be read, and the decoded copy would keep it so."""
    faults = Faults(2, errno.EIO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", faults.path(io.open, pictures))
        with pytest.raises(DataError, match=r"could not read .*png: Input/output error; check the disk"):
            holdfast.data.load(str(pictures))
