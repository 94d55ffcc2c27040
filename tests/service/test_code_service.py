"""A gallery of class codes, served: queries and candidates each by their own side."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from serving import Shop, ask, serving

from holdfast import models
from holdfast.data import decode
from holdfast.gallery import Gallery
from holdfast.gallery.building import open_and_index
from holdfast.gallery.searching import search

MODEL = """
import torch
from torch import nn
from holdfast import wrap
from holdfast.models import ClassCode

torch.manual_seed(0)
layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.ReLU(), nn.Linear(24, 5))
with torch.no_grad():
    layers[3].weight[4:] = 0
    layers[3].bias[4:] = 0
net = wrap(layers, (1, 28, 28), candidate_side=ClassCode(4, 0.1))
"""


@pytest.fixture(scope="module")
def coded(shop, tmp_path_factory) -> Shop:
    folder = tmp_path_factory.mktemp("coded")
    (folder / "model.py").write_text(MODEL)
    made = Shop(folder, shop.pictures, folder / "coded.gallery", f"{folder}/model.py:net")
    embedder = models.find(made.model)
    gallery, _ = open_and_index(embedder, made.pictures, made.gallery, boxes=0.005)
    gallery.close()
    return made


def test_each_side_where_it_belongs(coded, tmp_path):
    embedder = models.find(coded.model)
    content = coded.picture(7)
    pixels = decode(content, embedder.spec)
    with serving(coded, tmp_path / "cache", writable=True) as (client, _):
        state = client.get("/api/v1/status").json()["galleries"][0]
        assert state["says"] == "closed-set: the classes of the training set"
        with Gallery.open(coded.gallery, readonly=True) as gallery:
            wanted = [hit.id for hit in search(gallery, embedder, pixels, 5).hits]
        assert [hit["id"] for hit in ask(client, content, k=5).json()["hits"]] == wanted
        for threat in ("query:linf:0.01", "candidates:linf:0.005", "both:linf:0.005"):
            done = ask(client, content, path="search/certified", threat=threat, k=5).json()
            assert [hit["id"] for hit in done["hits"]] == wanted
            assert all(hit["best"] <= hit["rank"] <= hit["worst"] for hit in done["hits"])
        chance = np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(chance).save(buffer, "PNG")
        assert ask(client, buffer.getvalue(), path="items", id="new.png").status_code == 201
    with Gallery.open(coded.gallery, readonly=True) as gallery:
        stored = gallery.vectors(["new.png"])
        assert np.array_equal(stored, embedder.embed_candidates(chance[None, None]).numpy())
        assert np.allclose(np.linalg.norm(stored, axis=1), 1)
        assert gallery.verify() == []


def test_upgrading_compares_candidates_with_candidates(coded, tmp_path):
    from holdfast.gallery.upgrading import Upgraded, _Check, _Pictures

    embedder, found = models.find(coded.model), Upgraded()
    with Gallery.open(coded.gallery, readonly=True) as gallery:
        items = [
            item
            for item in gallery.catalogue().values()
            if item.path and Path(item.path).is_relative_to(coded.pictures)
        ]
        vectors = gallery.vectors([item.id for item in items])
        with _Pictures(None) as pictures:
            new, _ = _Check(embedder, None, (), pictures, found).piece(items, vectors)
    assert found.agreed == len(items) > 50
    assert np.array_equal(new, vectors)
