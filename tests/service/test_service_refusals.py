"""Everything a stranger may send is answered by a 4xx or 503 with a sentence, and the service goes on."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import socket
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
from serving import ask, bomb, png, problem, serving

from holdfast import models
from holdfast.cli.gallery import replace
from holdfast.errors import GalleryError
from holdfast.gallery import Gallery, verify_gallery
from holdfast.gallery.indexing import embedder_info
from holdfast.service.limits import Limits
from holdfast.service.routes import searching


@pytest.fixture(autouse=True)
def goes_on(request):
    """After each of these the service answers as before."""
    yield
    if "client" in request.fixturenames:
        client = request.getfixturevalue("client")
        assert ask(client, png(), k=1).status_code == 200


@pytest.mark.parametrize(
    ("content", "status", "says"),
    [
        (b"", 422, "empty file"),
        (b"hello", 422, "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 422, "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", 422, "not an image"),
        (png()[:60], 422, ""),
        (b"GIF89a\xff\xff\xff\xff", 422, ""),
    ],
)
def test_what_is_no_picture(client, content, status, says):
    problem(ask(client, content), status, says)


def test_many_pixels_in_few_bytes(client):
    content = bomb(10_000)
    assert len(content) < 20_000
    problem(ask(client, content), 413, "too large: 10000x10000 pixels")


def test_pictures_that_are_larger_inside_than_they_say(client, monkeypatch):
    """Everyone who asks with a picture is told the same, before memory is taken for it."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    hostile = importlib.import_module("_hostile")
    tile = hostile.tiled(23_000, whole=False)
    for path, fields in [
        ("search", {}),
        ("search/certified", {"threat": "linf:1/255"}),
        ("attack", {"threat": "linf:1/255"}),
    ]:
        problem(ask(client, tile, path=path, **fields), 413, "too large: a tile of 23000x23000 pixels")
    files = [("images", ("a", png())), ("images", ("b", hostile.webp(16383, 16383)))]
    refused = client.post("/api/v1/search/batch", files=files)
    problem(refused, 413, "picture 2: too large: 16383x16383 pixels")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"k": 0}, "k: "),
        ({"k": -3}, "k: "),
        ({"k": 10**9}, "at most 1000"),
        ({"k": "nan"}, "k: "),
        ({"k": "1e3"}, "k: "),
        ({"k": "9" * 5000}, "k: "),
        ({"gallery": "x" * 65}, "gallery: "),
        ({"url": "http://127.0.0.1/"}, "unknown field 'url'"),
        ({"id": "a"}, "exactly one of image, id and query, not image and id"),
        ({"query": "../../etc/passwd"}, "query: "),
    ],
)
def test_wrong_fields(client, fields, says):
    problem(ask(client, png(), **fields), 422, says)


@pytest.mark.parametrize(
    "threat",
    [
        "linf:nan",
        "linf:inf",
        "linf:-1",
        "linf:2",
        "l1:0.1",
        "",
        "linf:1/0",
        "linf:",
        "linf:0.1:m=3",
        "x" * 200,
    ],
)
def test_wrong_threats(client, threat):
    problem(ask(client, png(), path="search/certified", threat=threat), 422, "")


def test_a_limit_on_altered_candidates_that_fits_in_no_number(client):
    answer = ask(client, png(), path="search/certified", threat=f"candidates:linf:0.01:m={'9' * 30}")
    problem(answer, 422, "is not a threat")
    answer = ask(client, png(), path="search/certified", threat=f"candidates:linf:0.01:m={'9' * 9}")
    assert answer.status_code == 200


def test_unknown_things(client):
    problem(ask(client, None, id="../../../etc/passwd"), 404, "has no item")
    problem(ask(client, None, id="a\x00b"), 404, "no item 'a?b'")
    problem(ask(client, None, query="0" * 32), 404, "no picture of this digest")
    problem(ask(client, png(), gallery="nowhere"), 404, "there is no gallery 'nowhere'; there is shop")
    problem(ask(client, None, k=3), 422, "not none of them")
    problem(client.get("/api/v1/queries/xyz/image"), 422, "digest")
    problem(client.get("/api/v1/nothing"), 404, "nothing at this address")
    problem(client.put("/api/v1/search"), 405, "does not take this method")
    problem(client.get("/api/v1/items/nothing/image"), 404, "has no item")


