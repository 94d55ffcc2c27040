"""What a smoothed search spends on its statements: which samples choose and which answer, and each one's share of α."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import noisy_circle
import numpy as np
import pytest
import torch
from noisy_circle import HOW, make, pixels, smoothed_search
from scipy.special import betaincinv, ndtri

from holdfast.certify.smoothing import Answers, candidate_pairs, class_pairs
from holdfast.gallery.rules import RULES
from holdfast.gallery.rules.base import Question
from holdfast.models import Smoothed, to_unit

ANGLES = np.array([0.5, 1.1, 1.75, 2.0, 2.4, 0.1, -0.4, 2.9])
LABELS = ["a", "a", "b", "b", "c", "c", "d", "d"]
IMAGE = pixels(0.28)


def opened(folder, rule):
    """A gallery of points on a circle that is searched by this rule."""
    how = replace(HOW, rule=rule, n=800)
    return *make(folder / "g", noisy_circle.turning(), ANGLES, LABELS, how), how


@pytest.fixture(scope="module", params=["mean", "votes"])
def circle(request, tmp_path_factory):
    gallery, *rest = opened(tmp_path_factory.mktemp("circle"), request.param)
    with gallery:
        yield gallery, *rest


@pytest.mark.parametrize("eps", [None, 0.02, 0.3])
def test_no_sample_both_chooses_and_answers(circle, monkeypatch, eps):
    """The first samples are drawn once, and every other sample lies behind them and answers once."""
    gallery, wrapped, how = circle
    drawn, asked = [], []
    real = Smoothed.sample

    def recorded(self, image, start, stop, **words):
        drawn.append((start, stop, words.get("purpose", "query"), words["seed"]))
        yield from real(self, image, start, stop, **words)

    started = RULES[how.rule].__init__

    def begun(self, gallery, first, *rest):
        asked.append(len(first))
        started(self, gallery, first, *rest)

    monkeypatch.setattr(Smoothed, "sample", recorded)
    monkeypatch.setattr(RULES[how.rule], "__init__", begun)
    found = smoothed_search(gallery, wrapped, IMAGE, 2, eps=eps, seed=7)
    assert asked == [how.first]
    assert drawn[0] == (0, how.first, "query", 7)
    assert {entry[2:] for entry in drawn} == {("query", 7)}
    ends = [how.first, *(stop for _, stop, _, _ in drawn[1:])]
    assert [start for start, _, _, _ in drawn[1:]] == ends[:-1], "one after another, from behind the first"
    assert ends[-1] == how.first + found.proof.samples
    if eps is None:
        assert found.proof.samples == how.n


@pytest.mark.parametrize("eps", [None, 0.02, 3.0])
def test_all_looks_together_spend_alpha_once(circle, monkeypatch, eps):
    """With early looks each has its part, and the parts of all that may be made add up to 1."""
    gallery, wrapped, how = circle
    parts, rule = [], RULES[how.rule]
    real = rule.answer

    def recorded(self, part):
        parts.append(part)
        return real(self, part)

    monkeypatch.setattr(rule, "answer", recorded)
    monkeypatch.setattr(Question, "settled", lambda *_: False)
    smoothed_search(gallery, wrapped, IMAGE, 2, eps=eps, seed=7)
    assert len(parts) == (1 if eps is None else 4)
    assert sum(parts) == pytest.approx(1)


@pytest.mark.parametrize("k", [1, 3])
def test_votes_share_alpha_among_their_statements(tmp_path, k):
    """One for each of the shortlist and one for the class: Clopper–Pearson at that share, by hand."""
    gallery, wrapped, how = opened(tmp_path, "votes")
    found = smoothed_search(gallery, wrapped, IMAGE, k, seed=7)
    image = to_unit(torch.from_numpy(IMAGE)[None])[0]
    first, rest = (
        torch.cat(list(wrapped.sample(image, *span, seed=7))).double().numpy()
        for span in ((0, how.first), (how.first, how.first + how.n))
    )
    with gallery:
        points = gallery.all_vectors().astype(np.float64)

    def voted(copies):
        away = np.square(copies[:, None] - points[None]).sum(2)
        return np.argsort(away, axis=1)[:, :k]

    shortlist = {slot for slot, _ in counted(voted(first))[: 2 * k]}
    alpha = how.alpha / (len(shortlist) + 1)
    counts = dict(counted(voted(rest)))
    certified = 0
    for entry in found.hits:
        slot = int(entry.id[1:])
        votes = counts[slot]
        low = betaincinv(votes, how.n - votes + 1, alpha)
        expected = max(0.0, how.sigma * (ndtri(low) - ndtri(k / (k + 1))))
        assert entry.certificate.radius == pytest.approx(expected, abs=1e-9)
        certified += expected > 0
    assert certified
    votes = int(np.isin(voted(rest)[:, 0], [0, 1]).sum())
    low = betaincinv(votes, how.n - votes + 1, alpha)
    assert found.proof.label == "a"
    assert found.proof.label_radius == pytest.approx(how.sigma * ndtri(low), abs=1e-9)


def counted(votes: np.ndarray):
    """Candidates with their votes, most first; equals by their place."""
    return Counter(sorted(votes.flatten().tolist())).most_common()


@pytest.mark.parametrize("k", [1, 2])
def test_the_mean_rule_divides_alpha_by_statements_and_by_k(tmp_path, k):
    """Each hit's radius is the k-th smallest against all others, with α over (2k + 1)·k for each pair."""
    gallery, wrapped, how = opened(tmp_path, "mean")
    found = smoothed_search(gallery, wrapped, IMAGE, k, seed=7)
    image = to_unit(torch.from_numpy(IMAGE)[None])[0]
    first, rest = (
        torch.cat(list(wrapped.sample(image, *span, seed=7))).double().numpy()
        for span in ((0, how.first), (how.first, how.first + how.n))
    )
    with gallery:
        points, alpha = gallery.all_vectors().astype(np.float64), how.alpha / (2 * k + 1)
    certified = 0
    for entry in found.hits:
        slot = int(entry.id[1:])
        given = Answers(candidate_pairs(points[slot], np.delete(points, slot, 0)), first, wrapped.bound)
        given.add(rest)
        expected, loose = (np.sort(given.radii(how.sigma, part))[k - 1] for part in (alpha / k, alpha))
        assert entry.certificate.radius == pytest.approx(expected, abs=1e-6)
        certified += expected > 0
        assert k == 1 or expected == 0 or expected < loose - 1e-4
    assert certified
    same = np.array(LABELS) == found.proof.label
    given = Answers(class_pairs(first.mean(0), points[same], points[~same]), first, wrapped.bound)
    given.add(rest)
    assert found.proof.label_radius == pytest.approx(given.radii(how.sigma, alpha).min(), abs=1e-6)


def test_radii_are_of_the_file_where_its_stretch_is_known(circle):
    """The same samples: what is proved to r at the network is proved to less than r/4 of a file that grows fourfold."""
    gallery, wrapped, _ = circle
    network = smoothed_search(gallery, wrapped, IMAGE, 1, seed=7)
    file = smoothed_search(gallery, wrapped, IMAGE, 1, seed=7, stretch=4.0)
    assert (network.proof.picture, file.proof.picture) == ("network input", "file")
    radius = network.hits[0].certificate.radius
    assert 0 < file.hits[0].certificate.radius < radius / 4
    assert file.hits[0].certificate.radius == pytest.approx(radius / 4, rel=1e-3)
    assert file.proof.label_radius == pytest.approx(network.proof.label_radius / 4, rel=1e-3)
    assert file.hits[0].certificate.pixel == pytest.approx(radius / 4, rel=1e-3), (
        "16 pixels, none stretched by itself"
    )
    # A question about the file asks four times as much of the network.
    for stretch, verdict in ((None, "CERTIFIED"), (4.0, "UNKNOWN")):
        found = smoothed_search(gallery, wrapped, IMAGE, 1, seed=7, eps=radius / 2, stretch=stretch)
        assert found.hits[0].certificate.verdict == verdict
