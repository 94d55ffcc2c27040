"""One way of every search: what it takes for an image, what it certifies, and what it refuses in a sentence."""

from __future__ import annotations

import io

import noisy_circle
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from holdfast import data
from holdfast.certificate import RankInterval
from holdfast.errors import ConfigError, ModelError
from holdfast.gallery import Gallery
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.provers import PROVERS, Provers
from holdfast.gallery.provers.base import Options
from holdfast.gallery.searching import search
from holdfast.models import Foreign, wrap
from holdfast.threat import Threat


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    torch.manual_seed(0)
    embedder = wrap(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).eval(), (1, 6, 6))
    pixels = np.random.default_rng(0).integers(0, 256, (30, 1, 6, 6), dtype=np.uint8)
    path = tmp_path_factory.mktemp("searching") / "g"
    with Gallery.create(path, dim=4, embedder=embedder_info(embedder)) as gallery:
        gallery.add([f"{n:02d}" for n in range(30)], embedder.embed(pixels).numpy())
        yield gallery, embedder


def test_an_image_is_a_path_bytes_a_pil_image_an_array_or_a_picture(shop, tmp_path):
    gallery, embedder = shop
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (9, 11, 3), dtype=np.uint8))
    file = tmp_path / "q.png"
    picture.save(file)
    read = data.read_picture(file, embedder.spec)
    content = io.BytesIO()
    picture.convert("RGBA").save(content, "PNG")
    images = (file, str(file), content.getvalue(), picture, picture.convert("RGBA"), read, read.pixels)
    found = [search(gallery, embedder, image, 4, certify="linf:0.001") for image in images]
    assert found[0].query == str(file)
    assert found[2].query == "query"
    for other in found[1:]:
        assert [(hit.id, hit.certificate) for hit in other] == [(hit.id, hit.certificate) for hit in found[0]]
    with pytest.raises(
        ConfigError, match="an image is a path, the bytes of a file, a PIL image or an array, not int"
    ):
        search(gallery, embedder, 7)


def test_without_a_threat_nothing_is_proved(shop):
    gallery, embedder = shop
    found = search(gallery, embedder, np.zeros((1, 6, 6), np.uint8), 3)
    assert [hit.certificate for hit in found] == [None] * 3
    assert found.proof is None
    assert found.table().splitlines()[0] == "query"
    with pytest.raises(ConfigError, match="method are about certificates; say what to certify"):
        search(gallery, embedder, np.zeros((1, 6, 6), np.uint8), 3, method="crown")


def test_the_method_of_before_is_still_known(shop):
    gallery, embedder = shop
    image = np.zeros((1, 6, 6), np.uint8)
    ways = [
        search(gallery, embedder, image, 3, certify="linf:0.01", method=name)
        for name in ("elided", "last-layer")
    ]
    assert ways[0].certificates == ways[1].certificates
    with pytest.raises(ConfigError, match="unknown method 'fast'; known: crown, interval, last-layer, paper"):
        search(gallery, embedder, image, 3, certify="linf:0.01", method="fast")
    with pytest.raises(ConfigError, match="method paper is not for"):
        search(gallery, embedder, image, 3, certify="linf:0.01", method="paper")


def test_each_prover_says_whom_it_serves_and_the_others_why_not(shop, tmp_path):
    gallery, embedder = shop
    plain = Provers(embedder)
    assert (list(plain.serving), list(plain.lacking)) == (["bounds"], ["sampling"])
    assert plain.usual is None
    circle, wrapped = noisy_circle.make(tmp_path / "g", noisy_circle.turning(), np.array([1.0, 2.0]))
    with circle:
        smooth = Provers(wrapped)
        assert (list(smooth.serving), list(smooth.lacking)) == (["sampling"], ["bounds"])
        assert str(smooth.usual) == "query:l2:auto"
        assert smooth.threats(circle.info) == ("query:l2",)
        with pytest.raises(ConfigError, match="keep and method are for a gallery that is not smoothed"):
            search(circle, wrapped, noisy_circle.pixels(0.25), 1, certify="l2:auto", keep=True)
    with pytest.raises(
        ConfigError, match=r"rule and samples and seed are for a smoothed gallery, and .* is not one"
    ):
        search(gallery, embedder, np.zeros((1, 6, 6), np.uint8), 1, certify="linf:0.1", seed=3)
    for kind in PROVERS.values():
        assert kind.words
        assert kind.__doc__


def test_a_network_without_bounds_says_so_and_is_searched(tmp_path):
    embedder = Foreign(lambda images: images.flatten(1), (1, 2, 2))
    with Gallery.create(tmp_path / "g", dim=4, embedder=embedder_info(embedder)) as gallery:
        gallery.add(["a"], np.ones((1, 4), np.float32))
        image = np.zeros((1, 2, 2), np.uint8)
        assert search(gallery, embedder, image, 1)[0].id == "a"
        assert Provers(embedder).threats(gallery.info) == ()
        assert Provers(embedder).methods(gallery.info) == ("interval",)
        with pytest.raises(ModelError, match="certificates need a network that can be looked into"):
            search(gallery, embedder, image, 1, certify="linf:0.1")


def test_costs_are_said_before(shop):
    gallery, embedder = shop
    prover = Provers(embedder).serving["bounds"]

    def cost(threat, **options):
        return prover.cost(Threat.parse(threat), Options(**options), gallery.info)

    assert not cost("linf:0.1").is_expensive
    assert cost("linf:0.1", method="crown").is_expensive
    assert cost("linf:auto").is_expensive
    assert cost("linf:0.1").passes < cost("linf:0.1", method="last-layer").passes < cost("linf:auto").passes


def test_hits_show_themselves_as_pictures(shop, tmp_path):
    gallery, embedder = shop
    file = tmp_path / "q.png"
    Image.fromarray(np.zeros((6, 6), np.uint8)).save(file)
    found = search(gallery, embedder, file, 2, certify="linf:0.001")
    assert isinstance(found[0].certificate, RankInterval)
    page = found._repr_html_()
    assert page.count("<img src=") == 1, "the query's file is there, the hits have none"
    assert page.count("<figure") == 3
    assert str(found[0].certificate.lines()[0]) in page
