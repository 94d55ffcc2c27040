"""Defences that train on bounds: their losses by the definitions, and what training with them does to the bounds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast import data, models
from holdfast.bounds import Box, distance_bounds, image_box, interval_bounds, trace
from holdfast.errors import CheckpointError
from holdfast.models import to_unit
from holdfast.training import parse, train
from holdfast.training.defences import Batch, Moment, build_defence
from holdfast.training.defences.bounded import initialise
from holdfast.training.losses import distances

MINI = {"name": "fashion-mnist-mini", "validation": 0}


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def tbt(tmp_path_factory):
    config = parse(
        {
            "data": MINI,
            "defence": {"name": "tbt", "eps": 0.01, "kappa": 0.9, "ramp_start": 0.1, "ramp_end": 0.5},
            "train": {"steps": 80, "batch": 40},
        }
    )
    return train(config, tmp_path_factory.mktemp("tbt") / "run", say=quiet)


def looseness(embedder, images, eps=0.01) -> float:
    """Mean gap between upper and lower distances: what Eq. 20 and 21 make small."""
    with torch.no_grad():
        box = interval_bounds(trace(embedder), image_box(images, eps, clip=False))
        vectors = embedder(images)
        upper, lower = distance_bounds(box, vectors)
        return float((upper - lower).mean())


def test_tbt_tightens_the_bounds(tbt):
    images = to_unit(data.load("fashion-mnist-mini").test.batch(range(60)))
    plain = models.build("small", spec=tbt.embedder.spec).eval()
    assert looseness(tbt.embedder, images) < 0.5 * looseness(plain, images)
    with torch.no_grad():
        assert distances(tbt.embedder(images)).mean() > 0.1, "it has not collapsed to get there"


def test_tbt_loss_is_equation_20(tbt):
    """κ·T + (1 − κ)·ΣReg for the triplets that were drawn, worked out pair by pair."""
    options = parse({"defence": {"name": "tbt", "eps": 0.05, "kappa": 0.3}}).defence
    defence = build_defence(options, 10)
    images = to_unit(data.load("fashion-mnist-mini").train.batch(range(6)))
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    torch.manual_seed(1)
    got = defence.terms(tbt.embedder, Batch(images, labels), Moment(99, 100)).loss.item()
    from holdfast.training.losses import random_triplets

    torch.manual_seed(1)
    triplets = list(zip(*(t.tolist() for t in random_triplets(labels)), strict=True))
    with torch.no_grad():
        z = tbt.embedder(images).double()
        box = interval_bounds(trace(tbt.embedder), image_box(images, 0.05, clip=False)).to(torch.float64)
    upper, lower = distance_bounds(box, z)

    def reg(a: int, x: int) -> float:
        d = (z[a] - z[x]).norm()
        return float(max(abs(d - upper[a, x]), abs(d - lower[a, x])))

    hinge = [max(0.0, float((z[a] - z[p]).norm() - (z[a] - z[n]).norm() + 1.0)) for a, p, n in triplets]
    slack = [reg(a, p) + reg(a, n) for a, p, n in triplets]
    assert got == pytest.approx(0.3 * sum(hinge) / len(hinge) + 0.7 * sum(slack) / len(slack), rel=1e-4)


def test_fctb_fine_tunes_a_run_to_the_candidates(tbt, tmp_path):
    defence = {
        "name": "fctb",
        "start": str(tbt.folder),
        "eps": 0.01,
        "kappa": 0.5,
        "queries": 100,
        "candidates": 200,
    }
    config = parse({"data": MINI, "defence": defence, "train": {"steps": 40, "batch": 40, "lr": 3e-5}})
    tuned = train(config, tmp_path / "run", say=quiet)
    photos = data.load("fashion-mnist-mini").test
    _, found = data.draw(photos, 100, 200, 0)
    candidates = to_unit(photos.batch(found))
    assert looseness(tuned.embedder, candidates) < looseness(tbt.embedder, candidates)
    with torch.no_grad():
        moved = (tuned.embedder(candidates) - tbt.embedder(candidates)).norm(dim=1).mean()
        apart = distances(tbt.embedder(candidates)).mean()
    assert 0 < moved < 0.5 * apart, "the features stay near those before"
    bad = parse(
        {"data": MINI, "defence": {**defence, "start": str(tmp_path / "none")}, "train": {"steps": 1}}
    )
    with pytest.raises(CheckpointError):
        train(bad, tmp_path / "bad", say=quiet)


def test_certified_margin_counts_exactly_the_pairs_that_are_certified():
    """M > 0 says the same as the sign of the worst difference of squared distances over the anchor's box."""
    defence = build_defence(parse({"defence": {"name": "certified-margin", "eps": 0.1}}).defence, 3)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 5)).eval()
    images, labels = torch.rand(8, 1, 4, 4), torch.arange(8) % 2
    torch.manual_seed(3)
    got = defence.terms(net, Batch(images, labels), Moment(99, 100)).logs["certified_pairs"]
    from holdfast.training.losses import random_triplets

    torch.manual_seed(3)
    z = net(images)
    box: Box = interval_bounds(trace(net), image_box(images, 0.1, clip=False))
    sure = []
    for a, p, n in zip(*(t.tolist() for t in random_triplets(labels)), strict=True):
        worst = box.centre[a] + box.radius[a] * (z[n] - z[p]).sign()
        sure.append(float((worst - z[n]).norm() > (worst - z[p]).norm()))
    assert got == pytest.approx(sum(sure) / len(sure))


def test_boxes_too_wide_to_certify_are_said(tmp_path):
    config = parse(
        {
            "data": {"name": "fashion-mnist-mini", "validation": 0},
            "defence": {"name": "certified-rank", "eps": 0.5, "ramp_start": 0, "ramp_end": 0, "boxes": 20},
            "train": {"steps": 4, "batch": 60, "log_every": 1},
        }
    )
    said: list[str] = []
    train(config, tmp_path / "run", say=said.append)
    assert sum("the boxes are larger" in line for line in said) == 1


@pytest.mark.parametrize("name", ["c-ibp", "tbt", "certified-margin", "certified-rank"])
def test_eps_can_grow_slowly_at_first(name):
    table = {"name": name, "eps": 0.7, "ramp_start": 0.2, "ramp_end": 0.7, "ramp": "smooth"}
    if name == "certified-rank":
        table["small_share"] = 0.0
    defence = build_defence(
        parse({"defence": {**table, **({"dim": 5} if name == "c-ibp" else {})}}).defence, 3
    )
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 5))
    given = Batch(torch.rand(30, 1, 4, 4), torch.arange(30) % 3)
    seen = [defence.terms(net, given, Moment(step, 100)).logs["eps"] for step in (0, 20, 30, 40, 55, 70, 99)]
    assert seen == pytest.approx([0.0, 0.0, 1 / 160, 0.1, 0.4, 0.7, 0.7])


def test_ibp_initialisation_keeps_boxes_from_growing():
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(300, 300), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(300, 300)).eval()
    box = Box(torch.zeros(1, 300), torch.ones(1, 300))
    wide = interval_bounds(trace(net), box).radius.mean()
    initialise(net)
    tight = interval_bounds(trace(net[:-1]), box).radius.mean()
    assert 0.1 < tight < 10 < wide
