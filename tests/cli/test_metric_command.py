"""`holdfast metric`: from features to a certified error, on real data, and one line for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import here

from holdfast.bounds.neighbours import Neighbours, outvoted
from holdfast.models.metric import Metric
from holdfast.neighbours import certification
from holdfast.neighbours.certification import read_neighbours, robust_error
from holdfast.neighbours.features import load_features
from holdfast.rows import read_rows


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


def test_attacks_beside_certificates(features, tmp_path):
    """Every move that is kept does what its row says; several metrics stand on one page at the same radii."""
    names = []
    for method in ("euclidean", "arml"):
        names.append(tmp_path / f"{method}.metric")
        more = ("--set", "iterations=5") if method == "arml" else ()
        assert here("metric", "learn", features, "--method", method, "--out", names[-1], *more).code == 0
    done = here(
        "metric", "certify", *names, "--k", 3, "--points", 20, "--html", tmp_path / "page.html", "--json"
    )
    assert done.code == 0, done.err
    both = json.loads(done.out)
    assert [entry["metric"] for entry in both] == [str(name) for name in names]
    assert len({tuple(line["radius"] for line in entry["table"]) for entry in both}) == 1
    page = (tmp_path / "page.html").read_text()
    assert "euclidean.metric, certified" in page
    assert "arml.metric, attacked" in page
    assert "http://" not in page.split("</script>")[-1], "offline"
    found = load_features(features)
    for entry, name in zip(both, names, strict=True):
        assert all(line["attacked"] <= line["certified"] for line in entry["table"])
        metric, rows = Metric.load(name), read_rows(Path(entry["rows"])).columns
        known = Neighbours(metric.scaled(found.train), found.train_labels, metric.transform)
        with np.load(entry["moves"]) as kept:
            moves, points = kept["move"], kept["point"]
        assert points.tolist() == rows["point"].tolist()
        for move, point, length, label in zip(moves, points, rows["attacked"], rows["label"], strict=True):
            moved = metric.scaled(found.test[[point]])[0] + move
            assert np.linalg.norm(move) == pytest.approx(length)
            assert outvoted(known.squared(moved), known.labels, int(label), 3) is not None
        assert (rows["lower"] <= rows["attacked"]).all()
        assert not list(Path(entry["rows"]).parent.glob("*.part"))
    plain = json.loads(
        here("metric", "certify", names[0], "--k", 3, "--no-attack", "--points", 20, "--json").out
    )
    assert plain["table"][0]["attacked"] is None
    assert plain["moves"] is None


def test_a_certificate_that_an_attack_contradicts_is_an_error(features, tmp_path, monkeypatch):

    metric = tmp_path / "f.metric"
    here("metric", "learn", features, "--method", "euclidean", "--out", metric)
    monkeypatch.setattr(certification, "knn_radius", lambda *_: 9.0)
    done = here("metric", "certify", metric, "--points", 5)
    assert done.code == 1
    assert "ERROR: 5 of 5 points are attacked within their certified radius" in done.out
    assert "ERROR: 5 of 5" in next(tmp_path.glob("f.metric-*/neighbours.html")).read_text()


def test_a_stopped_certification_goes_on_with_its_moves(features, tmp_path, monkeypatch):

    metric = tmp_path / "f.metric"
    here("metric", "learn", features, "--method", "euclidean", "--out", metric)
    monkeypatch.setattr(certification, "BLOCK", 4)
    words = ("metric", "certify", metric, "--exact", "--points", 10, "--json", "--out")
    whole = json.loads(here(*words, tmp_path / "whole").out)
    examined, count = certification._examined, iter(range(100))

    def stops(*parts):
        if next(count) == 6:
            raise KeyboardInterrupt
        return examined(*parts)

    monkeypatch.setattr(certification, "_examined", stops)
    with pytest.raises((KeyboardInterrupt, AssertionError)):
        assert here(*words, tmp_path / "cut").code == 0
    monkeypatch.setattr(certification, "_examined", examined)
    cut = json.loads(here(*words, tmp_path / "cut").out)
    assert cut["table"] == whole["table"]
    with np.load(cut["moves"]) as one, np.load(whole["moves"]) as other:
        assert np.array_equal(one["move"], other["move"])


def test_a_box(features, tmp_path):
    metric = tmp_path / "f.metric"
    here("metric", "learn", features, "--method", "euclidean", "--out", metric)
    rows = {}
    for name, more in (("free", ()), ("kept", ("--box", "0,1")), ("tight", ("--box", "0.3,0.7"))):
        done = here("metric", "certify", metric, "--exact", "--points", 25, "--json", *more)
        assert done.code == 0, done.err
        rows[name] = read_rows(Path(json.loads(done.out)["rows"])).columns
        moves = np.load(json.loads(done.out)["moves"])
        found = Metric.load(metric).scaled(load_features(features).test)[moves["point"]]
        if more:
            low, high = (float(part) for part in more[1].split(","))
            assert (found + moves["move"] >= np.minimum(found, low) - 1e-15).all()
            assert (found + moves["move"] <= np.maximum(found, high) + 1e-15).all()
    assert "are outside the box" in done.err
    assert (rows["free"]["upper"] <= rows["kept"]["upper"] * (1 + 1e-9)).all()
    assert (rows["kept"]["upper"] <= rows["tight"]["upper"] * (1 + 1e-9)).all()
    assert (rows["free"]["upper"] < rows["tight"]["upper"] * 0.999).any()


def test_from_a_run_to_a_gallery_under_a_metric(shop, tmp_path):
    """Features of a run, a metric on them, a gallery under it that search and certificates open again."""
    vectors, metric, gallery = tmp_path / "run.npz", tmp_path / "run.metric", tmp_path / "m.gallery"
    done = here("metric", "features", shop.run, "--out", vectors)
    assert done.code == 0, done.err
    found = load_features(vectors)
    assert found.train.shape[1] == 128
    learned = here("metric", "learn", vectors, "--out", metric, "--set", "iterations=1", "--set", "rank=8")
    assert learned.code == 0, learned.err
    assert Metric.load(metric).about["embedder"] == found.embedder
    done = here("index", shop.run, shop.pictures, "--metric", metric, "--out", gallery)
    assert done.code == 0, done.err
    metric.unlink()
    picture = next(shop.pictures.rglob("*.png"))
    done = here("search", gallery, picture, "--certify", "query:linf:0.001", "--json")
    assert done.code == 0, done.err
    first = json.loads(done.out)[0]["hits"][0]
    assert first["distance"] == pytest.approx(0, abs=1e-5)
    info = json.loads(here("gallery", "info", gallery, "--json").out)
    assert (info["dim"], info["metric"]) == (8, "arml, 8 × 128")
    for words, says in (
        (("metric", "features", shop.run, "--out", shop.gallery), "is no file of features"),
        (
            ("index", shop.run, shop.pictures, "--out", gallery, "--metric", tmp_path / "gone"),
            "could not read",
        ),
    ):
        done = here(*words)
        assert done.code == 2
        assert says in done.err.replace("\n", " "), done.err


def test_one_line_each(features, tmp_path):
    metric = tmp_path / "f.metric"
    here("metric", "learn", features, "--method", "euclidean", "--out", metric)
    (tmp_path / "no.npz").write_text("no")
    np.savez(tmp_path / "odd.npz", a=np.zeros(3))
    np.savez(tmp_path / "nan.npz", X=np.full((9, 2), np.nan), y=np.arange(9) % 2)
    np.savez(tmp_path / "flat.npz", X=np.ones((9, 2)), y=np.arange(9) % 2)
    random = np.random.default_rng(0)
    parts = {"X_train": random.random((9, 4)), "X_test": random.random((3, 4)), "y_test": np.zeros(3)}
    np.savez(tmp_path / "single.npz", y_train=np.array([0, 0, 0, 0, 1, 1, 1, 1, 2]), **parts)
    np.savez(tmp_path / "wide.npz", X=np.ones((9, 7)) * np.arange(9)[:, None], y=np.arange(9) % 2)
    np.savez(tmp_path / "uneven.npz", y_train=np.zeros(9), **{**parts, "X_test": np.ones((3, 5))})
    made, zero = Metric.load(metric), tmp_path / "zero.metric"
    Metric(0 * made.transform, made.low, made.span, made.about).save(zero)
    loose, single = tmp_path / "loose.metric", tmp_path / "single.metric"
    Metric(made.transform, made.low, made.span).save(loose)
    here("metric", "learn", tmp_path / "single.npz", "--method", "euclidean", "--out", single)
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
        (("metric", "certify", zero), "the metric is zero"),
        (("metric", "certify", single, "--k", 3), "a class with a single training vector"),
        (("metric", "certify", loose, "--features", tmp_path / "wide.npz"), "does not fit vectors of 7"),
        (("metric", "certify", metric, "--features", tmp_path / "wide.npz"), "is not what"),
        (("metric", "certify", metric, "--box", "1"), "--box takes LOW,HIGH"),
        (("metric", "certify", metric, "--box", "1,0"), "LOW below HIGH"),
        (("metric", "certify", metric, "--box", "nan,1"), "LOW below HIGH"),
        (("metric", "certify", metric, zero, "--out", tmp_path / "o"), "--out is for a single metric"),
        (("metric", "certify", metric, "--points", 3, "--html", features), "is no page"),
        (("metric", "learn", tmp_path / "flat.npz", "--out", tmp_path / "o"), "every feature is constant"),
        (("metric", "learn", tmp_path / "uneven.npz", "--out", tmp_path / "o"), "test vectors 5"),
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
