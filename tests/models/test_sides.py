"""Embedders with a candidate side: what it computes, what it means for a ranking, its bounds, its card."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from holdfast.errors import CheckpointError, ModelError
from holdfast.models import ClassCode, Smoothed, build, load, save, under_metric, wrap
from holdfast.models.sides import side_of
from holdfast.spec import ImageSpec

CODE = ClassCode(3, 0.5)
FINE = ClassCode(3, 0.5, fine=2, weight=0.4)


def network(side: ClassCode, seed: int = 0) -> nn.Module:
    """A last layer whose output after the scores stays 0."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, side.dim))
    with torch.no_grad():
        layers[3].weight.mul_(4)
        layers[3].weight[side.classes].zero_()
        layers[3].bias[side.classes].zero_()
    return layers.eval()


def coded(side: ClassCode, seed: int = 0):
    return wrap(network(side, seed), ImageSpec(1, 4, 4), candidate_side=side)


def test_the_candidate_is_the_softmax_and_what_makes_it_of_length_one():
    z = torch.tensor([[1.0, 2.0, -1.0, 0.0]])
    p = torch.exp(z[0, :3] * 2) / torch.exp(z[0, :3] * 2).sum()
    found = CODE(z)[0]
    assert torch.allclose(found[:3], p, atol=1e-6)
    assert found[3].item() == pytest.approx((1 - float(p.square().sum())) ** 0.5, abs=1e-6)
    one = FINE(torch.tensor([[1.0, 2.0, -1.0, 0.0, 3.0, -4.0]]))[0]
    assert torch.allclose(one[:4], found)
    assert torch.allclose(one[4:], 0.4 * torch.tensor([0.6, -0.8]))


def test_certain_codes_and_no_fine_part_have_finite_gradients():
    z = torch.tensor([[900.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]], requires_grad=True)
    found = FINE(z)
    assert torch.equal(found[0].detach(), torch.tensor([1.0, 0, 0, 1e-15, 0, 0]))
    (gradient,) = torch.autograd.grad(found.sum(), z)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("side", [CODE, FINE])
def test_the_nearest_has_the_largest_product(side):
    embedder = coded(side)
    images, pool = torch.rand(20, 1, 4, 4), torch.rand(40, 1, 4, 4)
    z, c = embedder.embed(images).double(), embedder.embed(pool).double()
    scores = z[:, :3] @ torch.softmax(c[:, :3] / side.temperature, 1).T
    if side.fine:
        scores = scores + side.weight * z[:, 4:] @ torch.nn.functional.normalize(c[:, 4:], dim=1).T
    away = torch.cdist(z, embedder.embed_candidates(pool).double())
    assert torch.equal(away.argsort(1)[:, :5], scores.argsort(1, descending=True)[:, :5])
    squared = away.square()
    # ‖q − c‖² = ‖q‖² + ‖c‖² − 2⟨q, c⟩ with ‖c‖² the same for all.
    assert torch.allclose(squared - squared[:, :1], -2 * (scores - scores[:, :1]), atol=1e-4)


@pytest.mark.parametrize("side", [CODE, FINE])
@pytest.mark.parametrize("size", [0.0, 0.01, 0.5, 3.0, 40.0])
def test_bounds_hold_what_is_stored(side, size):
    chance = torch.Generator().manual_seed(1)
    centre = 4 * torch.randn(30, side.dim, generator=chance)
    low, high = centre.double() - size, centre.double() + size
    lower, upper = side.bounds(low, high)
    corners = [torch.where(torch.rand(30, side.dim, generator=chance) < 0.5, low, high) for _ in range(40)]
    # Of the ends of p_j the exact ones: z_j at one end, all others at the other.
    for j in range(side.classes):
        alone = torch.arange(side.dim) == j
        corners += [torch.where(alone, high, low), torch.where(alone, low, high)]
    for z in [centre, *corners]:
        stored = side(z.float() if size == 0 else z).float().double()
        assert (stored >= lower).all()
        assert (stored <= upper).all()
    # And they are no wider than they must be.
    tight = torch.stack([torch.softmax(z.double()[:, :3] / side.temperature, 1) for z in corners])
    assert torch.allclose(tight.amax(0), upper[:, :3], atol=1e-6)
    assert torch.allclose(tight.amin(0), lower[:, :3], atol=1e-6)


def test_where_nothing_is_known_bounds_hold_everything():
    low, high = torch.full((1, 6), -torch.inf), torch.full((1, 6), torch.inf)
    for ends in ((low, high), (low * torch.nan, high * torch.nan)):
        lower, upper = FINE.bounds(*ends)
        assert (lower <= torch.tensor([[0, 0, 0, 0, -0.4, -0.4]])).all()
        assert (upper >= torch.tensor([[1, 1, 1, (2 / 3) ** 0.5, 0.4, 0.4]])).all()


def test_a_checkpoint_keeps_the_side_and_one_without_it_says_nothing(tmp_path):
    embedder = build("small", spec=(1, 8, 8), dim=FINE.dim, candidate_side=FINE).eval()
    plain = build("small", spec=(1, 8, 8), dim=FINE.dim).eval()
    images = torch.rand(3, 1, 8, 8)
    for name, one in (("coded", embedder), ("plain", plain)):
        (tmp_path / name).mkdir()
        save(one, tmp_path / name, config={}, data="d", seed=0, metrics={})
    again = load(tmp_path / "coded")
    assert again.candidate_side == FINE
    assert again.fingerprint() == embedder.fingerprint()
    assert torch.equal(again.embed_candidates(images), embedder.embed_candidates(images))
    assert "candidate_side" not in json.loads((tmp_path / "plain" / "card.json").read_text())
    assert torch.equal(plain.embed_candidates(images), plain.embed(images))
    hotter = build("small", spec=(1, 8, 8), dim=6, candidate_side=ClassCode(3, 2.0, 2, 0.4))
    hotter.load_state_dict(embedder.state_dict())
    assert hotter.eval().fingerprint() != embedder.fingerprint(), "another temperature is another function"
    card = json.loads((tmp_path / "coded" / "card.json").read_text())
    card["candidate_side"]["temperature"] = 2.0
    (tmp_path / "coded" / "card.json").write_text(json.dumps(card))
    with pytest.raises(CheckpointError, match="fingerprint"):
        load(tmp_path / "coded")


def test_what_does_not_go_with_it_is_refused():
    with pytest.raises(ModelError, match="leave the normalisation off"):
        build("small", spec=(1, 8, 8), dim=4, unit_norm=True, candidate_side=CODE)
    with pytest.raises(ModelError, match="has 4 dimensions"):
        build("small", spec=(1, 8, 8), dim=5, candidate_side=CODE)
    embedder = coded(CODE)
    with pytest.raises(ModelError, match="index without smoothing"):
        Smoothed(embedder, 0.1, 10, bound=100.0)
    with pytest.raises(ModelError, match="index without a metric"):
        under_metric(embedder, {"matrix": "AAAAAA==", "rank": 1, "features": 1, "embedder": None})
    for wrong, why in (
        ({"name": "other"}, "unknown candidate side"),
        ({"name": "class-code", "classes": 3}, "does not take these settings"),
        ({"name": "class-code", "classes": 1, "temperature": 1.0}, "2 classes or more"),
        ({"name": "class-code", "classes": 3, "temperature": 0.0}, "above 0"),
        ({"name": "class-code", "classes": 3, "temperature": 1.0, "fine": -1}, "0 dimensions or more"),
    ):
        with pytest.raises(ModelError, match=why):
            side_of(wrong)
