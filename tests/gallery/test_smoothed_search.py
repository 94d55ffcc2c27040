"""Search by noisy copies: radii against a smoothed function that is known exactly, budgets, and what is refused.

h(x) = (cos⟨a, x⟩, sin⟨a, x⟩), so that g(x) = e^(−σ²‖a‖²/2) h(x): an attack moves the angle by ⟨a, δ⟩ and by
nothing else, and the radius to which a candidate stays among the first k is known.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import noisy_circle
import numpy as np
import pytest
import torch
from noisy_circle import HOW, make, pixels
from noisy_circle import smoothed_search as search_with_noise

from holdfast.certificate import Verdict
from holdfast.errors import ConfigError, GalleryError
from holdfast.gallery.rules import mean as room
from holdfast.gallery.searching import search
from holdfast.gallery.smoothed import smoothed, stored_smoothing
from holdfast.models import Foreign

smoothed_search = partial(search_with_noise, seed=0)


@pytest.fixture
def turning():
    return noisy_circle.turning()


def turns(angles: np.ndarray, start: float, chosen: int, k: int) -> float:
    """How far the angle can turn, either way, with the chosen candidate among the k nearest."""
    for turn in np.arange(0, 3, 1e-3):
        for way in (-1, 1):
            away = np.abs(angles - (start + way * turn))
            if (away < away[chosen]).sum() >= k:
                return float(turn)
    return 3.0


def test_radii_are_below_what_is_true_and_above_nothing(turning, tmp_path):
    angles = np.array([0.9, 1.0, 1.3, 1.9, 2.4, 0.1, -0.4, 2.9])
    gallery, wrapped = make(tmp_path / "g", turning, angles)
    image = pixels(0.28)
    start = float(image[0, 0, 0] / 255 * 4)
    with gallery:
        found = smoothed_search(gallery, wrapped, image, 3)
    assert [entry.id for entry in found.hits] == ["c001", "c002", "c000"]
    for entry in found.hits:
        true = turns(angles, start, int(entry.id[1:]), 3)
        assert 0 < entry.certificate.radius <= true
        assert entry.certificate.verdict == Verdict.CERTIFIED
        assert entry.certificate.pixel == pytest.approx(entry.certificate.radius / 4)
    assert max(entry.certificate.radius for entry in found.hits) > 0.1
    assert found.proof.samples == HOW.n


@pytest.mark.parametrize("near", [room.NEAR, 2])
def test_statements_fail_no_more_often_than_alpha(turning, tmp_path, monkeypatch, near):
    """Many searches with noise of their own, at places near where the order turns; the class's statement too.

    With two candidates near, all others are held against one score.
    """
    monkeypatch.setattr(room, "NEAR", near)
    how = replace(HOW, n=300, first=20, alpha=0.1)
    angles = np.linspace(-1, 4, 12)
    labels = np.arange(12) // 2
    middle = (angles[4] + angles[5]) / 2
    gallery, wrapped = make(tmp_path / "g", turning, angles, labels.astype(str).tolist(), how)
    wrong = said = 0
    with gallery:
        for seed in range(150):
            image = pixels((middle + 0.04 * (seed % 5 - 2)) / 4)
            start = float(image[0, 0, 0] / 255 * 4)
            found = search_with_noise(gallery, wrapped, image, 1, seed=seed)
            radius, chosen = found.hits[0].certificate.radius, int(found.hits[0].id[1:])
            class_turn = min(
                turn
                for turn in np.arange(0, 3, 1e-3)
                for way in (-1, 1)
                if str(labels[np.abs(angles - start - way * turn).argmin()]) != found.proof.label
            )
            said += (radius > 0) + (found.proof.label_radius > 0)
            wrong += (
                radius > turns(angles, start, chosen, 1) + 1e-3
                or found.proof.label_radius > class_turn + 1e-3
            )
    assert said > (100 if near > 2 else 60)
    assert wrong <= 24  # Of 150 at 0.1: more has probability below 1 %.


def test_what_is_close_abstains_and_says_how_many_samples_would_do(turning, tmp_path):
    angles = np.array([1.0, 1.3, 2.5])
    gallery, wrapped = make(tmp_path / "g", turning, angles)
    # Nearly in the middle of the first two.
    image = pixels(1.13 / 4)
    with gallery:
        found = smoothed_search(gallery, wrapped, image, 1, how=replace(HOW, n=50))
        assert found.hits[0].certificate.verdict == Verdict.ABSTAIN
        assert found.hits[0].certificate.radius == 0
        assert found.hits[0].certificate.samples is not None
        more = smoothed_search(
            gallery, wrapped, image, 1, how=replace(HOW, n=64 * found.hits[0].certificate.samples)
        )
    assert more.hits[0].certificate.verdict == Verdict.CERTIFIED
    assert more.hits[0].certificate.reason == ""


def test_a_fixed_radius_is_settled_early(turning, tmp_path):
    gallery, wrapped = make(tmp_path / "g", turning, np.array([1.0, 2.5, -1.0]))
    with gallery:
        sure = smoothed_search(gallery, wrapped, pixels(0.25), 1, eps=0.05, how=replace(HOW, n=8000))
        full = smoothed_search(gallery, wrapped, pixels(0.25), 1, how=replace(HOW, n=8000))
        far = smoothed_search(gallery, wrapped, pixels(0.25), 1, eps=2.0, how=replace(HOW, n=8000))
    assert sure.proof.samples == 1000
    assert sure.hits[0].certificate.verdict == Verdict.CERTIFIED
    assert full.proof.samples == 8000
    # Each look has its share of alpha, so that stopping early costs something.
    assert 0.05 < sure.hits[0].certificate.radius < full.hits[0].certificate.radius
    assert (far.proof.samples, far.hits[0].certificate.verdict) == (4000, Verdict.UNKNOWN)


@pytest.mark.parametrize("rule", ["mean", "votes"])
def test_hope_is_not_given_up_on_few_samples(turning, tmp_path, rule):
    """What all samples prove by far is proved for a fixed radius too, whatever the first few of them look like."""
    how = replace(HOW, rule=rule)
    gallery, wrapped = make(tmp_path / "g", turning, np.array([1.0, 1.55, 2.5, 0.3]), how=how)
    clear = 0
    with gallery:
        for seed in range(25):
            found = search_with_noise(gallery, wrapped, pixels(0.26), 1, seed=seed)
            if found.hits[0].certificate.radius > 0.1:
                clear += 1
                fixed = search_with_noise(gallery, wrapped, pixels(0.26), 1, seed=seed, eps=0.06)
                assert fixed.hits[0].certificate.verdict == Verdict.CERTIFIED, seed
    assert clear > 15


def test_the_class_of_the_nearest_outlives_its_hits(turning, tmp_path):
    """Two of one class side by side: each may lose the first place to the other, the class keeps it."""
    angles = np.array([0.95, 1.05, 2.2, -0.3])
    gallery, wrapped = make(tmp_path / "g", turning, angles, ["a", "a", "b", "b"])
    with gallery:
        found = smoothed_search(gallery, wrapped, pixels(0.25), 1)
    assert found.proof.label == "a"
    assert found.hits[0].certificate.radius < found.proof.label_radius < (2.2 + 1.05) / 2 - 1


@pytest.mark.parametrize("far", [room.FAR, 6, 0])
def test_candidates_that_are_not_near_count_too(turning, tmp_path, monkeypatch, far):
    """With few looked at in full the others get looser forms: a smaller radius, never a larger one."""
    monkeypatch.setattr(room, "FAR", far)
    angles = np.linspace(0.0, 2.0, 21)
    gallery, wrapped = make(tmp_path / "g", turning, angles, ["a", "b", "c"] * 7)
    with gallery:
        whole = smoothed_search(gallery, wrapped, pixels(0.26), 2)
        monkeypatch.setattr(room, "NEAR", 5)
        part = smoothed_search(gallery, wrapped, pixels(0.26), 2)
        assert [hit.id for hit in part] == [hit.id for hit in whole]
        for few, all_ in zip(part.hits, whole.hits, strict=True):
            assert few.certificate.radius <= all_.certificate.radius + 1e-9
        # A rival just beyond those looked at must be seen.
        monkeypatch.setattr(room, "NEAR", 3)
        blind = smoothed_search(gallery, wrapped, pixels(0.26), 2)
    for entry in blind.hits:
        assert entry.certificate.radius <= turns(
            angles, pixels(0.26)[0, 0, 0] / 255 * 4, int(entry.id[1:]), 2
        )


def test_many_far_candidates_leave_most_of_a_radius(turning, tmp_path, monkeypatch):
    """Held against one score they cost a hit little; by their mean alone, most of its radius."""
    angles = np.concatenate([[1.0, 1.3, 0.6], np.linspace(2.4, 4.0, 30)])
    gallery, wrapped = make(tmp_path / "g", turning, angles)
    radii = {}
    with gallery:
        for near, far in ((2048, 2048), (3, 2048), (3, 0)):
            monkeypatch.setattr(room, "NEAR", near)
            monkeypatch.setattr(room, "FAR", far)
            found = smoothed_search(gallery, wrapped, pixels(0.25), 3, how=replace(HOW, n=400))
            radii[near, far] = [entry.certificate.radius for entry in found.hits]
    for whole, scored, mean in zip(*radii.values(), strict=True):
        assert mean < 0.8 * scored
        assert 0.5 * whole < scored <= whole


def test_twins_are_never_told_apart(turning, tmp_path):
    gallery, wrapped = make(tmp_path / "g", turning, np.array([1.0, 1.0, 2.5]))
    with gallery:
        found = smoothed_search(gallery, wrapped, pixels(0.25), 1)
    assert found.hits[0].certificate.verdict == Verdict.ABSTAIN
    assert found.hits[0].certificate.samples is None


def test_a_gallery_says_how_it_is_searched(turning, tmp_path):
    gallery, wrapped = make(tmp_path / "g", turning, np.array([1.0, 2.0]))
    with gallery:
        assert stored_smoothing(gallery.info.embedder) == replace(HOW, bound=wrapped.bound)
        plain = search(gallery, wrapped, pixels(0.25), 1)
        assert plain.hits[0].id == smoothed_search(gallery, wrapped, pixels(0.25), 1)[0].id
        with pytest.raises(ConfigError, match="cannot certify anything"):
            smoothed_search(gallery, wrapped, pixels(0.25), 1, how=replace(HOW, n=3))
        with pytest.raises(ConfigError, match="above 0 and below 4"):
            smoothed_search(gallery, wrapped, pixels(0.25), 1, eps=5.0)
        with pytest.raises(GalleryError, match="was made by embedder"):
            search(gallery, smoothed(turning, replace(HOW, sigma=0.5)), pixels(0.25), 1)
        with pytest.raises(ConfigError, match=r"smoothed by sigma 0\.25, not 10"):
            smoothed_search(gallery, wrapped, pixels(0.25), 1, how=replace(HOW, sigma=10))
        with pytest.raises(ConfigError, match="k is at least 1"):
            smoothed_search(gallery, wrapped, pixels(0.25), 0)
    with pytest.raises(ConfigError, match="not smoothed again"):
        smoothed(wrapped, HOW)


def test_noise_is_not_known_before_a_search_and_can_be_repeated(turning, tmp_path):
    """Who knows the noise could look for a picture on which it misleads."""
    gallery, wrapped = make(tmp_path / "g", turning, np.array([1.0, 1.4, 2.5]))
    with gallery:
        one, two = (search_with_noise(gallery, wrapped, pixels(0.26), 1) for _ in range(2))
        again = search_with_noise(gallery, wrapped, pixels(0.26), 1, seed=one.proof.seed)
    assert one.proof.seed != two.proof.seed
    assert one.hits[0].certificate.radius != two.hits[0].certificate.radius
    assert again == one


def test_a_picture_of_the_gallery_answers_with_other_samples_than_its_vector_was_made_of():
    """Or a candidate would be nearer to the query for no reason but their common noise."""
    base = Foreign(
        lambda images: torch.nn.functional.normalize(images.flatten(1), dim=1), (1, 4, 4), unit_norm=True
    )
    wrapped = smoothed(base, HOW)
    image = torch.rand(1, 4, 4)
    asked = torch.cat(list(wrapped.sample(image, 0, 8)))
    stored = torch.cat(list(wrapped.sample(image, 0, 8, purpose="gallery")))
    assert not torch.isclose(asked, stored).all(1).any()
    assert torch.allclose(wrapped.embed(image[None])[0], stored.mean(0), atol=1e-6)


def test_a_long_list_takes_little_memory(turning, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "PAIRS", 200)
    angles = np.linspace(0.0, 2.0, 60)
    gallery, wrapped = make(tmp_path / "g", turning, angles)
    with gallery:
        found = smoothed_search(gallery, wrapped, pixels(0.26), 10)
    assert len(found.hits) == 10
    start = float(pixels(0.26)[0, 0, 0] / 255 * 4)
    for entry in found.hits:
        assert entry.certificate.radius <= turns(angles, start, int(entry.id[1:]), 10)


def test_a_list_that_no_memory_holds_is_refused_before_any_sample(turning, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "MOST_LISTED", 8)
    gallery, wrapped = make(tmp_path / "g", turning, np.linspace(0.0, 1.0, 12))
    with gallery:
        assert len(smoothed_search(gallery, wrapped, pixels(0.5), 4).hits) == 4
        monkeypatch.setattr(type(wrapped), "sample", None)
        with pytest.raises(ConfigError, match="k is at most 4 in a smoothed gallery of this size, not 5"):
            smoothed_search(gallery, wrapped, pixels(0.5), 5)