def test_no_path_of_a_client_is_ever_opened(client):
    for path in (
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/....//app.py",
        "/static//etc/passwd",
    ):
        assert client.get(path).status_code == 404
    for id in ("..%2f..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "..%5c..%5cwindows"):
        problem(client.get(f"/api/v1/items/{id}/image"), 404, "has no item")


def test_names_of_uploads_are_only_shown(client):
    answer = ask(client, png(), name="../../etc/pass\nwd<b>.png", k=1).json()
    assert "/" not in answer["query"]["name"]
    assert "\n" not in answer["query"]["name"]


def test_other_kinds_of_bodies(client):
    problem(client.post("/api/v1/search", json={"k": 1}), 415, "not as 'application/json'")
    problem(client.post("/api/v1/search", data={"k": 1}), 415, "x-www-form-urlencoded")
    problem(
        client.post("/api/v1/search", content=png(), headers={"content-type": "image/png"}), 415, "image/png"
    )
    problem(client.post("/api/v1/search"), 415, "not as 'nothing'")
    multipart = {"content-type": "multipart/form-data"}
    problem(client.post("/api/v1/search", content=b"x", headers=multipart), 400, "")
    broken = {"content-type": "multipart/form-data; boundary=x"}
    assert client.post("/api/v1/search", content=b"--y\r\n", headers=broken).status_code in (400, 422)
    odd = {"content-type": "multipart/form-data; boundary=x; charset=punycode"}
    body = b'--x\r\nContent-Disposition: form-data; name="k"\r\n\r\n\xff\xfe\r\n--x--\r\n'
    assert client.post("/api/v1/search", content=body, headers=odd).status_code in (400, 422)


def test_fields_of_the_wrong_kind(client):
    problem(client.post("/api/v1/search", files={"image": (None, "text")}), 422, "image: ")
    problem(client.post("/api/v1/search", files={"k": ("k.txt", b"3"), "image": png()}), 422, "k: ")
    twice = [("image", ("a", png())), ("image", ("b", png()))]
    problem(client.post("/api/v1/search", files=twice), 422, "more than once")
    many = [(f"f{i}", (None, "x")) for i in range(1100)]
    problem(client.post("/api/v1/search", files=many), 400, "")


def test_one_bad_picture_of_several_is_named(client):
    files = [("images", ("a.png", png())), ("images", ("b.png", b"junk"))]
    problem(client.post("/api/v1/search/batch", files=files), 422, "picture 2: not an image")
    files = [("images", (f"{i}.png", png())) for i in range(65)]
    problem(client.post("/api/v1/search/batch", files=files), 413, "more than the 64")
    problem(client.post("/api/v1/search/batch", files={"k": (None, "1")}), 422, "images: ")


def test_headers_that_are_no_headers(client):
    host, port = client.base_url.host, client.base_url.port

    def raw(text: bytes) -> bytes:
        with socket.create_connection((host, port), timeout=10) as line:
            line.sendall(text)
            return line.recv(200)

    assert b" 400 " in raw(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nbad header\r\n\r\n")
    assert b" 431 " in raw(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n")
    assert b" 403 " in raw(b"GET / HTTP/1.1\r\nHost: [::bad\r\n\r\n")
    lies = b"POST /api/v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999\r\n\r\n"
    assert b" 413 " in raw(lies)


def test_a_body_is_counted_while_it_arrives(shop, tmp_path):
    with serving(shop, tmp_path, limits=Limits(bytes=20_000)) as (client, _):
        sent = 0

        def endless():
            nonlocal sent
            yield b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
            while sent < 50_000_000:
                sent += 10_000
                yield b"a" * 10_000

        headers = {"content-type": "multipart/form-data; boundary=x"}
        # The answer comes before all is sent, which not every client stays to read.
        with suppress(httpx.TransportError):
            problem(client.post("/api/v1/search", content=endless(), headers=headers), 413, "20,000 bytes")
        assert sent < 50_000_000
        problem(ask(client, b"a" * 30_000), 413, "larger than")
        assert ask(client, png(), k=1).status_code == 200


def test_a_body_that_does_not_come(shop, tmp_path):
    with serving(shop, tmp_path, limits=Limits(seconds=0.3)) as (client, _):
        with socket.create_connection((client.base_url.host, client.base_url.port), timeout=10) as line:
            line.sendall(
                b"POST /api/v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n"
                b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x"
            )
            assert b" 408 " in line.recv(500)
        assert client.get("/healthz").status_code == 200


def test_who_is_called_by_another_name_or_from_another_page_is_refused(client):
    problem(client.get("/api/v1/status", headers={"host": "evil.example"}), 403, "host name")
    problem(ask(client, png(), headers={"origin": "https://evil.example"}), 403, "from elsewhere")
    problem(ask(client, png(), headers={"origin": "null"}), 403, "from elsewhere")
    problem(ask(client, png(), headers={"sec-fetch-site": "cross-site"}), 403, "from elsewhere")
    own = f"{client.base_url.host}:{client.base_url.port}"
    assert ask(client, png(), headers={"origin": f"http://{own}"}).status_code == 200
    assert client.get("/healthz", headers={"host": "localhost:1"}).status_code == 200


def test_answers_carry_what_keeps_browsers_safe(client):
    headers = client.get("/api/v1/status").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


def test_a_gallery_that_is_replaced_lost_or_of_another_model(own_shop, tmp_path):
    with serving(own_shop, tmp_path / "c") as (client, _):
        assert ask(client, png(), k=1).json()["candidates"] == 60
        path, copy = own_shop.gallery, tmp_path / "copy"
        shutil.copy(path, copy)
        path.unlink()
        said = problem(ask(client, png()), 503, "there is no gallery at gallery 'own'")
        assert str(tmp_path) not in said["detail"]
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["status"] == "unavailable"
        assert not client.get("/api/v1/status").json()["galleries"][0]["available"]
        assert client.get("/healthz").status_code == 200
        assert 'holdfast_gallery_up{gallery="own"} 0.0' in client.get("/metrics").text

        shutil.copy(copy, path)
        problem(ask(client, png()), 503, "gallery 'own' was replaced while in use; stop the service")
        for end in ("-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        _wait(client)
        assert ask(client, png(), k=1).json()["candidates"] == 60


@pytest.mark.parametrize("writable", [True, False])
def test_a_file_put_over_a_served_gallery_is_left_alone(own_shop, tmp_path, writable):
    new = _new_gallery(own_shop, tmp_path)
    with serving(own_shop, tmp_path / "c", writable=writable) as (client, _):
        if writable:
            assert ask(client, png(seed=1), path="items", id="late").status_code == 201
        ask(client, png())
        wanted = new.read_bytes()
        new.replace(own_shop.gallery)
        for _ in range(2):
            problem(ask(client, png()), 503, "was replaced while in use; stop the service")
        assert client.get("/readyz").status_code == 503
    assert own_shop.gallery.read_bytes() == wanted
    for end in ("-wal", "-shm"):
        own_shop.gallery.with_name(own_shop.gallery.name + end).unlink(missing_ok=True)
    assert verify_gallery(own_shop.gallery) == []


@pytest.mark.parametrize("writable", [True, False])
def test_a_served_gallery_is_replaced_by_command(own_shop, tmp_path, writable, capsys):
    new = _new_gallery(own_shop, tmp_path)
    with serving(own_shop, tmp_path / "c", writable=writable) as (client, _):
        if writable:
            assert ask(client, png(seed=1), path="items", id="late").status_code == 201
        ask(client, png())
        replace(str(new), str(own_shop.gallery), json=True)
        assert json.loads(capsys.readouterr().out)["images"] == 40
        found = ask(client, png(), k=3).json()
        assert found["candidates"] == 40
        assert all(hit["id"].startswith("B") for hit in found["hits"])
        assert client.get("/readyz").status_code == 200
        if writable:
            assert ask(client, png(seed=2), path="items", id="later").status_code == 201

        other = _new_gallery(own_shop, tmp_path, "other")
        replace(str(other), str(own_shop.gallery))
        problem(ask(client, png()), 503, "was made by embedder")
        assert client.get("/readyz").status_code == 503
        assert not client.get("/api/v1/status").json()["galleries"][0]["available"]
    assert verify_gallery(own_shop.gallery) == []
    assert not list(tmp_path.glob(".*.tmp*"))


def test_what_is_not_put_over_a_gallery(own_shop, tmp_path):
    live, new = own_shop.gallery, _new_gallery(own_shop, tmp_path)
    before = live.read_bytes()
    (tmp_path / "text").write_text("no gallery")
    with pytest.raises(GalleryError, match="text is not a gallery"):
        replace(str(tmp_path / "text"), str(live))
    with pytest.raises(GalleryError, match="text is not a gallery"):
        replace(str(new), str(tmp_path / "text"))
    with pytest.raises(GalleryError, match="same file"):
        replace(str(live), str(live))
    with pytest.raises(GalleryError, match="is in Milvus"):
        replace(str(new), "milvus://127.0.0.1/shop")
    with sqlite3.connect(new) as connection:
        connection.execute("UPDATE items SET label = 'forged' WHERE id = 'B3'")
    connection.close()
    with pytest.raises(GalleryError, match=r"B\.gallery is damaged .*; nothing was copied"):
        replace(str(new), str(live))
    assert live.read_bytes() == before
    assert (tmp_path / "text").read_text() == "no gallery"


def test_a_gallery_that_cannot_be_searched_is_not_ready(own_shop, tmp_path):
    """The file's beginning, and what the gallery says of itself, can still be read where its items are gone."""
    embedder = models.find(own_shop.model)
    vectors = np.random.default_rng(1).normal(size=(30_000, 24)).astype(np.float32)
    with Gallery.create(tmp_path / "large.gallery", dim=24, embedder=embedder_info(embedder)) as gallery:
        # Many times what SQLite keeps in memory.
        gallery.add([f"item-{i:05d}" + 200 * "-" for i in range(30_000)], vectors)
    with serving(own_shop, tmp_path / "c", galleries=[str(tmp_path / "large.gallery")], writable=True) as (
        client,
        desk,
    ):
        assert ask(client, png(), path="items", id="new").status_code == 201
        assert client.get("/readyz").status_code == 200
        size = (tmp_path / "large.gallery").stat().st_size
        os.truncate(tmp_path / "large.gallery", size // 40960 * 4096)
        time.sleep(1.1)
        assert desk.engine.get(None).info().count == 30_001
        answers = [ask(client, png(seed=seed), k=3) for seed in range(1, 9)]
        refused = [answer for answer in answers if answer.status_code != 200]
        assert refused, "none of 24 hits was read from the file"
        for answer in refused:
            problem(answer, 503, "damaged")
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert "damaged" in ready.json()["problems"][0]


def _new_gallery(shop, folder, model="net"):
    """Another gallery, of 40 candidates."""
    embedder = models.find(shop.model.removesuffix("net") + model)
    vectors = np.random.default_rng(1).normal(size=(40, 24)).astype(np.float32)
    path = folder / ("B.gallery" if model == "net" else f"{model}.gallery")
    with Gallery.create(path, dim=24, embedder=embedder_info(embedder)) as gallery:
        gallery.add([f"B{i}" for i in range(40)], vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return path


def test_a_gallery_that_is_made_anew_in_its_place(own_shop, tmp_path):
    with serving(own_shop, tmp_path / "c") as (client, _):
        embedder = models.find(own_shop.model)
        made = Gallery.create(own_shop.gallery, dim=24, embedder=embedder_info(embedder), overwrite=True)
        assert ask(client, png()).json()["hits"] == []
        made.add(["one"], embedder.embed(decode_png(embedder)).numpy())
        made.close()
        answer = ask(client, png(), k=3).json()
        assert [hit["id"] for hit in answer["hits"]] == ["one"]
        assert answer["hits"][0]["image"] is None


def test_a_mistake_of_ours_is_a_problem_too(client, monkeypatch):

    def breaks(*_):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(searching, "search_answer", breaks)
    said = problem(ask(client, png()), 500, "the service made a mistake")
    assert "secret" not in str(said)


def decode_png(embedder):
    from holdfast.data import decode

    return decode(png(), embedder.spec)[None]


def _wait(client, status=200):
    """Until the gallery is tried again."""
    for _ in range(100):
        if client.get("/readyz").status_code == status:
            return
        time.sleep(0.05)
    raise AssertionError(client.get("/readyz").text)


def test_a_batch_of_too_many_hits_is_refused(shop, tmp_path):
    with serving(shop, tmp_path / "c", limits=Limits(k=5)) as (client, _):
        files = [("images", (f"{i}.png", png(seed=i))) for i in range(5)]
        assert len(client.post("/api/v1/search/batch", files=files, data={"k": 4}).json()["results"]) == 5
        refused = client.post("/api/v1/search/batch", files=files, data={"k": 5})
        problem(refused, 413, "more than the 20 hits that one batch gives")
