"""The defence `class-code`: its loss by the definition, and what a run of it makes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from holdfast import data, models
from holdfast.bounds import Box, image_box, interval_bounds, trace
from holdfast.errors import ConfigError, HoldfastError
from holdfast.models import ClassCode, to_unit
from holdfast.models.parts import head_of
from holdfast.training import parse, train
from holdfast.training.defences import Batch, Moment, build_defence
from holdfast.training.defences.class_code import fine_loss, worst_scores

MINI = {"name": "fashion-mnist-mini", "validation": 0.1}


def quiet(line: str) -> None:
    pass


def config(**defence):
    return parse(
        {
            "data": MINI,
            "defence": {"name": "class-code", "eps": 0.02, **defence},
            "train": {"steps": 60, "batch": 40},
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(config(fine=3), tmp_path_factory.mktemp("code") / "run", say=quiet)


@pytest.mark.parametrize("bias", [True, False])
def test_worst_scores_are_reached_and_never_passed(bias):
    chance = torch.Generator().manual_seed(0)
    box = Box(torch.randn(6, 5, generator=chance), torch.rand(6, 5, generator=chance))
    weight, labels = torch.randn(4, 5, generator=chance), torch.tensor([0, 3, 1, 3, 0, 2])
    shift = torch.randn(4, generator=chance) if bias else None
    found = worst_scores(box, weight, shift, labels)
    for i, label in enumerate(labels.tolist()):
        best = torch.full((4,), -torch.inf)
        for corner in range(32):
            sides = torch.tensor([1.0 if corner >> bit & 1 else -1.0 for bit in range(5)])
            z = functional.linear(box.centre[i] + sides * box.radius[i], weight, shift)
            best = torch.maximum(best, z - z[label])
        assert torch.allclose(found[i], best, atol=1e-5)
        assert found[i, label] == 0


def test_the_loss_is_a_mix_of_clean_and_worst_scores():
    torch.manual_seed(3)
    embedder = models.build("small", spec=(1, 12, 12), dim=4)
    defence = build_defence(config(fine=0, eps=0.1, kappa=0.25).defence, 3)
    images, labels = torch.rand(8, 1, 12, 12), torch.arange(8) % 3
    found = defence.terms(embedder, Batch(images, labels), Moment(9, 10))
    scores = embedder(images)[:, :3]
    clean = functional.cross_entropy(scores, labels)
    torch.testing.assert_close(found.embeddings, scores)
    body, _ = trace(embedder, as_is=True).without_last()
    box, last = interval_bounds(body, image_box(images, 0.1)), head_of(embedder)
    worst = worst_scores(box, last.weight[:3], last.bias[:3], labels)
    expected = 0.25 * clean + 0.75 * functional.cross_entropy(worst, labels)
    torch.testing.assert_close(found.loss, expected)
    at_first = defence.terms(embedder, Batch(images, labels), Moment(0, 10))
    torch.testing.assert_close(at_first.loss, clean)
    # No step reaches the output that stays 0.
    found.loss.backward()
    assert last.weight.grad[3].abs().max() == 0
    assert last.weight.grad[:3].abs().max() > 0


def test_the_fine_part_is_wrong_by_how_far_its_distances_are_off():
    images = torch.zeros(3, 1, 7, 7)
    images[1, 0, 0, 0], images[2, 0, 0, 0] = 1.0, 3.0
    labels = torch.zeros(3, dtype=torch.long)
    # Distances 1, 2, 3 with mean 2; directions at right angles are √2 apart, opposite ones 2.
    fine = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    wanted = ((2**0.5 - 0.5) ** 2 + (2**0.5 - 1) ** 2 + (2 - 1.5) ** 2) / 3
    assert fine_loss(fine, images, labels).item() == pytest.approx(wanted, abs=1e-5)
    assert fine_loss(2 * fine, images, labels).item() == pytest.approx(wanted + 1, abs=1e-5)
    # Images of different classes are not compared.
    assert fine_loss(fine, images, torch.arange(3)).item() == 0


def test_a_run_makes_a_two_sided_embedder(run):
    embedder = run.embedder
    assert embedder.candidate_side == ClassCode(10, 1.0, 3, 0.3)
    assert embedder.dim == 14
    assert not embedder.unit_norm
    images = to_unit(data.load("fashion-mnist-mini").test.batch(range(20)))
    assert embedder.embed(images)[:, 10].abs().max() == 0
    again = models.load(run.folder)
    assert torch.equal(again.embed_candidates(images), embedder.embed_candidates(images))
    assert run.metrics["hit_rate_1"] > 0.4
    again_config = parse({"defence": {"name": "class-code", "eps": 0.02, "fine": 3}})
    assert again_config.defence.temperature == run.config.defence.temperature


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ({"unit_norm": True}, "leave the normalisation off"),
        ({"dim": 128}, "leave model.dim out"),
        ({"options": {"activation": "relu"}}, "ends with a linear layer"),
        ({"options": {"candidate_side": None}}, "is not one of them"),
    ],
)
def test_networks_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, model, why):
    wanted = parse({"data": MINI, "model": model, "defence": {"name": "class-code"}, "train": {"steps": 2}})
    with pytest.raises(HoldfastError, match=why):
        train(wanted, tmp_path / "run", say=quiet)
    assert not (tmp_path / "run").exists()


def test_classes_that_are_not_trained_are_refused(tmp_path):
    """An open split asks about classes that have no score."""
    wanted = parse({"data": {**MINI, "split": "open"}, "defence": {"name": "class-code"}})
    with pytest.raises(ConfigError, match=r"closed set of classes.*set data\.split=closed"):
        train(wanted, tmp_path / "run", say=quiet)
    assert not (tmp_path / "run").exists()


def test_mixed_keeps_the_side_of_its_part():
    options = {"name": "mixed", "parts": [{"name": "class-code"}, {"name": "triplet"}], "weights": [1.0, 1.0]}
    made = build_defence(parse({"defence": options}).defence, 5)
    assert made.candidate_side is not None
    assert made.dim == made.candidate_side.dim


def test_layers_behind_the_last_linear_one_are_refused():
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU())
    defence = build_defence(config(fine=0).defence, 4)
    with pytest.raises(ConfigError, match="ends with a linear layer"):
        defence.prepare(network)
