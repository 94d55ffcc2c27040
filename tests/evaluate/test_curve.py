"""The largest certified eps of each query: proved by direct certification, never above clean; resumable."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast import data
from holdfast.errors import ConfigError, DataError
from holdfast.evaluate import curve as module
from holdfast.evaluate import load_pictures
from holdfast.evaluate.certify import certify
from holdfast.evaluate.curve import GRID, certified_curve, proofs, read_curve
from holdfast.models import to_unit
from holdfast.threat import Threat

SETTINGS = {"queries": 24, "candidates": 150, "ks": (1, 5, 20)}


@pytest.fixture(scope="module")
def done(trained, photos, tmp_path_factory):
    return certified_curve(trained, photos, tmp_path_factory.mktemp("curve"), **SETTINGS)


def test_the_curve_is_what_direct_certification_says(trained, photos, done, tmp_path):
    """At an eps on the grid each row's claim is that of `certify`, query by query and hit by hit."""
    for number, eps in enumerate(GRID[:5]):
        direct = certify(
            trained, photos, tmp_path / str(eps), [Threat.parse(f"query:linf:{eps}")], **SETTINGS
        ).rows.columns
        mine = done.rows.columns
        assert direct["query"].tolist() == mine["query"].tolist()
        assert direct["hits"].tolist() == mine["hits"].tolist()
        assert [worst[number] for worst in mine["worst"]] == direct["worst"].tolist()
        assert [best[number] for best in mine["best"]] == direct["best"].tolist()
        for k in (1, 5, 20):
            assert mine[f"recall_{k}"].tolist() == direct[f"recall_{k}"].tolist()
            sure, proved = mine[f"eps_{k}"] >= eps, direct[f"hit_{k}"].astype(bool)
            assert (sure <= proved).all()
            # Above K = 10 `certify` looks at more hits.
            assert (sure == proved).all() or k > 10
        for sizes, worst in zip(mine["hit_eps"], direct["worst"], strict=True):
            assert all(w <= 10 for size, w in zip(sizes, worst, strict=True) if size >= eps)
            assert all(w > 10 for size, w in zip(sizes, worst, strict=True) if size < eps)


def test_certified_falls_with_eps_and_lies_below_clean(done):
    assert max(line.certified[1] for line in done.table) > 0.1, "nothing was certified"
    for line in done.table:
        assert line.eps == GRID
        assert line.clean >= line.certified[0]
        assert list(line.certified) == sorted(line.certified, reverse=True)
        largest = done.rows.columns[f"eps_{line.k}"]
        assert (largest >= line.median).mean() >= 0.5
        assert not (largest > line.median).mean() > 0.5
        assert all(
            low <= rate <= high for rate, (low, high) in zip(line.certified, line.interval, strict=True)
        )
        right = done.rows.columns[f"recall_{line.k}"].astype(bool)
        assert (largest[~right] == -1).all()


def test_no_attack_at_the_largest_eps_removes_the_right_hits(trained, photos, done):
    """Random corners and signed gradients of exactly the size that each query was certified for."""
    asked, found = data.draw(photos, 24, 150, 0)
    queries, vectors = to_unit(photos.batch(asked)), trained.embed(to_unit(photos.batch(found))).double()
    same = torch.from_numpy(photos.labels[asked])[:, None] == torch.from_numpy(photos.labels[found])[None]
    generator = torch.Generator().manual_seed(0)
    for k in (1, 5, 20):
        largest = torch.from_numpy(done.rows.columns[f"eps_{k}"]).float()
        sure = largest > 0
        assert sure.sum() > 5 or k == 1
        size = largest.clamp(min=0).view(-1, 1, 1, 1)
        x = queries.clone().requires_grad_(True)
        distance = torch.cdist(trained(x), vectors.float())
        lead = torch.where(same, distance, torch.inf).amin(1) - torch.where(same, torch.inf, distance).amin(1)
        (gradient,) = torch.autograd.grad(lead.sum(), x)
        moves = [gradient.sign(), *(torch.randn(x.shape, generator=generator).sign() for _ in range(5))]
        for move in moves:
            altered = (queries + size * move).clamp(0, 1)
            order = torch.cdist(trained.embed(altered).double(), vectors).argsort(1)
            assert same.gather(1, order[:, :k]).any(1)[sure].all()


def test_stopped_and_resumed_it_is_the_same(trained, photos, done, tmp_path, monkeypatch, killed_at):
    monkeypatch.setattr(module, "BLOCK", 10)
    with killed_at(2):
        certified_curve(trained, photos, tmp_path, **SETTINGS)
    again = certified_curve(trained, photos, tmp_path, **SETTINGS)
    for name, column in done.rows.columns.items():
        assert column.tolist() == again.rows.columns[name].tolist(), name
    assert read_curve(tmp_path).table == done.table == again.table
    with pytest.raises(ConfigError, match="another model or setting"):
        certified_curve(trained, photos, tmp_path, **{**SETTINGS, "seed": 1})


def test_the_weakest_proofs_are_of_right_answers_and_have_their_pictures(done):
    shown, columns = proofs(done.rows), done.rows.columns
    weakest, strongest = shown["weakest"], shown["strongest"]
    right = columns["recall_5"].astype(bool)
    assert right[weakest].all()
    assert not set(weakest) & set(strongest)
    rest = np.setdiff1d(np.flatnonzero(right), weakest)
    assert columns["eps_5"][weakest].max() <= columns["eps_5"][rest].min()
    assert columns["eps_5"][strongest].tolist() == sorted(columns["eps_5"][right])[: -len(strongest) - 1 : -1]
    wanted = {columns["query"][i] for part in shown.values() for i in part}
    wanted |= {hit for part in shown.values() for i in part for hit in columns["hits"][i]}
    assert set(load_pictures(done.folder)) == wanted


def test_elided_reaches_at_least_as_far(trained, photos, done, tmp_path):
    elided = certified_curve(trained, photos, tmp_path, method="last-layer", **SETTINGS)
    for k in (1, 5, 20):
        assert (elided.rows.columns[f"eps_{k}"] >= done.rows.columns[f"eps_{k}"]).all()


def test_bad_input(trained, photos, tmp_path):
    for text in ("candidates:linf:auto", "l2:auto", "linf:0.1"):
        with pytest.raises(ConfigError, match="query:linf:auto"):
            certified_curve(trained, photos, tmp_path / "x", Threat.parse(text), **SETTINGS)
    with pytest.raises(ConfigError, match="K lies between"):
        certified_curve(trained, photos, tmp_path / "x", queries=5, candidates=9, ks=(1, 10))
    unlabelled = data.ImageSet(
        "flat", photos.ids[:20], None, (), photos.spec, photos.pixels, photos.rows[:20]
    )
    with pytest.raises(DataError, match="needs labels"):
        certified_curve(trained, unlabelled, tmp_path / "x", **SETTINGS)
    assert not (tmp_path / "x").exists()
