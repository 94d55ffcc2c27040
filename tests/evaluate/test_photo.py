"""One altered photograph: inside its threat as 8 bits, measured as a search sees it, refused where it must be."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from holdfast.data import decode
from holdfast.errors import ConfigError, GalleryError
from holdfast.evaluate.attacked import Settings
from holdfast.evaluate.photo import attack_photo, jpeg, png
from holdfast.models import Foreign, wrap
from holdfast.report import attack_page
from holdfast.spec import ImageSpec
from holdfast.threat import Threat
from holdfast.workflow import index

SPEC = ImageSpec(3, 8, 8)
THREAT = Threat.parse("linf:16/255")
QUICK = Settings(steps=20)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photo")
    rng = np.random.default_rng(0)
    for i in range(30):
        path = folder / "pictures" / "ab"[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(90, 160, (8, 8, 3), dtype=np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def embedder():
    torch.manual_seed(0)
    return wrap(nn.Sequential(nn.Flatten(), nn.Linear(192, 6)), SPEC)


@pytest.fixture(scope="module")
def gallery(place, embedder):
    with index(embedder, place / "pictures", place / "g.gallery") as opened:
        yield opened


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(5).integers(90, 160, (3, 8, 8), dtype=np.uint8)


def rank_of(gallery, embedder, pixels, item):
    return next(
        hit.rank
        for hit in gallery.nearest(embedder.embed(pixels[None]).numpy(), 30)[0].hits
        if hit.id == item
    )


@pytest.mark.parametrize("want", ["raise", "lower", "misrank", "shift"])
def test_the_saved_picture_is_allowed_and_does_what_is_said(gallery, embedder, pixels, want):
    first = gallery.nearest(embedder.embed(pixels[None]).numpy(), 30)[0].hits
    item = {"raise": first[20].id, "lower": first[0].id}.get(want)
    done = attack_photo(gallery, embedder, pixels, f"{want}:{item}" if item else want, THREAT, settings=QUICK)
    assert np.abs(done.altered.astype(int) - pixels).max() <= 16
    assert (decode(png(done.altered), None) == done.altered).all()
    saved = decode(png(done.altered), SPEC)
    forms = {form.form: form for form in done.seen}
    assert list(forms) == ["clean", "PNG", "JPEG 95", "JPEG 75"]
    assert forms["clean"].rank == rank_of(gallery, embedder, pixels, done.item)
    assert forms["PNG"].rank == rank_of(gallery, embedder, saved, done.item)
    assert forms["JPEG 75"].rank == rank_of(
        gallery, embedder, decode(jpeg(done.altered, 75), SPEC), done.item
    )
    before, after = forms["clean"].rank, forms["PNG"].rank
    if want == "raise":
        assert (before, after) == (21, 1)
        assert done.after.hits[0].id == item
    elif want == "lower":
        assert before == 1
        assert after > 15
    elif want == "misrank":
        assert done.before.hits[0].label != done.after.hits[0].label
    assert forms["PNG"].shift > 0.05


def test_jpeg_is_a_real_round_trip(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(buffer, "JPEG", quality=75)
    assert jpeg(pixels, 75) == buffer.getvalue()
    assert (decode(jpeg(pixels, 75), None) != pixels).any()


def test_a_black_box_can_be_attacked(place, pixels):
    torch.manual_seed(0)
    linear = nn.Linear(192, 6)
    black = Foreign(lambda x: linear(x.flatten(1)).detach().numpy(), SPEC, name="linear")
    with index(black, place / "pictures", place / "black.gallery") as gallery:
        item = gallery.nearest(black.embed(pixels[None]).numpy(), 30)[0].hits[20].id
        done = attack_photo(gallery, black, pixels, f"raise:{item}", THREAT, settings=Settings(budget=600))
        assert done.seen[1].rank < 8
        with pytest.raises(ConfigError, match="use nes or spsa"):
            attack_photo(gallery, black, pixels, "shift", THREAT, settings=Settings(optimiser="pgd"))


def test_bad_wishes(gallery, embedder, pixels):
    for want, threat, error, says in (
        ("raise:nothing", "linf:0.1", GalleryError, "no item 'nothing'"),
        ("raise:", "linf:0.1", ConfigError, "--want is one of"),
        ("destroy", "linf:0.1", ConfigError, "--want is one of"),
        ("shift", "candidates:linf:0.1", ConfigError, "alters a query"),
        ("shift", "linf:auto", ConfigError, "needs a number"),
        ("shift", "l2:30", ConfigError, "whole image domain"),
    ):
        with pytest.raises(error, match=says):
            attack_photo(gallery, embedder, pixels, want, Threat.parse(threat), settings=QUICK)
    with pytest.raises(ConfigError, match="no item of the gallery is of class 'z'"):
        attack_photo(gallery, embedder, pixels, "misrank", THREAT, label="z", settings=QUICK)


def test_misrank_needs_labels(place, embedder, pixels, tmp_path):
    with (
        index(embedder, place / "pictures" / "a", tmp_path / "flat.gallery") as flat,
        pytest.raises(ConfigError, match="needs a gallery with labels"),
    ):
        attack_photo(flat, embedder, pixels, "misrank", THREAT, settings=QUICK)


def test_the_page_shows_both_pictures_and_their_difference(gallery, embedder, pixels):
    done = attack_photo(gallery, embedder, pixels, "shift", THREAT, k=3, settings=QUICK)
    page = attack_page(done, "<b>x</b> altered", lambda path: None, "g.gallery")
    assert page.count("data:image/") == 5
    assert "difference ×" in page
    assert "<b>x</b>" not in page
    assert "after JPEG 75 rank" in page
