"""`holdfast metric`: from features to a certified error, on real data, and one line for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import here

from holdfast.evaluate.neighbours import read_neighbours, robust_error
from holdfast.evaluate.rows import read_rows
from holdfast.models.metric import Metric


@pytest.fixture
def features(tmp_path):
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 120)
    vectors = random.random((120, 4))
    vectors[:, 0] = 0.5 * vectors[:, 0] + 0.6 * labels
    np.savez(tmp_path / "f.npz", X=vectors, y=np.array(["cat", "dog"])[labels])
    return tmp_path / "f.npz"


def test_learn_and_certify(features, tmp_path):
    metric = tmp_path / "f.metric"
    done = here("metric", "learn", features, "--out", metric, "--set", "iterations=20", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["about"]["method"] == "arml"
    assert Metric.load(metric).transform.shape == (4, 4)
    assert here("metric", "learn", features, "--out", metric, "--set", "iterations=20").code == 0, (
        "learned anew"
    )
    done = here("metric", "certify", metric, "--exact", "--points", 25, "--radius", 0.05, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [line["radius"] for line in found["table"]] == [0, 0.05]
    for line in found["table"]:
        assert line["attacked"] <= line["certified"]
    rows = read_rows(tmp_path / "f.metric-k1-exact-p25-s0" / "rows.csv.gz").columns
    assert (rows["lower"] <= rows["upper"]).all()
    assert np.allclose(rows["lower"], rows["upper"], rtol=1e-6)
    again = here("metric", "certify", metric, "--exact", "--points", 25, "--radius", 0.1, "--json")
    assert [line["radius"] for line in json.loads(again.out)["table"]] == [0, 0.1], "from the same rows"
    finished = read_neighbours(tmp_path / "f.metric-k1-exact-p25-s0")
    for radius in rows["upper"]:
        at = robust_error(finished.rows, float(radius))
        assert at.attacked <= at.certified, "at the length of an attack too, which may only tie"
    for radius in rows["lower"]:
        proved = 1 - robust_error(finished.rows, float(radius)).certified
        assert proved == pytest.approx((rows["lower"] > radius).mean())
    wide = here("metric", "certify", metric, "--k", 5, "--points", 25)
    assert wide.code == 0, wide.err
    assert "certified robust error" in wide.out
    bound = here("metric", "certify", metric, "--points", 25, "--json")
    lower = read_rows(Path(json.loads(bound.out)["rows"])).columns["lower"]
    assert (lower <= rows["lower"] * (1 + 1e-6)).all(), "the bound is never above the exact answer"


def test_real_digits(shared_data, tmp_path):
    source = shared_data / "uci" / "pendigits.npz"
    if not source.exists():
        pytest.skip(f"no features at {source}")
    done = here("metric", "learn", source, "--method", "euclidean", "--out", tmp_path / "p.metric")
    assert done.code == 0, done.err
    done = here("metric", "certify", tmp_path / "p.metric", "--exact", "--points", 30, "--json")
    table = json.loads(done.out)["table"]
    assert table[0]["certified"] == table[0]["attacked"] <= 0.15
    assert table[-1]["radius"] > 0.1


def test_one_line_each(features, tmp_path):
    metric = tmp_path / "f.metric"
    here("metric", "learn", features, "--method", "euclidean", "--out", metric)
    (tmp_path / "no.npz").write_text("no")
    np.savez(tmp_path / "odd.npz", a=np.zeros(3))
    np.savez(tmp_path / "nan.npz", X=np.full((9, 2), np.nan), y=np.arange(9) % 2)
    for words, says in (
        (("metric", "certify", metric, "--k", 2), "K is odd"),
        (("metric", "certify", metric, "--k", 3, "--exact"), "exact answers are there for K = 1"),
        (("metric", "certify", metric, "--k", 9999), "fewer than 9999 neighbours"),
        (("metric", "certify", metric, "--radius", "nan"), "a radius is 0 or more"),
        (
            ("metric", "learn", features, "--method", "euclidean", "--out", features),
            "is not a metric",
        ),
        (("metric", "certify", tmp_path / "x.metric"), "could not read the metric"),
        (("metric", "certify", features), "is not a metric"),
        (("metric", "certify", metric, "--features", tmp_path / "odd.npz"), "features are X_train"),
        (("metric", "learn", tmp_path / "no.npz", "--out", tmp_path / "o"), "not an .npz of plain arrays"),
        (("metric", "learn", tmp_path / "nan.npz", "--out", tmp_path / "o"), "NaN or infinity in row 0"),
        (("metric", "learn", features, "--method", "lnmm", "--out", tmp_path / "o"), "unknown method 'lnmm'"),
        (
            ("metric", "learn", features, "--set", "colour=3", "--out", tmp_path / "o"),
            "unknown setting of arml",
        ),
    ):
        done = here(*words)
        assert done.code == 2, (words, done.out)
        assert says in done.err.replace("\n", " "), done.err
    assert not (tmp_path / "o").exists()
