"""The Python way: any torch module, arrays and files, the same answers as the gallery's own search."""

from __future__ import annotations

import json
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
from holdfast.errors import ConfigError, DataError, GalleryError, ModelError
from holdfast.gallery import Gallery
from holdfast.gallery.searching import search


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
    hits = gallery.search(pictures / "b/3.png", k=2)
    assert (hits[0].id, hits[0].label) == ("b/3.png", "b")
    assert hits[0].distance == pytest.approx(0, abs=1e-5)
    one = read_image(pictures / "a/1.png", embedder.spec)
    assert one.dtype == np.float32
    same = gallery.search(one, k=1)[0]
    assert same.distance == pytest.approx(0, abs=1e-5)
    gallery.close()


@pytest.fixture
def shop(pictures, tmp_path):
    with holdfast.index(
        holdfast.wrap(network(0), (3, 16, 16)), pictures, tmp_path / "shop.gallery"
    ) as gallery:
        yield gallery


def test_the_public_names_are_exactly_those_listed():
    assert dir(holdfast) == sorted(holdfast.__all__)
    program = (
        "import pkgutil, importlib, holdfast as hf\n"
        "was = {name: getattr(hf, name) for name in hf.__all__}\n"
        "for found in pkgutil.walk_packages(hf.__path__, 'holdfast.'):\n"
        "    if not found.name.endswith('__main__'): importlib.import_module(found.name)\n"
        "assert all(getattr(hf, name) is value for name, value in was.items())"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("kind", ["path", "text", "bytes", "PIL", "H×W×3", "C×H×W"])
def test_a_picture_is_the_same_in_every_form(shop, pictures, kind):
    path = pictures / "a/2.png"
    with Image.open(path) as opened:
        image = opened.copy()
    array = np.asarray(image)
    given = {
        "path": path, "text": str(path), "bytes": path.read_bytes(), "PIL": image, "H×W×3": array,
        "C×H×W": array.transpose(2, 0, 1),
    }[kind]  # fmt: skip
    hits = shop.search(given, k=2, certify="linf:1/255")
    assert hits[0].id == "a/2.png"
    assert hits[0].distance == pytest.approx(0, abs=1e-5)
    assert isinstance(hits[0].certificate, holdfast.RankInterval)
    assert [hit.certificate.picture for hit in hits] == ["file"] * 2
    done = shop.attack(given, goal="push-out", threat="linf:16/255", k=1)
    assert done.clean.shape == (3, 20, 24)


def test_hits_show_themselves(shop, pictures):
    hits = shop.search(pictures / "a/2.png", k=3, certify="linf:1/255")
    assert "rank interval" in hits.table()
    assert json.loads(hits.to_json())["hits"][0]["verdict"] == hits[0].certificate.verdict
    assert hits._repr_html_().count("<img") == 4


def test_a_gallery_is_opened_with_its_model(pictures, tmp_path):
    embedder = holdfast.wrap(network(0), (3, 16, 16))
    holdfast.index(embedder, pictures, tmp_path / "shop.gallery").close()
    with pytest.raises(GalleryError, match="does not say where its embedder is"):
        holdfast.open(tmp_path / "shop.gallery")
    with holdfast.open(tmp_path / "shop.gallery", embedder) as gallery:
        assert gallery.search(pictures / "b/3.png", k=1)[0].id == "b/3.png"
    with pytest.raises(GalleryError, match="was made by embedder"):
        holdfast.open(tmp_path / "shop.gallery", holdfast.wrap(network(1), (3, 16, 16)))
    done = holdfast.attack(
        tmp_path / "shop.gallery", pictures / "b/3.png", threat="linf:0.1", k=1, model=embedder
    )
    done.save(tmp_path / "altered.png")
    with Image.open(tmp_path / "altered.png") as altered:
        assert altered.size == (24, 20)


def test_a_run_is_found_where_it_was(tmp_path):
    run = holdfast.train("fashion-mnist-mini", tmp_path / "run", train={"steps": 2})
    folder = tmp_path / "pictures/a"
    folder.mkdir(parents=True)
    Image.new("L", (28, 28), 90).save(folder / "1.png")
    for name, model in (("loaded", tmp_path / "run"), ("trained", run.embedder)):
        holdfast.index(model, tmp_path / "pictures", tmp_path / name).close()
        with holdfast.open(tmp_path / name) as gallery:
            assert gallery.embedder.fingerprint() == run.embedder.fingerprint()
            assert gallery.search(folder / "1.png")[0].id == "a/1.png"
    assert holdfast.report(tmp_path / "run").is_file()


def test_what_was_said_of_a_model_is_kept_by_its_gallery(pictures, tmp_path):
    (tmp_path / "my.py").write_text("def mean(images): return images.flatten(2).mean(2)")
    named = f"{tmp_path}/my.py:mean"
    model = holdfast.load(named, size=16, mean=0.5, std=0.25)
    holdfast.index(model, pictures, tmp_path / "shop.gallery").close()
    with pytest.raises(GalleryError, match=r"was made by .*my.py:mean\?size=16&mean=0.5&std=0.25; name it$"):
        holdfast.open(tmp_path / "shop.gallery")
    with holdfast.open(tmp_path / "shop.gallery", named) as gallery:
        assert gallery.embedder.fingerprint() == model.fingerprint()


def test_a_wrong_type_is_one_sentence(shop, pictures):
    with pytest.raises(ConfigError, match=r"^an image is a path, .* or an array, not int$"):
        shop.search(3)
    with (
        holdfast.Gallery.open(shop.path) as bare,
        pytest.raises(GalleryError, match="opened without its model"),
    ):
        bare.search(pictures / "b/3.png")


def test_another_module_is_refused(pictures, tmp_path):
    holdfast.index(holdfast.wrap(network(0), (3, 16, 16)), pictures, tmp_path / "shop.gallery").close()
    other = holdfast.wrap(network(1), (3, 16, 16))
    with pytest.raises(GalleryError, match="was made by embedder"):
        holdfast.index(other, pictures, tmp_path / "shop.gallery")
    with (
        holdfast.Gallery.open(tmp_path / "shop.gallery") as gallery,
        pytest.raises(GalleryError, match="was made by embedder"),
    ):
        search(gallery, other, pictures / "b/3.png")


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
                gallery.search(np.full(shape, value, np.float32))


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
