"""Certificates that a gallery keeps: they last, and a change of the candidates says what became of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gallery_reference import EMBEDDER

from holdfast.certify.certifier import Certifier
from holdfast.errors import GalleryError
from holdfast.gallery import Boxes, Gallery, verify_file
from holdfast.gallery.bounding import stored_boxes
from holdfast.gallery.certified import certify_again
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.kept import Kept, KeptHit
from holdfast.gallery.recheck import differences, recheck
from holdfast.gallery.searching import search
from holdfast.models import wrap
from holdfast.threat import Threat

EPS = 0.05
THREATS = ("query:linf:0.05", "candidates:linf:0.05", "candidates:linf:0.05:m=2", "both:linf:0.05")


def line(*points):
    return np.array(points, dtype=np.float32)[:, None]


def kept(query="q", radius=0.4, k=2):
    """A query at 0 ± radius on a line, as yet without hits."""
    return Kept(
        query,
        "query:linf:0.1",
        k,
        -1,
        (),
        False,
        np.zeros(1, dtype=np.float32),
        np.zeros(1),
        np.full(1, radius),
    )


@pytest.fixture
def shop(path):
    with Gallery.create(path, dim=1, embedder=EMBEDDER) as gallery:
        gallery.add(["a", "b", "c"], line(1, 2, 4))
        gallery.keep([kept("q"), kept("wide", 1.2)])
        first = recheck(gallery)
        assert first.kept == 2
        yield gallery


def intervals(gallery):
    return {
        one.query: [(hit.id, hit.best, hit.worst, hit.verdict) for hit in one.hits]
        for one in gallery.certificates()
    }


def test_changes_are_told_hit_by_hit(shop):
    before = {
        "q": [("a", 1, 1, "CERTIFIED"), ("b", 2, 2, "CERTIFIED")],
        "wide": [("a", 1, 1, "CERTIFIED"), ("b", 2, 2, "CERTIFIED")],
    }
    assert intervals(shop) == before
    assert recheck(shop).changed == ()
    shop.add(["far"], line(-9))
    assert recheck(shop).changed == ()
    assert all(one.generation == shop.info.generation for one in shop.certificates())
    shop.add(["d"], line(-3.5))
    told = recheck(shop)
    assert (told.kept, [entry.query for entry in told.changed]) == (2, ["wide"])
    assert told.changed[0].changes == ("hit 2: 2–2 → 2–3, CERTIFIED → UNKNOWN",)
    assert (told.changed[0].threat, told.changed[0].k) == ("query:linf:0.1", 2)
    shop.remove(["d", "a"])
    told = {entry.query: entry.changes for entry in recheck(shop).changed}
    assert told["q"] == (
        "hit 1: 'a' is replaced by 'b'",
        "hit 2: 'b' is replaced by 'c'",
    )
    assert told["wide"][1] == "hit 2: 'b' is replaced by 'c', 2–3 → 2–2, UNKNOWN → CERTIFIED"
    shop.remove(["c", "far"])
    assert {entry.changes for entry in recheck(shop).changed} == {("hit 2: 'c' is gone",)}
    shop.remove(["b"])
    assert {entry.changes for entry in recheck(shop).changed} == {("hit 1: 'b' is gone",)}
    shop.add(["z"], line(1))
    assert {entry.changes for entry in recheck(shop).changed} == {("hit 1: 'z' is new",)}


def test_a_stopped_recheck_is_made_up_for(shop, path, monkeypatch):
    shop.add(["d"], line(-3.5))
    with monkeypatch.context() as patched:
        patched.setattr(Gallery, "keep", lambda *_, **__: pytest.fail("stopped"))
        with pytest.raises(pytest.fail.Exception):
            recheck(shop)
    with Gallery.open(path) as again:
        assert [entry.query for entry in recheck(again).changed] == ["wide"]
        assert recheck(again).changed == ()


def test_a_recheck_leaves_what_others_kept_or_forgot_meanwhile(shop, monkeypatch):
    shop.add(["d"], line(-3.5))
    plain = Gallery.keep

    def late(gallery, certificates, **options):
        monkeypatch.setattr(Gallery, "keep", plain)
        gallery.keep([kept("q", 0.1)])
        gallery.forget(["wide"])
        gallery.keep(certificates, **options)

    monkeypatch.setattr(Gallery, "keep", late)
    recheck(shop)
    assert [(one.query, one.radius.tolist(), one.hits) for one in shop.certificates()] == [("q", [0.1], ())]
    recheck(shop)
    assert [one.certified for one in shop.certificates()] == [2]


def test_certificates_last_and_are_forgotten(shop, path):
    assert verify_file(path) == []
    shop.keep([kept("q", k=1)])
    assert [(one.query, one.k) for one in shop.certificates()] == [("q", 1), ("q", 2), ("wide", 2)]
    with Gallery.open(path, readonly=True) as reader:
        (_, mine, _) = reader.certificates()
        assert mine.centre.tolist() == [0.0]
        assert mine.radius.tolist() == [0.4]
        assert mine.certified == 2
    assert shop.forget(["q"]) == 2
    assert [one.query for one in shop.certificates()] == ["wide"]
    generation = shop.info.generation
    assert generation == 1, "a certificate is no change of the candidates"


def test_an_altered_certificate_is_found_and_refused(shop, path):
    shop._store.connection.execute("UPDATE certificates SET hits = replace(hits, '2', '1') WHERE query = 'q'")
    assert "the kept certificate of 'q' does not match its checksum" in verify_file(path)[0]
    with pytest.raises(GalleryError, match=r"is damaged .*kept certificate of 'q'"):
        shop.certificates()


def test_differences_of_hits():
    a, b = KeptHit("a", 1, 2, "CERTIFIED"), KeptHit("a", 1, 3, "UNKNOWN")
    one = kept()
    old, new = (
        Kept(one.query, one.threat, 2, 0, (hit,), False, one.embedding, one.centre, one.radius)
        for hit in (a, b)
    )
    assert differences(old, old) == ()
    assert differences(old, new) == ("hit 1: 1–2 → 1–3, CERTIFIED → UNKNOWN",)


@pytest.mark.parametrize("unit_norm", [False, True])
def test_a_certificate_made_again_without_the_image_is_that_of_a_search(path, unit_norm):
    torch.manual_seed(1)
    layers = (torch.nn.Flatten(), torch.nn.Linear(36, 12), torch.nn.ReLU(), torch.nn.Linear(12, 4))
    embedder = wrap(torch.nn.Sequential(*layers).eval(), (1, 6, 6), unit_norm=unit_norm)
    pixels = torch.randint(0, 256, (60, 1, 6, 6), dtype=torch.uint8).numpy()
    certifier, names = Certifier(embedder), [f"{n:02d}" for n in range(60)]

    def add(part):
        boxes = {EPS: stored_boxes(certifier, pixels[part], EPS)}
        gallery.add(names[part], embedder.embed(pixels[part]).numpy(), boxes=boxes)

    with Gallery.create(path, dim=4, embedder=embedder_info(embedder)) as gallery:
        gallery.add_boxes(EPS, lambda *_: Boxes(np.zeros((0, 4)), np.zeros((0, 4))))
        add(slice(0, 30))
        for threat in THREATS:
            search(gallery, embedder, pixels[50], 5, certify=Threat.parse(threat), name="photo", keep=True)
        assert [one.threat for one in gallery.certificates()] == sorted(THREATS)
        for one in gallery.certificates():
            assert differences(one, certify_again(gallery, one)) == ()
        add(slice(30, 60))
        assert recheck(gallery).changed
        for one in gallery.certificates():
            found = search(gallery, embedder, pixels[50], 5, certify=Threat.parse(one.threat))
            assert [(e.id, e.certificate.best, e.certificate.worst) for e in found.hits] == [
                (hit.id, hit.best, hit.worst) for hit in one.hits
            ]
        assert gallery.verify() == []
