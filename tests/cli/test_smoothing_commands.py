"""Smoothing on the command line: galleries, searches, own models, and one clear line for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import here

MODEL = """
import torch

def embed(images):
    return torch.nn.functional.normalize(images.flatten(1) - 0.3, dim=1)
"""


@pytest.fixture(scope="module")
def noisy(shop, tmp_path_factory):
    """A run trained with noise, and a smoothed gallery of the shop's pictures."""
    folder = tmp_path_factory.mktemp("noisy")
    train = (
        "train",
        "--data",
        "fashion-mnist-mini",
        "--model",
        "small",
        "--defence",
        "margin",
        "--noise",
        0.2,
    )
    small = ("--set", "model.unit_norm=true", "--set", "train.copies=1", "--steps", 60)
    done = here(*train, "--train", "head", *small, "--out", folder / "run")
    assert done.code == 0, done.err
    smooth = "sigma=0.2,n=400,first=40,gallery=8"
    done = here("index", folder / "run", shop.pictures, "--smooth", smooth, "--out", folder / "g.gallery")
    assert done.code == 0, done.err
    return folder


def test_hits_have_radii_or_reasons(noisy, shop):
    picture = sorted(shop.pictures.rglob("*.png"))[0]
    done = here("search", noisy / "g.gallery", picture, "-k", 3, "--certify", "l2:auto")
    assert done.code == 0, done.err
    assert "stays in top 3 to l2" in done.out
    assert "all of this is wrong with probability at most 0.01" in done.out
    found = json.loads(here("search", noisy / "g.gallery", picture, "-k", 3, "--json").out)
    assert len(found[0]["hits"]) == 3
    for entry in found[0]["hits"]:
        assert (entry["radius"] is not None) == (entry["verdict"] == "CERTIFIED")
        assert entry["radius"] is not None or "samples" in entry["reason"]
    assert found[0]["hits"][0]["verdict"] == "CERTIFIED", "the picture itself is in the gallery"
    page = noisy / "hits.html"
    done = here("search", noisy / "g.gallery", picture, "-k", 3, "--certify", "l2:0.01", "--html", page)
    assert done.code == 0, done.err
    assert "noisy copies of the query (σ = 0.2)" in page.read_text()


def test_hits_by_votes(noisy, shop):
    """Another deployed rule, by the gallery's own word or for one search."""
    picture = sorted(shop.pictures.rglob("*.png"))[0]
    smooth = "sigma=0.2,n=400,first=40,gallery=8,rule=votes"
    voted = noisy / "votes.gallery"
    done = here("index", noisy / "run", shop.pictures, "--smooth", smooth, "--out", voted)
    assert done.code == 0, done.err
    assert "rule votes" in here("gallery", "info", voted).out
    asked = (picture, "-k", 2, "--seed", 5, "--json")
    kept = json.loads(here("search", voted, *asked).out)
    once = json.loads(here("search", noisy / "g.gallery", *asked, "--rule", "votes").out)
    by_mean = json.loads(here("search", voted, *asked, "--rule", "mean").out)
    assert kept == once
    assert kept[0]["rule"] == "votes"
    assert 0.9 < kept[0]["hits"][0]["share"] <= 1, "the picture itself is in the gallery"
    assert kept[0]["hits"][0]["radius"] > by_mean[0]["hits"][0]["radius"] > 0
    page = noisy / "votes.html"
    done = here("search", voted, picture, "-k", 2, "--html", page)
    assert "votes" in done.out
    assert "by votes of copies with noise of 0.2" in done.out
    assert "votes for its 2 nearest candidates" in page.read_text()


