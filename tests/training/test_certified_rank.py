"""The options of certified-rank: each term against its definition, worked out one by one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from holdfast.bounds import Box, distance_bounds, image_box, interval_bounds, trace
from holdfast.bounds.interval import all_boxes, before_kinks
from holdfast.errors import ConfigError
from holdfast.training import parse
from holdfast.training.defences import Batch, Moment, build_defence
from holdfast.training.defences.certified_margin import spread
from holdfast.training.defences.certified_rank import CertifiedRank
from holdfast.training.defences.regularisers import balance, tightness

EPS = 0.1
LATE = Moment(99, 100)


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Linear(16, 6)
    )


def batch() -> Batch:
    torch.manual_seed(1)
    return Batch(torch.rand(20, 1, 8, 8), torch.arange(20) % 4)


def defence(**options) -> CertifiedRank:
    table = {"name": "certified-rank", "eps": EPS, "boxes": 8, "small_share": 0.0, "clean": 0.0, **options}
    built = build_defence(parse({"defence": table}).defence, 4)
    assert isinstance(built, CertifiedRank)
    return built


def log_rank(upper, lower, size, row, own, labels, width, o) -> float | None:
    """One row of the loss, in a loop: `row` is a list of pairs of matrix places."""
    right = [place for place in row if labels(place) == own]
    if not right:
        return None
    nearest = min(right, key=lambda place: upper[place].item())
    r = size(nearest)
    ref = r + o.nearer * (upper[nearest].item() - r)
    every, other = 0.0, 0.0
    for place in row:
        if place == nearest:
            continue
        ahead = 1 / (1 + math.exp(min(500.0, -(ref - lower[place].item()) / width)))
        every += ahead
        other += 0.0 if labels(place) == own else ahead
    return (1 - o.others) * math.log(o.offset + every) + o.others * math.log(o.offset + other)


def ranks_in_loops(box: Box, plain, labels, width, o) -> float:
    """½ query + ½ candidate attacks by the definition in the class's docstring."""
    upper, lower = distance_bounds(box, plain)
    norms = box.radius.norm(dim=1).tolist()
    boxes, others = range(len(box)), range(len(plain))
    rows = [
        log_rank(upper, lower, lambda p: norms[p[0]], [(i, j) for j in others], labels[i],
                 lambda p: labels[len(box) + p[1]], width, o)
        for i in boxes
    ]  # fmt: skip
    columns = [
        log_rank(upper, lower, lambda p: norms[p[0]], [(i, j) for i in boxes], labels[len(box) + j],
                 lambda p: labels[p[0]], width, o)
        for j in others
    ]  # fmt: skip
    means = [
        sum(found) / len(found) for found in ([v for v in part if v is not None] for part in (rows, columns))
    ]
    return 0.5 * sum(means)


def parts(net: nn.Module, images, plain, eps: float):
    with torch.no_grad():
        box = interval_bounds(trace(net), image_box(images, eps, clip=False))
        vectors = net(plain)
        return box, vectors, spread(torch.cat([box.centre, vectors])).item()


def test_the_loss_is_the_mean_log_rank_of_both_attacks():
    net, given, built = network(), batch(), defence()
    box, plain, scale = parts(net, given.images[:8], given.images[8:], EPS)
    labels = given.labels.tolist()
    expected = ranks_in_loops(box, plain, labels, 0.01 * scale, built.options) + 0.01 * math.log(scale) ** 2
    assert built.terms(net, given, LATE).loss.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_attacked_images_have_their_share_of_the_loss(share, monkeypatch):
    net, given, built = network(), batch(), defence(attacked=share)
    moved = (given.images[:8] + EPS * torch.randn(8, 1, 8, 8).sign()).clamp(0, 1)
    monkeypatch.setattr(built, "perturbed", lambda embedder, images, goal, search: moved)
    box, plain, scale = parts(net, given.images[:8], given.images[8:], EPS)
    point = Box(net(moved).detach(), torch.zeros(8, 6))
    labels, width = given.labels.tolist(), 0.01 * scale
    bounded, hit = (ranks_in_loops(b, plain, labels, width, built.options) for b in (box, point))
    terms = built.terms(net, given, LATE)
    expected = (1 - share) * bounded + share * hit + 0.01 * math.log(scale) ** 2
    assert terms.loss.item() == pytest.approx(expected, rel=1e-4)
    assert terms.logs["attacked"] == pytest.approx(hit, rel=1e-4)


def test_small_boxes_lie_around_attacked_images(monkeypatch):
    net, given, built = network(), batch(), defence(box_share=0.3)
    found = []
    search = built.perturbed

    def noting(embedder, images, goal, search_):
        found.append((search(embedder, images, goal, search_), search_.eps))
        return found[-1][0]

    monkeypatch.setattr(built, "perturbed", noting)
    terms = built.terms(net, given, LATE)
    ((moved, within),) = found
    assert within == pytest.approx(0.7 * EPS)
    assert (moved - given.images[:8]).abs().max() <= 0.7 * EPS + 1e-6, (
        "box and shift together stay within eps"
    )
    box, plain, scale = parts(net, moved, given.images[8:], 0.3 * EPS)
    labels = given.labels.tolist()
    expected = ranks_in_loops(box, plain, labels, 0.01 * scale, built.options) + 0.01 * math.log(scale) ** 2
    assert terms.loss.item() == pytest.approx(expected, rel=1e-4)


