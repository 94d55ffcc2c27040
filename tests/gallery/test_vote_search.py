"""Search by the votes of noisy copies: shares and radii against exactly known ones, attacks, ties and bad input.

Between the points of `noisy_circle` every copy's vote is known, so that the share of votes is a normal integral.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from noisy_circle import HOW, make, pixels, smoothed_search, turning
from scipy.special import ndtr

from holdfast.certificate import Verdict
from holdfast.certify.smoothing import parse_smoothing
from holdfast.errors import ConfigError
from holdfast.gallery.rules.votes import Ballot
from holdfast.gallery.smoothed import stored_smoothing

VOTES = replace(HOW, rule="votes", n=1000)
GRID = np.linspace(-4.5, 4.5, 6001)


def angle(image: np.ndarray) -> float:
    return float(image[0, 0, 0] / 255 * 4)


def shares(angles: np.ndarray, start: float, k: int, labels: np.ndarray | None = None) -> np.ndarray:
    """The exact share of copies that vote for each candidate (or each label, of the nearest)."""
    copies = start + HOW.sigma * GRID
    order = np.argsort(np.abs(np.sin((copies[:, None] - angles) / 2)), axis=1)[:, :k]
    weight = np.diff(ndtr(np.concatenate([[-np.inf], (GRID[1:] + GRID[:-1]) / 2, [np.inf]])))
    if labels is not None:
        return np.bincount(labels[order[:, 0]], weight, minlength=labels.max() + 1)
    return np.array([weight[(order == i).any(1)].sum() for i in range(len(angles))])


def reach(angles: np.ndarray, start: float, chosen: int, k: int, labels: np.ndarray | None = None) -> float:
    """The least turn, either way, at which the share is no more than enough."""
    need = k / (k + 1) if labels is None else 0.5
    for turn in np.arange(0, 2, 0.01):
        if min(shares(angles, start + way * turn, k, labels)[chosen] for way in (-1, 1)) <= need:
            return float(turn)
    return 2.0


@pytest.mark.parametrize("k", [1, 2, 3])
def test_shares_and_radii_are_the_known_ones(k, tmp_path):
    angles = np.array([0.9, 1.0, 1.6, 2.6, 0.1, -0.7, 3.3])
    gallery, wrapped = make(tmp_path / "g", turning(), angles, how=VOTES)
    image = pixels(0.4)
    with gallery:
        found = smoothed_search(gallery, wrapped, image, k, seed=0)
    exact = shares(angles, angle(image), k)
    assert found.proof.rule == "votes"
    assert {entry.id for entry in found.hits} == {f"c{i:03}" for i in np.argsort(-exact)[:k]}
    assert [entry.distance for entry in found.hits] == sorted(entry.distance for entry in found.hits)
    for entry in found.hits:
        chosen = int(entry.id[1:])
        assert entry.certificate.share == pytest.approx(exact[chosen], abs=0.05)
        assert entry.certificate.radius <= reach(angles, angle(image), chosen, k)
        assert (entry.certificate.radius > 0) == (entry.certificate.verdict == Verdict.CERTIFIED)
    assert (
        found.hits[0].certificate.radius
        > 0.5 * reach(angles, angle(image), int(found.hits[0].id[1:]), k)
        > 0.1
    )


def test_votes_list_another_than_the_mean(tmp_path):
    """The nearest to the mean sits in a narrow gap: few copies have it first."""
    angles = np.array([0.94, 1.0, 1.08, 3.0])
    gallery, wrapped = make(tmp_path / "g", turning(), angles, how=VOTES)
    with gallery:
        voted = smoothed_search(gallery, wrapped, pixels(0.25), 1, seed=0)
        by_mean = smoothed_search(gallery, wrapped, pixels(0.25), 1, seed=0, how=replace(VOTES, rule="mean"))
    assert by_mean.hits[0].id == "c001"
    assert by_mean.hits[0].certificate.share is None
    assert voted.hits[0].id in ("c000", "c002")
    assert voted.hits[0].certificate.verdict == Verdict.ABSTAIN
    assert "of the votes, which does not prove more than 50.0%" in voted.hits[0].certificate.reason


def test_statements_fail_no_more_often_than_alpha(tmp_path):
    """Many searches with noise of their own, where shares are near what is needed; the class's statement too."""
    how = replace(VOTES, n=120, first=20, alpha=0.1)
    angles, labels = np.linspace(-1, 4, 9), np.arange(9) // 3
    gallery, wrapped = make(tmp_path / "g", turning(), angles, labels.astype(str).tolist(), how)
    wrong = said = 0
    known: dict[tuple[int, int, bool], float] = {}

    def true(level: int, start: float, chosen: int, of_class: bool) -> float:
        key = (level, chosen, of_class)
        if key not in known:
            known[key] = reach(angles, start, chosen, 1, labels if of_class else None)
        return known[key]

    with gallery:
        for seed in range(200):
            image = pixels((angles[4] + 0.05 * (seed % 7)) / 4)
            found = smoothed_search(gallery, wrapped, image, 1, seed=seed)
            asked = (int(image[0, 0, 0]), angle(image))
            top = found.hits[0]
            said += (top.certificate.radius > 0) + (found.proof.label_radius > 0)
            wrong += top.certificate.radius > true(
                *asked, int(top.id[1:]), False
            ) or found.proof.label_radius > true(*asked, int(found.proof.label), True)
    assert said > 200
    assert wrong <= 31  # Of 200 at 0.1: more has probability below 1 %.


