"""Evaluating and certifying in one call: folders that say what was asked, and errors that name an argument."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import holdfast
from holdfast import api, data
from holdfast.errors import ConfigError, ModelError
from holdfast.evaluation.subject import Subject, home_of
from holdfast.models import CallableEmbedder, Smoothed
from holdfast.proofs.smoothing import Smoothing


@pytest.fixture
def photos():
    return data.load("fashion-mnist-mini").test.take(range(60))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return holdfast.wrap(
        nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 4)), (1, 28, 28)
    )


def test_an_embedder_and_images_are_enough(net, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = api.evaluate(net, photos)
    assert done.folder == home_of(net) / "evaluations" / photos.name
    assert len(done.rows) == 60
    again = api.evaluate(Subject(net, photos, tmp_path / "home", "mine"), queries=10, candidates=40, k=(1, 5))
    assert again.folder == tmp_path / "home/evaluations/mine-q10-c40-s0"
    assert list(again.summary.hit_rate) == [1, 5]
    said = []
    attacked = api.evaluate(net, photos, attacks="es", threat="linf:0.1", queries=4, steps=2, say=said.append)
    assert said[0] == "4 attacks of 2 gradients each: 8 in all"
    assert attacked.folder.name == f"{photos.name}-es-query_linf_0.1-pgd2x1-q4-crest-s0"


def test_folders_say_what_was_asked(net, photos, tmp_path):
    about = Subject(net, photos, tmp_path, "mine")
    drawn = {"queries": 2, "candidates": 9, "k": (1,), "say": lambda line: None}
    bounds = api.certify(about, ["query:linf:1/255", "candidates:linf:1/255:m=2"], clip=False, **drawn)
    assert bounds.folder.name == (
        "mine-query_linf_1over255-candidates_linf_1over255_m=2-interval-unclipped-q2-c9-s0"
    )
    smoothed = api.certify(about, smooth=Smoothing(0.1, n=50, first=10, gallery=4, bound=30.0), **drawn)
    assert smoothed.folder.name == "mine-sigma=0.1-n=50-first=10-gallery=4-bound=30.0-q2-c9-s0"
    curve = api.certify(about, "query:linf:auto", **drawn)
    assert (curve.folder.name, curve.table[0].queries) == ("mine-query_linf_auto-interval-q2-c9-s0", 2)


def test_errors_name_the_argument(net, photos, tmp_path):
    about = Subject(net, photos, tmp_path, "mine")
    function = CallableEmbedder(lambda images: images.flatten(1)[:, :4], (1, 28, 28))
    for call, error, option in (
        (lambda: api.evaluate(about, threat="linf:0.1"), ConfigError, "attacks"),
        (lambda: api.evaluate(about, k=(61,)), ConfigError, "k"),
        (lambda: api.evaluate(about, attacks="er-recall", check_black_box=3), ConfigError, "check_black_box"),
        (lambda: api.evaluate(about, workers=2), ConfigError, "workers"),
        (lambda: api.certify(about), ConfigError, "threat"),
        (lambda: api.certify(about, "linf:0.1", smooth="sigma=0.1"), ConfigError, "threat"),
        (lambda: api.certify(about, "linf:0.1", marks=(10,)), ConfigError, "smooth"),
        (lambda: api.certify(about, smooth="sigma=0.1", clip=False), ConfigError, "smooth"),
        (lambda: api.certify(Subject(function, photos, tmp_path, "f"), "linf:0.1"), ModelError, "smooth"),
        (lambda: api.evaluate(net), ConfigError, "data"),
    ):
        with pytest.raises(error) as found:
            call()
        assert found.value.option == option
        assert "--" not in str(found.value)
    twice = Smoothed(net, 0.1, samples=4, bound=30.0)
    for threats in ({"threat": "linf:0.1"}, {"smooth": "sigma=0.1"}):
        with pytest.raises(ModelError, match="smoothed already"):
            api.certify(Subject(twice, photos, tmp_path, "s"), queries=2, candidates=50, **threats)
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_two_folders_with_a_table_of_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    net = holdfast.wrap(nn.Sequential(nn.Conv2d(3, 4, 5), nn.Flatten()), size=16)
    lines = ["path,label"]
    for number, name in enumerate(["q/0", "q/1", "g/2", "g/3", "g/4"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{name}.png")
        lines.append(f"{name}.png,{'hat' if number % 2 else 'shoe'}")
    (tmp_path / "g/copy.png").write_bytes((tmp_path / "q/0.png").read_bytes())
    (tmp_path / "labels.csv").write_text("\n".join([*lines, "g/copy.png,shoe"]))
    said: list[str] = []
    words = {"queries": "q", "gallery": "g", "labels": "labels.csv", "say": said.append}
    done = api.evaluate(net, **words)
    assert done.rows.columns["query"].tolist() == ["queries/0.png", "queries/1.png"]
    assert done.rows.columns["hits"][0][0] == "gallery/copy.png"
    assert done.rows.columns["candidates"].tolist() == [4, 4]
    assert "6 images, 2 classes: hat, shoe" in said
    assert "1 images are near-duplicates of another; without_duplicates leaves them out" in said
    without = api.evaluate(net, without_duplicates=True, **words)
    assert without.folder.name == "q-in-g-without-duplicates-given"
    assert without.rows.columns["candidates"].tolist() == [3, 3]
    for wrong, option in (
        ({"queries": "q"}, "gallery"),
        ({"gallery": "g"}, "gallery"),
        ({**words, "k": (5,)}, "k"),
        ({**words, "attacks": "er-recall"}, "attacks"),
    ):
        with pytest.raises(ConfigError) as found:
            api.evaluate(net, **wrong)
        assert found.value.option == option
    ready = Subject(net, data.load("fashion-mnist-mini").test, tmp_path, "mine")
    with pytest.raises(ConfigError, match="its images already"):
        api.evaluate(ready, without_duplicates=True)
