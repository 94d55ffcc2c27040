"""The Python way: any torch module, arrays and files, the same answers as the gallery's own search."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import holdfast
from holdfast.data import read_image
from holdfast.errors import DataError, GalleryError, ModelError
from holdfast.gallery import Gallery


@pytest.fixture
def pictures(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a/1.png", "a/2.png", "b/3.png", "b/4.jpg"):
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path)
    return tmp_path / "pictures"


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(196, 8))


def test_any_module_indexes_and_searches(pictures, tmp_path):
    embedder = holdfast.wrap(network(0), (3, 16, 16))
    gallery = holdfast.index(embedder, pictures, tmp_path / "shop.gallery")
    assert len(gallery) == 4
    hits = holdfast.search(gallery, embedder, pictures / "b/3.png", k=2).hits
    assert (hits[0].id, hits[0].label) == ("b/3.png", "b")
    assert hits[0].distance == pytest.approx(0, abs=1e-5)
    one = read_image(pictures / "a/1.png", embedder.spec)
    assert one.dtype == np.float32
    same = holdfast.search(gallery, embedder, one, k=1).hits[0]
    assert same.distance == pytest.approx(0, abs=1e-5)
    gallery.close()


def test_another_module_is_refused(pictures, tmp_path):
    holdfast.index(holdfast.wrap(network(0), (3, 16, 16)), pictures, tmp_path / "shop.gallery").close()
    other = holdfast.wrap(network(1), (3, 16, 16))
    with pytest.raises(GalleryError, match="was made by embedder"):
        holdfast.index(other, pictures, tmp_path / "shop.gallery")
    with (
        holdfast.Gallery.open(tmp_path / "shop.gallery") as gallery,
        pytest.raises(GalleryError, match="was made by embedder"),
    ):
        holdfast.search(gallery, other, pictures / "b/3.png")


def test_a_fingerprint_follows_the_weights():
    embedder = holdfast.wrap(network(0), (3, 16, 16))
    before = embedder.fingerprint()
    assert embedder.fingerprint() == before
    with torch.no_grad():
        embedder.network[0].weight[0, 0, 0, 0] += 1
    changed = embedder.fingerprint()
    assert changed != before
    embedder.network[0].weight = nn.Parameter(torch.zeros_like(embedder.network[0].weight))
    assert embedder.fingerprint() not in (before, changed)


def test_wrong_pixels_are_refused(pictures, tmp_path):
    embedder = holdfast.wrap(network(0), (3, 16, 16))
    with holdfast.index(embedder, pictures, tmp_path / "shop.gallery") as gallery:
        for shape, value in (((1, 16, 16), 0.0), ((3, 9, 9), 0.0), ((3, 16, 16), 2.0), ((3, 16, 16), np.nan)):
            with pytest.raises(ModelError):
                holdfast.search(gallery, embedder, np.full(shape, value, np.float32))


def test_a_gallery_that_got_nothing_is_not_left_behind(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError):
        holdfast.index(holdfast.wrap(network(0), (3, 16, 16)), tmp_path / "empty", tmp_path / "shop.gallery")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_gallery_that_no_longer_answers_does_not_hide_what_went_wrong(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()

    def gone(gallery):
        raise GalleryError("gone")

    monkeypatch.setattr(Gallery, "__len__", gone)
    with pytest.raises(DataError, match="no images"):
        holdfast.index(holdfast.wrap(network(0), (3, 16, 16)), tmp_path / "empty", tmp_path / "shop.gallery")


def test_train_takes_tables(tmp_path):
    run = holdfast.train(
        "fashion-mnist-mini", tmp_path / "run", seed=3, train={"steps": 2}, defence={"name": "margin"}
    )
    assert run.outcome.finished
    assert run.config.seed == 3
    assert run.embedder.unit_norm
    assert holdfast.load(tmp_path / "run").fingerprint() == run.embedder.fingerprint()


def test_the_example_runs(pictures):
    example = Path(__file__).resolve().parent.parent / "examples" / "own_model.py"
    done = subprocess.run(
        [sys.executable, example, pictures, pictures / "b/3.png"], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("1  b/3.png  0.0000")