@pytest.mark.parametrize("k", [1, 3])
def test_a_certified_hit_is_listed_or_the_search_is_not_sure(k, tmp_path):
    """The image is turned by almost each hit's radius, both ways, and searched afresh."""
    angles = np.array([0.2, 0.9, 1.1, 1.3, 2.2, 2.9, -0.6])
    gallery, wrapped = make(tmp_path / "g", turning(), angles, how=VOTES)
    looked = lost = 0
    with gallery:
        for seed in range(12):
            image = pixels(0.2 + 0.02 * seed)
            found = smoothed_search(gallery, wrapped, image, k, seed=seed)
            for entry in found.hits:
                for way in (-1, 1):
                    # Eight bits move the angle in steps of 4/255: the whole number of them within the radius.
                    steps = int(entry.certificate.radius / (4 / 255))
                    moved = (image.astype(int) + way * steps).astype(np.uint8)
                    after = smoothed_search(gallery, wrapped, moved, k, seed=1000 + seed)
                    there = entry.id in {one.id for one in after.hits}
                    lost += not there and all(one.verdict == Verdict.CERTIFIED for one in after.hits)
                    looked += steps > 0
    assert looked > 15
    assert lost == 0


def test_ties_vote_for_nobody(tmp_path):
    angles = np.array([1.0, 1.0, 2.5])
    gallery, wrapped = make(tmp_path / "g", turning(), angles, ["a", "a", "b"], VOTES)
    with gallery:
        one = smoothed_search(gallery, wrapped, pixels(0.25), 1, seed=0)
        both = smoothed_search(gallery, wrapped, pixels(0.25), 2, seed=0)
    assert one.hits[0].certificate.verdict == Verdict.ABSTAIN
    assert one.hits[0].certificate.share == 0
    # Of two slots both twins have one, and the class has the nearest whichever of them it is.
    assert [entry.certificate.verdict for entry in both.hits] == [Verdict.CERTIFIED] * 2
    assert [entry.tied for entry in both.hits] == [True, True]
    assert both.proof.label == "a"
    assert both.proof.label_radius > 0.2


def test_a_tie_of_two_classes_votes_for_neither(tmp_path):
    gallery, wrapped = make(tmp_path / "g", turning(), np.array([1.0, 1.0, 2.5]), ["a", "b", "b"], VOTES)
    with gallery:
        found = smoothed_search(gallery, wrapped, pixels(0.25), 2, seed=0)
    assert found.proof.label_radius == 0