def test_a_smoothed_gallery_stays_what_it_is(noisy, shop):
    gallery, run = noisy / "g.gallery", noisy / "run"
    info = json.loads(here("gallery", "info", gallery, "--json").out)
    assert info["smoothed"]["sigma"] == 0.2
    again = here("index", run, shop.pictures, "--out", gallery)
    assert "0 added, 0 updated, 60 unchanged" in again.out, again.err
    picture = sorted(shop.pictures.rglob("*.png"))[0]
    for words, says in (
        (
            ("index", run, shop.pictures, "--out", gallery, "--smooth", "sigma=0.5"),
            "smoothed otherwise: sigma=0.5 (0.2 there)",
        ),
        (("index", run, shop.pictures, "--out", shop.gallery, "--smooth", "sigma=0.5"), "is not smoothed"),
        (
            ("index", run, shop.pictures, "--out", noisy / "x", "--smooth", "sigma=0.1,n=3"),
            "cannot certify anything",
        ),
        (("index", run, shop.pictures, "--out", noisy / "x", "--smooth", "sigma=0"), "above 0"),
        (
            ("index", shop.run, shop.pictures, "--out", noisy / "x", "--smooth", "sigma=0.1"),
            "bound on the length",
        ),
        (("search", gallery, picture, "--html", gallery), "is no page; choose another name"),
        (("search", gallery, picture, "--certify", "linf:0.1"), "certifies an altered query in l2"),
        (
            ("search", gallery, picture, "--keep", "--certify", "l2:auto"),
            "are for a gallery that is not smoothed",
        ),
        (("search", gallery, picture, "--model", shop.run), "made by embedder"),
        (("search", shop.gallery, picture, "--samples", 10), "is not one"),
        (("search", shop.gallery, picture, "--rule", "votes"), "is not one"),
        (("search", gallery, picture, "--rule", "votes", "--samples", 50), "take at least"),
        (
            ("index", run, shop.pictures, "--out", noisy / "x", "--smooth", "sigma=1,rule=all"),
            "mean or votes",
        ),
        (
            ("index", run, shop.pictures, "--out", gallery, "--smooth", "sigma=0.2,rule=votes"),
            "rule=votes (mean there)",
        ),
        (("certify", run, "--smooth", "sigma=0.1", "--attack", "linf:0.1"), "l2:EPS"),
        (("certify", run, "--threat", "query:linf:0.1", "--marks", "10"), "go with smoothing (--smooth)"),
    ):
        done = here(*words)
        assert done.code == 2, words
        assert says in done.err.replace("\n", " "), done.err
        assert done.err.count("\n") <= 2
    assert not (noisy / "x").exists()


def test_anything_that_maps_images_to_vectors(shop, tmp_path):
    """A function in a Python file: certified by samples alone."""
    (tmp_path / "own.py").write_text(MODEL)
    common = (
        "--images",
        shop.pictures,
        "--image-size",
        28,
        "--channels",
        1,
        "--queries",
        12,
        "--candidates",
        40,
    )
    smooth = "sigma=0.05,n=100,first=20,gallery=4,bound=1.001"
    words = ("certify", f"{tmp_path}/own.py:embed", "--smooth", smooth, "--k", "1", *common)
    done = here(*words, "--marks", "50", "--out", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    table = json.loads(done.out)["table"]
    assert {line["n"] for line in table} == {50, 100}
    assert max(line["mean_radius"] for line in table if line["rule"] == "votes") > 0
    done = here(*words, "--attack", "l2:0.1", "--out", tmp_path / "other")
    assert done.code == 2
    assert "need gradients" in done.err


def test_the_runs_of_a_figure():
    home = ("reproduce", "retrievalguard", "--folder", Path(__file__).parents[2] / "reproduce")
    found = {figure: here(*home, "--figure", figure, "--list") for figure in ("2", "5")}
    assert {done.code for done in found.values()} == {0}
    assert "fashion-mnist-small-gdml-0.25-s0" in found["2"].out
    assert "cub" not in found["2"].out
    assert "cars-efficientnet-lite0-dml-s0" in found["5"].out
    done = here(*home, "--figure", "9", "--list")
    assert (done.code, "has no runs for figure 9" in done.err) == (2, True)
    done = here(*home, "--figure", "2", "--table", "1", "--list")
    assert (done.code, "--table or --figure, not both" in done.err) == (2, True)
