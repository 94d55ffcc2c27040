"""The methods for an altered query, each holding what the one before does, and attacked."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from holdfast import wrap
from holdfast.bounds import Box
from holdfast.certify import AlteredQuery, Backward, crown, nearest
from holdfast.certify.certifier import Certifier
from holdfast.errors import ConfigError
from holdfast.spec import ImageSpec
from holdfast.threat import Threat

SPEC = ImageSpec(1, 4, 4)
METHODS = ("paper", "interval", "last-layer", "crown")


def network(kind: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    if kind == "conv":
        layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3)]
    elif kind == "deep":
        layers = [nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3)]
    else:
        layers = [nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3), nn.ReLU()]
    return nn.Sequential(*layers).eval()


def scene(kind: str, seed: int, unit: bool, queries: int = 3, candidates: int = 8):
    embedder = wrap(network(kind, seed), SPEC, unit_norm=unit)
    images, pool = torch.rand(queries, 1, 4, 4), torch.rand(candidates, 1, 4, 4)
    vectors = embedder.embed(pool).double()
    return embedder, images, pool, vectors, nearest(embedder.embed(images).double(), vectors, candidates)


@settings(max_examples=50, deadline=None)
@given(
    kind=st.sampled_from(["conv", "deep", "bent"]),
    seed=st.integers(0, 9999),
    unit=st.booleans(),
    clip=st.booleans(),
    eps=st.sampled_from([0.0, 0.003, 0.02, 0.08]),
)
def test_each_method_holds_the_one_before_and_none_is_broken(kind, seed, unit, clip, eps):
    embedder, images, pool, vectors, hits = scene(kind, seed, unit)
    certifier = Certifier(embedder, clip=clip)
    methods = [m for m in METHODS if m != "last-layer" or kind != "bent"]
    same = torch.rand(3, 8) < 0.4
    ranks, ahead = [], []
    for method in methods:
        attack = certifier.alteration(Threat.parse(f"query:linf:{eps}"), images, pool, vectors, method=method)
        ranks.append(attack.ranks(hits))
        ahead.append(attack.unbeaten(same))
    for i in range(len(methods) - 1):
        assert (ranks[i + 1].worst <= ranks[i].worst).all(), methods[i + 1]
        assert (ranks[i + 1].best >= ranks[i].best).all(), methods[i + 1]
        assert (ahead[i + 1] <= ahead[i]).all(), methods[i + 1]
    low, high = (images - eps, images + eps)
    low, high = (low.clamp(min=0), high.clamp(max=1)) if clip else (low, high)
    for number in range(40):
        share = torch.rand(images.shape)
        x = low + (high - low) * (share if number % 2 else share.round())
        if number > 20:
            x.requires_grad_(True)
            pair = torch.randint(0, 8, (2,))
            z = embedder(x)
            margin = torch.cdist(z, vectors[pair].float()) @ torch.tensor([1.0, -1.0])
            (gradient,) = torch.autograd.grad(margin.sum(), x)
            x = torch.where(gradient > 0, high, low)
        with torch.no_grad():
            z = embedder(x).double()
        distance = torch.cdist(z, vectors, compute_mode="donot_use_mm_for_euclid_dist")
        own = distance.gather(1, hits)
        worst = (distance[:, None] <= own[:, :, None]).sum(2)
        best = 1 + (distance[:, None] < own[:, :, None]).sum(2)
        assert (worst <= ranks[-1].worst).all()
        assert (best >= ranks[-1].best).all()
        first = torch.where(same, distance, torch.inf).amin(1, keepdim=True)
        assert ((~same & (distance <= first)).sum(1) <= ahead[-1]).all()


def test_linear_bounds_gain_on_a_plain_network():
    embedder, images, pool, vectors, hits = scene("deep", 1, False, queries=8, candidates=30)
    certifier, threat = Certifier(embedder), Threat.parse("query:linf:0.02")
    width = {}
    for method in METHODS:
        bounds = certifier.alteration(threat, images, pool, vectors, method=method).ranks(hits)
        width[method] = int((bounds.worst - bounds.best).sum())
    assert width["crown"] < 0.8 * width["last-layer"] <= 0.8 * width["interval"] < 0.8 * width["paper"]


def wide(ks, pairs=crown.PAIRS):
    """An attack, its rank intervals, and how many pairs were tried each time."""
    asked = []

    def lower(query, spec):
        asked.append(len(spec))
        return -0.3 * spec.abs().sum(1)

    vectors = torch.arange(1.0, 5.0)[:, None]
    attack = AlteredQuery(
        Box(torch.zeros(1, 1), torch.full((1, 1), 1.6)),
        vectors,
        "crown",
        backward=Backward(torch.zeros(1, 1), lower, ks, pairs),
    )
    return attack, attack.ranks(torch.arange(4)[None]), asked


def test_work_is_bounded_and_stops_where_the_answer_is_known():
    """Candidates at 1, 2, 3, 4 and the query at 0 ± 1.6, which crosses 1.5 alone: one open pair, of two hits."""
    _, bounds, asked = wide(None)
    assert asked == [2], "the first hit against the second, and the second against the first"
    assert bounds.worst[0].tolist() == bounds.best[0].tolist() == [1, 2, 3, 4]
    assert wide([2])[2] == [1], "the first stays in the top 2 anyway; whether the second moves up is open"
    assert wide([4])[2] == [], "nothing is open about the top 4"
    assert wide([1])[2] == [1]
    _, bounds, asked = wide(None, pairs=1)
    assert asked == [1]
    assert bounds.worst[0].tolist() == [1, 2, 3, 4]
    assert bounds.best[0].tolist() == [1, 1, 3, 4]
    attack, _, asked = wide(None)
    asked.clear()
    assert attack.unbeaten(torch.tensor([[True, False, False, False]])).tolist() == [0]
    assert asked == [1]
    attack, _, asked = wide([2])
    asked.clear()
    assert attack.unbeaten(torch.tensor([[True, False, False, False]])).tolist() == [1]
    assert asked == [], "one rival ahead leaves the top 2 right"


@pytest.mark.parametrize("bad", [-torch.inf, torch.nan])
def test_a_bound_that_is_not_known_proves_nothing(bad):
    vectors = torch.tensor([[1.0], [2.0]])
    backward = Backward(torch.zeros(1, 1), lambda query, spec: torch.full((len(spec),), bad))
    box = Box(torch.zeros(1, 1), torch.full((1, 1), 1.6))
    attack = AlteredQuery(box, vectors, "crown", backward=backward)
    assert attack.ranks(torch.tensor([[0, 1]])).worst.tolist() == [[2, 2]]
    assert attack.unbeaten(torch.tensor([[True, False]])).tolist() == [1]


def test_crown_needs_linear_bounds():
    with pytest.raises(ConfigError, match="linear bounds"):
        AlteredQuery(Box(torch.zeros(1, 1), torch.zeros(1, 1)), torch.zeros(1, 1), "crown")


def test_dearer_bounds_are_asked_about_what_cheaper_ones_leave_open():
    asked = {"lower": 0, "tighter": 0}

    def bounds(name, value):
        def lower(query, spec):
            asked[name] += len(spec)
            # The cheap one knows the first specification alone.
            return torch.where(
                torch.arange(len(spec)) < (1 if name == "lower" else len(spec)), value, -torch.inf
            )

        return lower

    vectors = torch.tensor([[0.0, 0.0], [3.0, 0.0], [4.0, 0.0]]).double()
    pool = crown.Candidates(vectors, vectors.square().sum(1), torch.zeros(1))
    backward = Backward(torch.zeros(1, 2).double(), bounds("lower", 0.0), tighter=bounds("tighter", 0.0))
    sides = torch.zeros(1, 3, dtype=torch.int8)
    crown.settle_hits(backward, pool, 0, torch.tensor([0]), sides)
    assert asked == {"lower": 2, "tighter": 1}
    assert sides.tolist() == [[0, 1, 1]]


def test_intermediate_linear_bounds_prove_more_and_never_less():
    """A plain network with wide layers: what intervals say of its middle is loose."""
    torch.manual_seed(3)
    layers = [nn.Flatten(), nn.Linear(16, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 8)]
    embedder = wrap(nn.Sequential(*layers).eval(), SPEC)
    images, pool = torch.rand(6, 1, 4, 4), torch.rand(40, 1, 4, 4)
    vectors = embedder.embed(pool).double()
    backward = Certifier(embedder).backward(images, 0.01)
    proved = {"lower": 0, "either": 0}
    for query in range(6):
        gap = vectors[:20] - vectors[20:]
        loose, tight = backward.lower(query, gap), backward.tighter(query, gap)
        reached = gap @ embedder.embed(images[query : query + 1]).double()[0]
        assert (torch.maximum(loose, tight) <= reached + 1e-9).all()
        squares = (vectors[20:].square() - vectors[:20].square()).sum(1)
        proved["lower"] += int((squares + 2 * loose > 0).sum())
        proved["either"] += int((squares + 2 * torch.maximum(loose, tight) > 0).sum())
        assert ((reached - tight).mean() < 0.7 * (reached - loose).mean()).item()
    assert proved["either"] > proved["lower"]
