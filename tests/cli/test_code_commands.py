"""A class code through the commands that a user types: trained, indexed, searched, certified, evaluated, served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import here

from holdfast import data
from holdfast.data.export import export_images


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("code") / "run"
    words = (
        "--model",
        "small",
        "--defence",
        "class-code",
        "--threat",
        "linf:0.02",
        "--steps",
        60,
        "--batch",
        40,
    )
    done = here("train", "--data", "fashion-mnist-mini", *words, "--out", out)
    assert done.code == 0, done.err
    return out


def test_every_command_knows_both_sides(run, tmp_path):
    """Trained, indexed, searched with proofs, evaluated, described: the words that a user types."""
    pictures, gallery = tmp_path / "pictures", tmp_path / "shop.gallery"
    export_images(data.load("fashion-mnist-mini").test, pictures, limit=3)
    some = sorted(pictures.rglob("*.png"))[4]

    def said(*words) -> str:
        done = here(*words)
        assert done.code == 0, done.err
        return done.out

    assert "30 images" in said("index", run, pictures, "--out", gallery)
    info = said("gallery", "info", gallery)
    assert "class-code (closed-set: the classes of the training set)" in " ".join(info.split())
    found = json.loads(said("search", gallery, some, "--certify", "linf:0.005", "--json"))[0]
    assert {hit["verdict"] for hit in found["hits"]} == {"CERTIFIED", "UNKNOWN"}
    plain = json.loads(said("search", gallery, some, "--json"))[0]
    assert [hit["id"] for hit in plain["hits"]] == [hit["id"] for hit in found["hits"]]
    drawn = ("--queries", 30, "--candidates", 60, "--k", "1")
    table = said("certify", run, "--threat", "query:linf:0.01", *drawn)
    assert "closed-set" in table
    evaluated = json.loads(said("evaluate", run, *drawn, "--json"))
    certified = json.loads(said("certify", run, "--threat", "query:linf:0.01", *drawn, "--json"))
    assert evaluated["hit_rate"]["1"] == certified["table"][0]["recall"], "one search, however it is measured"
    assert "closed-set" in said("evaluate", run, *drawn)
    said("report", run)
    assert "closed-set" in (run / "report.html").read_text()
    refused = here(
        "index", run, pictures, "--out", tmp_path / "s.gallery", "--smooth", "sigma=0.1,n=20,bound=99"
    )
    assert refused.code == 2
    assert "index without smoothing (--smooth)" in refused.err
    assert not (tmp_path / "s.gallery").exists()
