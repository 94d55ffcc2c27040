"""What the service answers is what the gallery says; pictures can be asked for again; many at once agree."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from serving import ask, png, problem, serving

from holdfast import models
from holdfast.data import decode, decode_picture
from holdfast.gallery import Gallery
from holdfast.gallery.made_by import open_with_embedder
from holdfast.gallery.searching import search
from holdfast.threat import Threat


@pytest.fixture(scope="module")
def opened(shop):
    gallery, embedder = open_with_embedder(shop.gallery, shop.model)
    with gallery:
        yield gallery, embedder


def test_status_tells_what_can_be_asked(client):
    status = client.get("/api/v1/status").json()
    (gallery,) = status["galleries"]
    assert gallery["name"] == "shop"
    assert gallery["images"] == 60
    assert gallery["image"] == {"channels": 1, "height": 28, "width": 28}
    assert gallery["threats"] == ["query:linf", "candidates:linf", "both:linf"]
    assert gallery["boxes"] == [0.02]
    assert gallery["attackable"]
    assert not gallery["writable"]
    assert status["roles"] == ["read", "attack"]
    assert status["limits"]["k"] == 1000


def test_a_search_is_that_of_the_gallery(client, shop, opened):
    gallery, embedder = opened
    content = png()
    answer = ask(client, content, k=7).json()
    expected = gallery.nearest(embedder.embed(decode(content, embedder.spec)[None]).numpy(), 7)[0]
    assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in expected.hits]
    assert [hit["rank"] for hit in answer["hits"]] == list(range(1, 8))
    assert [hit["distance"] for hit in answer["hits"]] == pytest.approx([h.distance for h in expected.hits])
    assert (answer["k"], answer["candidates"], answer["threat"]) == (7, 60, None)
    assert {hit["verdict"] for hit in answer["hits"]} == {None}
    assert answer["query"]["name"] == "q.png"
    assert (answer["uid"], answer["generation"]) == (gallery.info.uid, gallery.info.generation)


def test_more_hits_than_images_are_all_images(client):
    answer = ask(client, png(), k=1000).json()
    assert len(answer["hits"]) == answer["k"] == 60


def test_an_empty_gallery_has_no_hits(shop, tmp_path):
    place = tmp_path / "shop.gallery"
    place.write_bytes(shop.gallery.read_bytes())
    with Gallery.open(place) as gallery:
        gallery.remove(list(gallery.ids()))
    with serving(shop, tmp_path, galleries=[str(place)]) as (client, _):
        for fields in ({}, {"path": "search/certified", "threat": "linf:auto"}):
            answer = ask(client, png(), **fields)
            assert answer.status_code == 200, answer.text
            assert (answer.json()["hits"], answer.json()["k"], answer.json()["candidates"]) == ([], 0, 0)


def test_by_id_and_by_digest_of_an_earlier_upload(client, shop):
    first = ask(client, shop.picture(3), k=2).json()
    own = first["hits"][0]["id"]
    again = ask(client, None, query=first["query"]["digest"], k=2).json()
    assert [hit["id"] for hit in again["hits"]] == [hit["id"] for hit in first["hits"]]
    by_id = ask(client, None, id=own, k=2).json()
    assert by_id["hits"][0]["id"] == own
    assert by_id["query"] == {
        "name": own,
        "digest": None,
        "id": own,
        "image": by_id["hits"][0]["image"],
    }
    shown = client.get(again["query"]["image"], params={"size": 20})
    assert shown.headers["content-type"] == "image/png"
    assert max(Image.open(io.BytesIO(shown.content)).size) == 20
    assert (
        client.get(
            again["query"]["image"], params={"size": 20}, headers={"if-none-match": shown.headers["etag"]}
        ).status_code
        == 304
    )


def test_a_hit_can_be_looked_at(client, shop):
    hit = ask(client, shop.picture(), k=1).json()["hits"][0]
    shown = client.get(hit["image"])
    stored = np.asarray(Image.open(io.BytesIO(shop.picture())))
    assert (np.asarray(Image.open(io.BytesIO(shown.content))) == stored).all()
    item = client.get(f"/api/v1/items/{hit['id']}").json()
    assert item["id"] == hit["id"]
    assert item["label"] == hit["label"] == hit["id"].split("/")[0]


def test_a_batch_is_each_alone(client):
    pictures = [png(seed=seed) for seed in range(5)]
    files = [("images", (f"{i}.png", content)) for i, content in enumerate(pictures)]
    together = client.post("/api/v1/search/batch", files=files, data={"k": 3}).json()["results"]
    for i, (one, content) in enumerate(zip(together, pictures, strict=True)):
        alone = ask(client, content, k=3).json()
        assert [hit["id"] for hit in one["hits"]] == [hit["id"] for hit in alone["hits"]]
        assert one["query"]["name"] == f"{i}.png"


def test_searches_at_the_same_time_are_answered_together_and_each_by_its_own(service):
    client, desk = service
    pictures = [png(seed=seed) for seed in range(24)]
    alone = [ask(client, content, k=1 + i % 4).json() for i, content in enumerate(pictures)]
    with ThreadPoolExecutor(12) as pool:
        at_once = list(pool.map(lambda i: ask(client, pictures[i], k=1 + i % 4).json(), range(len(pictures))))
    for one, other in zip(alone, at_once, strict=True):
        assert [hit["id"] for hit in one["hits"]] == [hit["id"] for hit in other["hits"]]
    sizes = desk.metrics.registry.get_sample_value("holdfast_batch_size_sum")
    assert sizes > desk.metrics.registry.get_sample_value("holdfast_batch_size_count")


@pytest.mark.parametrize(
    "threat", ["linf:1/255", "candidates:linf:0.01", "candidates:linf:0.01:m=2", "both:linf:0.002"]
)
def test_a_certified_search_is_that_of_the_gallery(client, shop, opened, threat):
    gallery, embedder = opened
    content = shop.picture(5)
    answer = ask(client, content, path="search/certified", threat=threat, k=4).json()
    pixels = decode(content, embedder.spec)
    expected = search(gallery, embedder, pixels, 4, certify=Threat.parse(threat))
    found = [(h["id"], h["best"], h["worst"], h["verdict"]) for h in answer["hits"]]
    assert found == [
        (e.id, e.certificate.best, e.certificate.worst, str(e.certificate.verdict)) for e in expected.hits
    ]
    assert answer["hits"][0]["verdict"] == "CERTIFIED" or threat != "linf:1/255"
    assert answer["threat"] == str(Threat.parse(threat))
    assert answer["uid"] == gallery.info.uid
    assert answer["examined"] == expected.proof.examined
    assert all(hit["reason"].endswith(".") for hit in answer["hits"])


def test_certified_and_plain_searches_at_the_same_time_do_not_disturb_each_other(client, shop):
    def one(number):
        fields = {"path": "search/certified", "threat": "linf:1/255"} if number % 3 == 0 else {}
        return ask(client, shop.picture(number % 10), k=2, **fields)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(90)))
    assert {answer.status_code for answer in answers} == {200}
    for number in range(10):
        found = {tuple(hit["id"] for hit in answer.json()["hits"]) for answer in answers[number::10]}
        assert len(found) == 1


def test_no_network_is_traced_while_others_use_it(client, shop, monkeypatch):
    def never(*_):
        raise AssertionError("tracing patches every module of the process")

    monkeypatch.setattr("holdfast.certify.certifier.trace", never)
    for threat, method in (
        ("linf:1/255", "interval"),
        ("linf:auto", "crown"),
        ("both:linf:0.01", "interval"),
    ):
        answer = ask(client, shop.picture(), path="search/certified", threat=threat, method=method, k=1)
        assert answer.status_code == 200
    assert ask(client, shop.picture(), path="attack", threat="linf:0.01", steps=1, k=1).status_code == 200


@pytest.mark.parametrize("method", ["interval", "last-layer", "crown"])
def test_the_largest_eps_of_each_hit(client, shop, method):
    answer = ask(client, shop.picture(5), path="search/certified", threat="linf:auto", method=method, k=2)
    for hit in answer.json()["hits"]:
        assert (hit["eps"] is not None) == (hit["verdict"] == "CERTIFIED")
    assert answer.json()["hits"][0]["eps"] > 0.001


def test_a_gallery_without_what_a_threat_needs_says_what_it_can(client, shop, tmp_path):
    problem(
        ask(client, shop.picture(), path="search/certified", threat="l2:0.5"),
        422,
        "what it can certify: query:linf:EPS, candidates:linf:EPS, both:linf:EPS",
    )
    problem(
        ask(client, shop.picture(), path="search/certified", threat="both:linf:0.5"),
        422,
        "only boxes for linf:0.02",
    )
    problem(
        ask(client, shop.picture(), path="search/certified", threat="both:linf:0.01", method="crown"),
        422,
        "method crown is not for",
    )
    problem(ask(client, shop.picture(), path="search/certified", threat="linf:0.01", seed=3), 422, "not one")


@pytest.mark.parametrize("rule", ["mean", "votes"])
def test_a_smoothed_gallery(shop, tmp_path_factory, rule):
    from holdfast.certify.smoothing import parse_smoothing
    from holdfast.workflow import open_and_index

    folder = tmp_path_factory.mktemp("smooth")
    how = parse_smoothing(f"sigma=0.2,n=400,first=40,gallery=8,rule={rule}")
    base = models.find(shop.model)
    gallery, _ = open_and_index(base, shop.pictures, folder / "s.gallery", smooth=how)
    gallery.close()
    with serving(shop, folder, galleries=[str(shop.gallery), f"soft={folder / 's.gallery'}"]) as (client, _):
        states = {one["name"]: one for one in client.get("/api/v1/status").json()["galleries"]}
        assert states["soft"]["smoothed"] == {"sigma": 0.2, "n": 400, "alpha": how.alpha, "rule": rule}
        assert states["soft"]["threats"] == ["query:l2"]
        content = shop.picture(2)
        answer = ask(
            client, content, path="search/certified", gallery="soft", threat="l2:auto", k=3, seed=11
        ).json()
        with Gallery.open(folder / "s.gallery", readonly=True) as opened:
            from holdfast.gallery.smoothed import smoothed

            embedder = smoothed(base, how)
            picture = decode_picture(content, base.spec)
            expected = search(opened, embedder, picture, 3, seed=11)
            of_input = search(opened, embedder, picture.pixels, 3, seed=11)
        assert (answer["picture"], of_input.proof.picture) == ("file", "network input")
        assert 0 < of_input.hits[0].certificate.radius - expected.hits[0].certificate.radius < 1e-4
        assert [(h["id"], h["verdict"]) for h in answer["hits"]] == [
            (e.id, str(e.certificate.verdict)) for e in expected.hits
        ]
        assert [h["radius"] or 0 for h in answer["hits"]] == pytest.approx(
            [e.certificate.radius for e in expected.hits]
        )
        assert [h["share"] for h in answer["hits"]] == [e.certificate.share for e in expected.hits]
        assert (answer["seed"], answer["samples"]) == (11, 400)
        plain = ask(client, content, gallery="soft", k=3).json()
        assert plain["hits"][0]["id"] == answer["hits"][0]["id"]
        assert {hit["verdict"] for hit in plain["hits"]} == {None}
        attacked = ask(client, content, path="attack", gallery="soft", threat="l2:0.1", k=2, steps=2).json()
        assert attacked["before"]["hits"][0]["verdict"] in ("CERTIFIED", "ABSTAIN", "UNKNOWN")
        assert attacked["held"] in (True, False)
        problem(
            ask(client, content, path="search/certified", gallery="soft", threat="linf:0.1"), 422, "query:l2"
        )