def test_a_list_of_everything_cannot_lose_anything(tmp_path):
    gallery, wrapped = make(tmp_path / "g", turning(), np.array([1.0, 2.0]), how=VOTES)
    with gallery:
        found = smoothed_search(gallery, wrapped, pixels(0.25), 2, seed=0)
    assert [entry.certificate.radius for entry in found.hits] == [4.0, 4.0], "no two images are farther apart"


def test_a_fixed_radius_is_settled_early(tmp_path):
    gallery, wrapped = make(tmp_path / "g", turning(), np.array([1.0, 2.5, -1.0]), how=VOTES)
    many = replace(VOTES, n=8000)
    with gallery:
        sure = smoothed_search(gallery, wrapped, pixels(0.25), 1, eps=0.05, how=many, seed=0)
        far = smoothed_search(gallery, wrapped, pixels(0.25), 1, eps=2.0, how=many, seed=0)
    assert (sure.proof.samples, sure.hits[0].certificate.verdict) == (1000, Verdict.CERTIFIED)
    assert (far.proof.samples, far.hits[0].certificate.verdict) == (4000, Verdict.UNKNOWN)
    assert far.hits[0].certificate.reason.startswith("proved to")


def test_a_gallery_keeps_its_rule_and_bad_ones_are_refused(tmp_path):
    gallery, wrapped = make(tmp_path / "g", turning(), np.linspace(0, 3, 40), how=VOTES)
    with gallery:
        assert stored_smoothing(gallery.info.embedder) == replace(VOTES, bound=wrapped.bound)
        # Ten of eleven votes are more than 60 samples can prove, with alpha for all statements.
        with pytest.raises(
            ConfigError,
            match=r"60 samples cannot certify anything at alpha 0\.05 for the top 10; take at least 64",
        ):
            smoothed_search(gallery, wrapped, pixels(0.25), 10, how=replace(VOTES, n=60))
    with pytest.raises(ConfigError, match="rule is mean or votes, not 'most'"):
        parse_smoothing("sigma=0.1,rule=most")
    assert parse_smoothing("sigma=0.1,rule=votes").rule == "votes"


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_ballot_counts_as_a_slow_one_does(size, k, copies, seed):
    """Coarse distances, so that ties are common; votes never add up to more than k a copy."""
    chance = np.random.default_rng(seed)
    away = chance.integers(0, 4, (copies, size)).astype(np.float64)
    order = np.argsort(away, axis=1, kind="stable")[:, : k + 1]
    ballot = Ballot(size)
    for part in np.array_split(np.arange(copies), 3):
        if len(part):
            ballot.add(np.take_along_axis(away, order, 1)[part], order[part], k)
    slow = np.array([[(row <= row[c]).sum() <= k for c in range(size)] for row in away]).sum(0)
    assert (ballot.votes == slow).all()
    assert ballot.votes.sum() <= k * copies
    nearest = [np.flatnonzero(row == row.min()) for row in away]
    alone = np.bincount([group[0] for group in nearest if len(group) == 1], minlength=size)
    assert (ballot.nearest == alone).all()
    for group, count in ballot.tied.items():
        assert count == sum(tuple(one) == group for one in nearest)
    seen = sum(ballot.tied.values()) + ballot.nearest.sum()
    missed = sum(len(one) > 1 and len(one) >= min(k + 1, size) and size > k + 1 for one in nearest)
    assert copies - missed <= seen <= copies


def test_any_k_and_gallery_size(tmp_path):
    for size, k in ((1, 1), (3, 3), (5, 2)):
        gallery, wrapped = make(tmp_path / f"g{size}", turning(), np.linspace(0.5, 2, size), how=VOTES)
        with gallery:
            found = smoothed_search(gallery, wrapped, pixels(0.25), k, seed=0)
        assert len(found.hits) == k
        assert sum(entry.certificate.share for entry in found.hits) <= k + 1e-9
        assert torch.isfinite(torch.tensor([entry.certificate.radius for entry in found.hits])).all()
