"""The allowed images: projections against their definition, for shapes that hypothesis chooses."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.attacks import Ball, to_bytes
from holdfast.bounds.box import PIXEL_ROUNDING
from holdfast.errors import ConfigError, HoldfastError
from holdfast.threat import Threat

balls = st.tuples(
    st.sampled_from(["linf", "l2"]),
    st.floats(0, 1),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(0, 2**31),
)


def drawn(case, off=False):
    """A ball around images with many pixels at the border, as pictures have, and a source of points."""
    norm, eps, count, side, seed = case
    source = torch.Generator().manual_seed(seed)
    clean = torch.rand((count, 1, side, side), generator=source, dtype=torch.float64) * 2 - 0.5
    return Ball(clean.clamp(0, 1), norm, eps), source


@settings(max_examples=60, deadline=None)
@given(balls)
def test_projection_is_allowed_and_the_nearest(case):
    ball, source = drawn(case)
    points = ball.clean + 2 * torch.randn(ball.clean.shape, generator=source, dtype=torch.float64)
    nearest = ball.check(ball.project(points))
    assert torch.allclose(ball.project(nearest), nearest, atol=1e-12)
    # A point of a convex set is the nearest to p iff the way on to p turns away from all of the set.
    for _ in range(5):
        sources = [torch.Generator().manual_seed(case[4] + 7 + i) for i in range(len(points))]
        other = ball.random(sources)
        turn = ((points - nearest) * (other - nearest)).flatten(1).sum(1)
        assert (turn <= 1e-6).all()
    inside = ball.project(ball.clean + 0.0)
    assert torch.equal(inside, ball.clean)


def test_l2_projection_spends_the_whole_radius_where_pixels_are_cut_off():
    clean = torch.tensor([[[[0.0, 0.5, 0.5]]]], dtype=torch.float64)
    ball = Ball(clean, "l2", 0.2)
    found = ball.project(clean + torch.tensor([-5.0, 3.0, 4.0], dtype=torch.float64))
    # The first pixel cannot go below 0: the other two share the radius 3 : 4.
    assert torch.allclose(found.flatten(), torch.tensor([0.0, 0.62, 0.66], dtype=torch.float64))
    # With a larger radius the third pixel is cut off at 1 too, and the second takes what is left.
    found = Ball(clean, "l2", 0.65).project(clean + torch.tensor([-5.0, 3.0, 4.0], dtype=torch.float64))
    left = 0.5 + math.sqrt(0.65**2 - 0.25)
    assert torch.allclose(found.flatten(), torch.tensor([0.0, left, 1.0], dtype=torch.float64))


@settings(max_examples=40, deadline=None)
@given(balls)
def test_random_starts_are_allowed_and_depend_on_their_generator_alone(case):
    ball, _ = drawn(case)

    def generators():
        return [torch.Generator().manual_seed(i) for i in range(len(ball.clean))]

    images = ball.check(ball.random(generators()))
    alone = Ball(ball.clean[-1:], ball.norm, ball.eps).random(generators()[-1:])
    assert torch.equal(images[-1:], alone)


def test_an_image_outside_is_found():
    ball = Ball(torch.full((2, 1, 2, 2), 0.5), "linf", 0.1)
    moved = ball.clean.clone()
    moved[1, 0, 0, 0] += 0.1 + 4 * PIXEL_ROUNDING
    with pytest.raises(HoldfastError, match=r"altered image 1 left its threat linf:0\.1"):
        ball.check(moved)
    moved[1, 0, 0, 0] = torch.nan
    with pytest.raises(HoldfastError, match="altered image 1"):
        ball.check(moved)
    moved[1, 0, 0, 0] = 0.5 + 0.1
    ball.check(moved)


def test_threats_that_are_none():
    images = torch.rand(1, 1, 4, 4)
    with pytest.raises(ConfigError, match="whole image domain"):
        Ball.of(Threat("l2", 4.1), images)
    with pytest.raises(ConfigError, match="needs a number for eps"):
        Ball.of(Threat("linf", None), images)
    assert Ball.of(Threat("l2", 4.0), images).eps == 4.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(0, 2**31), st.booleans())
def test_8_bit_linf_is_the_nearest_allowed_level(levels, seed, on_grid):
    source = torch.Generator().manual_seed(seed)
    clean = torch.rand((2, 1, 3, 3), generator=source)
    if on_grid:
        clean = (clean * 255).round() / 255
    eps = (levels + (0 if on_grid else 1)) / 255
    ball = Ball(clean, "linf", eps)
    images = ball.project(clean + torch.randn(clean.shape, generator=source) * eps)
    found = to_bytes(ball, images)
    ball.check(found / 255)
    # Slow reference: of all 256 levels those inside the threat, the one nearest to the image.
    every = torch.arange(256, dtype=torch.float64)
    gap = (every / 255 - clean.double()[..., None]).abs()
    far = (every / 255 - images.double()[..., None]).abs().masked_fill(gap > eps + 1e-7, torch.inf)
    assert torch.allclose(far.amin(-1), (found.double() / 255 - images.double()).abs(), atol=1e-9)


def test_8_bit_images_keep_all_of_an_8_bit_eps():
    clean = torch.tensor([0, 3, 128, 252, 255]).view(1, 1, 1, 5) / 255
    ball = Ball(clean, "linf", 8 / 255)
    assert to_bytes(ball, ball.project(clean + 1)).flatten().tolist() == [8, 11, 136, 255, 255]
    assert to_bytes(ball, ball.project(clean - 1)).flatten().tolist() == [0, 0, 120, 244, 247]


def test_no_8_bit_image_is_said():
    clean = torch.full((3, 1, 1, 2), 0.2)
    clean[2] = 10.5 / 255
    with pytest.raises(ConfigError, match=r"no 8-bit image lies within linf:0\.001 of image 2"):
        to_bytes(Ball(clean, "linf", 0.001), clean)
    with pytest.raises(ConfigError, match=r"no 8-bit image lies within l2:0.001 of image 2"):
        to_bytes(Ball(clean, "l2", 0.001), clean)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.02, 2), st.integers(0, 2**31), st.booleans())
def test_8_bit_l2_is_allowed_and_nearer_than_rounding_towards_the_clean_image(eps, seed, on_grid):
    source = torch.Generator().manual_seed(seed)
    clean = torch.rand((2, 1, 5, 5), generator=source)
    if on_grid:
        clean = (clean * 255).round() / 255
    ball = Ball(clean, "l2", eps)
    images = ball.project(clean + torch.randn(clean.shape, generator=source))
    found = to_bytes(ball, images)
    ball.check(found / 255)
    if on_grid:
        safe = torch.where(images >= clean, (255 * images).floor(), (255 * images).ceil()) / 255
        assert ((found / 255 - images).norm() <= (safe - images).norm() + 1e-6).all()
