"""Images in a bucket: a real server of S3's protocol on this machine."""

from __future__ import annotations

import io
import json
import socket
import sys

import httpx
import numpy as np
import pytest
from command import here
from PIL import Image
from torch import nn

import holdfast
from holdfast.data import bucket, open_source
from holdfast.errors import DataError
from holdfast.gallery import Gallery
from holdfast.gallery.indexing import stored_image


@pytest.fixture
def store(monkeypatch):
    """A client of an empty bucket `shop`."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    bucket._made.cache_clear()
    client = bucket._client()
    client.create_bucket(Bucket="shop")
    yield client
    httpx.post(f"http://{host}:{port}/moto-api/reset").raise_for_status()
    server.stop()
    bucket._made.cache_clear()


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def put(store, **pictures: bytes) -> None:
    for name, content in pictures.items():
        store.put_object(Bucket="shop", Key=f"2026/{name.replace('__', '/')}.png", Body=content)


@pytest.fixture
def embedder():
    return holdfast.wrap(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8)), (3, 16, 16))


def test_a_bucket_is_a_folder(store, embedder, tmp_path):
    put(store, coats__1=picture(1), coats__2=picture(2), hats__3=picture(3))
    store.put_object(Bucket="shop", Key="2026/hats/", Body=b"")
    store.put_object(Bucket="shop", Key="2025/old.png", Body=picture(4))
    with open_source("s3://shop/2026/") as source:
        assert list(source.files) == ["coats/1.png", "coats/2.png", "hats/3.png"]
        assert source.read("hats/3.png") == picture(3)
    gallery = holdfast.index(embedder, "s3://shop/2026", tmp_path / "shop.gallery")
    with gallery:
        found = gallery.get("hats/3.png")
        assert (found.label, found.path) == ("hats", "s3://shop/2026/hats/3.png")
        assert stored_image(found.path) == picture(3)
        assert len(gallery) == 3


def test_indexing_again_follows_the_bucket(store, embedder, tmp_path):
    out = tmp_path / "shop.gallery"
    put(store, a__1=picture(1), a__2=picture(2), b__3=picture(3))
    holdfast.index(embedder, "s3://shop/2026", out).close()
    put(store, a__1=picture(9), b__4=picture(4))
    store.delete_object(Bucket="shop", Key="2026/b/3.png")
    holdfast.index(embedder, "s3://shop/2026", out).close()
    with Gallery.open(out) as gallery:
        assert list(gallery.ids()) == ["a/1.png", "a/2.png", "b/3.png", "b/4.png"]
        assert stored_image(gallery.get("b/3.png").path) is None
    holdfast.index(embedder, "s3://shop/2026", out, prune=True).close()
    with Gallery.open(out) as gallery:
        assert list(gallery.ids()) == ["a/1.png", "a/2.png", "b/4.png"]


def test_many_objects_come_in_pages(store, monkeypatch):
    monkeypatch.setattr(bucket, "PAGE", 3)
    for number in range(8):
        store.put_object(Bucket="shop", Key=f"many/{number}.png", Body=b"x")
    with open_source("s3://shop/many") as source:
        assert list(source.files) == [f"{number}.png" for number in range(8)]


def test_items_of_another_place_stay_when_the_store_does_not_answer(store, embedder, tmp_path, monkeypatch):
    """Who does not answer has not said that anything is gone."""
    out = tmp_path / "shop.gallery"
    put(store, a__1=picture(1), b__2=picture(2))
    holdfast.index(embedder, "s3://shop/2026", out).close()
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "new.png").write_bytes(picture(5))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    bucket._made.cache_clear()
    with pytest.raises(DataError, match="could not read s3://shop/2026"):
        holdfast.index(embedder, "s3://shop/2026", out)
    with pytest.raises(DataError, match=r"could not read s3://shop/2026/a/1\.png"):
        holdfast.index(embedder, folder, out, prune=True)
    with Gallery.open(out) as gallery:
        assert list(gallery.ids()) == ["a/1.png", "b/2.png"]
    monkeypatch.undo()
    bucket._made.cache_clear()


def test_an_object_that_vanishes_is_skipped(store, embedder, tmp_path, monkeypatch):
    put(store, a__1=picture(1), b__2=picture(2))
    read = bucket.BucketSource.read

    def late(source, name):
        store.delete_object(Bucket="shop", Key="2026/a/1.png")
        return read(source, name)

    monkeypatch.setattr(bucket.BucketSource, "read", late)
    with holdfast.index(embedder, "s3://shop/2026", tmp_path / "shop.gallery") as gallery:
        assert list(gallery.ids()) == ["b/2.png"]


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("s3://", "names no bucket"),
        ("s3://nothing-of-this-name/x", "could not read s3://nothing-of-this-name"),
        ("s3://shop/empty", "there are no images in s3://shop/empty"),
    ],
)
def test_places_that_are_not_there(store, tmp_path, location, says):
    module = tmp_path / "model.py"
    module.write_text(
        "from torch import nn\nimport holdfast\n"
        "net = holdfast.wrap(nn.Sequential(nn.Flatten(), nn.Linear(768, 4)), (3, 16, 16))\n"
    )
    done = here("index", f"{module}:net", location, "--out", tmp_path / "g.gallery")
    assert done.code == 2, done.err
    assert says in done.err
    assert not (tmp_path / "g.gallery").exists()


def test_the_command_indexes_a_bucket(store, tmp_path):
    put(store, a__1=picture(1), b__2=picture(2))
    module = tmp_path / "model.py"
    module.write_text(
        "from torch import nn\nimport holdfast\n"
        "net = holdfast.wrap(nn.Sequential(nn.Flatten(), nn.Linear(768, 4)), (3, 16, 16))\n"
    )
    done = here("index", f"{module}:net", "s3://shop/2026", "--out", tmp_path / "g.gallery", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["added"] == 2


def test_without_boto3_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    bucket._made.cache_clear()
    with pytest.raises(DataError, match=r"pip install 'holdfast\[s3\]'"):
        open_source("s3://shop")
