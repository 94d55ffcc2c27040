"""An evaluation from images to rows, stopped and resumed, and its numbers by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from holdfast import data
from holdfast.data import ImageSet
from holdfast.errors import ConfigError, DataError
from holdfast.evaluation import evaluate, load_pictures, read_evaluation, sheet, worst_queries
from holdfast.evaluation import folder as folder_module
from holdfast.evaluation import run as run_module
from holdfast.models import wrap
from holdfast.spec import ImageSpec

SPEC = ImageSpec(1, 4, 4)


def images(pixels, labels, ids=None) -> ImageSet:
    n = len(pixels)
    return ImageSet(
        name="made",
        ids=tuple(ids or [f"i{i}" for i in range(n)]),
        labels=None if labels is None else np.asarray(labels, dtype=np.int64),
        classes=("a", "b", "c"),
        spec=SPEC,
        pixels=np.asarray(pixels, dtype=np.uint8),
        rows=np.arange(n),
    )


def line_of(values, labels) -> ImageSet:
    """Images whose embedding is their grey value: distances can be worked out by hand."""
    return images(
        np.broadcast_to(np.array(values)[:, None, None, None], (len(values), 1, 4, 4)).copy(), labels
    )


@pytest.fixture(scope="module")
def embedder():
    torch.manual_seed(0)
    return wrap(nn.Sequential(nn.Flatten(), nn.Linear(16, 6)), SPEC)


@pytest.fixture(scope="module")
def grey():
    class Mean(nn.Module):
        def forward(self, x):
            return x.mean((1, 2, 3))[:, None] * 255

    return wrap(Mean(), SPEC)


def many(n: int = 700) -> ImageSet:
    rng = np.random.default_rng(0)
    return images(rng.integers(0, 256, (n, 1, 4, 4)), rng.integers(0, 3, n))


def test_numbers_by_hand(tmp_path, grey):
    done = evaluate(grey, line_of([0, 10, 11, 30], [0, 1, 0, 1]), tmp_path, ks=(1, 2, 3))
    columns = done.rows.columns
    # i0: b at 10, a at 11, b at 30; i1: a at 1, a at 10, b at 20; i2: b at 1, a at 11, b at 19; i3: a, b, a
    assert columns["first_rank"].tolist() == [2, 3, 2, 2]
    assert columns["hits"][0] == ["i1", "i2", "i3"]
    np.testing.assert_allclose(columns["hit_distances"][1], [1, 10, 20], rtol=1e-5)
    assert done.summary.hit_rate == {1: 0.0, 2: 0.75, 3: 1.0}
    assert done.summary.map == pytest.approx((0.5 + 1 / 3 + 0.5 + 0.5) / 4)
    assert json.loads((tmp_path / "summary.json").read_text())["hit_rate"]["2"] == 0.75


def test_an_image_never_finds_itself(tmp_path, embedder):
    done = evaluate(embedder, many(), tmp_path)
    for query, hits in zip(done.rows.columns["query"], done.rows.columns["hits"], strict=True):
        assert query not in hits


def test_drawn_queries_and_candidates_are_disjoint(tmp_path, embedder):
    done = evaluate(embedder, many(), tmp_path, queries=50, candidates=100, seed=4)
    asked = set(done.rows.columns["query"])
    found = {hit for hits in done.rows.columns["hits"] for hit in hits}
    assert len(asked) == 50
    assert len(found) <= 100
    assert not asked & found
    again = evaluate(embedder, many(), tmp_path / "again", queries=50, candidates=100, seed=4)
    assert (tmp_path / "rows.csv.gz").read_bytes() == (again.folder / "rows.csv.gz").read_bytes()


def test_stopped_evaluation_resumes_to_the_same_rows(tmp_path, embedder, monkeypatch, killed_at):
    whole = evaluate(embedder, many(), tmp_path / "whole")
    with killed_at(2):
        evaluate(embedder, many(), tmp_path / "stopped")
    embedded = []
    monkeypatch.setattr(type(embedder), "embed", lambda self, images: embedded.append(1))
    resumed = evaluate(embedder, many(), tmp_path / "stopped")
    assert not embedded, "vectors that were there were computed again"
    assert (resumed.folder / "rows.csv.gz").read_bytes() == (whole.folder / "rows.csv.gz").read_bytes()
    assert {p.name for p in resumed.folder.iterdir()} == {
        ".lock",
        "rows.csv.gz",
        "pictures.zip",
        "summary.json",
    }


def test_embeddings_cut_in_the_middle_are_completed(tmp_path, embedder, monkeypatch):
    whole = evaluate(embedder, many(), tmp_path / "whole")
    monkeypatch.setattr(run_module, "_write_rows", lambda *rest: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        evaluate(embedder, many(), tmp_path / "cut")
    monkeypatch.undo()
    (cache,) = (tmp_path / "cut").glob("vectors-*.part")
    cache.write_bytes(cache.read_bytes()[: 600 * 24 + 5])
    evaluate(embedder, many(), tmp_path / "cut")
    assert (tmp_path / "cut" / "rows.csv.gz").read_bytes() == (whole.folder / "rows.csv.gz").read_bytes()


@pytest.mark.parametrize("step", [(run_module, "save_pictures"), (folder_module, "atomic_write")])
def test_a_kill_before_the_end_leaves_an_evaluation_that_completes(tmp_path, embedder, monkeypatch, step):
    def dies(*rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(*step, dies)
    with pytest.raises(KeyboardInterrupt):
        evaluate(embedder, many(), tmp_path)
    monkeypatch.undo()
    evaluate(embedder, many(), tmp_path)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {".lock", "rows.csv.gz", "pictures.zip", "summary.json"}


def test_other_pixels_under_the_same_names_are_another_evaluation(tmp_path, embedder):
    evaluate(embedder, many(), tmp_path)
    changed = images(255 - many().pixels, many().labels)
    with pytest.raises(ConfigError, match="another model or setting"):
        evaluate(embedder, changed, tmp_path)


def test_finished_evaluation_is_read_back_or_refused(tmp_path, embedder, grey):
    first = evaluate(embedder, many(), tmp_path)
    assert evaluate(embedder, many(), tmp_path).summary == first.summary == read_evaluation(tmp_path).summary
    with pytest.raises(ConfigError, match="another model or setting"):
        evaluate(grey, many(), tmp_path)


def test_bad_input(tmp_path, embedder):
    with pytest.raises(DataError, match="needs labels"):
        evaluate(embedder, images(np.zeros((3, 1, 4, 4)), None), tmp_path / "a")
    with pytest.raises(ConfigError, match="both"):
        evaluate(embedder, many(), tmp_path / "a", candidates=3)
    with pytest.raises(DataError, match="ask for fewer"):
        evaluate(embedder, many(10), tmp_path / "a", queries=9, candidates=9)
    with pytest.raises(DataError, match="two images"):
        evaluate(embedder, many(1), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_pictures_of_the_worst_are_kept(tmp_path, grey):
    done = evaluate(grey, line_of([0, 10, 11, 30, 31, 90], [0, 1, 0, 1, 1, 2]), tmp_path)
    assert worst_queries(done.rows, 2).tolist() == [1, 0]
    pictures = load_pictures(tmp_path)
    shown = {done.rows.columns["query"][i] for part in sheet(done.rows).values() for i in part}
    assert shown <= set(pictures)
    assert data.decode(pictures["i3"], None).tolist() == np.full((1, 4, 4), 30).tolist()


def test_queries_alone_are_asked_against_all_the_rest(embedder, tmp_path):
    done = evaluate(embedder, many(30), tmp_path / "some", queries=4, ks=(1,))
    assert len(done.rows) == 4
    assert (done.rows.columns["relevant"] <= 26).all()
    again = evaluate(embedder, many(30), tmp_path / "named", queries=4, candidates=26, ks=(1,))
    for name in ("query", "first_rank", "relevant"):
        assert (done.rows.columns[name] == again.rows.columns[name]).all()
