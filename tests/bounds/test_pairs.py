"""The fused pair bounds against the broadcast form, in value and gradient, and against points of the box."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.bounds import Box, distance_bounds


def broadcast(box: Box, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gap = (box.centre[:, None] - vectors[None]).abs()
    return (gap + box.radius[:, None]).norm(dim=2), torch.relu(gap - box.radius[:, None]).norm(dim=2)


def sample(seed: int, b: int, n: int, d: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    centre = torch.randn(b, d, generator=g, dtype=dtype)
    radius = torch.rand(b, d, generator=g, dtype=dtype)
    return [centre, radius, torch.randn(n, d, generator=g, dtype=dtype)]


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 9999),
    b=st.integers(1, 9),
    n=st.integers(1, 11),
    d=st.integers(1, 40),
    threads=st.booleans(),
)
def test_values_and_gradients_agree_with_the_broadcast_form(seed, b, n, d, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(2 if threads else 1)
    try:
        ours, theirs = ([t.clone().requires_grad_(True) for t in sample(seed, b, n, d)] for _ in range(2))
        weights = torch.randn(2, b, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for tensors, function in ((ours, distance_bounds), (theirs, broadcast)):
            upper, lower = function(Box(tensors[0], tensors[1]), tensors[2])
            (weights[0] * upper + weights[1] * lower).sum().backward()
    finally:
        torch.set_num_threads(before)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 9999), d=st.integers(1, 12))
def test_no_point_of_the_box_is_outside_and_both_ends_are_reached(seed, d):
    centre, radius, vectors = sample(seed, 2, 5, d)
    upper, lower = distance_bounds(Box(centre, radius), vectors)
    g = torch.Generator().manual_seed(seed)
    for _ in range(20):
        z = centre + radius * (2 * torch.rand(centre.shape, generator=g, dtype=centre.dtype) - 1)
        distance = torch.cdist(z, vectors)
        assert (distance <= upper + 1e-9).all()
        assert (distance >= lower - 1e-9).all()
    for j, v in enumerate(vectors):
        far = centre + radius * torch.where(centre >= v, 1.0, -1.0)
        near = torch.minimum(torch.maximum(v, centre - radius), centre + radius)
        torch.testing.assert_close((far - v).norm(dim=1), upper[:, j])
        torch.testing.assert_close((near - v).norm(dim=1), lower[:, j])


def test_many_rows_in_threads_and_zero_distance():
    centre, radius, vectors = sample(0, 150, 130, 7, torch.float32)
    vectors[3] = centre[4]
    radius[4] = 0
    box = Box(centre.requires_grad_(True), radius)
    upper, lower = distance_bounds(box, vectors)
    want = broadcast(Box(centre.detach(), radius), vectors)
    torch.testing.assert_close(upper.detach(), want[0])
    torch.testing.assert_close(lower.detach(), want[1])
    assert upper[4, 3] == 0
    upper.sum().backward()
    assert centre.grad is not None
    assert centre.grad.isfinite().all()


def test_nan_stays_visible():
    centre, radius, vectors = sample(1, 2, 3, 4)
    radius[1, 2] = torch.nan
    upper, _ = distance_bounds(Box(centre, radius), vectors)
    assert upper[1].isnan().all()
    assert upper[0].isfinite().all()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_to_do(shape):
    upper, lower = distance_bounds(
        Box(torch.zeros(shape[0], 2), torch.zeros(shape[0], 2)), torch.zeros(shape[1], 2)
    )
    assert upper.shape == lower.shape == shape
