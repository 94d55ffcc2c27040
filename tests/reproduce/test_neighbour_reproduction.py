"""A reproduction about metrics: rows for each K, cells and a page from them, and the numbers recomputed by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from holdfast.cli.app import app
from holdfast.errors import ConfigError
from holdfast.neighbours.features import image_features, load_features
from holdfast.reproduce import open_reproduction
from holdfast.reproduce.neighbours import SetPlan, features_of
from holdfast.rows import read_rows

PLAN = """
points = 12
seeds = [0]

[[certified]]
k = 1
exact = true
table = "table 1"

[[certified]]
k = 3
table = "table 2"

[sets.words]
file = "words.npz"
vectors = "seq"
labels = "label"
about = "made up"

[networks.crown]
way = "crown"
sets = ["words"]
epochs = 4

[networks.votes]
way = "smoothing"
sets = ["words"]
sigma = 0.5
n = 100
epochs = 4

[methods.euclidean]
method = "euclidean"

[methods.arml]
method = "arml"
options = { iterations = 3, neighbours = 3 }

[timed]
set = "words"

[timed.methods.lmnn]
method = "arml"
options = { iterations = 1 }
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    kinds = random.integers(0, 2, 80)
    letters = random.choice(list("ACGT"), (80, 6))
    letters[:, 2] = np.where(kinds == 1, "A", "T")
    letters[random.random(80) < 0.1, 2] = "C"
    np.savez(tmp_path / "words.npz", seq=letters, label=np.array(["no", "yes"])[kinds])
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    folder = tmp_path / "reproduce" / "made-up"
    folder.mkdir(parents=True)
    (folder / "tiny.toml").write_text(PLAN)
    (folder / "about.md").write_text("# Made up\n")
    place = {
        "table": "runtime",
        "dataset": "usps",
        "model": "",
        "method": "lmnn",
        "threat": "none",
        "eps": "",
        "k": 0,
    }
    (folder / "targets.json").write_text(json.dumps([{**place, "metric": "seconds", "paper": 66.4}]))
    return folder


def test_from_a_plan_to_cells_and_a_page(home, tmp_path):
    found = open_reproduction(home, "tiny")
    assert [job.name for job in found.jobs(only="*arml*")] == ["words-arml-s0"]
    assert [job.name for job in found.jobs(only="*timed*")] == ["words-timed-lmnn-s0"]
    assert found.jobs(table="table 9") == []
    said = []
    for job in found.jobs():
        assert found.missing(job) == ["run"]
        assert found.run(job, tmp_path / "work", said.append)
        assert found.missing(job) == []
    assert "words-arml-s0: certifying K = 3" in said
    cells = {(c.table, c.method, c.eps, c.metric): c for c in found.cells()}
    timed = cells["runtime", "lmnn", "", "seconds"]
    record = json.loads((home / "rows" / "tiny" / "words-timed-lmnn-s0" / "run.json").read_text())
    assert (timed.paper, timed.ours) == (66.4, record["cpu_seconds"])
    assert timed.ours > 0
    assert not (home / "rows" / "tiny" / "words-timed-lmnn-s0" / "k1.csv.gz").exists()
    rows = {
        m: read_rows(home / "rows" / "tiny" / f"words-{m}-s0" / "k1.csv.gz") for m in ("euclidean", "arml")
    }
    radius = np.sort(rows["euclidean"].columns["lower"])[5]
    for method, some in rows.items():
        want = float((some.columns["lower"] <= radius).mean())
        cell = cells["table 1", method, "0.5 of euclidean", "certified robust error"]
        assert (cell.ours, cell.n) == (want, 12)
        attacked = cells["table 1", method, "0.5 of euclidean", "attacked robust error"]
        assert attacked.ours <= want
    page = found.write()[1].read_text()
    assert "| words | 60 | 20 | " in page
    assert "table 2: K = 3, by the bound" in page
    assert page.count("| words | votes | ") == page.count("| words | 1-NN, arml | ") == 1
    assert "100.00%" in page
    assert f"| lmnn | 66.4 (1.00) | {timed.ours:.1f} (1.00) |" in page
    (home / "tiny.toml").write_text(PLAN.replace("points = 12", "points = 13"))
    with pytest.raises(ConfigError, match="other settings"):
        open_reproduction(home, "tiny").missing(found.jobs()[0])


def test_the_command_runs_it(home, tmp_path, capsys):
    app(
        [
            "reproduce",
            "made-up",
            "--preset",
            "tiny",
            "--folder",
            str(home.parent),
            "--work",
            str(tmp_path / "w"),
        ],
        standalone_mode=False,
    )
    assert "cells computed, 1 printed in the paper" in capsys.readouterr().out
    assert (home / "results.md").exists()


def test_words_become_a_feature_for_each_place(home, tmp_path):
    found = load_features(tmp_path / "words.npz", vectors="seq", labels="label")
    assert found.classes == ("no", "yes")
    assert set(np.unique(found.train)) == {0.0, 1.0}
    assert (found.train.sum(1) == 6).all(), "one letter at each place"
    assert found.train.shape[1] == 5 * 4 + 3


def test_pictures_become_pixels():
    from holdfast import data

    images = data.load("fashion-mnist-mini")
    found = image_features(images, 100)
    assert found.train.shape == (100, 784)
    assert np.bincount(found.train_labels).min() >= 5
    assert (found.train.min(), found.train.max()) == (0.0, 1.0)
    assert np.array_equal(found.test[3], images.test.image(3).reshape(-1) / 255)
    assert image_features(images, 100).digest == found.digest
    planned = features_of(SetPlan(images="fashion-mnist-mini", train=100))
    assert planned.digest == found.digest
