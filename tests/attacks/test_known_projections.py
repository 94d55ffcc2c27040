"""What a threat allows, by hand: images on the border, just outside, and what projection and 8 bits make of them."""

from __future__ import annotations

import pytest
import torch

from holdfast.attacks import Ball, to_bytes
from holdfast.bounds.box import PIXEL_ROUNDING
from holdfast.errors import ConfigError, HoldfastError

DARK, LIGHT = 0.02, 0.98


def ball(norm: str, eps: float, *pixels: float) -> Ball:
    return Ball(torch.tensor(pixels, dtype=torch.float64).view(1, 1, 1, -1), norm, eps)


def of(*pixels: float) -> torch.Tensor:
    return torch.tensor(pixels, dtype=torch.float64).view(1, 1, 1, -1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(
    ("pixels", "outside"), [((-0.03, LIGHT), 0.03), ((DARK, 1.04), 0.04), ((-0.01, 1.02), 0.02)]
)
def test_a_pixel_outside_the_domain_is_outside_the_threat(norm, pixels, outside):
    """However near it is to the clean one: no such image exists."""
    threat = ball(norm, 0.2, DARK, LIGHT)
    assert threat.excess(of(*pixels)).item() == pytest.approx(outside)
    with pytest.raises(HoldfastError, match="left its threat"):
        threat.check(of(*pixels))
    inside = of(0.0, 1.0)
    assert threat.excess(inside).item() <= 0
    assert threat.check(inside) is inside


def test_the_excess_is_that_of_the_norm():
    """(0.3, 0.4) away: 0.4 in linf, 0.5 in l2; rounding of a pixel is allowed, and no more."""
    moved = of(0.8, 0.1)
    assert ball("linf", 0.3, 0.5, 0.5).excess(moved).item() == pytest.approx(0.1, abs=1e-6)
    assert ball("l2", 0.3, 0.5, 0.5).excess(moved).item() == pytest.approx(0.2, abs=1e-6)
    for eps, norm in ((0.4, "linf"), (0.5, "l2")):
        assert ball(norm, eps, 0.5, 0.5).excess(moved).item() <= 0
        assert ball(norm, eps - 4 * PIXEL_ROUNDING, 0.5, 0.5).excess(moved).item() > 0


def test_what_is_not_a_number_is_refused():
    with pytest.raises(HoldfastError, match="altered image 0"):
        ball("linf", 0.3, 0.5, 0.5).check(of(0.5, torch.nan))


def test_linf_projections_by_hand():
    """Each pixel to the nearer end of its own interval, which ends at 0 and 1."""
    threat = ball("linf", 0.25, 0.125, 0.5, 0.875)
    assert threat.project(of(-1.0, -1.0, -1.0)).flatten().tolist() == [0.0, 0.25, 0.625]
    assert threat.project(of(2.0, 2.0, 2.0)).flatten().tolist() == [0.375, 0.75, 1.0]
    assert threat.project(of(0.25, 0.4375, 0.75)).flatten().tolist() == [0.25, 0.4375, 0.75]


def test_l2_projections_by_hand():
    """Straight back to the clean image, to a distance of eps; what is inside stays; pixels end at 0 and 1."""
    threat = ball("l2", 0.25, 0.5, 0.5)
    assert threat.project(of(0.5 + 0.3, 0.5 - 0.4)).flatten().tolist() == pytest.approx([0.65, 0.3])
    assert threat.project(of(0.6, 0.4)).flatten().tolist() == pytest.approx([0.6, 0.4])
    # The first pixel ends at 1, 0.15 away; the second takes what is left of the radius.
    corner = ball("l2", 0.25, 0.85, 0.5)
    assert corner.project(of(5.0, 5.0)).flatten().tolist() == pytest.approx([1.0, 0.7])
    # Both end at the border before the radius does.
    assert ball("l2", 0.9, 0.85, 0.5).project(of(5.0, 5.0)).flatten().tolist() == [1.0, 1.0]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_random_starts_fill_the_ball_and_stay_in_it(norm):
    threat = Ball(torch.full((1, 1, 6, 6), 0.5), norm, 0.3)
    sizes = []
    for seed in range(20):
        moved = (threat.random([torch.Generator().manual_seed(seed)]) - threat.clean).flatten()
        sizes.append(float(moved.abs().max() if norm == "linf" else moved.norm()))
        assert (moved > 0).any()
        assert (moved < 0).any()
        assert moved.abs().median() < 0.25, "drawn from the ball, not pushed to its border"
    assert max(sizes) <= 0.3 + 1e-6
    assert max(sizes) > 0.27
    # The step of steepest rise is one of unit size.
    step = threat.steepest(torch.tensor([3.0, -4.0]).view(1, 1, 1, 2)).flatten().tolist()
    assert step == pytest.approx([1.0, -1.0] if norm == "linf" else [0.6, -0.8])


def test_8_bit_levels_by_hand():
    """From 100.4 and 99.6 by at most 2.5 levels: 98 to 102, inwards; none is below 0 or above 255."""
    threat = ball("linf", 2.5 / 255, 100.4 / 255, 99.6 / 255, 1 / 255, 254.0 / 255)
    high, low = (to_bytes(threat, threat.project(threat.clean + way)) for way in (1, -1))
    assert high.flatten().tolist() == [102, 102, 3, 255]
    assert low.flatten().tolist() == [98, 98, 0, 252]
    near = to_bytes(threat, (of(101.4, 98.6, 0.4, 253.6)) / 255)
    assert near.flatten().tolist() == [101, 99, 0, 254]


def test_8_bit_images_of_an_l2_ball_stay_in_it():
    """By (2.6, 2.6) levels within 3.7: (3, 3) is outside of the ball, and one pixel goes back by one."""
    threat = ball("l2", 3.7 / 255, 100 / 255, 100 / 255)
    found = to_bytes(threat, of(102.6, 102.6) / 255).flatten()
    assert sorted(found.tolist()) == [102, 103]
    assert threat.excess(found.view(1, 1, 1, 2) / 255.0).item() <= 0
    with pytest.raises(ConfigError, match="no 8-bit image lies within l2"):
        to_bytes(ball("l2", 0.3 / 255, 100.5 / 255, 100 / 255), of(100.5, 100) / 255)
