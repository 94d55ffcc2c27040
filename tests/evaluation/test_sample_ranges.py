"""An evaluation of a smoothed search: samples that choose what is asked never answer it, and alpha is as given."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.special import betaincinv, ndtri

from holdfast import data, wrap
from holdfast.evaluation.smoothing import certify_smoothed
from holdfast.models import Smoothed, to_unit
from holdfast.proofs.smoothing import Answers, Smoothing, candidate_pairs, class_pairs
from holdfast.spec import ImageSpec

HOW = Smoothing(sigma=0.2, n=200, first=40, gallery=8, alpha=0.05)
SPEC = ImageSpec(1, 4, 4)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4)).eval()


def images() -> data.ImageSet:
    """Ten images of three classes, each class around a picture of its own."""
    chance = np.random.default_rng(1)
    labels = np.arange(10) % 3
    pixels = chance.integers(40, 216, (3, 1, 4, 4))[labels] + chance.integers(-20, 21, (10, 1, 4, 4))
    return data.ImageSet(
        name="ten",
        ids=tuple(f"i{number}" for number in range(10)),
        labels=labels,
        classes=("a", "b", "c"),
        spec=SPEC,
        pixels=pixels.astype(np.uint8),
        rows=np.arange(10),
    )


@pytest.fixture(scope="module", params=["mean", "votes"])
def recorded(request, tmp_path_factory):
    """An evaluation with a mark and an attack, and the ranges of samples that were drawn of each picture."""
    drawn: dict[bytes, list[tuple[int, int]]] = {}
    real = Smoothed.sample

    def sample(self, image, start, stop, *, purpose="query", **words):
        if purpose == "query":
            drawn.setdefault(image.numpy().tobytes(), []).append((start, stop))
        yield from real(self, image, start, stop, purpose=purpose, **words)

    how = replace(HOW, rule=request.param)
    embedder = wrap(network(), SPEC, unit_norm=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Smoothed, "sample", sample)
        done = certify_smoothed(
            embedder,
            images(),
            tmp_path_factory.mktemp("ranges"),
            how,
            queries=3,
            candidates=7,
            ks=(1, 3),
            marks=[50],
            attacks=[0.5],
        )
    return done, drawn, embedder, how


def test_no_sample_both_chooses_and_answers(recorded):
    """The clean query is asked up to each mark and to the end, the altered one at once; both from behind the first."""
    _, drawn, _, how = recorded
    clean = {to_unit(images().batch([number]))[0].numpy().tobytes() for number in range(10)}
    marks = [how.first, how.first + 50, how.first + how.n]
    for picture, spans in drawn.items():
        assert spans[0] == (0, how.first)
        if picture in clean:
            assert spans[1:] == list(pairwise(marks))
        else:
            assert spans[1:] == [(how.first, how.first + how.n)]
    assert len(drawn) == 6, "three queries, each clean and altered"
    assert len(clean & drawn.keys()) == 3


def test_radii_are_those_of_the_formulas(recorded):
    """Each rule's radius of a query by itself: α/k for each of the k pairs that decide, α for a share of votes."""
    done, _, embedder, how = recorded
    columns, labels = done.rows.columns, images().labels
    frozen = Smoothed(embedder, how.sigma, how.gallery, seed=how.seed)
    _, found = data.draw(images(), 3, 7, 0)
    gallery = frozen.embed(images()).double().numpy()
    proved = 0
    for row, name in enumerate(columns["query"]):
        number = int(name[1:])
        image = to_unit(images().batch([number]))[0]
        first, rest = (
            torch.cat(list(frozen.sample(image, *span))).double().numpy()
            for span in ((0, how.first), (how.first, how.first + how.n))
        )
        others, same = gallery[found], labels[found] == labels[number]
        assert number not in found
        classes = Answers(class_pairs(first.mean(0), others[same], others[~same]), first, frozen.bound)
        chosen = np.square(others - first.mean(0)).sum(1).argmin()
        item = Answers(candidate_pairs(others[chosen], np.delete(others, chosen, 0)), first, frozen.bound)
        for one in (classes, item):
            one.add(rest)
        away = np.square(rest[:, None] - others[None]).sum(2)
        ahead = (away[:, ~same] <= away[:, same].min(1, keepdims=True)).sum(1)
        for k in (1, 3):
            for form in ("cdf", "half-space", "ball"):
                expected = min(np.sort(classes.radii(how.sigma, how.alpha / k, form))[k - 1], 4.0)
                assert columns[f"{form}_{k}"][row] == pytest.approx(expected, abs=1e-6), form
                proved += expected > 0
            expected = min(np.sort(item.radii(how.sigma, how.alpha / k))[k - 1], 4.0)
            assert columns[f"item_{k}"][row] == pytest.approx(expected, abs=1e-6)
            votes = int((ahead < k).sum())
            low = betaincinv(votes, how.n - votes + 1, how.alpha) if votes else 0.0
            assert columns[f"votes_{k}"][row] == pytest.approx(max(0.0, how.sigma * ndtri(low)), abs=1e-9)
    assert proved > 4


def test_what_is_deployed_abstains_by_samples_of_its_own(tmp_path, monkeypatch):
    """Copies that answer are divided while the first all agree: the search is not sure, clean or altered."""
    real = Smoothed.sample

    def sample(self, image, start, stop, *, purpose="query", **words):
        """Behind the first samples every other copy is of another class's picture."""
        for part in real(self, image, start, stop, purpose=purpose, **words):
            if purpose == "query" and start >= HOW.first:
                part[::2] = -part[::2]
            yield part

    monkeypatch.setattr(Smoothed, "sample", sample)
    for rule in ("mean", "votes"):
        done = certify_smoothed(
            wrap(network(), SPEC, unit_norm=True),
            images(),
            tmp_path / rule,
            replace(HOW, rule=rule),
            queries=2,
            ks=(1,),
            attacks=[0.01],
        )
        columns = done.rows.columns
        assert columns["abstains"].tolist() == [1] * 2
        assert columns["forced_0"].tolist() == [1] * 2
        assert columns["cdf_1"].tolist() == [0.0] * 2


def test_twins_of_two_classes_count_against_the_claim(tmp_path):
    """The query's only relative has a twin of another class: a tie, so the class is never first, by any rule."""
    ten = images()
    pixels = ten.pixels[[0, 3, 3]]
    twins = replace(
        ten,
        ids=("q", "a", "b"),
        labels=np.array([0, 0, 1]),
        pixels=pixels,
        rows=np.arange(3),
        classes=("a", "b"),
    )
    done = certify_smoothed(wrap(network(), SPEC, unit_norm=True), twins, tmp_path, HOW, ks=(1, 2))
    columns = done.rows.columns
    row = columns["query"].tolist().index("q")
    for name in ("recall_1", "voted_1", "votes_1", "cdf_1", "half-space_1", "ball_1", "item_1", "margin"):
        assert columns[name][row] == 0, name
    assert columns["abstains"][row] == 1
    assert columns["votes_2"][row] > 0, "of two candidates one is right"