def test_the_search_brings_wrong_items_nearer_than_right_ones():
    net, given, built = network(), batch(), defence(attack_steps=10)
    plain = net(given.images[8:]).detach()
    same = given.labels[:8, None] == given.labels[None, 8:]
    moved = built._moved(net, given.images[:8], plain, same, EPS)
    assert (moved - given.images[:8]).abs().max() <= EPS + 1e-6
    assert moved.min() >= 0
    assert moved.max() <= 1

    def margin(images) -> torch.Tensor:
        distance = torch.cdist(net(images), plain)
        return torch.where(same, torch.inf, distance).amin(1) - torch.where(same, distance, torch.inf).amin(1)

    torch.manual_seed(0)
    random = (given.images[:8] + EPS * torch.randn(8, 1, 8, 8).sign()).clamp(0, 1)
    assert (margin(moved) < margin(given.images[:8])).all()
    assert margin(moved).mean() < margin(random).mean()


def test_a_budget_of_gradients_counts_the_search():
    assert defence().gradients(20) == 20
    late = {"attack_steps": 3, "ramp_start": 0.25, "ramp_end": 0.5}
    assert defence(box_share=0.5, **late).gradients(20) == 20 + 0.75 * 8 * 3
    assert defence(attacked=0.5, **late).gradients(20) == 20 + 0.75 * 8 * 4


def test_regularisers_are_those_of_shi_et_al():
    """Against loops over layers and numbers, on boxes with numbers of every kind; the ramp takes them away."""
    ramp = {"eps": 0.02, "ramp_start": 0.0, "ramp_end": 0.5}
    net, given, built = network(), batch(), defence(regularise=0.5, **ramp)
    eps = 0.4 * 0.02  # at 20 of 100 steps of a ramp of 50
    boxes = all_boxes(trace(net), image_box(given.images[:8], eps, clip=False), rounding=False)
    before = before_kinks(trace(net), boxes)
    assert [box.centre.shape[1:] for box in before] == [(4, 6, 6), (16,)]

    def short(ratio: float) -> float:
        return max(0.0, 0.5 - ratio) / 0.5

    tight, even = [], []
    for box in before:
        centres, radii = box.centre.flatten().tolist(), box.radius.flatten().tolist()
        tight.append(short(eps / (sum(radii) / len(radii))))
        mean = sum(centres) / len(centres)
        up = [c for c, r in zip(centres, radii, strict=True) if c - r > 0]
        down = [c for c, r in zip(centres, radii, strict=True) if c + r < 0]
        assert up
        assert down
        pairs = [
            (sum(up), -sum(down)),
            (sum((c - mean) ** 2 for c in up), sum((c - mean) ** 2 for c in down)),
        ]
        even.append(sum(short(min(pair) / max(pair)) for pair in pairs))
    assert 0 < tightness(boxes[0], before).item() == pytest.approx(sum(tight) / 2, rel=1e-4)
    assert 0 < balance(before).item() == pytest.approx(sum(even) / 2, rel=1e-3)

    at = Moment(20, 100)
    with_them, without = (d.terms(net, given, at) for d in (built, defence(**ramp)))
    extra = (sum(tight) + sum(even)) / 2
    assert with_them.logs["regularisers"] == pytest.approx(extra, rel=1e-3)
    assert (with_them.loss - without.loss).item() == pytest.approx(0.5 * (1 - 0.4) * extra, rel=1e-3)
    after = built.terms(net, given, Moment(50, 100))
    assert "regularisers" not in after.logs
    assert "regularisers" not in built.terms(net, given, Moment(0, 100)).logs


@pytest.mark.parametrize("centres", [[-2.0, -1.0], [1.0, 2.0], [0.1, -0.1]])
def test_a_layer_with_neurons_of_one_kind_is_out_of_balance_and_stays_finite(centres):
    centre = torch.tensor([centres], requires_grad=True)
    value = balance([Box(centre, torch.full((1, 2), 0.5))])
    assert value.item() == 2.0
    (gradient,) = torch.autograd.grad(value, centre, allow_unused=True, materialize_grads=True)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"attacked": 0.5, "box_share": 0.5}, "two ways to mix attacks in"),
        ({"attacked": 1.5}, "defence.attacked"),
        ({"box_share": 0.0}, "defence.box_share"),
        ({"attack_steps": 0}, "defence.attack_steps"),
        ({"regularise": -1.0}, "defence.regularise"),
    ],
)
def test_options_that_make_no_sense_are_one_line(options, says):
    with pytest.raises(ConfigError, match=says) as refused:
        parse({"defence": {"name": "certified-rank", **options}})
    assert "\n" not in str(refused.value)
